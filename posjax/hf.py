"""Encodings as transformers spells them: `from_hf(config)` and, of rotary ones, `to_hf(encoding)`.

encoding = from_hf(json.load(open("config.json")))
encoding = from_hf({"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, ...})
config = LlamaConfig(**to_hf(encoding))
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from posjax.encoding import Encoding
from posjax.encodings.bias import T5, Alibi
from posjax.encodings.placement import Interpolate
from posjax.encodings.rotary import PRope, Rope
from posjax.encodings.rotary_grid import MRope
from posjax.encodings.scaling import Scaling
from posjax.encodings.scalings import Linear, Llama3, Yarn
from posjax.encodings.scalings_by_length import DynamicNtk, LongRope
from posjax.encodings.tables import Learned
from posjax.spec import nearest

_SHARED = {"rope_type", "type", "rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved"}
_YARN_OPTIONS = ("beta_fast", "beta_slow", "truncate", "attention_factor")
# Keys of each rope_type beside the shared ones: those it needs, those it may have.
_KEYS: dict[str, tuple[set[str], set[str]]] = {
    "default": (set(), set()),
    "linear": ({"factor"}, set()),
    "dynamic": ({"factor"}, set()),
    "yarn": (set(), {"factor", "original_max_position_embeddings", "mscale", "mscale_all_dim", *_YARN_OPTIONS}),
    "longrope": (
        {"short_factor", "long_factor"},
        {"factor", "original_max_position_embeddings", "attention_factor"},
    ),
    "llama3": ({"factor", "low_freq_factor", "high_freq_factor"}, {"original_max_position_embeddings"}),
    "proportional": (set(), {"factor"}),
}
_OLD_KEYS = {"rotary_emb_base": "rope_theta", "rotary_pct": "partial_rotary_factor"}  # of a GPT-NeoX configuration
# What in a whole configuration says that the model rotates; it may hold null.
_ROTARY_KEYS = {"rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor", "rotary_dim", *_OLD_KEYS}
_PLAIN_ROPE = {"llama", "mistral", "falcon", "gemma", "qwen2"}  # without any of these keys: rope with a base of 10,000
_OLD_TYPES = {"su": "longrope", "ntk": "dynamic"}


def from_hf(
    config: Mapping[str, Any] | None,
    *,
    rope_theta: float | None = None,
    partial_rotary_factor: float | None = None,
    max_position_embeddings: int | None = None,
    original_max_position_embeddings: int | None = None,
    layout: str = "half",
    decoder: bool | None = None,
) -> Encoding:
    """The encoding that a configuration of transformers 5 (or 4) describes.

    A whole configuration, which has a model_type, may be of a model without rotary encoding:

    - GPT-2, BERT, RoBERTa, OPT, BART, ViT and others give `learned()`. Where their tables have rows of their own: RoBERTa,
      XLM-RoBERTa and CamemBERT keep position p in row p + 2 of max_position_embeddings rows; OPT, BART and mBART in row
      p + 2 of max_position_embeddings + 2. Drop those two rows. ViT's and DeiT's rows of class tokens come first, as here.
    - BLOOM and MPT give `alibi()`. Falcon with alibi=True adds it before it scales the logits, which is
      `interpolate(factor=sqrt(head_dim)) >> alibi()`.
    - T5, mT5 and umT5 give `t5(...)`. They do not scale the logits: attend(..., scale=1). umT5 has a table for each layer,
      the others share one.

    Args:
      config: the whole configuration, as in config.json; or its `rope_parameters` alone, or the older `rope_scaling`
        (with "type" for "rope_type"), or None for plain RoPE, and then the following say what the configuration keeps
        beside them. What is in the dictionary goes before what is beside it, save the original length, as in
        transformers (Phi-3 keeps it beside).
      rope_theta: 10,000 if it is nowhere; a few classes of transformers have another default, which only they know.
      max_position_embeddings: the trained length of "dynamic"; for "yarn" and "longrope" without a factor the length
        reached, which gives the factor; for "yarn", "longrope" and "llama3" also the trained length if nothing else is.
      layout: of the model's rotary channels, which its configuration does not give: "interleaved" for GPT-J, CodeGen,
        Cohere, GLM, EXAONE and others whose code pairs neighbouring channels; "half" for Llama and most.
      decoder: of T5, whose encoder looks both ways and whose decoder does not: which of the two. Other models need it not.

    Raises:
      ValueError: for an unknown rope_type or key (the message names the nearest known one), a missing one, or
        parameters of several layer types, which are several encodings; for a model_type that is not known here and has no
        rotary key, or a model whose encoding is none of these.
    """
    beside = dict(
        rope_theta=rope_theta,
        partial_rotary_factor=partial_rotary_factor,
        max_position_embeddings=max_position_embeddings,
        original_max_position_embeddings=original_max_position_embeddings,
    )
    config = dict(config or {})
    if encoding := _without_rotary(config, decoder, rope_theta, partial_rotary_factor):
        return encoding
    if {"rope_parameters", "rope_scaling", "model_type"} & config.keys():
        beside = _beside(config, beside)
        config = dict(config.get("rope_scaling") or config.get("rope_parameters") or {})
    if nested := sorted(key for key, value in config.items() if isinstance(value, Mapping)):
        raise ValueError(
            f"these are the parameters of several layer types ({', '.join(nested)}), each of which has its own encoding: "
            f"give from_hf one of them, as in from_hf(rope_parameters[{nested[0]!r}])"
        )
    rope_type = _rope_type(config)
    _check_keys(rope_type, config)
    config = {key: value for key, value in config.items() if value is not None}
    theta = _first(config.get("rope_theta"), beside["rope_theta"], 10_000.0)
    part = _first(config.get("partial_rotary_factor"), beside["partial_rotary_factor"], 1.0)
    if rope_type == "proportional":
        scaling = Linear(config["factor"]) if config.get("factor", 1) != 1 else None
        return PRope(theta, layout, part, scaling)
    scaling = _READERS[rope_type](config, beside)
    if "mrope_section" not in config:
        return Rope(theta, layout, part, scaling)
    if part != 1:
        raise ValueError(
            f"mrope rotates whole heads, these parameters have mrope_section and partial_rotary_factor={part}"
        )
    return MRope(theta, tuple(config["mrope_section"]), bool(config.get("mrope_interleaved")), layout, scaling)


def _without_rotary(
    config: Mapping[str, Any], decoder: bool | None, rope_theta: float | None, partial_rotary_factor: float | None
) -> Encoding | None:
    """The encoding of a whole configuration whose model does not rotate; None where it does, or for rope_parameters alone."""
    model_type = config.get("model_type")
    if decoder is not None and _MODELS.get(model_type) is not _t5:
        raise ValueError(f"decoder={decoder} is for T5: {model_type!r} has one stack, or two of the same encoding")
    if model_type not in _MODELS:
        if model_type is not None and not (_ROTARY_KEYS & config.keys() or model_type in _PLAIN_ROPE or rope_theta):
            raise ValueError(_no_rotary(config))
        return None
    encoding = _MODELS[model_type](config, decoder)
    if encoding is not None and (rope_theta or partial_rotary_factor):
        raise ValueError(f"this {model_type!r} is {encoding}: rope_theta and partial_rotary_factor are none of its")
    return encoding


def _no_rotary(config: Mapping[str, Any]) -> str:
    model_type = config["model_type"]
    if parts := sorted(key for key, value in config.items() if isinstance(value, Mapping) and "model_type" in value):
        return (
            f"{model_type!r} is made of several models: give from_hf one of them, as in from_hf(config[{parts[0]!r}])"
        )
    near = nearest(model_type, sorted(_MODELS)).replace("known:", "known that do not:")
    return (
        f"the configuration of a {model_type!r} has no rotary key ({', '.join(sorted(_ROTARY_KEYS))}); if the model does "
        f"rotate, give its parameters alone: from_hf(rope_parameters); {near}"
    )


def _learned(config: Mapping[str, Any], decoder: bool | None) -> Encoding:
    kind = config.get("position_embedding_type") or "absolute"
    if kind != "absolute":
        raise ValueError(f"{config['model_type']!r} with position_embedding_type={kind!r} has no equal here")
    if config.get("sinusoidal_pos_embds"):
        raise ValueError(f"{config['model_type']!r} with sinusoidal_pos_embds=True learns no table: take sinusoidal()")
    return Learned()


def _t5(config: Mapping[str, Any], decoder: bool | None) -> Encoding:
    if decoder is None and config.get("is_encoder_decoder", True):
        raise ValueError(
            f"a {config['model_type']!r} has an encoder and a decoder, and another encoding in each: "
            "from_hf(config, decoder=True) or from_hf(config, decoder=False)"
        )
    decoder = bool(config.get("is_decoder")) if decoder is None else decoder
    sizes = (config.get(f"relative_attention_{key}") for key in ("num_buckets", "max_distance"))
    return T5(*(size or usual for size, usual in zip(sizes, (32, 128), strict=True)), bidirectional=not decoder)


def _mpt(config: Mapping[str, Any], decoder: bool | None) -> Encoding:
    attention = config.get("attn_config") or {}
    if not attention.get("alibi", True):
        raise ValueError("an 'mpt' with attn_config.alibi=False is not transformers' MPT, which has ALiBi always")
    if (steepest := attention.get("alibi_bias_max", 8)) != 8:
        raise ValueError(f"alibi() has slopes of alibi_bias_max=8, this 'mpt' those of alibi_bias_max={steepest}")
    return Alibi()


def _falcon(config: Mapping[str, Any], decoder: bool | None) -> Encoding | None:
    if not config.get("alibi"):
        return None
    width, heads = config.get("hidden_size"), _first(config.get("num_attention_heads"), config.get("n_head"))
    if not width or not heads:
        raise ValueError("a 'falcon' with alibi=True needs hidden_size and num_attention_heads, which scale its ALiBi")
    # It scales the sum of products and bias by 1/sqrt(head_dim); alibi() is added behind the scale.
    return Interpolate(math.sqrt(width // heads)) >> Alibi()


def _of_images(config: Mapping[str, Any], decoder: bool | None) -> Encoding:
    raise ValueError(
        f"a {config['model_type']!r} rotates by places in an image, which its configuration does not spell out: take "
        "dinov3() or axial_rope(...), or posjax.pretrained.load for the weights of a DINOv3"
    )


# Whole configurations of models whose encoding is not, or not always, described by rope_parameters. None: it is.
_MODELS: dict[str, Callable[[Mapping[str, Any], bool | None], Encoding | None]] = {
    **dict.fromkeys(["gpt2", "gpt_neo", "gpt_bigcode", "openai-gpt", "opt", "bart", "mbart", "vit", "deit"], _learned),
    **dict.fromkeys(["bert", "albert", "electra", "distilbert", "roberta", "xlm-roberta", "camembert"], _learned),
    **dict.fromkeys(["t5", "mt5", "umt5"], _t5),
    **dict.fromkeys(["dinov3_vit", "pixtral"], _of_images),
    "bloom": lambda config, decoder: Alibi(),
    "mpt": _mpt,
    "falcon": _falcon,
}


def _beside(config: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What a whole configuration has beside the dictionary of parameters, where the caller does not say otherwise."""
    config = {_OLD_KEYS.get(key, key): value for key, value in config.items()}
    beside = {key: config.get(key) if value is None else value for key, value in given.items()}
    if config.get("rotary_dim") and beside["partial_rotary_factor"] is None:
        raise ValueError(
            f"this configuration has a rotary_dim of {config['rotary_dim']}: give from_hf the share of the head dim that "
            "it is, partial_rotary_factor=..., and the layout, which is 'interleaved' for GPT-J and CodeGen"
        )
    return beside


