"""Encodings as transformers spells them: `from_hf(config)`, `from_hf_layers(config)` and, of rotary ones, `to_hf(encoding)`.

encoding = from_hf(json.load(open("config.json")))
encoding = from_hf({"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, ...})
layers = from_hf_layers(json.load(open("config.json")))
config = LlamaConfig(**to_hf(encoding))
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from posjax.checks import GROUP, check, maybe
from posjax.encoding import Encoding
from posjax.encodings import none
from posjax.encodings.bias import Alibi
from posjax.encodings.masks import Chunked, Window
from posjax.encodings.rotary import PRope, Rope
from posjax.encodings.rotary_grid import AxialRope, MRope
from posjax.encodings.scaling import Scaling
from posjax.encodings.scalings import Linear, Llama3, Yarn
from posjax.encodings.scalings_by_length import DynamicNtk, LongRope
from posjax.encodings.views import DualChunk
from posjax.hf import models
from posjax.hf.kinds import KINDS, ROPE_KINDS
from posjax.spec import nearest

_SHARED = {"rope_type", "type", "rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved"}
_YARN_OPTIONS = ("beta_fast", "beta_slow", "truncate", "attention_factor")
# Keys of each rope_type beside the shared ones: needed keys, then optional keys.
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
    "axial": (set(), set()),
}
_OLD_KEYS = {"rotary_emb_base": "rope_theta", "rotary_pct": "partial_rotary_factor"}  # of a GPT-NeoX configuration
# Keys of a whole configuration that say that the model rotates; they may hold null.
_ROTARY_KEYS = {
    *("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor", "rotary_dim", *_OLD_KEYS),
    *("global_rope_theta", "local_rope_theta", "rope_local_base_freq"),
}
_PLAIN_ROPE = {"llama", "mistral", "falcon", "gemma", "qwen2"}  # without any of these keys: rope with a base of 10,000
_OLD_TYPES = {"su": "longrope", "ntk": "dynamic"}
_OFF = (None, False, 0, -1, "", [], {})  # values by which a key asks for nothing
_CHUNKS = ("chunk_size", "local_size")  # of a dual_chunk_attention_config
_NO_ATTENTION = {"linear_attention", "conv", "mamba", "recurrent"}  # layer types that have no positions to encode


def from_hf(
    config: Mapping[str, Any] | None,
    *,
    rope_theta: float | None = None,
    partial_rotary_factor: float | None = None,
    max_position_embeddings: int | None = None,
    original_max_position_embeddings: int | None = None,
    layout: str | None = None,
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
    - DeBERTa-v2 and v3 give `deberta(shared=True, ...)`, and a learned table beside it where position_biased_input is true.
    - ESM rotates or gives `learned()`, and any model with position_embedding_type="alibi" gives `alibi()`, as its
      position_embedding_type says.
    - Qwen 1 gives `rope(scaling=dynamic_ntk(factor=2, ..., doubling=True)) + log_n(...)`; a dual_chunk_attention_config puts
      `dual_chunk(...) >>` before.
    - Vision towers of rope_type "axial" give `axial_rope(...)`, as their model_type pairs channels.

    It may also have layers that differ (windows, layers without rotary encoding, two bases): where all layers of attention
    have one encoding, that is returned, with its window; where they do not, `from_hf_layers` reads them.

    Args:
      config: the whole configuration, as in config.json; or its `rope_parameters` alone, or the older `rope_scaling`
        (with "type" for "rope_type"), or None for plain RoPE, and then the following say what the configuration keeps
        beside them. Keys in the dictionary go before keys beside it, save the original length, as in
        transformers (Phi-3 keeps it beside).
      rope_theta: 10,000 if it is nowhere, or what the class of the configuration's model_type takes.
      max_position_embeddings: the trained length of "dynamic"; for "yarn" and "longrope" without a factor the length
        reached, which gives the factor; for "yarn", "longrope" and "llama3" also the trained length if nothing else is.
      layout: of the model's rotary channels, which its configuration does not give: by default "interleaved" for the
        model_types in `posjax.hf.models.INTERLEAVED` (GPT-J, Cohere, GLM and others whose code pairs neighbouring channels)
        and "half" for all others, as Llama.
      decoder: of T5, whose encoder looks both ways and whose decoder does not: which of the two. Other models need it not.

    Raises:
      ValueError: for an unknown rope_type or key (the message names the nearest known one), a missing one, or
        parameters of several layer types, which are several encodings; for a model_type that is not known here and has no
        rotary key, or a model whose encoding is none of these; for a key of a whole configuration that speaks of positions
        or masks (`posjax.hf.models.SPEAKS`) and is not read; for rope_parameters beside a rope_scaling, or a rope_type
        beside a type, that disagree.
    """
    given = dict(
        rope_theta=rope_theta,
        partial_rotary_factor=partial_rotary_factor,
        max_position_embeddings=max_position_embeddings,
        original_max_position_embeddings=original_max_position_embeddings,
    )
    config = dict(config or {})
    _check_kinds(config)
    base = _without_rotary(config, decoder, rope_theta, partial_rotary_factor)
    _refuse_unread(config, rotates=base is None)
    if base and not _varies(config):
        return base
    if not {"rope_parameters", "rope_scaling", "model_type"} & config.keys():
        if nested := _nested(config):
            raise ValueError(
                f"these are the parameters of several layer types ({', '.join(nested)}), each of which has its own "
                f"encoding: give from_hf one of them, as in from_hf(rope_parameters[{nested[0]!r}]), or the whole "
                "configuration to from_hf_layers"
            )
        return _rotary(config, given, layout or "half")
    if not _varies(config):
        return _of_kind(config, given, layout, "full_attention")
    layers = [each for each in _each_layer(config, given, layout, base) if each is not None]
    if len({*layers}) != 1:
        names = ", ".join(dict.fromkeys(map(str, layers))) or "none of them attention"
        raise ValueError(
            f"the layers of this configuration have encodings of their own ({names}): from_hf_layers(config) gives one for "
            "each layer"
        )
    return layers[0]


