"""Encodings as transformers spells them: `from_hf(config)` and `from_hf_layers(config)`.

encoding = from_hf(json.load(open("config.json")))
encoding = from_hf({"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, ...})
layers = from_hf_layers(json.load(open("config.json")))

A whole configuration, which has a model_type, may be of a model without rotary encoding:

- GPT-2, BERT, RoBERTa, OPT, BART, ViT and others give `learned()`. Where their tables have rows of their own: RoBERTa,
  XLM-RoBERTa and CamemBERT keep position p in row p + 2 of max_position_embeddings rows; OPT, BART and mBART in row
  p + 2 of max_position_embeddings + 2. Drop those two rows. ViT's and DeiT's rows of class tokens come first, as here.
- BLOOM and MPT give `alibi()`; MPT's alibi_bias_max is read, though transformers' model has 8. Falcon with alibi=True
  adds it before it scales the logits, which is `interpolate(factor=sqrt(head_dim)) >> alibi()`.
- T5, mT5 and umT5 give `t5(...)`. They do not scale the logits: attend(..., scale=1). umT5 has a table for each layer,
  the others share one.
- DeBERTa-v2 and v3 give `deberta(shared=True, ...)`, and a learned table beside it where position_biased_input is true.
- ESM rotates or gives `learned()`, and any model with position_embedding_type="alibi" gives `alibi()`, as its
  position_embedding_type says.
- Qwen 1 gives `rope(scaling=dynamic_ntk(factor=2, ..., doubling=True)) + log_n(...)`; a dual_chunk_attention_config puts
  `dual_chunk(...) >>` before.
- Inkling and Inkling 2 give `inkling(...)` in each layer, the latter with `token_sink()`. Inkling, whose queries and keys
  are normed, scales its products by 1/head_dim: attend(..., scale=1 / head_dim).
- Vision towers of rope_type "axial" give `axial_rope(...)`, as their model_type pairs channels.

It may also have layers that differ (windows, layers without rotary encoding, two bases): where all layers of attention
have one encoding, `from_hf` returns that, with its window; where they do not, `from_hf_layers` reads them.
"""

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from posjax.checks import GROUP, check, maybe
from posjax.encoding import Encoding
from posjax.encodings import none
from posjax.encodings.bias import Alibi
from posjax.encodings.masks import Chunked, Window
from posjax.encodings.rotary_grid import AxialRope
from posjax.encodings.scalings_by_length import DynamicNtk
from posjax.encodings.views import DualChunk
from posjax.hf import models
from posjax.hf.kinds import KINDS, ROPE_KINDS
from posjax.hf.rotary import BESIDE, first, read_rotary, rope_type_of
from posjax.spec import nearest

_OLD_KEYS = {"rotary_emb_base": "rope_theta", "rotary_pct": "partial_rotary_factor"}  # of a GPT-NeoX configuration
# Keys of a whole configuration that say that the model rotates; they may hold null.
_ROTARY_KEYS = {
    *("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor", "rotary_dim", *_OLD_KEYS),
    *("global_rope_theta", "local_rope_theta", "rope_local_base_freq"),
}
_PLAIN_ROPE = {"llama", "mistral", "falcon", "gemma", "qwen2"}  # without any of these keys: rope with a base of 10,000
_WHOLE = {"rope_parameters", "rope_scaling", "model_type"}  # a configuration with one of these keys is whole
_OFF = (None, False, 0, -1, "", [], {})  # values by which a key asks for nothing
_CHUNKS = ("chunk_size", "local_size")  # of a dual_chunk_attention_config
_NO_ATTENTION = {"linear_attention", "conv", "mamba", "recurrent"}  # layer types that have no positions to encode


