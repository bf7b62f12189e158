"""Writes the encodings of a model's layers as keys of a configuration: the inverse of `posjax.hf.from_hf_layers`."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from posjax.encoding import Encoding, parts
from posjax.encodings import none
from posjax.encodings.masks import Chunked, Window
from posjax.encodings.temperature import LearnedSink, Llama4Temperature
from posjax.hf import to_hf
from posjax.hf.models import INTERLEAVED

ROTARY_KEYS = frozenset({"rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor"})
WINDOW_KEYS = frozenset({"layer_types", "sliding_window"})


class _Layer(NamedTuple):
    """The parts of a layer's encoding; None for absent parts."""

    rotary: Encoding | None = None
    window: Window | None = None
    chunked: Chunked | None = None
    sink: LearnedSink | None = None
    temperature: Llama4Temperature | None = None

    @property
    def kind(self) -> str:
        return "sliding_attention" if self.window else "chunked_attention" if self.chunked else "full_attention"


_FIELDS = {Window: "window", Chunked: "chunked", LearnedSink: "sink", Llama4Temperature: "temperature"}


def written_patterns(model_type: str, *, nested: bool = False) -> Callable[[Sequence[Encoding], Any], dict[str, Any]]:
    """Returns a `Family.written_encoding` for families whose layers may have windows, chunks, no rotary encoding ...

    It writes all keys that any family has, and a `Family` then reads them again: an encoding without keys comes back as
    another one and is refused.

    Args:
      model_type: the family's name.
      nested: whether each layer type has its own rope_parameters even if they are equal.
    """
    layout = "interleaved" if model_type in INTERLEAVED else "half"

    def written(layers: Sequence[Encoding], model: Any) -> dict[str, Any]:
        each = [_layer(encoding) for encoding in layers]
        window = _one("window", [layer.window for layer in each])
        chunked = _one("chunked", [layer.chunked for layer in each])
        temperature = _one("llama4_temperature", [layer.temperature for layer in each])
        config: dict[str, Any] = {
            "layer_types": [layer.kind for layer in each],
            "no_rope_layers": [int(layer.rotary is not None) for layer in each],
            "sliding_window": window and window.size,
            "use_sliding_window": window is not None,
            "attention_chunk_size": chunked and chunked.size,
            "attn_temperature_tuning": temperature is not None,
        }
        if temperature is not None:
            config |= dict(attn_scale=temperature.attn_scale, floor_scale=temperature.floor_scale)
        return config | _rotary_keys(each, layout, nested)

    return written


def _layer(encoding: Encoding) -> _Layer:
    found: dict[str, Encoding] = {}
    for part in parts(encoding):
        name = _FIELDS.get(type(part), "rotary")
        if part == none():
            continue
        if name in found:
            raise ValueError(f"{encoding} has {found[name]} and {part}, of which transformers has one")
        found[name] = part
    return _Layer(**found)


def _one(name: str, values: Sequence[Any]) -> Any:
    """Returns the value that all layers with this part share; None if no layer has it."""
    values = list(dict.fromkeys(value for value in values if value is not None))
    if len(values) > 1:
        raise ValueError(f"layers have several {name}, {', '.join(map(str, values))}: transformers has one for all")
    return values[0] if values else None


def _rotary_keys(layers: Sequence[_Layer], layout: str, nested: bool) -> dict[str, Any]:
    kinds = list(dict.fromkeys(layer.kind for layer in layers))
    of_kind = {kind: _one("rotary encodings", [x.rotary for x in layers if x.kind == kind]) for kind in kinds}
    configurations = {kind: to_hf(rotary, layout=layout) for kind, rotary in of_kind.items() if rotary is not None}
    if not configurations:
        return {}
    beside = next(iter(configurations.values()))
    if nested or len({str(keys) for keys in configurations.values()}) > 1:
        return beside | {"rope_parameters": {kind: keys["rope_parameters"] for kind, keys in configurations.items()}}
    return beside