def from_hf_layers(
    config: Mapping[str, Any], *, layout: str | None = None, decoder: bool | None = None
) -> tuple[Encoding, ...]:
    """The encoding of each layer of a whole configuration: windows, chunks, layers without rotary, bases, sinks among them.

        Decoder(..., depth=len(layers), encoding=from_hf_layers(json.load(open("config.json"))))

    Read are layer_types, rope_parameters of layer types, sliding_window and its patterns, no_rope_layers and what the
    class of a model_type adds (`posjax.hf.models.LAYERS`): Cohere 2's layers of full attention do not rotate, Llama 4's
    have a temperature, gpt-oss has a `learned_sink`. A window counts a causal query's own key; ModernBERT's is as many keys
    to either side.

    Args:
      layout, decoder: as in `from_hf`.

    Raises:
      ValueError: as `from_hf`; without a number of layers; for a layer type that is no attention.
    """
    config = dict(config)
    _check_kinds(config)
    count = _num_layers(config)
    base = _without_rotary(config, decoder, None, None)
    _refuse_unread(config, rotates=base is None)
    layers = _each_layer(config, {}, layout, base)
    if None in layers:
        layer = layers.index(None)
        raise ValueError(
            f"layer {layer} is {_kinds(config, count)[layer]!r}, which is no attention and has no encoding: from_hf(config) "
            "gives that of the layers of attention"
        )
    return tuple(layers)


def _check_kinds(config: Mapping[str, Any]) -> None:
    """Refuses keys of another type than they have, or out of range.

    Raises:
      ValueError: names the key.
    """
    whole = {"rope_parameters", "rope_scaling", "model_type"} & config.keys()
    check("the configuration", config, KINDS)
    check("attn_config", config.get("attn_config") or {}, KINDS)
    for name in ("rope_parameters", "rope_scaling"):
        _check_rope_kinds(name, config.get(name) or {})
    if not whole:
        _check_rope_kinds("rope_parameters", config)


def _check_rope_kinds(where: str, parameters: Mapping[str, Any]) -> None:
    """The keys of rope_parameters, and of the dictionaries nested in it by layer type."""
    check(where, parameters, ROPE_KINDS)
    nested = {name: value for name, value in parameters.items() if name not in ROPE_KINDS}
    if any(map(GROUP.holds, nested.values())):
        check(where, nested, dict.fromkeys(nested, maybe(GROUP)))
        for name, value in nested.items():
            check(f"{where}.{name}", value or {}, ROPE_KINDS)