class LayersDiffer(ValueError):
    """Layers of a configuration have encodings of their own: `from_hf_layers` gives one for each."""


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
    """The encoding that a configuration of transformers 5 (or 4) describes. `posjax.hf.configurations` lists the models.

    Args:
      config: the whole configuration, as in config.json; or its `rope_parameters` alone, or the older `rope_scaling`
        (with "type" for "rope_type"), or None for plain RoPE, and then the following say what the configuration keeps
        beside them. Keys in the dictionary go before keys beside it, save the original length, as in
        transformers (Phi-3 keeps it beside).
      rope_theta: 10,000 if it is nowhere, or what the class of the configuration's model_type takes.
      partial_rotary_factor: the share of a head's channels that turns; 1 if it is nowhere.
      max_position_embeddings: the trained length of "dynamic"; for "yarn" and "longrope" without a factor the length
        reached, which gives the factor; for "yarn", "longrope" and "llama3" also the trained length if nothing else is.
      original_max_position_embeddings: the trained length.
      layout: of the model's rotary channels, which its configuration does not give: by default "interleaved" for the
        model_types in `posjax.hf.models.INTERLEAVED` (their code pairs neighbouring channels), else "half", as Llama.
      decoder: of T5, whose encoder looks both ways and whose decoder does not: which of the two. Other models need it not.

    Raises:
      LayersDiffer: a ValueError; the layers have several encodings.
      ValueError: a rope_type, a key or a model_type is unknown, a key is missing, spellings disagree, a key that speaks of
        positions or masks is not read, or the parameters are of several layer types; the message says the mend.

    >>> print(from_hf({"rope_type": "linear", "factor": 4.0, "rope_theta": 500000.0}))
    rope(base=500000, scaling=linear(factor=4))
    """
    values = (rope_theta, partial_rotary_factor, max_position_embeddings, original_max_position_embeddings)
    config, given = dict(config or {}), dict(zip(BESIDE, values, strict=True))
    base = _checked(config, decoder, given)
    if base and not _varies(config):
        return base
    if not _WHOLE & config.keys():
        if nested := _nested(config):
            raise ValueError(
                f"these are the parameters of several layer types ({', '.join(nested)}), each of which has its own "
                f"encoding: give from_hf one of them, as in from_hf(rope_parameters[{nested[0]!r}]), or the whole "
                "configuration to from_hf_layers"
            )
        return read_rotary(config, given, layout or "half")
    if not _varies(config):
        return _of_kind(config, given, layout, "full_attention")
    layers = [each for each in _each_layer(config, given, layout, base) if each is not None]
    if len({*layers}) != 1:
        names = ", ".join(dict.fromkeys(map(str, layers))) or "none of them attention"
        raise LayersDiffer(
            f"the layers of this configuration have encodings of their own ({names}): from_hf_layers(config) "
            "gives one for each layer"
        )
    return layers[0]


def from_hf_layers(
    config: Mapping[str, Any], *, layout: str | None = None, decoder: bool | None = None
) -> tuple[Encoding, ...]:
    """The encoding of each layer of a whole configuration: windows, chunks, layers without rotary, bases, sinks among them.

    Read are layer_types, rope_parameters of layer types, sliding_window and its patterns, no_rope_layers and what the
    class of a model_type adds (`posjax.hf.models.LAYERS`): Cohere 2's layers of full attention do not rotate, Llama 4's
    have a temperature, gpt-oss has a `learned_sink`, Inkling has `inkling` and no rotary. A window counts a causal query's
    own key; ModernBERT's is as many keys to either side.

    Args:
      layout, decoder: as in `from_hf`.

    Raises:
      ValueError: as `from_hf`; without a number of layers; for a layer type that is no attention.

    >>> config = {"model_type": "gemma3_text", "num_hidden_layers": 2, "sliding_window": 512, "rope_theta": 1e6}
    >>> config |= {"rope_local_base_freq": 1e4, "layer_types": ["sliding_attention", "full_attention"]}
    >>> print(*from_hf_layers(config), sep="\\n")
    rope() + window(size=512)
    rope(base=1000000)
    """
    config = dict(config)
    layers = _each_layer(config, {}, layout, _checked(config, decoder, {}))
    if None in layers:
        layer = layers.index(None)
        raise ValueError(
            f"layer {layer} is {_kinds(config, len(layers))[layer]!r}, which is no attention and has no encoding: "
            "from_hf(config) gives that of the layers of attention"
        )
    return tuple(layers)


def _checked(config: Mapping[str, Any], decoder: bool | None, given: Mapping[str, Any]) -> Encoding | None:
    """Returns the encoding of a configuration whose model does not rotate; None where it does, or for rope_parameters alone.

    Raises:
      ValueError: a key is of another type than it should be, out of range, or speaks of positions and is not read.
    """
    check("the configuration", config, KINDS)
    check("attn_config", config.get("attn_config") or {}, KINDS)
    for name in ("rope_parameters", "rope_scaling"):
        _check_rope_kinds(name, config.get(name) or {})
    if not _WHOLE & config.keys():
        _check_rope_kinds("rope_parameters", config)
    encoding = _without_rotary(config, decoder, bool(given.get("rope_theta")), bool(given.get("partial_rotary_factor")))
    if _WHOLE & config.keys():
        _refuse_unread(config, rotates=encoding is None)
    return encoding


