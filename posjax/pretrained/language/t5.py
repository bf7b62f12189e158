"""T5: an encoder and a decoder with unscaled logits; the layers of each stack share a table of biases."""

from typing import Any

from posjax.hf import from_hf
from posjax.models.block import GATED
from posjax.models.encoder_decoder import EncoderDecoder
from posjax.pretrained.entries import Entry, layered, norm, torch_linear
from posjax.pretrained.language.family import Config, Family, Key, named
from posjax.pretrained.language.parts import embedding, head, projections

_MLPS = {"relu": "relu", "gelu": "gelu_exact", "gated-gelu": "geglu", "gated-silu": "swiglu"}


def _stack(name: str, depth: int, model: EncoderDecoder) -> list[Entry]:
    """Returns the entries of the encoder or the decoder; only the decoder has cross-attention, before its MLPs."""
    at, block, last = f"{name}.block.{{l}}.layer.", f"{name}/block_{{l}}/", 1 + (name == "decoder")
    of_mlp = {"gate": "wi_0", "up": "wi_1"} if model.block.mlp in GATED else {"up": "wi"}
    layer = [
        *projections(model, f"{at}0.SelfAttention.", ("q", "k", "v"), "o", f"{block}attention/"),
        *norm(f"{at}0.layer_norm", f"{block}attention_norm", bias=False),
        *norm(f"{at}{last}.layer_norm", f"{block}mlp_norm", bias=False),
    ]
    for ours, theirs in {**of_mlp, "down": "wo"}.items():
        layer += torch_linear(f"{at}{last}.DenseReluDense.{theirs}", f"{block}mlp/{ours}", bias=False)
    if name == "decoder":
        layer += norm(f"{at}1.layer_norm", f"{block}cross_norm", bias=False)
        layer += [
            Entry(f"{at}1.EncDecAttention.{theirs}.weight", f"{block}cross/{ours}/kernel", "(h d) m -> m h d")
            for ours, theirs in (("query", "q"), ("key", "k"), ("value", "v"))
        ]
        layer += [Entry(f"{at}1.EncDecAttention.o.weight", f"{block}cross/out/kernel", "m (h d) -> h d m")]
    table = f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    around = [*norm(f"{name}.final_layer_norm", f"{name}/norm", bias=False)]
    return [*around, Entry(table, f"{name}/encoding/table", "b h -> b h"), *layered(layer, depth)]


def _entries(model: EncoderDecoder) -> list[Entry]:
    decoder_depth = model.depth if model.decoder_depth is None else model.decoder_depth
    stacks = _stack("encoder", model.depth, model) + _stack("decoder", decoder_depth, model)
    return [*embedding("shared"), *head(model), *stacks]


def _derived(config: Config) -> dict[str, Any]:
    """Returns the decoder's encoding, and the original T5's factor before its head.

    transformers 5 writes scale_decoder_outputs; earlier, tie_word_embeddings=False meant a model without that factor.
    """
    kind = config.get("feed_forward_proj", "relu")
    options = {
        "is_gated_act": kind.startswith("gated-"),
        "dense_act_fn": {"gated-gelu": "gelu_new"}.get(kind, kind.split("-")[-1]),
    }
    for name, value in options.items():
        if config.get(name, value) != value:
            raise ValueError(f"{name}={config[name]!r} contradicts feed_forward_proj={kind!r}, hence {value!r}")
    scaled = config.get("scale_decoder_outputs", config.get("tie_word_embeddings") is not False)
    scale = config["d_model"] ** -0.5 if scaled else 1.0
    return {"decoder_encoding": str(from_hf(config, decoder=True)), "head_scale": scale}


T5 = Family(
    "t5",
    keys={
        "vocab_size": Key("vocab_size"),
        "d_model": Key("width"),
        "d_kv": Key("head_dim", 64),
        "d_ff": Key("mlp_dim"),
        "num_layers": Key("depth"),
        "num_decoder_layers": Key("decoder_depth", None),
        "num_heads": Key("num_heads"),
        "feed_forward_proj": Key("mlp", "relu", named(_MLPS)),
        "layer_norm_epsilon": Key("norm_epsilon", 1e-6),
    },
    constants=dict(norm="rms", attention_bias=(), mlp_bias=False, logit_scale=1.0, embedding_scale=1.0),
    derived=_derived,
    derived_keys=frozenset({"tie_word_embeddings", "scale_decoder_outputs", "is_gated_act", "dense_act_fn"}),
    lines=_entries,
    encoding=lambda config: (from_hf(config, decoder=False),),
    encoding_keys=frozenset({"relative_attention_num_buckets", "relative_attention_max_distance"}),
    plain={"is_encoder_decoder": (True,), "is_decoder": (False,)},
    silent=frozenset({"dropout_rate", "n_positions", "output_past"}),
    prefix="",
    ignored=r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
    copies={f"{name}.embed_tokens.weight": "shared.weight" for name in ("encoder", "decoder")},
    by_tensors={"tied_embedding": lambda model, names: "lm_head.weight" not in names},
    model=EncoderDecoder,
)

FAMILIES = [T5]
