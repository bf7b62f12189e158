"""Llama and the families that share its names: models of RMS norms, gated MLPs and rotary encodings."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from posjax.encoding import Encoding, parts
from posjax.encodings.temperature import LearnedSink
from posjax.hf import from_hf_layers
from posjax.models.decoder import Decoder
from posjax.pretrained.entries import Entry, norm, torch_linear
from posjax.pretrained.language.family import REQUIRED, Config, Family, Key, layers_of, named
from posjax.pretrained.language.parts import (
    ALL,
    BLOCK,
    GATED,
    LLAMA_CONSTANTS,
    LLAMA_KEYS,
    ROTARY_KEYS,
    WINDOW_KEYS,
    bias_switch,
    embedding,
    head,
    projections,
)

_LAYER = "model.layers.{l}."
_SILENT = frozenset({"attention_dropout"})
_BIASED = {"attention_bias": Key("attention_bias", False, bias_switch(*ALL)), "mlp_bias": Key("mlp_bias", False)}
_GROUPED = LLAMA_KEYS | {"num_key_value_heads": Key("num_kv_heads")}
_HEAD_DIM = {"head_dim": Key("head_dim", None)}  # not in the configuration class of some families, but in their code
_QKV = tuple(sorted(("query", "key", "value")))

# The norms of a layer by `placement`: (name in the file, our name).
_NORMS = {
    "parallel_shared": {"input_layernorm": "attention_norm"},
    "pre": {"input_layernorm": "attention_norm", "post_attention_layernorm": "mlp_norm"},
    "after": {"post_attention_layernorm": "attention_norm", "post_feedforward_layernorm": "mlp_norm"},
    "sandwich": {
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "attention_out_norm",
        "pre_feedforward_layernorm": "mlp_norm",
        "post_feedforward_layernorm": "mlp_out_norm",
    },
}


# The norms of GLM-4, whose names differ.
_GLM4_NORMS = {
    "input_layernorm": "attention_norm",
    "post_self_attn_layernorm": "attention_out_norm",
    "post_attention_layernorm": "mlp_norm",
    "post_mlp_layernorm": "mlp_out_norm",
}


def outside_layers(model: Decoder) -> list[Entry]:
    """Returns the entries of the token embedding, the last norm and the head."""
    return [*embedding("model.embed_tokens"), *norm("model.norm", "trunk/norm", bias=False), *head(model)]


def layer_norms(model: Decoder, names: Mapping[str, str] | None = None) -> list[Entry]:
    """Returns the entries of a layer's norms, by {name in the file: our name}; None: the names that most families have."""
    names = _NORMS[model.block.placement] if names is None else names
    entries = [norm(f"{_LAYER}{theirs}", BLOCK + ours, bias=False) for theirs, ours in names.items()]
    if model.block.qk_norm in (True, "all_heads"):
        at = f"{BLOCK}attention/"
        entries += [norm(f"{_LAYER}self_attn.q_norm", f"{at}query_norm", bias=False)]
        entries += [norm(f"{_LAYER}self_attn.k_norm", f"{at}key_norm", bias=False)]
    return [entry for pair in entries for entry in pair]


def gated_mlp(model: Decoder, room: str = "mlp") -> list[Entry]:
    """Returns the entries of an MLP, whose module in a layer of the file is `room`."""
    bias = model.block.has_mlp_bias
    names = ("gate", "up", "down")
    return [e for name in names for e in torch_linear(f"{_LAYER}{room}.{name}_proj", f"{BLOCK}mlp/{name}", bias=bias)]


def _entries(model: Decoder, mlp: str = "mlp") -> list[Entry]:
    return [*outside_layers(model), *layer_norms(model), *projections(model), *gated_mlp(model, mlp)]


def _packed_mlp() -> list[Entry]:
    ours = (f"{BLOCK}mlp/gate/kernel", f"{BLOCK}mlp/up/kernel")
    return [
        Entry(f"{_LAYER}mlp.gate_up_proj.weight", ours, "(s f) m -> m f"),
        *torch_linear(f"{_LAYER}mlp.down_proj", f"{BLOCK}mlp/down", bias=False),
    ]


