"""Facts in transformers' code that configurations do not hold: data, read by configurations.py.

A configuration has the numbers of a rotary encoding. How channels are paired, what holds where a key is absent, and which
layers have a window or no rotary encoding is written in each model's class. The tables follow transformers 5.23.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from posjax.encoding import Encoding
from posjax.encodings import none
from posjax.encodings.bias import T5, Alibi
from posjax.encodings.contextual import Inkling
from posjax.encodings.disentangled import Deberta
from posjax.encodings.placement import Interpolate
from posjax.encodings.tables import Learned
from posjax.encodings.temperature import LearnedSink, Llama4Temperature, LogN, PowerTemperature, TokenSink

Config = Mapping[str, Any]

# Models whose code pairs neighbouring channels; all others pair the halves.
_INTERLEAVED = """
axk1 bailing_hybrid blt_global_transformer blt_local_decoder blt_local_encoder codegen cohere cohere2 cohere2_moe
deepseek_v2 deepseek_v3 ernie4_5 ernie4_5_moe glm glm4 glm4_moe_lite glm4v_text glm_ocr_text gptj helium llama4_text
longcat_flash mistral4 moonshine moonshine_streaming roformer sarvam_mla youtu
"""
INTERLEAVED = set(_INTERLEAVED.split())
# Models that read rotary_dim; to the code of others that have the key it says nothing.
ROTARY_DIM = {"codegen", "gptj", "minimax_m2"}
# Models whose code has a way of its own to turn queries and keys, or to leave that out in some layers.
ALONE = {
    **dict.fromkeys(["cohere_compass_text", "granitemoehybrid", "olmo_hybrid"], "some of its layers do not rotate"),
    **dict.fromkeys(["granite_swa", "granitemoe_swa"], "layers rotate as listed"),
    "ernie4_5_vl_moe_text": "its sections come in another order",
}

# What a class takes where its configuration lacks a key; a base of 10,000 and whole heads are taken everywhere else.
DEFAULTS: dict[str, dict[str, float]] = {
    "apertus": {"rope_theta": 12e6},
    "bitnet": {"rope_theta": 5e5},
    "cohere": {"rope_theta": 5e5},
    "cosmos3_edge_text": {"rope_theta": 1e8},
    "ernie4_5": {"rope_theta": 5e5},
    "ernie4_5_moe": {"rope_theta": 5e5},
    "glm": {"partial_rotary_factor": 0.5},
    "glm4": {"partial_rotary_factor": 0.5},
    "glm4_moe": {"partial_rotary_factor": 0.5},
    "glm4v_moe_text": {"partial_rotary_factor": 0.5},
    "gpt_neox": {"partial_rotary_factor": 0.25},
    "gpt_oss": {"rope_theta": 150_000.0},
    "helium": {"rope_theta": 1e5},
    "llama4_text": {"rope_theta": 5e5},
    "mixtral": {"rope_theta": 1e6},
    "moonshine": {"partial_rotary_factor": 0.9},
    "nemotron": {"partial_rotary_factor": 0.5},
    "nomic_bert": {"rope_theta": 1000.0},
    "olmo3": {"rope_theta": 5e5},
    "persimmon": {"partial_rotary_factor": 0.5},
    "phi": {"partial_rotary_factor": 0.5},
    "phimoe": {"rope_theta": 1e6},
    "paddleocr_vl_text": {"rope_theta": 5e5},
    "qwen2_5_omni_text": {"rope_theta": 1e6},
    "qwen2_5_vl_text": {"rope_theta": 1e6},
    "qwen2_vl_text": {"rope_theta": 1e6},
    "qwen3_5_moe_text": {"partial_rotary_factor": 0.25},
    "qwen3_5_text": {"partial_rotary_factor": 0.25},
    "qwen3_next": {"partial_rotary_factor": 0.25},
    "qwen3_omni_moe_text": {"rope_theta": 1e6},
    "qwen3_vl_moe_text": {"rope_theta": 5e5},
    "qwen3_vl_text": {"rope_theta": 5e5},
    "recurrent_gemma": {"partial_rotary_factor": 0.5},
    "smollm3": {"rope_theta": 2e6},
    "stablelm": {"partial_rotary_factor": 0.25},
}

# Parameters where a configuration has none at all.
PARAMETERS: dict[str, dict[str, Any]] = {
    "gpt_oss": {
        "rope_type": "yarn",
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
    },
}

# The sections of multimodal text models where a configuration has none, and whether the class deals channels out in turns.
SECTIONS: dict[str, tuple[tuple[int, int, int], bool]] = {
    **dict.fromkeys(["qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"], ((16, 24, 24), False)),
    **dict.fromkeys(["paddleocr_vl_text", "qwen2_5_omni_text"], ((16, 24, 24), False)),
    **dict.fromkeys(["glm4v_text", "glm4v_moe_text", "glm_ocr_text"], ((8, 12, 12), False)),
    **dict.fromkeys(["cosmos3_edge_text", "qwen3_omni_moe_text"], ((24, 20, 20), True)),
    **dict.fromkeys(["qwen3_vl_text", "qwen3_vl_moe_text"], ((24, 20, 20), True)),
    "qwen3_5_text": ((11, 11, 10), True),
    "qwen3_5_moe_text": ((11, 11, 10), True),
}

_PLAIN_TOWERS = [
    *("cohere_compass", "ernie4_5_vl_moe", "exaone4_5", "glm4v", "glm4v_moe", "glm_ocr", "lfm3_vl", "paddleocr_vl"),
    *("qwen2_vl", "qwen2_5_vl", "qwen3_5", "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe", "video_llama_3"),
]
# Arguments of `axial_rope` for towers of images, whose rope_type is "axial"; None: their code pairs channels as no argument
# says (Gemma 4 turns each axis' own block by halves, Kimi deals channels out to the axes in turns, SAM counts columns first
# in some of its classes, MiniMax has three axes in two thirds of the channels).
AXIAL: dict[str, dict[str, Any] | None] = {
    **{f"{name}_vision": {} for name in _PLAIN_TOWERS},
    "dots3_note_vision_encoder": {},
    "mlcd_vision_model": {},
    "qwen2_5_omni_vision_encoder": {},
    "qwen3_omni_moe_vision_encoder": {},
    "lfm3_vl_vision": {"base": 1e6},
    "pixtral": {"frequencies": "split"},
    "inkling2_vision": {"indexing": "xy", "layout": "interleaved"},
    "step3p5_vision": {"indexing": "xy"},
    **dict.fromkeys(["gemma4_vision", "kimi_k25_vision", "minimax_m3_vl_vision", "sam3_vit_model"], None),
    **dict.fromkeys(["sam2_video", "sam3_tracker_video", "edgetam_video"], None),
}

# Words in the keys of a configuration about positions, their effect on logits, or masks.
SPEAKS = re.compile(
    r"rope|rotary|alibi|xpos|ntk|yarn|nope|(^|_)log_?n(_|$)|log_scaling|(^|_)pos(_|$|emb|ition)|(^|_)rel(_|ative)|bucket|"
    r"sink(_|s|$)|window|sliding|chunk|(^|_)(local|global)_(att|layer|block|token|rope)|att\w*_temperature|layer_types|"
    r"bidirectional|interpolat|sparse_att|dilat"
)
# Keys with such words that are read of any model, or say nothing of its encoding.
_READ = """
rope_theta rope_parameters rope_scaling partial_rotary_factor rotary_pct rotary_emb_base rotary_dim rope_interleave
qk_rope_head_dim qk_nope_head_dim position_embedding_type layer_types sliding_window use_sliding_window
sliding_window_pattern _sliding_window_pattern max_window_layers global_attn_every_n_layers
prefix_dense_sliding_window_pattern num_sliding_attention_heads max_position_embeddings
original_max_position_embeddings n_positions position_id_per_seconds seconds_per_chunk dual_chunk_attention_config
chunk_size_feed_forward mamba_chunk_size mlp_layer_types mtp_layer_types
"""
READ = set(_READ.split())
# Keys that only the code of these models reads.
READ_BY = {
    "rope_local_base_freq": ("gemma3_text",),
    **dict.fromkeys(["global_rope_theta", "local_rope_theta"], ("modernbert",)),
    "local_attention": ("modernbert", "modernbert-decoder"),
    **dict.fromkeys(["no_rope_layers", "no_rope_layer_interval"], ("llama4_text", "smollm3")),
    "layer_rope_theta": ("muse_glimmer_text", "muse_spark_text"),
    **dict.fromkeys(["attention_chunk_size", "attn_temperature_tuning"], ("llama4_text",)),
    **dict.fromkeys(["use_dynamic_ntk", "use_logn_attn"], ("qwen",)),
    "window_size": ("gpt_neo",),
    "alibi": ("falcon",),
    **dict.fromkeys(["attn_config.alibi", "attn_config.alibi_bias_max", "learned_pos_emb"], ("mpt",)),
    "offset_alibi": ("bloom",),  # of old files
    **dict.fromkeys(["relative_attention", "position_biased_input", "position_buckets"], ("deberta-v2",)),
    **dict.fromkeys(["max_relative_positions", "pos_att_type", "norm_rel_ebd"], ("deberta-v2",)),
    **dict.fromkeys(["relative_attention_num_buckets", "relative_attention_max_distance"], ("t5", "mt5", "umt5")),
    "sinusoidal_pos_embds": ("distilbert",),
    **dict.fromkeys(["rel_extent", "log_scaling_n_floor", "log_scaling_alpha"], ("inkling_text", "inkling2_text")),
    "sliding_window_size": ("inkling_text", "inkling2_text"),
    "rel_l2_clip_threshold": ("inkling2_text",),
    **dict.fromkeys(["local_layer_ids", "mtp_local_layer_ids", "shared_expert_sink"], ("inkling_text",)),
}
# Models whose configurations have a rotary base though they may not rotate.
MAY_ROTATE = {"esm", "falcon"}

# Models with a base of its own for each layer type, in the older spelling: the keys of the base of full and of sliding
# attention with their defaults, and the layer types that a rope_scaling is for.
BASES: dict[str, tuple[dict[str, tuple[str, float]], tuple[str, ...]]] = {
    "gemma3_text": (
        {"full_attention": ("rope_theta", 1e6), "sliding_attention": ("rope_local_base_freq", 1e4)},
        ("full_attention",),
    ),
    "modernbert": (
        {"full_attention": ("global_rope_theta", 160_000.0), "sliding_attention": ("local_rope_theta", 1e4)},
        ("full_attention", "sliding_attention"),
    ),
    "olmo3": (
        {"full_attention": ("rope_theta", 5e5), "sliding_attention": ("rope_theta", 5e5)},
        ("full_attention",),
    ),
}


class Layers(NamedTuple):
    """The differences between the layers of a model.

    Args:
      kind: (configuration, layer) -> the layer's type where no layer_types are given.
      rotates: (configuration, layer, type) -> whether the layer has a rotary encoding.
      more: (configuration, type, whether the layer rotates) -> encodings that the layer has beside, or nothing.
      listed: whether layer_types are heeded.
      window: (configuration) -> how many keys a causal query of a sliding layer sees, itself among them.
      names: the usual name of each layer type that the model calls something else.
    """

    kind: Callable[[Config, int], str]
    rotates: Callable[[Config, int, str], bool] = lambda config, layer, kind: True
    more: Callable[[Config, str, bool], list[Encoding]] = lambda config, kind, rotates: []
    listed: bool = True
    window: Callable[[Config], int | None] = lambda config: config.get("sliding_window")
    names: Mapping[str, str] = {}


def _sliding(is_sliding: bool) -> str:
    return "sliding_attention" if is_sliding else "full_attention"


def _listed(config: Config, layer: int) -> str:
    raise ValueError(f"a {config['model_type']!r} needs layer_types, a type for each layer")


def _every(number: int, *keys: str) -> Callable[[Config, int], str]:
    """Layers slide, save every n-th; n is one of these keys."""

    def kind(config: Config, layer: int) -> str:
        pattern = next((config[key] for key in keys if config.get(key) is not None), number)
        if not isinstance(pattern, int) or pattern < 1:
            raise ValueError(f"{keys[0]}={pattern!r} is no number of layers: give layer_types, a type for each layer")
        return _sliding(bool((layer + 1) % pattern))

    return kind


def _all_slide(config: Config, layer: int) -> str:
    return _sliding(config.get("sliding_window") is not None)


def _above(config: Config, layer: int) -> str:
    """Qwen's: from layer max_window_layers on."""
    slides = config.get("use_sliding_window", False) and config.get("sliding_window", 4096) is not None
    return _sliding(slides and layer >= config.get("max_window_layers", 28))


