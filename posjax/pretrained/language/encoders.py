"""BERT, RoBERTa, DeBERTa-v2 and v3, ModernBERT: bidirectional encoders with a masked-LM head."""

from collections.abc import Sequence
from typing import Any

from posjax.encoding import Encoding, parts
from posjax.encodings.disentangled import Deberta
from posjax.encodings.tables import Learned
from posjax.hf import from_hf
from posjax.models.encoder import Encoder
from posjax.pretrained.entries import Entry, heads, layered, norm, torch_linear
from posjax.pretrained.language.family import Config, Family, Key, layers_of, named
from posjax.pretrained.language.parts import ACTIVATIONS, ALL, BLOCK, GATED, SIZES, bias_switch, embedding, projections

_POST = dict(placement="post", embedding_norm=True, embedding_scale=1.0, first_norm=True, tied_embedding=True)
_DROPOUTS = frozenset({"attention_probs_dropout_prob", "hidden_dropout_prob", "gradient_checkpointing"})
_POOLERS = frozenset(
    f"pooler_{name}" for name in ("fc_size", "num_attention_heads", "num_fc_layers", "size_per_head", "type")
)
_SIZES = SIZES | {"intermediate_size": Key("mlp_dim"), "max_position_embeddings": Key("length")}
_PLAIN = {"tie_word_embeddings": (True,), "is_decoder": (False,), "position_embedding_type": ("absolute", None)}


def _post_layer(at: str, projected: Sequence[str], model: Encoder) -> list[Entry]:
    """A layer of BERT and those that keep its names; `projected` are the names of queries, keys and values."""
    own = projections(model, f"{at}attention.", tuple(f"self.{name}" for name in projected), "output.dense")
    return [
        *own,
        *norm(f"{at}attention.output.LayerNorm", f"{BLOCK}attention_norm"),
        *torch_linear(f"{at}intermediate.dense", f"{BLOCK}mlp/up"),
        *torch_linear(f"{at}output.dense", f"{BLOCK}mlp/down"),
        *norm(f"{at}output.LayerNorm", f"{BLOCK}mlp_norm"),
    ]


def _embedded(at: str, model: Encoder, table: str | None, *, skipped: int = 0) -> list[Entry]:
    """Returns the entries of BERT's embeddings; `table` is the positions' path or None, in files `skipped` rows longer."""
    found = [*embedding(f"{at}word_embeddings"), *norm(f"{at}LayerNorm", "trunk/embedding_norm")]
    if table is not None:
        found.append(Entry(f"{at}position_embeddings.weight", table, "p m -> p m", beyond=skipped))
    if model.num_types:
        found.append(Entry(f"{at}token_type_embeddings.weight", "type_embedding/embedding", "t m -> t m"))
    return found


def _masked_head(at: str, bias: str) -> list[Entry]:
    return [
        *torch_linear(f"{at}dense", "head_dense"),
        *norm(f"{at}LayerNorm", "head_norm"),
        Entry(bias, "decoder_bias", "v -> v"),
    ]


def _bert_entries(model: Encoder) -> list[Entry]:
    found = _embedded("bert.embeddings.", model, "trunk/encoding/rows")
    found += _post_layer("bert.encoder.layer.{l}.", ("query", "key", "value"), model)
    found += _masked_head("cls.predictions.transform.", "cls.predictions.bias") if model.head else []
    found += torch_linear("bert.pooler.dense", "pool") if model.pooler else []
    return found + (torch_linear("cls.seq_relationship", "pairs") if model.num_pair_classes else [])


def _head_or_none(name: str):
    """Returns the head's activation if the file has the tensor `name`."""
    return lambda model, names: model.head if name in names else None


def _head_as_mlp(config: Config) -> dict[str, Any]:
    """Returns the head's activation, which is the activation of the MLPs."""
    return {"head": named(ACTIVATIONS)(config.get("hidden_act", "gelu"))}