def _entries_of_gpt_oss(model: Decoder) -> list[Entry]:
    """Returns gpt-oss's entries: gate and up alternate in each expert's matrix; each layer has its own sink."""
    theirs, ours = f"{_LAYER}mlp.experts.", f"{BLOCK}experts/"
    return [
        *outside_layers(model),
        *layer_norms(model),
        *projections(model),
        *torch_linear(f"{_LAYER}mlp.router", f"{ours}router"),
        Entry(f"{theirs}gate_up_proj", (f"{ours}gate_kernel", f"{ours}up_kernel"), "e m (f s) -> e m f"),
        Entry(f"{theirs}gate_up_proj_bias", (f"{ours}gate_bias", f"{ours}up_bias"), "e (f s) -> e f"),
        Entry(f"{theirs}down_proj", f"{ours}down_kernel", "e f m -> e f m"),
        Entry(f"{theirs}down_proj_bias", f"{ours}down_bias", "e m -> e m"),
        *_sinks(model),
    ]


def _sinks(model: Decoder) -> list[Entry]:
    entries = []
    for layer, encoding in enumerate(layers_of(model)):
        kinds = [type(part) for part in parts(encoding)]
        if LearnedSink in kinds:
            place = f"{kinds.index(LearnedSink)}/" if len(kinds) > 1 else ""
            ours = f"trunk/encoding_{layer}/{place}sink"
            entries.append(Entry(f"model.layers.{layer}.self_attn.sinks", ours, "h -> h"))
    return entries


def _llama4_norms(config: Config) -> dict[str, Any]:
    """Returns Llama 4's norms of queries and keys, which are in the rotary layers that the configuration lists."""
    if not config.get("use_qk_norm", True):
        return {"qk_norm": False}
    rotate = ["rope" in str(encoding) for encoding in from_hf_layers(config)]
    return {"qk_norm": tuple("unit" if rotates else False for rotates in rotate)}


def _encoding_of_olmo3(config: Config) -> Sequence[Encoding]:
    """Returns the encodings of OLMo 3; transformers gives windows a base of 500,000 whatever the parameters say."""
    parameters = config.get("rope_parameters") or {}
    flat = parameters and not any(isinstance(value, Mapping) for value in parameters.values())
    if flat or config.get("rope_theta") not in (None, 5e5):
        given = f"rope_parameters={parameters}" if flat else f"rope_theta={config['rope_theta']}"
        raise ValueError(f"{given} is not heeded in layers with windows: give rope_parameters for each layer type")
    return from_hf_layers(config)


def _family(model_type: str, keys: dict[str, Key], *encoding_keys: str, **rest: Any) -> Family:
    """A family beside Llama: the keys it shares, its own, and its encodings' keys beside the rotary ones."""
    constants = LLAMA_CONSTANTS | rest.get("constants", {})
    set_by_keys = {key.field for key in keys.values()}
    options = (
        dict(lines=_entries)
        | rest
        | {"constants": {name: constants[name] for name in constants if name not in set_by_keys}}
    )
    options["silent"] = _SILENT | set(rest.get("silent", ()))
    return Family(model_type, keys, encoding_keys=ROTARY_KEYS | set(encoding_keys), **options)


_QWEN_WINDOWS = ("use_sliding_window", "max_window_layers", *WINDOW_KEYS)
_GEMMA_ACTIVATION = {"hidden_activation": Key("mlp", "gelu_pytorch_tanh", named(GATED))}
_GEMMA_KEYS = {
    **{name: key for name, key in _GROUPED.items() if name != "hidden_act"},
    "head_dim": Key("head_dim", 256),
    "attention_bias": _BIASED["attention_bias"],
    "tie_word_embeddings": Key("tied_embedding", True),
}
_GEMMA_CONSTANTS = dict(norm_offset=1.0, embedding_scale=None, mlp_bias=False)


def _number(function: Callable[[float], float] = lambda number: number) -> Callable[[float | None], float]:
    """Returns a `Key.read` that refuses null, which a model's field takes for another number."""

    def read(number: float | None) -> float:
        if number is None:
            raise ValueError("null is not a number")
        return function(number)

    return read


_CAUSAL = {"use_bidirectional_attention": (False, None)}
_SCALED = {
    **_GEMMA_KEYS,
    **_GEMMA_ACTIVATION,
    "query_pre_attn_scalar": Key("logit_scale", 256, _number(lambda scalar: scalar**-0.5)),
}