def _has_rope(config: Config, layer: int, kind: str = "") -> bool:
    """no_rope_layers has, contrary to its name, a 1 for each layer that rotates."""
    listed = config.get("no_rope_layers")
    if listed:
        if layer >= len(listed):
            raise ValueError(f"no_rope_layers are {len(listed)}, and the model has more layers")
        return bool(listed[layer])
    return bool((layer + 1) % config.get("no_rope_layer_interval", 4))


def _smollm3(config: Config, layer: int) -> str:
    window = config.get("use_sliding_window") and config.get("sliding_window") is not None
    return _sliding(bool(window) and not _has_rope(config, layer))


def _llama4(config: Config, layer: int) -> str:
    return "chunked_attention" if _has_rope(config, layer) else "full_attention"


def _llama4_temperature(config: Config, kind: str, rotates: bool) -> list[Encoding]:
    if rotates or not config.get("attn_temperature_tuning", True):
        return []
    return [Llama4Temperature(config.get("attn_scale", 0.1), config.get("floor_scale", 8192))]


def _qwen_log_n(config: Config, kind: str, rotates: bool) -> list[Encoding]:
    return [LogN(qwen_length(config))] if config.get("use_logn_attn", True) else []


def qwen_length(config: Config) -> int:
    """The trained length of a Qwen 1, which its dynamic NTK and its temperature begin behind."""
    if (length := config.get("seq_length")) is None:
        raise ValueError("a 'qwen' with use_dynamic_ntk or use_logn_attn, its defaults, needs seq_length")
    return length