def _check_rope_kinds(where: str, parameters: Mapping[str, Any]) -> None:
    """The keys of rope_parameters, and of the dictionaries nested in it by layer type."""
    check(where, parameters, ROPE_KINDS)
    nested = {name: value for name, value in parameters.items() if name not in ROPE_KINDS}
    if any(map(GROUP.holds, nested.values())):
        check(where, nested, dict.fromkeys(nested, maybe(GROUP)))
        for name, value in nested.items():
            check(f"{where}.{name}", value or {}, ROPE_KINDS)


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
        beside["rope_theta"] = first(given.get("rope_theta"), config.get(key), usual)
        parameters = parameters if kind in scaled else {}
    if layout is None:
        interleaved = first(config.get("rope_interleave"), model_type in models.INTERLEAVED)
        layout = "interleaved" if interleaved else "half"
    if model_type in models.AXIAL:
        return _axial(model_type, parameters, beside, layout)
    encoding = read_rotary(parameters, beside, layout, model_type)
    if model_type == "qwen" and config.get("use_dynamic_ntk", True):
        if encoding.scaling is not None:
            raise ValueError(f"a 'qwen' with use_dynamic_ntk has no other scaling, got {encoding}")
        scaling = DynamicNtk(2, models.qwen_length(config), doubling=True)
        encoding = replace(encoding, scaling=scaling)  # pyrefly: ignore[unexpected-keyword]: read_rotary's is a rope
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
    given = {name: value for name, value in old.items() if value is not None and name != "type"}
    given |= {"rope_type": rope_type_of(old)} if {"type", "rope_type"} & old.keys() else {}
    if any(new.get(name) != value for name, value in given.items()):
        raise ValueError(
            f"there are rope_parameters and a rope_scaling, the older spelling, which disagree: leave rope_scaling out, and, "
            f"if it is meant, give rope_parameters={ {**new, **given} }"
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
    if rope_type_of(parameters) not in ("axial", "default"):
        raise ValueError(f"a {model_type!r} rotates by rope_type 'axial', got {rope_type_of(parameters)!r}")
    arguments = {"base": 10_000.0, "layout": layout} | arguments
    plain = read_rotary({**parameters, "rope_type": "axial"}, beside, layout)
    base = first(parameters.get("rope_theta"), beside["rope_theta"])
    return AxialRope(**arguments | ({} if base is None else {"base": plain.base}))


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
    count = first(*(config.get(name) for name in names), None if listed is None else len(listed))
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
        return [kind if rule is None else rule.names.get(kind, kind) for kind in listed]
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
        for more in [*masks, *rule.more(config, kind, encoding != none())]:
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
    config: Mapping[str, Any], decoder: bool | None, has_theta: bool, has_share: bool
) -> Encoding | None:
    model_type, kind = config.get("model_type"), config.get("position_embedding_type")
    if decoder is not None and models.OTHERS.get(model_type) is not models.t5:
        raise ValueError(f"decoder={decoder} is for T5: {model_type!r} has one stack, or two of the same encoding")
    rotates = kind in ("rope", "rotary", "rope_gptj") and model_type not in models.OTHERS
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
        if model_type is None or _ROTARY_KEYS & config.keys() or known or has_theta:
            return None
        if parts := sorted(
            name for name, value in config.items() if isinstance(value, Mapping) and "model_type" in value
        ):
            raise ValueError(
                f"{model_type!r} is made of several models: give from_hf one of them, as in from_hf(config[{parts[0]!r}])"
            )
        near = nearest(model_type, sorted(models.OTHERS)).replace("known:", "known that do not:")
        raise ValueError(
            f"the configuration of a {model_type!r} has no rotary key ({', '.join(sorted(_ROTARY_KEYS))}); if the model does "
            f"rotate, give its parameters alone: from_hf(rope_parameters); {near}"
        )
    if encoding is not None and (has_theta or has_share):
        raise ValueError(f"this {model_type!r} is {encoding}: rope_theta and partial_rotary_factor are none of its")
    return encoding


def _beside(config: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a whole configuration beside the dictionary of parameters; the caller's values go before."""
    config = {_OLD_KEYS.get(key, key): value for key, value in config.items()}
    usual = models.DEFAULTS.get(config.get("model_type"), {})
    beside = {name: first(given.get(name), config.get(name), usual.get(name)) for name in BESIDE}
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
    head_dim = head_dim_of(config)
    if head_dim is None:
        raise ValueError(
            f"this configuration has a rotary_dim of {rotary_dim} and no head_dim, or hidden_size and num_attention_heads, "
            "of which that is a share: give from_hf partial_rotary_factor=..."
        )
    share = rotary_dim / head_dim
    # `rope` rounds its share of the head dim down: a quotient that came out a little too small would lose a channel.
    return share if int(share * head_dim) == rotary_dim else (rotary_dim + 0.5) / head_dim


def head_dim_of(config: Mapping[str, Any]) -> int | None:
    """Returns the head dim that a configuration gives, itself or by width and heads; None where it does not."""
    width = first(*(config.get(name) for name in ("hidden_size", "n_embd", "d_model", "n_embed")))
    heads = first(*(config.get(name) for name in ("num_attention_heads", "n_head", "n_heads", "num_heads")))
    return first(config.get("head_dim"), config.get("d_kv"), width // heads if width and heads else None)