FAMILIES = [
    _family("llama", LLAMA_KEYS | _BIASED | _HEAD_DIM, silent={"max_sequence_length"}),
    _family(
        "mistral",
        _GROUPED | _HEAD_DIM,
        "sliding_window",
        constants=dict(attention_bias=(), mlp_bias=False),
        needed=frozenset({"sliding_window"}),
    ),
    _family(
        "qwen2",
        _GROUPED | _HEAD_DIM,
        *_QWEN_WINDOWS,
        constants=dict(attention_bias=_QKV, mlp_bias=False),
        plain={"use_mrope": (False,)},
    ),
    _family(
        "qwen3",
        _GROUPED | {"head_dim": Key("head_dim", 128), "attention_bias": _BIASED["attention_bias"]},
        *_QWEN_WINDOWS,
        constants=dict(qk_norm=True, mlp_bias=False),
    ),
    _family(
        "gemma",
        # The released configurations say "gelu", although the models compute the approximation.
        _GEMMA_KEYS
        | {"hidden_act": Key("mlp", "gelu_pytorch_tanh", named({"gelu_pytorch_tanh": "geglu", "gelu": "geglu"}))},
        constants=_GEMMA_CONSTANTS,
        plain={**_CAUSAL, "hidden_activation": (None, "gelu_pytorch_tanh")},
    ),
    _family(
        "gemma2",
        _SCALED
        | {"attn_logit_softcapping": Key("softcap", 50.0), "final_logit_softcapping": Key("final_softcap", 30.0)},
        *WINDOW_KEYS,
        constants=_GEMMA_CONSTANTS | dict(placement="sandwich"),
        plain=_CAUSAL,
        silent={"hidden_act", "cache_implementation"},
    ),
    _family(
        "gemma3_text",
        _SCALED | {"final_logit_softcapping": Key("final_softcap", None)},
        *("rope_local_base_freq", "sliding_window_pattern", "_sliding_window_pattern", *WINDOW_KEYS),
        constants=_GEMMA_CONSTANTS | dict(placement="sandwich", qk_norm=True),
        plain={**_CAUSAL, "attn_logit_softcapping": (None,)},  # transformers ignores it
    ),
    _family(
        "phi3",
        LLAMA_KEYS | _HEAD_DIM | {"rms_norm_eps": Key("norm_epsilon", 1e-5)},
        *("sliding_window", "original_max_position_embeddings"),
        constants=dict(attention_bias=(), mlp_bias=False),
        lines=lambda model: [
            *outside_layers(model),
            *layer_norms(model),
            *projections(model, names=("qkv_proj",)),
            *_packed_mlp(),
        ],
        plain={
            **dict.fromkeys(("attention_bias", "lm_head_bias", "mlp_bias"), (False,)),
            **dict.fromkeys(("full_attn_mod", "interpolate_factor"), (1,)),
        },
        silent={"embd_pdrop", "resid_pdrop"},
    ),
    _family(
        "smollm3",
        _GROUPED | _HEAD_DIM | _BIASED | {"tie_word_embeddings": Key("tied_embedding", True)},
        *("no_rope_layers", "no_rope_layer_interval", "use_sliding_window", "max_window_layers", *WINDOW_KEYS),
    ),
    _family(
        "llama4_text",
        {name: key for name, key in _GROUPED.items() if name != "intermediate_size"}
        | {
            "intermediate_size_mlp": Key("mlp_dim"),
            "head_dim": Key("head_dim", 128),
            "rms_norm_eps": Key("norm_epsilon", 1e-5),
            "attention_bias": _BIASED["attention_bias"],
        },
        *("no_rope_layers", "no_rope_layer_interval", "layer_types", "attention_chunk_size"),
        *("attn_temperature_tuning", "attn_scale", "floor_scale"),
        constants=dict(mlp_bias=False),
        lines=lambda model: _entries(model, "feed_forward"),
        derived=_llama4_norms,
        derived_keys=frozenset({"use_qk_norm"}),
        plain={"moe_layers": ([],)},  # layers with experts; without the key, all layers have them
        needed=frozenset({"moe_layers"}),
        silent={
            *("intermediate_size", "interleave_moe_layer_step", "num_experts_per_tok", "num_local_experts"),
            *("router_aux_loss_coef", "router_jitter_noise", "for_llm_compressor"),
        },
    ),
    _family(
        "olmo2",
        LLAMA_KEYS
        | _HEAD_DIM
        | {"attention_bias": _BIASED["attention_bias"], "rms_norm_eps": Key("norm_epsilon", 1e-5)},
        constants=dict(placement="after", qk_norm="all_heads", mlp_bias=False),
    ),
    _family(
        "olmo3",
        LLAMA_KEYS
        | _HEAD_DIM
        | {"attention_bias": _BIASED["attention_bias"], "rms_norm_eps": Key("norm_epsilon", 1e-5)},
        *WINDOW_KEYS,
        constants=dict(placement="after", qk_norm="all_heads", mlp_bias=False),
        encoding=_encoding_of_olmo3,
    ),
    _family(
        "exaone4",
        _GROUPED | _HEAD_DIM | {"rms_norm_eps": Key("norm_epsilon", 1e-5)},
        *("sliding_window_pattern", *WINDOW_KEYS),
        constants=dict(placement="after", qk_norm=True, attention_bias=(), mlp_bias=False),
    ),
    _family(
        "cohere2",
        {name: key for name, key in LLAMA_KEYS.items() if name != "rms_norm_eps"}
        | _HEAD_DIM
        | {
            "layer_norm_eps": Key("norm_epsilon", 1e-5),
            "attention_bias": _BIASED["attention_bias"],
            "logit_scale": Key("head_scale", 0.0625),
            "tie_word_embeddings": Key("tied_embedding", True),
        },
        *("sliding_window_pattern", *WINDOW_KEYS),
        constants=dict(norm="layer", norm_bias=False, placement="parallel_shared", mlp_bias=False),
        # Keys of released files, which transformers does not read.
        plain={
            **dict.fromkeys(("use_embedding_sharing", "use_gated_activation", "use_parallel_block"), (True,)),
            "order_of_interleaved_layers": ("local_attn_first",),
            "position_embedding_type": ("rope_gptj",),
            "rotary_pct": (1.0,),
            "use_qk_norm": (False,),
        },
        silent={"layer_switch", "use_parallel_embedding"},
    ),
    _family(
        "glm4",
        _GROUPED
        | {
            "head_dim": Key("head_dim", 128),
            "attention_bias": Key("attention_bias", True, bias_switch(*_QKV)),
            "rms_norm_eps": Key("norm_epsilon", 1.5625e-7),
        },
        constants=dict(placement="sandwich", mlp_bias=False),
        lines=lambda model: [
            *outside_layers(model),
            *layer_norms(model, _GLM4_NORMS),
            *projections(model),
            *_packed_mlp(),
        ],
    ),
    _family(
        "granite",
        LLAMA_KEYS
        | _BIASED
        | _HEAD_DIM
        | {
            "attention_multiplier": Key("logit_scale", 1.0, _number()),
            "embedding_multiplier": Key("embedding_scale", 1.0, _number()),
            "residual_multiplier": Key("branch_scale", 1.0),
            "logits_scaling": Key("head_scale", 1.0, _number(lambda scaling: 1 / scaling)),
        },
    ),
    _family(
        "gpt_oss",
        {name: key for name, key in _GROUPED.items() if name != "hidden_act"}
        | {
            "head_dim": Key("head_dim", 64),
            "rms_norm_eps": Key("norm_epsilon", 1e-5),
            "attention_bias": Key("attention_bias", True, bias_switch(*ALL)),
            "num_local_experts": Key("num_experts"),
            "num_experts_per_tok": Key("experts_per_token", REQUIRED),
            "swiglu_limit": Key("mlp_clip", 7.0),
        },
        *WINDOW_KEYS,
        constants=dict(mlp="quick_geglu", mlp_bias=True, injection="every_layer"),
        lines=_entries_of_gpt_oss,
        plain={"hidden_act": ("silu",), "swiglu_alpha": (1.702,)},
        silent={"router_aux_loss_coef", "initial_context_length", "experts_per_token"},
    ),
]