def _gpt_neo(config: Config, layer: int) -> str:
    types = config.get("attention_types") or [[["global", "local"], layer + 1]]
    listed = config.get("attention_layers") or [kind for kinds, times in types for kind in [*kinds] * times]
    if layer >= len(listed):
        raise ValueError(f"attention_layers, or attention_types, are {len(listed)}, and the model has more layers")
    return _sliding(listed[layer] == "local")


def _only_sliding(config: Config, layer: int, kind: str) -> bool:
    return kind == "sliding_attention"


def _exaone4_kind(config: Config, layer: int) -> str:
    windowed = config.get("sliding_window", 4096) is not None
    return _every(4, "sliding_window_pattern")(config, layer) if windowed else "full_attention"


def _exaone4(config: Config, layer: int, kind: str) -> bool:
    return config.get("sliding_window", 4096) is None or kind == "sliding_attention"


def _muse(config: Config, layer: int) -> str:
    """The last layer is global, and every fourth one before it."""
    return _sliding(bool((config["num_hidden_layers"] - 1 - layer) % 4))


def _muse_rotates(config: Config, layer: int, kind: str) -> bool:
    """layer_rope_theta has 0 for a layer that does not rotate; the code reads no more of it."""
    listed = config.get("layer_rope_theta")
    if listed and layer >= len(listed):
        raise ValueError(f"layer_rope_theta are {len(listed)}, and the model has more layers")
    return bool(listed[layer]) if listed else _muse(config, layer) == "sliding_attention"