def _rotary(
    config: Mapping[str, Any], given: Mapping[str, Any], layout: str, model_type: str | None = None
) -> Encoding:
    """The encoding of rope_parameters, which are of one layer type."""
    beside = dict.fromkeys(
        ("rope_theta", "partial_rotary_factor", "max_position_embeddings", "original_max_position_embeddings")
    )
    beside |= given
    rope_type = _rope_type(config)
    _check_keys(rope_type, config)
    config = {key: value for key, value in config.items() if value is not None}
    theta = _first(config.get("rope_theta"), beside["rope_theta"], 10_000.0)
    part = _first(config.get("partial_rotary_factor"), beside["partial_rotary_factor"], 1.0)
    if rope_type == "axial":
        if part != 1 or "mrope_section" in config:
            raise ValueError(
                "rope_type 'axial' rotates whole heads: it has no partial_rotary_factor and no mrope_section"
            )
        return AxialRope(theta, layout=layout)
    if rope_type == "proportional":
        scaling = Linear(config["factor"]) if config.get("factor", 1) != 1 else None
        return PRope(theta, layout, part, scaling)
    scaling = _READERS[rope_type](config, beside)
    usual, in_turns = models.SECTIONS.get(model_type, (None, False))
    sections = _first(config.get("mrope_section"), usual)
    if sections is None:
        return Rope(theta, layout, part, scaling)
    if usual is None and model_type is not None:
        raise ValueError(
            f"how a {model_type!r} deals out the channels of its mrope_section is not known here: give the rope_parameters "
            "alone, with mrope_interleaved where it does so in turns"
        )
    told = config.get("mrope_interleaved", in_turns)
    if usual is not None and bool(told) != in_turns:
        raise ValueError(
            f"mrope_interleaved={told}, but the code of a {model_type!r} has it {in_turns} whatever its configuration says: "
            "leave the key out, or give the rope_parameters alone"
        )
    return MRope(theta, tuple(sections), bool(told), layout, part, scaling)


def _of_kind(config: Mapping[str, Any], given: Mapping[str, Any], layout: str | None, kind: str) -> Encoding:
    """The rotary encoding that a whole configuration has for a layer type; `none` where that type does not rotate."""
    model_type = config.get("model_type")
    if model_type in models.ALONE:
        raise ValueError(f"a {model_type!r} is not read: {models.ALONE[model_type]}; its rope_parameters alone are")
    beside = _beside(config, given)
    parameters = _parameters(config) or models.PARAMETERS.get(model_type, {})
    if nested := _nested(parameters):
        if kind not in parameters:
            raise ValueError(
                f"rope_parameters have no {kind!r}, which layers of this model are; {nearest(kind, nested)}"
            )
        if stray := sorted(parameters.keys() - set(nested)):
            raise ValueError(
                f"rope_parameters of layer types have {', '.join(stray)} beside them: move it into each type"
            )
        if parameters[kind] is None:
            return none()
        parameters = parameters[kind]
    elif model_type in models.BASES:
        bases, scaled = models.BASES[model_type]
        key, usual = bases[kind]
        beside["rope_theta"] = _first(given.get("rope_theta"), config.get(key), usual)
        parameters = parameters if kind in scaled else {}
    if layout is None:
        interleaved = _first(config.get("rope_interleave"), model_type in models.INTERLEAVED)
        layout = "interleaved" if interleaved else "half"
    if model_type in models.AXIAL:
        return _axial(model_type, parameters, beside, layout)
    encoding = _rotary(parameters, beside, layout, model_type)
    if model_type == "qwen" and config.get("use_dynamic_ntk", True):
        if encoding.scaling is not None:
            raise ValueError(f"a 'qwen' with use_dynamic_ntk has no other scaling, got {encoding}")
        encoding = replace(encoding, scaling=DynamicNtk(2, models.qwen_length(config), doubling=True))
    return _in_chunks(config.get("dual_chunk_attention_config") or {}, encoding)


