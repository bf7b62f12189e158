"""Llama and the families that keep its names: models of RMS norms, gated MLPs and rotary encodings."""

from collections.abc import Sequence
from typing import Any

from posjax.encoding import Encoding
from posjax.hf import from_hf, to_hf
from posjax.models.decoder import Decoder
from posjax.pretrained.entries import Entry, dense, layered, norm
from posjax.pretrained.language.family import Config, Family, Key
from posjax.pretrained.language.parts import (
    ALL,
    BLOCK,
    LLAMA_CONSTANTS,
    LLAMA_KEYS,
    ROTARY_KEYS,
    biased,
    embedding,
    head,
    projections,
)

_LAYER = "model.layers.{l}."


def _entries(model: Decoder) -> list[Entry]:
    bias = model.block.has_mlp_bias
    layer = [
        *norm(f"{_LAYER}input_layernorm", f"{BLOCK}attention_norm", bias=False),
        *projections(model),
        *norm(f"{_LAYER}post_attention_layernorm", f"{BLOCK}mlp_norm", bias=False),
        *(entry for name in ("gate", "up", "down") for entry in _mlp(name, bias)),
    ]
    around = [*embedding("model.embed_tokens"), *norm("model.norm", "trunk/norm", bias=False), *head(model)]
    return [*around, *layered(layer, model.depth)]


def _mlp(name: str, bias: bool) -> list[Entry]:
    return dense(f"{_LAYER}mlp.{name}_proj", f"{BLOCK}mlp/{name}", bias=bias)


def _rotary(config: Config) -> tuple[Encoding, ...]:
    return (from_hf(config),)


def _written_rotary(layers: Sequence[Encoding], model: Any) -> dict[str, Any]:
    if len(set(layers)) > 1:
        raise ValueError(f"its layers have one encoding, not {', '.join(map(str, layers))}")
    return to_hf(layers[0])


LLAMA = Family(
    "LlamaForCausalLM",
    keys={
        **LLAMA_KEYS,
        "head_dim": Key("head_dim", None),
        "attention_bias": Key("attention_bias", False, *biased(*ALL)),
        "mlp_bias": Key("mlp_bias", False),
    },
    constants=LLAMA_CONSTANTS,
    entries=_entries,
    encoding=_rotary,
    written_encoding=_written_rotary,
    encoding_keys=ROTARY_KEYS,
    silent=frozenset({"attention_dropout"}),
)

FAMILIES = {"llama": LLAMA}