def _window_4096(config: Config) -> int | None:
    return config.get("sliding_window", 4096)


def _inkling_kind(config: Config, layer: int) -> str:
    local = config.get("local_layer_ids")
    return _sliding(bool((layer + 1) % 6) if local is None else layer in local)


def _inkling_window(config: Config) -> int:
    return config.get("sliding_window_size") or (1024 if config["model_type"] == "inkling2_text" else 512)


def _inkling(config: Config, kind: str, rotates: bool) -> list[Encoding]:
    """Full layers have the temperature; window layers have their window as extent, whatever rel_extent says."""
    second, rank = config["model_type"] == "inkling2_text", config.get("d_rel") or 16
    clip = config.get("rel_l2_clip_threshold", 8.0) if second else None
    if kind == "sliding_attention":
        bias = Inkling(rank, _inkling_window(config), clip=clip)
    else:
        n_floor = config.get("log_scaling_n_floor", 128_000 if second else None)
        alpha = config.get("log_scaling_alpha", 0.1)
        bias = Inkling(rank, config.get("rel_extent") or 1024, n_floor, alpha, clip)
    return [bias, TokenSink()] if second else [bias]


_QWEN = Layers(
    _above, window=lambda config: config.get("sliding_window", 4096) if config.get("use_sliding_window") else None
)
_ONE_WINDOW = Layers(_all_slide, listed=False)
LAYERS: dict[str, Layers] = {
    **dict.fromkeys(["mistral", "mixtral", "phi3", "starcoder2"], _ONE_WINDOW),
    **dict.fromkeys(["qwen2", "qwen2_moe", "qwen3", "qwen3_moe"], _QWEN),
    "ministral": Layers(_all_slide),
    "gemma2": Layers(_every(2), window=_window_4096),
    "gemma3_text": Layers(_every(6, "sliding_window_pattern", "_sliding_window_pattern"), window=_window_4096),
    "cohere2": Layers(_every(4, "sliding_window_pattern"), _only_sliding, window=_window_4096),
    "cohere2_moe": Layers(_listed, _only_sliding, window=_window_4096),
    "exaone4": Layers(_exaone4_kind, _exaone4, window=_window_4096),
    "exaone_moe": Layers(_listed, _exaone4, window=_window_4096),
    "kolibri1": Layers(_listed, _exaone4),
    **dict.fromkeys(["afmoe", "flint"], Layers(_listed, _only_sliding)),
    "olmo3": Layers(_every(4), window=_window_4096),
    "gpt_oss": Layers(
        _every(2),
        more=lambda config, kind, rotates: [LearnedSink()],
        window=lambda config: config.get("sliding_window", 128),
    ),
    "beam": Layers(_listed, more=lambda config, kind, rotates: [] if rotates else [PowerTemperature()]),
    **dict.fromkeys(
        ["muse_glimmer_text", "muse_spark_text"],
        Layers(_muse, _muse_rotates, window=lambda config: config.get("sliding_window", 2048)),
    ),
    "qwen": Layers(lambda config, layer: "full_attention", more=_qwen_log_n),
    "gpt_neo": Layers(_gpt_neo, window=lambda config: config.get("window_size", 256)),
    **dict.fromkeys(
        ["inkling_text", "inkling2_text"],
        Layers(
            _inkling_kind,
            lambda config, layer, kind: False,
            _inkling,
            window=_inkling_window,
            names={"hybrid": "full_attention", "hybrid_sliding": "sliding_attention"},
        ),
    ),
    "smollm3": Layers(_smollm3, _has_rope),
    "llama4_text": Layers(_llama4, _has_rope, _llama4_temperature),
    "modernbert": Layers(
        lambda config, layer: _sliding(bool(layer % config.get("global_attn_every_n_layers", 3))),
        window=lambda config: config.get("local_attention", 128) // 2 + 1,
    ),
}


