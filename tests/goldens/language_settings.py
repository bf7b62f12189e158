"""Tiny language models of transformers at odd settings, by name: the class of their configuration and its arguments.

Trained lengths are 12: the golden logits are of 9 tokens and of 21.
"""

SHORT, LONG, TRAINED, VOCABULARY = 9, 21, 12, 29

_LLAMA = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=40,
    max_position_embeddings=TRAINED,
)
_GPT = dict(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=LONG)
_FALCON = dict(
    vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=TRAINED
)
_NEOX = dict(_FALCON, intermediate_size=48)
_MPT = dict(vocab_size=VOCABULARY, d_model=32, n_heads=4, n_layers=2, max_seq_len=LONG)  # its table of ALiBi ends there

_LATENT = _LLAMA | dict(
    num_key_value_heads=4,
    first_k_dense_replace=2,
    kv_lora_rank=12,
    qk_nope_head_dim=6,
    qk_rope_head_dim=8,
    v_head_dim=6,
)
_DEEPSEEK_YARN = dict(original_max_position_embeddings=24, beta_fast=4.0, mscale=0.7, mscale_all_dim=0.9)


def _rope(rope_type="default", theta=5e3, **rest):
    return dict(rope_parameters=dict(rope_type=rope_type, rope_theta=theta, **rest))


