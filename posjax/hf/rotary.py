"""transformers' rope_parameters of one layer type, read as a rotary encoding and written."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from posjax.encoding import Encoding
from posjax.encodings.rotary import PRope, Rope
from posjax.encodings.rotary_grid import AxialRope, MRope
from posjax.encodings.scaling import Scaling
from posjax.encodings.scalings import Linear, Llama3, Yarn
from posjax.encodings.scalings_by_length import DynamicNtk, LongRope
from posjax.hf import models
from posjax.spec import nearest

Parameters = Mapping[str, Any]
# Keys that may stand beside the parameters, in the configuration.
BESIDE = ("rope_theta", "partial_rotary_factor", "max_position_embeddings", "original_max_position_embeddings")
_SHARED = {"rope_type", "type", "rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved"}
_YARN_OPTIONS = ("beta_fast", "beta_slow", "truncate", "attention_factor")
_OLD_TYPES = {"su": "longrope", "ntk": "dynamic"}


def first(*values: Any) -> Any:
    """Returns the first value that is not None, or None."""
    return next((value for value in values if value is not None), None)


def _original_length(config: Parameters, beside: Parameters, rope_type: str) -> int:
    return _needed(
        rope_type,
        "original_max_position_embeddings",
        beside["original_max_position_embeddings"],
        config.get("original_max_position_embeddings"),
        beside["max_position_embeddings"],
    )


def _growth(config: Parameters, beside: Parameters, rope_type: str) -> float:
    if "factor" in config:
        return config["factor"]
    length = _needed(rope_type, "factor or max_position_embeddings", beside["max_position_embeddings"])
    return length / _original_length(config, beside, rope_type)


def _needed(rope_type: str, what: str, *values: Any) -> Any:
    value = first(*values)
    if value is None:
        raise ValueError(f"rope_type {rope_type!r} needs {what}: give the whole configuration, or {what}=...")
    return value


def _read_dynamic(config, beside) -> Scaling:
    length = _needed("dynamic", "max_position_embeddings", beside["max_position_embeddings"])
    return DynamicNtk(config["factor"], length)


def _read_yarn(config, beside) -> Scaling:
    options = {key: config[key] for key in _YARN_OPTIONS if key in config}
    # transformers takes 0 for "not given", and heeds the two mscales only together.
    options = {key: value for key, value in options.items() if value or key not in ("beta_fast", "beta_slow")}
    if config.get("mscale") and config.get("mscale_all_dim"):
        options |= {"mscale": config["mscale"], "mscale_all_dim": config["mscale_all_dim"]}
    return Yarn(_growth(config, beside, "yarn"), _original_length(config, beside, "yarn"), **options)


def _read_longrope(config, beside) -> Scaling:
    return LongRope(
        tuple(config["short_factor"]),
        tuple(config["long_factor"]),
        _growth(config, beside, "longrope"),
        _original_length(config, beside, "longrope"),
        config.get("attention_factor"),
    )


def _read_llama3(config, beside) -> Scaling:
    length = _original_length(config, beside, "llama3")
    return Llama3(config["factor"], length, config["low_freq_factor"], config["high_freq_factor"])


class _RopeType(NamedTuple):
    """A rope_type.

    Attributes:
      needed, optional: its keys beside the shared ones.
      read: (its parameters, the keys beside them) -> the scaling.
    """

    needed: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    read: Callable[[Parameters, Parameters], Scaling | None] = lambda config, beside: None


_FACTOR, _LENGTH = frozenset({"factor"}), frozenset({"original_max_position_embeddings"})
_TYPES: dict[str, _RopeType] = {
    "default": _RopeType(),
    "linear": _RopeType(_FACTOR, read=lambda config, beside: Linear(config["factor"])),
    "dynamic": _RopeType(_FACTOR, read=_read_dynamic),
    "yarn": _RopeType(optional=_FACTOR | _LENGTH | {"mscale", "mscale_all_dim", *_YARN_OPTIONS}, read=_read_yarn),
    "longrope": _RopeType(
        frozenset({"short_factor", "long_factor"}), _FACTOR | _LENGTH | {"attention_factor"}, _read_longrope
    ),
    "llama3": _RopeType(_FACTOR | {"low_freq_factor", "high_freq_factor"}, _LENGTH, _read_llama3),
    "proportional": _RopeType(optional=_FACTOR),
    "axial": _RopeType(),
}


def rope_type_of(config: Parameters) -> str:
    """Returns the rope_type of parameters, in either spelling.

    Raises:
      ValueError: it is unknown, or the spellings disagree.
    """
    names = [config[key] for key in ("rope_type", "type") if config.get(key) is not None]
    types = [name for name in names if name != "mrope"] or ["default"] * len(names)  # Qwen2-VL's name of its sections
    if len({_OLD_TYPES.get(name, name) for name in types}) > 1:
        raise ValueError(
            f"rope_type={names[0]!r} and type={names[1]!r}, its older name, disagree: leave out the one that is not meant"
        )
    rope_type = first(*types, "default" if "factor" not in config else None)
    if rope_type is None:
        raise ValueError(f"the parameters have no rope_type; {nearest('', list(_TYPES))}")
    if rope_type not in _TYPES:
        hint = f"it was renamed {_OLD_TYPES[rope_type]!r}; " if rope_type in _OLD_TYPES else ""
        raise ValueError(f"no rope_type is named {rope_type!r}; {hint}{nearest(rope_type, list(_TYPES))}")
    return rope_type


def read_rotary(config: Parameters, given: Parameters, layout: str, model_type: str | None = None) -> Encoding:
    """Returns the encoding of rope_parameters.

    Args:
      config: the parameters, of one layer type.
      given: values of `BESIDE`.
      layout: of the channels.
      model_type: of the model, whose class deals out the channels of an mrope_section.

    Raises:
      ValueError: a key is unknown or missing, or the model's sections are.
    """
    beside = dict.fromkeys(BESIDE) | given
    rope_type = rope_type_of(config)
    needed, optional, read_scaling = _TYPES[rope_type]
    for key in sorted(config):
        if key not in needed | optional | _SHARED:
            known = sorted(needed | optional | _SHARED - {"type"})
            raise ValueError(f"rope_type {rope_type!r} has no key {key!r}; {nearest(key, known)}")
    if missing := sorted(key for key in needed if config.get(key) is None):
        raise ValueError(f"rope_type {rope_type!r} needs {', '.join(missing)}")
    config = {key: value for key, value in config.items() if value is not None}
    theta = first(config.get("rope_theta"), beside["rope_theta"], 10_000.0)
    part = first(config.get("partial_rotary_factor"), beside["partial_rotary_factor"], 1.0)
    if rope_type == "axial":
        if part != 1 or "mrope_section" in config:
            raise ValueError(
                "rope_type 'axial' rotates whole heads: it has no partial_rotary_factor and no mrope_section"
            )
        return AxialRope(theta, layout=layout)
    if rope_type == "proportional":
        scaling = Linear(config["factor"]) if config.get("factor", 1) != 1 else None
        return PRope(theta, layout, part, scaling)
    scaling = read_scaling(config, beside)
    usual, in_turns = models.SECTIONS.get(model_type, (None, False))
    sections = first(config.get("mrope_section"), usual)
    if sections is None:
        return Rope(theta, layout, part, scaling)
    if usual is None and model_type is not None:
        raise ValueError(
            f"how a {model_type!r} deals out the channels of its mrope_section is not known here: give the rope_parameters "
            "alone, with mrope_interleaved where it does so in turns"
        )
    interleaved = config.get("mrope_interleaved", in_turns)
    if usual is not None and bool(interleaved) != in_turns:
        raise ValueError(
            f"mrope_interleaved={interleaved}, but the code of a {model_type!r} has it {in_turns} whatever its configuration "
            "says: leave the key out, or give the rope_parameters alone"
        )
    return MRope(theta, tuple(sections), bool(interleaved), layout, part, scaling)


def to_hf(encoding: Encoding, *, layout: str = "half") -> dict[str, Any]:
    """The arguments that give a configuration of transformers this rotary: `LlamaConfig(**to_hf(encoding))`.

    Args:
      layout: of the channels in the code of the model that is to be configured; transformers has no key for it.

    Returns:
      {"rope_parameters": ...}, and "max_position_embeddings" where that is part of the encoding ("dynamic").

    Raises:
      ValueError: for an encoding that no rope_parameters describe, or another layout than the model's.

    >>> to_hf(Rope(base=500_000))
    {'rope_parameters': {'rope_theta': 500000.0, 'rope_type': 'default'}}
    """
    if type(encoding) not in (Rope, PRope, MRope, AxialRope):
        raise ValueError(
            f"transformers' rope_parameters describe rope, p_rope and mrope with a scaling, and axial_rope, not {encoding}"
        )
    if encoding.layout != layout:
        raise ValueError(
            f"{encoding} has layout={encoding.layout!r}, the model layout={layout!r}: "
            f"to_hf(..., layout={encoding.layout!r}) if its code does pair channels so"
        )
    if type(encoding) is MRope and encoding.time_last:
        raise ValueError(
            f"transformers' rope_parameters deal out no channels as time_last=True does, so not as {encoding}"
        )
    if type(encoding) is AxialRope:
        if encoding != AxialRope(encoding.base, layout=layout):
            raise ValueError(
                f"rope_type 'axial' has no key for the arguments of {encoding} beside base: they lie in a model's code"
            )
        part, extra, beside = 1, {"rope_type": "axial"}, {}
    elif type(encoding) is PRope:
        if not isinstance(encoding.scaling, Linear | None):
            raise ValueError(f"transformers scales p_rope by linear(...) only, not by {encoding.scaling}")
        part, extra = encoding.proportion, {"rope_type": "proportional"}
        extra |= {} if encoding.scaling is None else {"factor": encoding.scaling.factor}
        beside = {}
    else:
        part = encoding.fraction
        extra, beside = _written(encoding.scaling)
    parameters = {"rope_theta": float(encoding.base), **extra}
    if part != 1:
        parameters["partial_rotary_factor"] = part
    if type(encoding) is MRope:
        parameters["mrope_section"] = list(encoding.sections)
        parameters |= {"mrope_interleaved": True} if encoding.interleaved else {}
    return {"rope_parameters": parameters, **beside}


def _written(scaling: Scaling | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rope_parameters of a scaling, and what stands beside them in the configuration."""
    match scaling:
        case None:
            return {"rope_type": "default"}, {}
        case Linear():
            return {"rope_type": "linear", "factor": scaling.factor}, {}
        case DynamicNtk(doubling=False):
            parameters = {"rope_type": "dynamic", "factor": scaling.factor}
            return parameters, {"max_position_embeddings": scaling.original_length}
        case Yarn():
            return _written_yarn(scaling), {}
        case LongRope(start_tokens=0):
            parameters = {key: list(getattr(scaling, key)) for key in ("short_factor", "long_factor")}
            if scaling.attention_factor is not None:
                parameters["attention_factor"] = scaling.attention_factor
            return {"rope_type": "longrope", **parameters, **_sizes(scaling)}, {}
        case Llama3():
            parameters = {key: getattr(scaling, key) for key in ("low_freq_factor", "high_freq_factor")}
            return {"rope_type": "llama3", **parameters, **_sizes(scaling)}, {}
    raise ValueError(f"transformers has no rope_type for the scaling {scaling!s}; {nearest('', list(_TYPES))}")


def _written_yarn(scaling: Yarn) -> dict[str, Any]:
    parameters = {"rope_type": "yarn", **_sizes(scaling)}
    parameters |= {key: getattr(scaling, key) for key in ("beta_fast", "beta_slow", "truncate")}
    if scaling.attention_factor is not None:
        parameters["attention_factor"] = scaling.attention_factor
    elif scaling.mscale and scaling.mscale_all_dim:
        parameters |= {"mscale": scaling.mscale, "mscale_all_dim": scaling.mscale_all_dim}
    elif (scaling.mscale, scaling.mscale_all_dim) != (1, 0):  # transformers would not heed one without the other
        parameters["attention_factor"] = scaling.attention(None, None)
    return parameters


def _sizes(scaling: Yarn | LongRope | Llama3) -> dict[str, Any]:
    return {"factor": float(scaling.factor), "original_max_position_embeddings": scaling.original_length}