def learned(config: Config, decoder: bool | None) -> Encoding | None:
    kind = config.get("position_embedding_type") or "absolute"
    if kind == "rotary" and config["model_type"] == "esm":
        return None
    if kind != "absolute":
        raise ValueError(f"{config['model_type']!r} with position_embedding_type={kind!r} has no equal here")
    if config.get("sinusoidal_pos_embds"):
        raise ValueError(f"{config['model_type']!r} with sinusoidal_pos_embds=True learns no table: take sinusoidal()")
    return Learned()


def t5(config: Config, decoder: bool | None) -> Encoding:
    if decoder is None and config.get("is_encoder_decoder", True):
        raise ValueError(
            f"a {config['model_type']!r} has an encoder and a decoder, and another encoding in each: "
            "from_hf(config, decoder=True) or from_hf(config, decoder=False)"
        )
    decoder = bool(config.get("is_decoder")) if decoder is None else decoder
    sizes = (config.get(f"relative_attention_{key}") for key in ("num_buckets", "max_distance"))
    return T5(*(size or usual for size, usual in zip(sizes, (32, 128), strict=True)), bidirectional=not decoder)


def _deberta(config: Config, decoder: bool | None) -> Encoding:
    """Reads max_relative_positions; below 1, as in the released files, it means max_position_embeddings."""
    table = Learned() if config.get("position_biased_input", True) else none()
    if not config.get("relative_attention"):
        return table
    far = config.get("max_relative_positions", -1)
    far = config.get("max_position_embeddings", 512) if far < 1 else far
    terms = config.get("pos_att_type") or ()
    terms = tuple(term.strip() for term in terms.split("|")) if isinstance(terms, str) else tuple(terms)
    if not terms:
        raise ValueError("a 'deberta-v2' with relative_attention=True needs a pos_att_type, as in 'c2p|p2c'")
    terms = tuple(sorted(term.lower() for term in terms))  # their order says nothing
    disentangled = Deberta(config.get("position_buckets", -1), far, terms)
    if config.get("share_att_key"):
        disentangled = replace(disentangled, shared=True, norm_epsilon=config.get("layer_norm_eps", 1e-7))
    return table + disentangled if config.get("position_biased_input", True) else disentangled