_LLAMA3 = _rope("llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8)
_YARN = _rope("yarn", theta=100.0, factor=4.0, original_max_position_embeddings=24, beta_fast=4.0)
_LONG = [1.0 + 0.4 * i for i in range(4)]
_LONGROPE = _rope("longrope", short_factor=[1.0, 1.1, 1.2, 1.4], long_factor=_LONG)
_LOCAL = dict(
    rope_parameters=dict(
        sliding_attention=dict(rope_type="default", rope_theta=100.0),
        full_attention=dict(rope_type="linear", rope_theta=8000.0, factor=4.0),
    )
)
_ALTERNATING = ["sliding_attention", "full_attention"]

SETTINGS: dict[str, tuple[str, dict]] = {
    "gpt2": ("GPT2Config", _GPT),
    "gpt2 untied": (
        "GPT2Config",
        dict(_GPT, n_inner=40, activation_function="relu", layer_norm_epsilon=1e-3, tie_word_embeddings=False),
    ),
    "gpt_neox": ("GPTNeoXConfig", dict(_NEOX, **_rope(partial_rotary_factor=0.25, theta=900.0))),
    "gpt_neox sequential": (
        "GPTNeoXConfig",
        dict(
            _NEOX,
            use_parallel_residual=False,
            hidden_act="gelu_new",
            attention_bias=False,
            tie_word_embeddings=True,
            **_rope("dynamic", factor=2.0, partial_rotary_factor=0.5),
        ),
    ),
    "gptj": ("GPTJConfig", dict(_GPT, rotary_dim=4)),
    "gptj inner": ("GPTJConfig", dict(_GPT, n_head=2, rotary_dim=6, n_inner=24, layer_norm_epsilon=1e-3)),
    "bloom": ("BloomConfig", dict(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4)),
    "bloom six heads": (
        "BloomConfig",
        dict(vocab_size=VOCABULARY, hidden_size=36, n_layer=2, n_head=6, layer_norm_epsilon=1e-3),
    ),
    "mpt": ("MptConfig", _MPT),
    "mpt clipped": (
        "MptConfig",
        dict(_MPT, d_model=36, n_heads=6, attn_config=dict(clip_qkv=0.8, softmax_scale=0.5)),
    ),
    "falcon multi-query": ("FalconConfig", dict(_FALCON, **_rope())),
    "falcon alibi": (
        "FalconConfig",
        dict(_FALCON, alibi=True, multi_query=False, parallel_attn=False, bias=True, ffn_hidden_size=48),
    ),
    "falcon new": (
        "FalconConfig",
        dict(
            _FALCON,
            new_decoder_architecture=True,
            num_kv_heads=2,
            tie_word_embeddings=False,
            **_rope("linear", factor=3.0),
        ),
    ),
    "falcon new, one norm": (
        "FalconConfig",
        dict(_FALCON, new_decoder_architecture=True, num_kv_heads=1, num_ln_in_parallel_attn=1, alibi=True),
    ),
    "falcon old, sequential": (
        "FalconConfig",
        dict(_FALCON, multi_query=True, parallel_attn=False, bias=True, activation="gelu_new", **_rope()),
    ),
    "llama": ("LlamaConfig", dict(_LLAMA, head_dim=12, attention_bias=True, mlp_bias=True, **_LLAMA3)),
    "llama dynamic": (
        "LlamaConfig",
        dict(
            _LLAMA, num_key_value_heads=1, tie_word_embeddings=True, hidden_act="gelu", **_rope("dynamic", factor=2.0)
        ),
    ),
    "mistral": ("MistralConfig", dict(_LLAMA, head_dim=6, sliding_window=5, **_rope())),
    "mistral without window": ("MistralConfig", dict(_LLAMA, sliding_window=None, **_YARN)),
    "qwen2": (
        "Qwen2Config",
        dict(_LLAMA, use_sliding_window=True, sliding_window=4, max_window_layers=1, **_rope()),
    ),
    "qwen2 plain": ("Qwen2Config", dict(_LLAMA, tie_word_embeddings=True, **_YARN)),
    "qwen3": ("Qwen3Config", dict(_LLAMA, head_dim=10, tie_word_embeddings=True, **_rope())),
    "qwen3 biased": (
        "Qwen3Config",
        dict(
            _LLAMA,
            attention_bias=True,
            use_sliding_window=True,
            sliding_window=4,
            layer_types=_ALTERNATING,
            rms_norm_eps=1e-3,
            **_YARN,
        ),
    ),
    "gemma": ("GemmaConfig", dict(_LLAMA, num_key_value_heads=1, head_dim=12, **_rope())),
    "gemma biased": (
        "GemmaConfig",
        dict(_LLAMA, head_dim=8, attention_bias=True, hidden_act="gelu", **_rope("linear", factor=2.0)),
    ),
    "gemma2": (
        "Gemma2Config",
        dict(
            _LLAMA,
            head_dim=12,
            sliding_window=4,
            query_pre_attn_scalar=20,
            attn_logit_softcapping=1.5,
            final_logit_softcapping=20.0,
            **_rope(),
        ),
    ),
    "gemma2 uncapped": (
        "Gemma2Config",
        dict(
            _LLAMA,
            head_dim=8,
            sliding_window=6,
            layer_types=_ALTERNATING[::-1],
            attn_logit_softcapping=None,
            final_logit_softcapping=None,
            **_rope(),
        ),
    ),
    "gemma3": (
        "Gemma3TextConfig",
        dict(
            _LLAMA,
            num_hidden_layers=3,
            head_dim=12,
            sliding_window=4,
            sliding_window_pattern=3,
            query_pre_attn_scalar=9,
            **_LOCAL,
        ),
    ),
    "gemma3 capped": (
        "Gemma3TextConfig",
        dict(_LLAMA, head_dim=8, sliding_window=7, layer_types=_ALTERNATING, final_logit_softcapping=15.0, **_LOCAL),
    ),
    "phi3": ("Phi3Config", dict(_LLAMA, pad_token_id=0, original_max_position_embeddings=10, **_LONGROPE)),
    "phi3 window": (
        "Phi3Config",
        dict(
            _LLAMA,
            pad_token_id=0,
            head_dim=8,
            sliding_window=5,
            tie_word_embeddings=True,
            **_rope(partial_rotary_factor=0.5),
        ),
    ),
    "smollm3": (
        "SmolLM3Config",
        dict(_LLAMA, no_rope_layer_interval=2, pad_token_id=0, **_rope()),
    ),
    "smollm3 window": (
        "SmolLM3Config",
        dict(
            _LLAMA,
            num_hidden_layers=3,
            no_rope_layers=[1, 0, 1],
            use_sliding_window=True,
            sliding_window=5,
            attention_bias=True,
            mlp_bias=True,
            pad_token_id=0,
            **_YARN,
        ),
    ),
    "llama4": (
        "Llama4TextConfig",
        dict(
            _LLAMA,
            head_dim=8,
            intermediate_size_mlp=24,
            moe_layers=[],
            no_rope_layers=[1, 0],
            attention_chunk_size=8,
            floor_scale=4,
            attn_scale=0.5,
            use_qk_norm=False,
            **_LLAMA3,
        ),
    ),
    "llama4 normed": (
        "Llama4TextConfig",
        dict(
            _LLAMA,
            head_dim=8,
            intermediate_size_mlp=24,
            moe_layers=[],
            no_rope_layers=[1, 0],
            attention_chunk_size=32,
            attn_temperature_tuning=False,
            attention_bias=True,
            tie_word_embeddings=True,
            use_qk_norm=True,
            **_rope(),
        ),
    ),
    "olmo2": ("Olmo2Config", dict(_LLAMA, **_rope())),
    "olmo2 biased": (
        "Olmo2Config",
        dict(_LLAMA, attention_bias=True, rms_norm_eps=1e-3, tie_word_embeddings=True, **_YARN),
    ),
    "granite": (
        "GraniteConfig",
        dict(
            _LLAMA,
            attention_multiplier=0.3,
            embedding_multiplier=5.0,
            residual_multiplier=0.4,
            logits_scaling=3.0,
            **_rope(),
        ),
    ),
    "granite biased": (
        "GraniteConfig",
        dict(
            _LLAMA,
            head_dim=12,
            attention_bias=True,
            mlp_bias=True,
            tie_word_embeddings=True,
            attention_multiplier=0.2,
            residual_multiplier=0.7,
            **_YARN,
        ),
    ),
    "olmo3": (
        "Olmo3Config",
        dict(_LLAMA, num_hidden_layers=4, sliding_window=5, **_LOCAL),
    ),
    "olmo3 biased": (
        "Olmo3Config",
        dict(
            _LLAMA,
            attention_bias=True,
            rms_norm_eps=1e-3,
            tie_word_embeddings=True,
            sliding_window=7,
            layer_types=_ALTERNATING[::-1],
            rope_parameters=dict(
                sliding_attention=dict(rope_type="default", rope_theta=100.0), full_attention=_YARN["rope_parameters"]
            ),
        ),
    ),
    "exaone4": (
        "Exaone4Config",
        dict(_LLAMA, num_hidden_layers=3, sliding_window=5, sliding_window_pattern=3, **_LLAMA3),
    ),
    "exaone4 global": (
        "Exaone4Config",
        dict(
            _LLAMA,
            num_key_value_heads=1,
            head_dim=6,
            rms_norm_eps=1e-3,
            tie_word_embeddings=True,
            sliding_window=None,
            layer_types=["full_attention"] * 2,
            **_rope(),
        ),
    ),
    "cohere2": (
        "Cohere2Config",
        dict(_LLAMA, num_hidden_layers=4, sliding_window=5, logit_scale=0.25, **_rope()),
    ),
    "cohere2 biased": (
        "Cohere2Config",
        dict(
            _LLAMA,
            head_dim=12,
            attention_bias=True,
            layer_norm_eps=1e-3,
            sliding_window=7,
            layer_types=_ALTERNATING[::-1],
            tie_word_embeddings=False,
            **_YARN,
        ),
    ),
    "phi": ("PhiConfig", dict(_LLAMA, num_key_value_heads=4, **_rope())),
    "phi grouped": (
        "PhiConfig",
        dict(
            _LLAMA,
            head_dim=20,
            layer_norm_eps=1e-3,
            hidden_act="gelu",
            **_rope("linear", factor=3.0, partial_rotary_factor=0.4),
        ),
    ),
    "glm4": ("Glm4Config", dict(_LLAMA, pad_token_id=0, head_dim=8, **_rope())),
    "glm4 unbiased": (
        "Glm4Config",
        dict(
            _LLAMA,
            pad_token_id=0,
            head_dim=16,
            attention_bias=False,
            rms_norm_eps=1e-3,
            hidden_act="gelu",
            tie_word_embeddings=True,
            **_rope("linear", factor=3.0, partial_rotary_factor=0.75),
        ),
    ),
    "deepseek_v3": (
        "DeepseekV3Config",
        dict(_LATENT, q_lora_rank=10, **_rope("yarn", theta=100.0, factor=4.0, **_DEEPSEEK_YARN)),
    ),
    "deepseek_v3 halves": (
        "DeepseekV3Config",
        dict(
            _LATENT,
            q_lora_rank=None,
            rope_interleave=False,
            attention_bias=True,
            tie_word_embeddings=True,
            **_rope(),
        ),
    ),
    "deepseek_v3 biased": (
        "DeepseekV3Config",
        dict(_LATENT, q_lora_rank=8, attention_bias=True, hidden_act="gelu", **_rope("linear", factor=3.0)),
    ),
    "gpt_oss": (
        "GptOssConfig",
        dict(
            _LLAMA,
            head_dim=8,
            sliding_window=4,
            num_local_experts=1,
            num_experts_per_tok=1,
            **_rope("yarn", theta=100.0, factor=4.0, original_max_position_embeddings=24, truncate=False),
        ),
    ),
    "gpt_oss experts": (
        "GptOssConfig",
        dict(
            _LLAMA,
            head_dim=12,
            sliding_window=6,
            layer_types=_ALTERNATING[::-1],
            num_local_experts=4,
            num_experts_per_tok=2,
            swiglu_limit=0.5,
            **_rope(),
        ),
    ),
}
