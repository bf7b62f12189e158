"""GPT-2, GPT-NeoX, GPT-J, BLOOM, MPT, Falcon and Phi: models of layer norms and ungated MLPs, each with its own names."""

from collections.abc import Mapping
from typing import Any

from posjax.models.decoder import Decoder
from posjax.pretrained.entries import Entry, norm, torch_linear
from posjax.pretrained.language.family import WITHOUT_EFFECT, Config, Family, Key, named
from posjax.pretrained.language.parts import (
    ACTIVATIONS,
    ALL,
    BLOCK,
    ROTARY_KEYS,
    SIZES,
    bias_switch,
    embedding,
    head,
    projections,
)
from posjax.spec import nearest

_ATTENTION = f"{BLOCK}attention/"
_CONSTANTS = dict(norm="layer", embedding_scale=1.0)
_SILENT = frozenset({"attention_dropout", "attn_pdrop", "embd_pdrop", "hidden_dropout", "resid_pdrop"})


def _packed(at: str, out: str, axes: str, *, bias: bool) -> list[Entry]:
    """Returns the entries of the output and of one matrix of query, key and value, whose rows are laid out by `axes`."""
    entries = [
        Entry(f"{at}.weight", f"{_ATTENTION}qkv/kernel", f"({axes}) m -> m k n d"),
        Entry(f"{out}.weight", f"{_ATTENTION}out/kernel", "m (h d) -> h d m"),
    ]
    if not bias:
        return entries
    return [
        *entries,
        Entry(f"{at}.bias", f"{_ATTENTION}qkv/bias", f"({axes}) -> k n d"),
        Entry(f"{out}.bias", f"{_ATTENTION}out/bias", "m -> m"),
    ]


def _mlp(at: str, up: str, down: str, *, bias: bool = True) -> list[Entry]:
    names = ((up, "up"), (down, "down"))
    return [e for theirs, ours in names for e in torch_linear(f"{at}{theirs}", f"{BLOCK}mlp/{ours}", bias=bias)]


# GPT-2: its matrices are [inputs, outputs].
_H = "transformer.h.{l}."


def _entries_of_gpt2(model: Decoder) -> list[Entry]:
    found = [
        *embedding("transformer.wte"),
        Entry("transformer.wpe.weight", "trunk/encoding/rows", "t m -> t m"),
        *norm("transformer.ln_f", "trunk/norm"),
        *head(model),
        Entry(f"{_H}attn.c_attn.weight", f"{_ATTENTION}qkv/kernel", "m (n k d) -> m k n d"),
        Entry(f"{_H}attn.c_attn.bias", f"{_ATTENTION}qkv/bias", "(n k d) -> k n d"),
        Entry(f"{_H}attn.c_proj.weight", f"{_ATTENTION}out/kernel", "(h d) m -> h d m"),
        Entry(f"{_H}attn.c_proj.bias", f"{_ATTENTION}out/bias", "m -> m"),
    ]
    for theirs, ours in (("c_fc", "up"), ("c_proj", "down")):
        found += [
            Entry(f"{_H}mlp.{theirs}.weight", f"{BLOCK}mlp/{ours}/kernel", "i o -> i o"),
            Entry(f"{_H}mlp.{theirs}.bias", f"{BLOCK}mlp/{ours}/bias", "o -> o"),
        ]
    return [*found, *norm(f"{_H}ln_1", f"{BLOCK}attention_norm"), *norm(f"{_H}ln_2", f"{BLOCK}mlp_norm")]


_GPT_KEYS = {
    "vocab_size": Key("vocab_size"),
    "n_embd": Key("width"),
    "n_layer": Key("depth"),
    "n_head": Key("num_heads"),
    "n_positions": Key("length", None),
    "n_inner": Key("mlp_dim", None),
    "activation_function": Key("mlp", "gelu_new", named(ACTIVATIONS)),
    "layer_norm_epsilon": Key("norm_epsilon", 1e-5),
}
_GPT_NAMES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
}
_SUMMARY = {f"summary_{key}" for key in ("activation", "first_dropout", "proj_to_labels", "type", "use_proj")}