def _mpt(config: Config, decoder: bool | None) -> Encoding:
    attention = config.get("attn_config") or {}
    if not attention.get("alibi", True):
        raise ValueError("an 'mpt' with attn_config.alibi=False is not transformers' MPT, which has ALiBi always")
    return Alibi(exponent=float(attention.get("alibi_bias_max") or 8))


def _falcon(config: Config, decoder: bool | None) -> Encoding | None:
    if not config.get("alibi"):
        return None
    heads = config.get("num_attention_heads")
    width, heads = config.get("hidden_size"), config.get("n_head") if heads is None else heads
    if not width or not heads:
        raise ValueError("a 'falcon' with alibi=True needs hidden_size and num_attention_heads, which scale its ALiBi")
    # It scales the sum of products and bias by 1/sqrt(head_dim); alibi() is added behind the scale.
    return Interpolate(math.sqrt(width // heads)) >> Alibi()


def _of_images(config: Config, decoder: bool | None) -> Encoding:
    raise ValueError(
        f"a {config['model_type']!r} rotates by places in an image, which its configuration does not spell out: take "
        "dinov3() or axial_rope(...), or posjax.pretrained.load for the weights of a DINOv3"
    )


# Whole configurations of models whose encoding is not, or not always, described by rope_parameters. None: it is.
OTHERS: dict[str, Callable[[Config, bool | None], Encoding | None]] = {
    **dict.fromkeys(["gpt2", "gpt_neo", "gpt_bigcode", "openai-gpt", "opt", "bart", "mbart", "vit", "deit"], learned),
    **dict.fromkeys(["bert", "albert", "electra", "distilbert", "roberta", "xlm-roberta", "camembert", "esm"], learned),
    **dict.fromkeys(["t5", "mt5", "umt5"], t5),
    **dict.fromkeys(["dinov3_vit", "eomt_dinov3", "llama4_vision_model", "sapiens2"], _of_images),
    "deberta-v2": _deberta,
    "bloom": lambda config, decoder: Alibi(),
    "mpt": _mpt,
    "falcon": _falcon,
}