def to_hf(encoding: Encoding, *, layout: str = "half") -> dict[str, Any]:
    """What to give a configuration of transformers so that its rotary is this one: `LlamaConfig(**to_hf(encoding))`.

    Args:
      layout: of the channels in the code of the model that is to be configured; transformers has no key for it.

    Returns:
      {"rope_parameters": ...}, and "max_position_embeddings" where that is part of the encoding ("dynamic").

    Raises:
      ValueError: for an encoding that no rope_parameters describe, or another layout than the model's.
    """
    if type(encoding) not in (Rope, PRope, MRope):
        raise ValueError(
            f"transformers' rope_parameters describe rope, p_rope and mrope with a scaling, not {encoding}"
        )
    if encoding.layout != layout:
        raise ValueError(
            f"{encoding} has layout={encoding.layout!r}, the model layout={layout!r}: "
            f"to_hf(..., layout={encoding.layout!r}) if its code does pair channels so"
        )
    if type(encoding) is PRope:
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


def _rope_type(config: Mapping[str, Any]) -> str:
    rope_type = _first(config.get("rope_type"), config.get("type"), "default" if "factor" not in config else None)
    rope_type = "default" if rope_type == "mrope" else rope_type  # Qwen2-VL's name, which transformers too reads so
    if rope_type is None:
        raise ValueError(f"the parameters have no rope_type; {nearest('', list(_KEYS))}")
    if rope_type not in _KEYS:
        hint = f"it was renamed {_OLD_TYPES[rope_type]!r}; " if rope_type in _OLD_TYPES else ""
        raise ValueError(f"no rope_type is named {rope_type!r}; {hint}{nearest(rope_type, list(_KEYS))}")
    return rope_type