_GPT2 = Family(
    "gpt2",
    keys={**_GPT_KEYS, "n_positions": Key("length"), "tie_word_embeddings": Key("tied_embedding", True)},
    constants=_CONSTANTS,
    lines=_entries_of_gpt2,
    plain={"scale_attn_by_inverse_layer_idx": (False,), "scale_attn_weights": (True,)},
    silent=_SILENT | _SUMMARY | {"reorder_and_upcast_attn", "n_ctx", "gradient_checkpointing"},
    renamed=_GPT_NAMES,
    prefix="transformer.",
    ignored=r"(.*\.)?attn\.(bias|masked_bias)",
)


def _entries_of_gptj(model: Decoder) -> list[Entry]:
    return [
        *embedding("transformer.wte"),
        *norm("transformer.ln_f", "trunk/norm"),
        *head(model),
        Entry("lm_head.bias", "head/bias", "v -> v"),
        *norm(f"{_H}ln_1", f"{BLOCK}attention_norm"),
        *projections(model, f"{_H}attn.", out="out_proj"),
        *_mlp(f"{_H}mlp.", "fc_in", "fc_out"),
    ]


_GPTJ = Family(
    "gptj",
    keys=_GPT_KEYS,
    constants={
        **_CONSTANTS,
        **dict(placement="parallel_shared", attention_bias=(), tied_embedding=False, head_bias=True),
    },
    lines=_entries_of_gptj,
    encoding_keys=frozenset({"rotary_dim"}),
    needed=frozenset({"rotary_dim"}),
    plain={"tie_word_embeddings": (False,), "rotary": (True,)},
    silent=_SILENT | _SUMMARY | {"n_ctx", "gradient_checkpointing", "scale_attn_weights"},
    renamed=_GPT_NAMES,
    prefix="transformer.",
    ignored=r".*\.attn\.(bias|masked_bias|embed_positions)",
)


def _entries_of_neox(model: Decoder) -> list[Entry]:
    at, bias = "gpt_neox.layers.{l}.", bool(model.block.attention_bias)
    return [
        *embedding("gpt_neox.embed_in"),
        *norm("gpt_neox.final_layer_norm", "trunk/norm"),
        *head(model, "embed_out"),
        *norm(f"{at}input_layernorm", f"{BLOCK}attention_norm"),
        *norm(f"{at}post_attention_layernorm", f"{BLOCK}mlp_norm"),
        *_packed(f"{at}attention.query_key_value", f"{at}attention.dense", "k n d", bias=bias),
        *_mlp(f"{at}mlp.", "dense_h_to_4h", "dense_4h_to_h"),
    ]


_GPT_NEOX = Family(
    "gpt_neox",
    keys={
        **SIZES,
        "intermediate_size": Key("mlp_dim"),
        "hidden_act": Key("mlp", "gelu", named(ACTIVATIONS)),
        "layer_norm_eps": Key("norm_epsilon", 1e-5),
        "max_position_embeddings": Key("length", None),
        "use_parallel_residual": Key("placement", True, named({True: "parallel", False: "pre"})),
        "attention_bias": Key("attention_bias", True, bias_switch(*ALL)),
        "tie_word_embeddings": Key("tied_embedding", False),
    },
    constants=_CONSTANTS,
    lines=_entries_of_neox,
    encoding_keys=ROTARY_KEYS | {"rotary_pct", "rotary_emb_base"},
    silent=_SILENT | {"is_decoder"},
    prefix="gpt_neox.",
    ignored=r".*attention\.(bias|masked_bias|rotary_emb\.inv_freq)",
    tied="embed_out.weight",
)


def _entries_of_bloom(model: Decoder) -> list[Entry]:
    return [
        *embedding("transformer.word_embeddings"),
        *norm("transformer.word_embeddings_layernorm", "trunk/embedding_norm"),
        *norm("transformer.ln_f", "trunk/norm"),
        *head(model),
        *norm(f"{_H}input_layernorm", f"{BLOCK}attention_norm"),
        *norm(f"{_H}post_attention_layernorm", f"{BLOCK}mlp_norm"),
        *_packed(f"{_H}self_attention.query_key_value", f"{_H}self_attention.dense", "k n d", bias=True),
        *_mlp(f"{_H}mlp.", "dense_h_to_4h", "dense_4h_to_h"),
    ]