def _parameters(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rope_parameters of a whole configuration, or its rope_scaling, the older spelling.

    Raises:
      ValueError: for both, where they disagree.
    """
    old, new = config.get("rope_scaling") or {}, config.get("rope_parameters") or {}
    if not (old and new):
        return new or old
    if _nested(new):
        raise ValueError(
            "there are rope_parameters of layer types and a rope_scaling, which is the older spelling: leave it out"
        )
    told = {name: value for name, value in old.items() if value is not None and name != "type"}
    told |= {"rope_type": _rope_type(old)} if {"type", "rope_type"} & old.keys() else {}
    if any(new.get(name) != value for name, value in told.items()):
        raise ValueError(
            f"there are rope_parameters and a rope_scaling, the older spelling, which disagree: leave rope_scaling out, and, "
            f"if it is meant, give rope_parameters={ {**new, **told} }"
        )
    return new


def _in_chunks(chunks: Mapping[str, Any], encoding: Encoding) -> Encoding:
    """An encoding under a dual_chunk_attention_config, as vLLM reads it: its queries stop a place behind the paper's."""
    if not chunks:
        return encoding
    if unread := sorted(name for name, value in chunks.items() if name not in _CHUNKS and value not in _OFF):
        raise ValueError(
            f"{unread[0]} of dual_chunk_attention_config (= {repr(chunks[unread[0]])[:60]}) has no equal here: leave it out "
            "for what is computed without it (original_max_position_embeddings scales queries of longer texts only)"
        )
    if missing := [name for name in _CHUNKS if name not in chunks]:
        raise ValueError(f"dual_chunk_attention_config lacks {missing[0]}")
    chunk, local = (chunks[name] for name in _CHUNKS)
    return DualChunk(chunk - local, local + 1) >> encoding


def _axial(model_type: str, parameters: Mapping[str, Any], beside: Mapping[str, Any], layout: str) -> Encoding:
    """The encoding of a vision tower, whose class takes "default" for "axial", too."""
    arguments = models.AXIAL[model_type]
    if arguments is None:
        raise ValueError(f"a {model_type!r} lays out the channels of its axes as no axial_rope(...) does")
    if _rope_type(parameters) not in ("axial", "default"):
        raise ValueError(f"a {model_type!r} rotates by rope_type 'axial', got {_rope_type(parameters)!r}")
    arguments = {"base": 10_000.0, "layout": layout} | arguments
    plain = _rotary({**parameters, "rope_type": "axial"}, beside, layout)
    told = _first(parameters.get("rope_theta"), beside["rope_theta"])
    return AxialRope(**arguments | ({} if told is None else {"base": plain.base}))


def _nested(parameters: Mapping[str, Any]) -> list[str]:
    """The layer types that rope_parameters are nested under; null stands for a type without rotary encoding."""
    kinds = sorted(key for key, value in parameters.items() if isinstance(value, Mapping))
    return sorted(key for key in parameters if key in kinds or key.endswith("_attention")) if kinds else []


def _varies(config: Mapping[str, Any]) -> bool:
    """Whether a whole configuration says, or its model_type does, that layers differ or have windows."""
    nested = _nested(_parameters(config))
    keys = ("layer_types", "sliding_window", "no_rope_layers", "attention_chunk_size")
    return bool(nested) or config.get("model_type") in models.LAYERS or any(config.get(key) for key in keys)


def _num_layers(config: Mapping[str, Any]) -> int:
    names = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    listed = config.get("layer_types")
    count = _first(*(config.get(name) for name in names), None if listed is None else len(listed))
    if count is None:
        raise ValueError(
            f"the layers of this model differ, and its configuration does not say how many there are ({names[0]})"
        )
    return count


def _kinds(config: Mapping[str, Any], count: int) -> list[str]:
    """The type of each layer."""
    model_type, listed = config.get("model_type"), config.get("layer_types")
    rule = models.LAYERS.get(model_type)
    if listed is not None and rule is not None and not rule.listed:
        raise ValueError(f"a {model_type!r} has one window for all layers and does not heed layer_types")
    if listed is not None:
        if len(listed) != count:
            raise ValueError(f"layer_types are {len(listed)}, the layers {count}")
        return list(listed)
    if rule is not None:
        return [rule.kind(config, layer) for layer in range(count)]
    if window := config.get("sliding_window"):
        raise ValueError(
            f"which layers of a {model_type!r} have its sliding_window={window} is not known here: give layer_types, or "
            "leave sliding_window out and add window(...) yourself"
        )
    return ["full_attention"] * count


def _each_layer(
    config: Mapping[str, Any], given: Mapping[str, Any], layout: str | None, base: Encoding | None
) -> list[Encoding | None]:
    """The encoding of each layer, `base` or a rotary one among it; None for a layer that is no attention."""
    rule = models.LAYERS.get(config.get("model_type"), models.Layers(lambda config, layer: "full_attention"))
    layers = []
    for layer, kind in enumerate(_kinds(config, _num_layers(config))):
        if kind in _NO_ATTENTION:
            layers.append(None)
            continue
        masks, rotates = _masks(config, kind, rule), rule.rotates(config, layer, kind)
        encoding = base or (_of_kind(config, given, layout, kind) if rotates else none())
        for more in [*masks, *rule.more(config, encoding != none())]:
            encoding = more if encoding == none() else encoding + more
        layers.append(encoding)
    return layers


def _masks(config: Mapping[str, Any], kind: str, rule: "models.Layers") -> list[Encoding]:
    if kind == "full_attention":
        return []
    if kind == "sliding_attention":
        if not (window := rule.window(config)):
            raise ValueError(
                "layers of 'sliding_attention' need a sliding_window (and use_sliding_window, where there is one)"
            )
        return [Window(window)]
    if kind == "chunked_attention":
        size = config.get("attention_chunk_size", 8192)
        return [] if size is None else [Chunked(size)]
    known = ["full_attention", "sliding_attention", "chunked_attention", *sorted(_NO_ATTENTION)]
    raise ValueError(f"no layer type is named {kind!r}; {nearest(kind, known)}")


def _refuse_unread(config: Mapping[str, Any], *, rotates: bool) -> None:
    """Refuses keys of a whole configuration that speak of positions or masks and are not read.

    Args:
      rotates: whether the model has a rotary encoding; keys of one are not read of others.
    """
    model_type = config.get("model_type")
    if not {"rope_parameters", "rope_scaling", "model_type"} & config.keys():
        return
    groups = {f"attn_config.{name}": value for name, value in (config.get("attn_config") or {}).items()}
    for key, value in sorted((groups | dict(config)).items()):
        rotary = "rope" in key or "rotary" in key
        if value is None or not models.SPEAKS.search(key) or key.startswith("_"):
            continue
        if value in _OFF and not (rotary and rotates):
            continue
        may_rotate = rotates or model_type in models.MAY_ROTATE or config.get("position_embedding_type") == "alibi"
        read = key in models.READ and (may_rotate or not rotary)
        chunked = key == "attention_chunk_size" and "chunked_attention" in (config.get("layer_types") or ())
        owners = models.READ_BY.get(key, ())
        if not (read or chunked or model_type in owners):
            known = "".join(f"; did you mean {name!r}?" for name in get_close_matches(key, models.READ - {key}, 1, 0.8))
            known = f"; it is read of {', '.join(sorted(owners))} only" if owners else known
            raise ValueError(
                f"from_hf does not know the key {key!r} (= {repr(value)[:60]}) of a {model_type!r}, which may change where "
                "tokens stand or which tokens are seen: leave it out if it does not, or give the rope_parameters alone"
                f"{known}"
            )


def _without_rotary(
    config: Mapping[str, Any], decoder: bool | None, rope_theta: float | None, partial_rotary_factor: float | None
) -> Encoding | None:
    """The encoding of a whole configuration whose model does not rotate; None where it does, or for rope_parameters alone."""
    model_type, kind = config.get("model_type"), config.get("position_embedding_type")
    if decoder is not None and models.OTHERS.get(model_type) is not models.t5:
        raise ValueError(f"decoder={decoder} is for T5: {model_type!r} has one stack, or two of the same encoding")
    rotates = kind in ("rope", "rotary") and model_type not in models.OTHERS
    unheeded = (model_type, kind) == ("modernbert", "absolute")
    if kind == "alibi":
        encoding = Alibi()
    elif kind is None or rotates or unheeded or models.OTHERS.get(model_type) is models.learned:
        encoding = models.OTHERS[model_type](config, decoder) if model_type in models.OTHERS else None
    else:
        raise ValueError(
            f"position_embedding_type={kind!r} of a {model_type!r} is not known here: leave it out if its code does not heed "
            "it, or give the rope_parameters alone"
        )
    if model_type not in models.OTHERS and encoding is None:
        known = model_type in _PLAIN_ROPE or model_type in models.AXIAL or model_type in models.LAYERS
        if model_type is not None and not (_ROTARY_KEYS & config.keys() or known or rope_theta):
            raise ValueError(_no_rotary(config))
        return None
    if encoding is not None and (rope_theta or partial_rotary_factor):
        raise ValueError(f"this {model_type!r} is {encoding}: rope_theta and partial_rotary_factor are none of its")
    return encoding


def _no_rotary(config: Mapping[str, Any]) -> str:
    model_type = config["model_type"]
    if parts := sorted(key for key, value in config.items() if isinstance(value, Mapping) and "model_type" in value):
        return (
            f"{model_type!r} is made of several models: give from_hf one of them, as in from_hf(config[{parts[0]!r}])"
        )
    near = nearest(model_type, sorted(models.OTHERS)).replace("known:", "known that do not:")
    return (
        f"the configuration of a {model_type!r} has no rotary key ({', '.join(sorted(_ROTARY_KEYS))}); if the model does "
        f"rotate, give its parameters alone: from_hf(rope_parameters); {near}"
    )


def _beside(config: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a whole configuration beside the dictionary of parameters; the caller's values go before."""
    config = {_OLD_KEYS.get(key, key): value for key, value in config.items()}
    usual = models.DEFAULTS.get(config.get("model_type"), {})
    names = ("rope_theta", "partial_rotary_factor", "max_position_embeddings", "original_max_position_embeddings")
    beside = {name: _first(given.get(name), config.get(name), usual.get(name)) for name in names}
    if beside["partial_rotary_factor"] is None:
        beside["partial_rotary_factor"] = _rotary_share(config)
    return beside


def _rotary_share(config: Mapping[str, Any]) -> float | None:
    """The share of the head dim that a rotary_dim is."""
    model_type = config.get("model_type")
    rotary_dim = config.get("rotary_dim", 64 if model_type in ("gptj", "codegen") else None)
    if rotary_dim is not None and model_type is not None and model_type not in models.ROTARY_DIM:
        raise ValueError(
            f"what the rotary_dim={rotary_dim} of a {model_type!r} says is not known here: leave it out, or "
            "give partial_rotary_factor=..."
        )
    if rotary_dim is None:
        if model_type in ("gptj", "codegen"):
            raise ValueError(
                f"a {config['model_type']!r} with rotary_dim=null rotates nothing that fits a head: give rotary_dim"
            )
        return None
    width, heads = (_first(config.get(name), config.get(old)) for name, old in _SIZES)
    head_dim = _first(config.get("head_dim"), width // heads if width and heads else None)
    if head_dim is None:
        raise ValueError(
            f"this configuration has a rotary_dim of {rotary_dim} and no head_dim, or hidden_size and num_attention_heads, "
            "of which that is a share: give from_hf partial_rotary_factor=..."
        )
    share = rotary_dim / head_dim
    # `rope` rounds its share of the head dim down: a quotient that came out a little too small would lose a channel.
    return share if int(share * head_dim) == rotary_dim else (rotary_dim + 0.5) / head_dim


_SIZES = [("hidden_size", "n_embd"), ("num_attention_heads", "n_head")]


def to_hf(encoding: Encoding, *, layout: str = "half") -> dict[str, Any]:
    """The arguments that give a configuration of transformers this rotary: `LlamaConfig(**to_hf(encoding))`.

    Args:
      layout: of the channels in the code of the model that is to be configured; transformers has no key for it.

    Returns:
      {"rope_parameters": ...}, and "max_position_embeddings" where that is part of the encoding ("dynamic").

    Raises:
      ValueError: for an encoding that no rope_parameters describe, or another layout than the model's.
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


def _rope_type(config: Mapping[str, Any]) -> str:
    names = [config[key] for key in ("rope_type", "type") if config.get(key) is not None]
    types = [name for name in names if name != "mrope"] or ["default"] * len(names)  # Qwen2-VL's name of its sections
    if len({_OLD_TYPES.get(name, name) for name in types}) > 1:
        raise ValueError(
            f"rope_type={names[0]!r} and type={names[1]!r}, its older name, disagree: leave out the one that is not meant"
        )
    rope_type = _first(*types, "default" if "factor" not in config else None)
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
