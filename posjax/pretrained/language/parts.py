"""The parts that tables of many families share: names of activations, keys of sizes, entries of a layer."""

from collections.abc import Callable, Sequence
from typing import Any

from posjax.pretrained.entries import Entry
from posjax.pretrained.language.family import Key, named

BLOCK = "trunk/block_{l}/"
# transformers' names of activations, for MLPs without and with a gate.
ACTIVATIONS = {
    **{"gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "gelu_fast": "gelu", "gelu_python_tanh": "gelu"},
    **{"gelu": "gelu_exact", "gelu_python": "gelu_exact", "quick_gelu": "quick_gelu", "relu": "relu"},
}
GATED = {
    **{"silu": "swiglu", "swish": "swiglu", "gelu_pytorch_tanh": "geglu", "gelu_new": "geglu", "gelu_fast": "geglu"},
    **{"gelu": "geglu_exact"},
}
ALL = ("query", "key", "value", "out")
ROTARY_KEYS = frozenset({"rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor"})
WINDOW_KEYS = frozenset({"layer_types", "sliding_window"})


def bias_switch(*projections: str) -> Callable[[Any], Any]:
    """Returns the `Key.read` of a switch that gives these attention projections a bias."""
    return named({False: (), True: tuple(sorted(projections)), None: ()})


SIZES = {
    "vocab_size": Key("vocab_size"),
    "hidden_size": Key("width"),
    "num_hidden_layers": Key("depth"),
    "num_attention_heads": Key("num_heads"),
}
# Keys of Llama's configuration that its relatives share.
LLAMA_KEYS = {
    **SIZES,
    "num_key_value_heads": Key("num_kv_heads", None),
    "intermediate_size": Key("mlp_dim"),
    "hidden_act": Key("mlp", "silu", named(GATED)),
    "rms_norm_eps": Key("norm_epsilon", 1e-6),
    "max_position_embeddings": Key("length", None),
    "tie_word_embeddings": Key("tied_embedding", False),
}
LLAMA_CONSTANTS = dict(norm="rms", embedding_scale=1.0)


def projections(
    model: Any,
    at: str = "model.layers.{l}.self_attn.",
    names: Sequence[str] = ("q_proj", "k_proj", "v_proj"),
    out: str = "o_proj",
    ours: str = BLOCK + "attention/",
) -> list[Entry]:
    """The entries of attention: queries, keys and values, in three tensors or in one; and the output."""
    counts = (model.block.num_heads // model.block.key_heads, 1, 1)
    weights = tuple(f"{at}{name}.weight" for name in names)
    entries = [
        Entry(weights, f"{ours}qkv/kernel", "(k n d) m -> m k n d", counts=counts),
        Entry(f"{at}{out}.weight", f"{ours}out/kernel", "m (h d) -> h d m"),
    ]
    if "query" in model.block.attention_bias:
        biases = tuple(f"{at}{name}.bias" for name in names)
        entries += [Entry(biases, f"{ours}qkv/bias", "(k n d) -> k n d", counts=counts)]
    if "out" in model.block.attention_bias:
        entries += [Entry(f"{at}{out}.bias", f"{ours}out/bias", "m -> m")]
    return entries


def embedding(theirs: str) -> list[Entry]:
    return [Entry(f"{theirs}.weight", "token_embedding/embedding", "v m -> v m")]


def head(model: Any, theirs: str = "lm_head") -> list[Entry]:
    """Returns the entries of an untied head."""
    return [] if model.tied_embedding else [Entry(f"{theirs}.weight", "head/kernel", "v m -> m v")]