_BLOOM = Family(
    "bloom",
    keys={
        "vocab_size": Key("vocab_size"),
        "hidden_size": Key("width"),
        "n_layer": Key("depth"),
        "n_head": Key("num_heads"),
        "layer_norm_epsilon": Key("norm_epsilon", 1e-5),
        "tie_word_embeddings": Key("tied_embedding", True),
    },
    constants={**_CONSTANTS, "embedding_norm": True},
    lines=_entries_of_bloom,
    plain={"apply_residual_connection_post_layernorm": (False,), "n_inner": (None,)},
    silent=_SILENT
    | {
        *("attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion", "offset_alibi", "seq_length"),
        *("skip_bias_add", "skip_bias_add_qkv", "slow_but_exact", "gradient_checkpointing"),
    },
    renamed={"n_embed": "hidden_size", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"},
    prefix="transformer.",
)


def _entries_of_mpt(model: Decoder) -> list[Entry]:
    at = "transformer.blocks.{l}."
    return [
        *embedding("transformer.wte"),
        *norm("transformer.norm_f", "trunk/norm", bias=False),
        *head(model),
        *norm(f"{at}norm_1", f"{BLOCK}attention_norm", bias=False),
        *norm(f"{at}norm_2", f"{BLOCK}mlp_norm", bias=False),
        *_packed(f"{at}attn.Wqkv", f"{at}attn.out_proj", "n k d", bias=False),
        *_mlp(f"{at}ffn.", "up_proj", "down_proj", bias=False),
    ]


# Values that keys of an attn_config must have if they are there.
_MPT_ATTENTION: dict[str, tuple[Any, ...]] = {
    "alibi": (True,),
    "attn_type": ("multihead_attention",),
    "prefix_lm": (False,),
    "qk_ln": (False,),
    "is_encoder_decoder": (False,),
    "rope": (False,),
    "sliding_window_size": (-1,),
}
_MPT_READ = {"alibi_bias_max", "clip_qkv", "softmax_scale"}
_MPT_SILENT = {"attn_impl", "attn_pdrop", "attn_uses_sequence_id"} | WITHOUT_EFFECT


def _mpt_attention(config: Config) -> dict[str, Any]:
    attention: Mapping[str, Any] = config.get("attn_config") or {}
    for name, value in attention.items():
        if name not in _MPT_ATTENTION.keys() | _MPT_READ | _MPT_SILENT and not name.startswith("_"):
            known = nearest(name, sorted(_MPT_ATTENTION.keys() | _MPT_READ))
            raise ValueError(f"attn_config.{name} (= {value!r}) is not known here and may change numbers; {known}")
        if name in _MPT_ATTENTION and value not in _MPT_ATTENTION[name]:
            raise ValueError(f"attn_config.{name}={value!r} is not computed here, only {_MPT_ATTENTION[name][0]!r}")
    return dict(qkv_clip=attention.get("clip_qkv") or None, logit_scale=attention.get("softmax_scale"))


_MPT = Family(
    "mpt",
    keys={
        "vocab_size": Key("vocab_size"),
        "d_model": Key("width"),
        "n_layers": Key("depth"),
        "n_heads": Key("num_heads"),
        "max_seq_len": Key("length", None),
        "layer_norm_epsilon": Key("norm_epsilon", 1e-5),
        "tie_word_embeddings": Key("tied_embedding", True),
    },
    constants={**_CONSTANTS, **dict(norm_bias=False, attention_bias=(), mlp="gelu_exact", mlp_bias=False)},
    lines=_entries_of_mpt,
    encoding_keys=frozenset({"attn_config"}),
    derived=_mpt_attention,
    derived_keys=frozenset({"attn_config"}),
    plain={"expansion_ratio": (4,), "logit_scale": (None,), "no_bias": (True,), "embedding_fraction": (1.0,)},
    silent=_SILENT | {"emb_pdrop", "learned_pos_emb", "norm_type", "verbose", "init_config", "tokenizer_name"},
    renamed={"hidden_size": "d_model", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"},
    prefix="transformer.",
)


# The norms of a Falcon's layer by `placement`: (name in the file, our name).
_FALCON_NORMS = {
    "parallel": {"ln_attn": "attention_norm", "ln_mlp": "mlp_norm"},
    "parallel_shared": {"input_layernorm": "attention_norm"},
    "pre": {"input_layernorm": "attention_norm", "post_attention_layernorm": "mlp_norm"},
}


def _entries_of_falcon(model: Decoder) -> list[Entry]:
    bias = model.block.has_mlp_bias
    norms = [norm(_H + theirs, BLOCK + ours) for theirs, ours in _FALCON_NORMS[model.block.placement].items()]
    return [
        *embedding("transformer.word_embeddings"),
        *norm("transformer.ln_f", "trunk/norm"),
        *head(model),
        *(entry for pair in norms for entry in pair),
        *_packed(f"{_H}self_attention.query_key_value", f"{_H}self_attention.dense", "k n d", bias=bias),
        *_mlp(f"{_H}mlp.", "dense_h_to_4h", "dense_4h_to_h", bias=bias),
    ]


def _falcon(config: Config) -> dict[str, Any]:
    """The fields that the two architectures give by several keys: norms, key heads, biases."""
    bias, heads = config.get("bias", False), config["num_attention_heads"]
    fields = dict(attention_bias=tuple(sorted(ALL)) if bias else (), mlp_bias=bias)
    if config.get("new_decoder_architecture", False):
        if not config.get("parallel_attn", True):
            raise ValueError("new_decoder_architecture is computed with parallel_attn=True only, as in transformers")
        norms = config.get("num_ln_in_parallel_attn") or 2
        kv_heads = config.get("num_kv_heads") or heads
        return fields | dict(placement="parallel" if norms == 2 else "parallel_shared", num_kv_heads=kv_heads)
    kv_heads = 1 if config.get("multi_query", True) else heads
    placement = "parallel_shared" if config.get("parallel_attn", True) else "pre"
    return fields | dict(placement=placement, num_kv_heads=kv_heads)


_FALCON = Family(
    "falcon",
    keys={
        **SIZES,
        "ffn_hidden_size": Key("mlp_dim", None),
        "activation": Key("mlp", "gelu", named(ACTIVATIONS)),
        "max_position_embeddings": Key("length", None),
        "layer_norm_epsilon": Key("norm_epsilon", 1e-5),
        "tie_word_embeddings": Key("tied_embedding", True),
    },
    constants=_CONSTANTS,
    lines=_entries_of_falcon,
    encoding_keys=ROTARY_KEYS | {"alibi"},
    derived=_falcon,
    derived_keys=frozenset(
        ["bias", "multi_query", "new_decoder_architecture", "num_kv_heads", "num_ln_in_parallel_attn", "parallel_attn"]
    ),
    plain={"apply_residual_connection_post_layernorm": (False,)},
    silent=_SILENT,
    renamed={
        **{"n_embed": "hidden_size", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers"},
        "n_head_kv": "num_kv_heads",
    },
    prefix="transformer.",
)


def _entries_of_phi(model: Decoder) -> list[Entry]:
    at = "model.layers.{l}."
    return [
        *embedding("model.embed_tokens"),
        *norm("model.final_layernorm", "trunk/norm"),
        *head(model),
        Entry("lm_head.bias", "head/bias", "v -> v"),
        *norm(f"{at}input_layernorm", f"{BLOCK}attention_norm"),
        *projections(model, out="dense"),
        *_mlp(f"{at}mlp.", "fc1", "fc2"),
    ]


_PHI = Family(
    "phi",
    keys={
        **SIZES,
        "num_key_value_heads": Key("num_kv_heads", None),
        "head_dim": Key("head_dim", None),
        "intermediate_size": Key("mlp_dim"),
        "hidden_act": Key("mlp", "gelu_new", named(ACTIVATIONS)),
        "layer_norm_eps": Key("norm_epsilon", 1e-5),
        "max_position_embeddings": Key("length", None),
    },
    constants={
        **_CONSTANTS,
        **dict(placement="parallel_shared", attention_bias=ALL, tied_embedding=False, head_bias=True),
    },
    lines=_entries_of_phi,
    encoding_keys=ROTARY_KEYS,
    plain={"tie_word_embeddings": (False,), "qk_layernorm": (False,)},
    silent=_SILENT,
)

FAMILIES = [_GPT2, _GPT_NEOX, _GPTJ, _BLOOM, _MPT, _FALCON, _PHI]