BERT = Family(
    "bert",
    keys={
        **_SIZES,
        "hidden_act": Key("mlp", "gelu", named(ACTIVATIONS)),
        "type_vocab_size": Key("num_types", 2),
        "layer_norm_eps": Key("norm_epsilon", 1e-12),
    },
    constants=_POST,
    derived=_head_as_mlp,
    lines=_bert_entries,
    encoding=lambda config: (from_hf(config),),
    plain=_PLAIN,
    silent=_DROPOUTS | _POOLERS | {"directionality"},
    prefix="bert.",
    tied="cls.predictions.decoder.weight",
    copies={"cls.predictions.decoder.bias": "cls.predictions.bias"},
    respelt=((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias")),
    ignored=r".*embeddings\.position_ids",
    by_tensors={
        "head": _head_or_none("cls.predictions.transform.dense.weight"),
        "pooler": lambda model, names: "bert.pooler.dense.weight" in names,
        "num_pair_classes": lambda model, names: 2 if "cls.seq_relationship.weight" in names else 0,
    },
    model=Encoder,
)

_OFFSET = 2  # RoBERTa's positions begin after the row of its padding token, which is 1


def _roberta_entries(model: Encoder) -> list[Entry]:
    found = _embedded("roberta.embeddings.", model, "trunk/encoding/rows", skipped=_OFFSET)
    found += _post_layer("roberta.encoder.layer.{l}.", ("query", "key", "value"), model)
    head = [*torch_linear("lm_head.dense", "head_dense"), *norm("lm_head.layer_norm", "head_norm")]
    found += [*head, Entry("lm_head.bias", "decoder_bias", "v -> v")] if model.head else []
    return found + (torch_linear("roberta.pooler.dense", "pool") if model.pooler else [])


ROBERTA = Family(
    "roberta",
    keys=BERT.keys | {"max_position_embeddings": Key("length", 512, lambda rows: rows and rows - _OFFSET)},
    constants=_POST,
    derived=lambda config: {"head": "gelu_exact"},  # regardless of hidden_act
    lines=_roberta_entries,
    encoding=lambda config: (from_hf(config),),
    plain=_PLAIN | {"pad_token_id": (1,)},
    silent=_DROPOUTS | _POOLERS,
    prefix="roberta.",
    tied="lm_head.decoder.weight",
    copies={"lm_head.decoder.bias": "lm_head.bias"},
    ignored=BERT.ignored,
    by_tensors={
        "head": _head_or_none("lm_head.dense.weight"),
        "pooler": lambda model, names: "roberta.pooler.dense.weight" in names,
    },
    model=Encoder,
)


def _deberta_entries(model: Encoder) -> list[Entry]:
    at, encoding = "deberta.encoder.", parts(layers_of(model)[0])
    path = {type(part): f"trunk/encoding/{i}/" for i, part in enumerate(encoding)}
    path = dict.fromkeys(path, "trunk/encoding/") if len(encoding) == 1 else path
    found = _embedded("deberta.embeddings.", model, f"{path[Learned]}rows" if Learned in path else None)
    found += _post_layer(f"{at}layer.{{l}}.", ("query_proj", "key_proj", "value_proj"), model)
    if Deberta in path:
        found += [
            Entry(f"{at}rel_embeddings.weight", f"{path[Deberta]}table", "r m -> r m"),
            Entry(f"{at}LayerNorm.weight", f"{path[Deberta]}scale", "m -> m"),
            Entry(f"{at}LayerNorm.bias", f"{path[Deberta]}shift", "m -> m"),
        ]
    if model.head:  # in two spellings
        found += _masked_head("cls.predictions.transform.", "cls.predictions.bias")
        found += _masked_head("lm_predictions.lm_head.", "lm_predictions.lm_head.bias")
    return found


def _deberta_encoding(config: Config) -> tuple[Encoding, ...]:
    if config.get("relative_attention"):
        for name, wanted in (("share_att_key", True), ("norm_rel_ebd", "layer_norm")):
            if config.get(name) != wanted:
                raise ValueError(f"{name}={config.get(name)!r} is not computed here, only {wanted!r}")
    return (from_hf(config),)


_RELATIVE = {"relative_attention", "share_att_key", "norm_rel_ebd", "position_buckets", "max_relative_positions"}
DEBERTA = Family(
    "deberta-v2",
    keys=BERT.keys
    | {
        "max_position_embeddings": Key("length", 512),
        "type_vocab_size": Key("num_types", 0),
        "layer_norm_eps": Key("norm_epsilon", 1e-7),
    },
    constants=_POST,
    derived=_head_as_mlp,
    lines=_deberta_entries,
    encoding=_deberta_encoding,
    encoding_keys=frozenset({*_RELATIVE, "pos_att_type", "position_biased_input"}),
    plain=_PLAIN | {"conv_kernel_size": (0, None), "attention_head_size": (None,), "embedding_size": (None,)},
    silent=_DROPOUTS
    | {"legacy", "conv_act", "conv_groups", "pooler_dropout", "pooler_hidden_act", "pooler_hidden_size"},
    prefix="deberta.",
    tied="cls.predictions.decoder.weight",
    copies={"cls.predictions.decoder.bias": "cls.predictions.bias"},
    ignored=r".*embeddings\.position_ids|mask_predictions\..*",  # the latter predict which tokens were replaced
    by_tensors={
        "head": lambda model, names: (
            model.head
            if {"cls.predictions.transform.dense.weight", "lm_predictions.lm_head.dense.weight"} & set(names)
            else None
        )
    },
    model=Encoder,
)


def _modern_entries(model: Encoder) -> list[Entry]:
    at, bias, mlp_bias = "model.layers.{l}.", model.block.norm_bias, model.block.has_mlp_bias
    layer = [
        *norm(f"{at}attn_norm", f"{BLOCK}attention_norm", bias=bias),
        *projections(model, f"{at}attn.", ("Wqkv",), "Wo"),
        *norm(f"{at}mlp_norm", f"{BLOCK}mlp_norm", bias=bias),
        Entry(f"{at}mlp.Wi.weight", heads(f"{BLOCK}mlp/{{}}/kernel", ("gate", "up")), "(s o) i -> i o"),
        *torch_linear(f"{at}mlp.Wo", f"{BLOCK}mlp/down", bias=mlp_bias),
    ]
    if mlp_bias:
        layer.append(Entry(f"{at}mlp.Wi.bias", heads(f"{BLOCK}mlp/{{}}/bias", ("gate", "up")), "(s o) -> o"))
    around = embedding("model.embeddings.tok_embeddings")
    around += norm("model.embeddings.norm", "trunk/embedding_norm", bias=bias)
    around += norm("model.final_norm", "trunk/norm", bias=bias)
    if model.head:
        around += torch_linear("head.dense", "head_dense", bias=model.head_dense_bias) + norm(
            "head.norm", "head_norm", bias=bias
        )
        around += [Entry("decoder.bias", "decoder_bias", "v -> v")] if model.head_bias else []
    return around + [e for e in layered(layer, model.depth) if not e.names[0].startswith("model.layers.0.attn_norm")]


_MODERN_SILENT = """
attention_dropout classifier_pooling cls_token_id deterministic_flash_attn embedding_dropout initializer_cutoff_factor
layer_norm_eps mlp_dropout position_embedding_type reference_compile repad_logits_with_grad sparse_pred_ignore_index
sparse_prediction
"""
MODERN = Family(
    "modernbert",
    keys=_SIZES
    | {
        "max_position_embeddings": Key("length", None),
        "hidden_activation": Key("mlp", "gelu", named(GATED)),
        "norm_eps": Key("norm_epsilon", 1e-5),
        "norm_bias": Key("norm_bias", False),
        "attention_bias": Key("attention_bias", False, bias_switch(*ALL)),
        "mlp_bias": Key("mlp_bias", False),
        "classifier_activation": Key("head", "gelu", named(ACTIVATIONS)),
        "classifier_bias": Key("head_dense_bias", False),
        "decoder_bias": Key("head_bias", True),
    },
    constants=dict(placement="pre", embedding_norm=True, embedding_scale=1.0, first_norm=False, tied_embedding=True),
    lines=_modern_entries,
    encoding_keys=frozenset(
        {"layer_types", "local_attention", "global_attn_every_n_layers", "global_rope_theta", "local_rope_theta"}
        | {"rope_parameters", "rope_scaling"}
    ),
    plain={"tie_word_embeddings": (True,)},
    silent=_DROPOUTS | frozenset(_MODERN_SILENT.split()),
    tied="decoder.weight",
    by_tensors={"head": _head_or_none("head.dense.weight")},
    model=Encoder,
)

FAMILIES = [BERT, ROBERTA, DEBERTA, MODERN]