def _check_keys(rope_type: str, config: Mapping[str, Any]) -> None:
    needed, optional = _KEYS[rope_type]
    for key in sorted(config):
        if key not in needed | optional | _SHARED:
            known = sorted(needed | optional | _SHARED - {"type"})
            raise ValueError(f"rope_type {rope_type!r} has no key {key!r}; {nearest(key, known)}")
        if isinstance(config[key], str) and key not in ("rope_type", "type"):
            raise ValueError(f"rope_type {rope_type!r}: {key} must not be text, got {config[key]!r}")
    if missing := sorted(key for key in needed if config.get(key) is None):
        raise ValueError(f"rope_type {rope_type!r} needs {', '.join(missing)}")


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _original_length(config: Mapping[str, Any], beside: Mapping[str, Any], rope_type: str) -> int:
    return _needed(
        rope_type,
        "original_max_position_embeddings",
        beside["original_max_position_embeddings"],
        config.get("original_max_position_embeddings"),
        beside["max_position_embeddings"],
    )


def _growth(config: Mapping[str, Any], beside: Mapping[str, Any], rope_type: str) -> float:
    if "factor" in config:
        return config["factor"]
    length = _needed(rope_type, "factor or max_position_embeddings", beside["max_position_embeddings"])
    return length / _original_length(config, beside, rope_type)


def _needed(rope_type: str, what: str, *values: Any) -> Any:
    value = _first(*values)
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


_READERS: dict[str, Callable[[Mapping[str, Any], Mapping[str, Any]], Scaling | None]] = {
    "default": lambda config, beside: None,
    "linear": lambda config, beside: Linear(config["factor"]),
    "dynamic": _read_dynamic,
    "yarn": _read_yarn,
    "longrope": _read_longrope,
    "llama3": _read_llama3,
}


def _written(scaling: Scaling | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rope_parameters of a scaling, and what stands beside them in the configuration."""
    match scaling:
        case None:
            return {"rope_type": "default"}, {}
        case Linear():
            return {"rope_type": "linear", "factor": scaling.factor}, {}
        case DynamicNtk():
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
    raise ValueError(f"transformers has no rope_type for the scaling {scaling!s}; {nearest('', list(_KEYS))}")


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
