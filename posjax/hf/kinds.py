"""The kinds of values of transformers' keys about positions or sizes."""

from posjax.checks import (
    AMOUNT,
    COUNT,
    FLAG,
    GROUP,
    LAYERS,
    NUMBER,
    POSITIVE,
    SHARE,
    SIZE,
    TEXT,
    WHOLE,
    Kind,
    either,
    maybe,
    several,
)

_SWITCH = either(FLAG, Kind("0 or 1", lambda value: type(value) is int and value in (0, 1)))
# The keys of whole configurations that speak of positions or of sizes; null stands for a key that is not there.
_WHOLE = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers"), LAYERS),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "n_embed", "d_kv", "head_dim"), SIZE),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "num_key_value_heads"), SIZE),
    **dict.fromkeys(("num_kv_heads", "n_head_kv", "vocab_size", "rotary_dim", "max_position_embeddings"), SIZE),
    **dict.fromkeys(
        ("n_positions", "max_seq_len", "original_max_position_embeddings", "num_ln_in_parallel_attn"), SIZE
    ),
    **dict.fromkeys(("seq_length", "window_size", "sliding_window_size"), SIZE),
    **dict.fromkeys(("d_rel", "rel_extent", "log_scaling_n_floor"), SIZE),
    **dict.fromkeys(("local_layer_ids", "mtp_local_layer_ids"), several(COUNT)),
    "log_scaling_alpha": AMOUNT,
    "rel_l2_clip_threshold": POSITIVE,
    **dict.fromkeys(("intermediate_size", "n_inner", "d_ff", "ffn_hidden_size"), SIZE),
    **dict.fromkeys(("attention_chunk_size", "no_rope_layer_interval", "global_attn_every_n_layers"), SIZE),
    **dict.fromkeys(("relative_attention_num_buckets", "relative_attention_max_distance"), COUNT),
    **dict.fromkeys(("sliding_window", "max_window_layers", "local_attention"), COUNT),
    **dict.fromkeys(("first_k_dense_replace", "type_vocab_size"), COUNT),
    **dict.fromkeys(("intermediate_size_mlp", "num_local_experts", "q_lora_rank", "kv_lora_rank"), SIZE),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping", "swiglu_limit"), POSITIVE),
    **dict.fromkeys(("position_buckets", "max_relative_positions"), WHOLE),
    **dict.fromkeys(("rope_theta", "rotary_emb_base", "global_rope_theta", "local_rope_theta"), POSITIVE),
    **dict.fromkeys(
        ("rope_local_base_freq", "query_pre_attn_scalar", "floor_scale", "alibi_bias_max", "logits_scaling"), POSITIVE
    ),
    **dict.fromkeys(("layer_norm_eps", "layer_norm_epsilon", "rms_norm_eps", "norm_eps"), AMOUNT),
    **dict.fromkeys(("attn_scale", "clip_qkv", "softmax_scale"), NUMBER),
    **dict.fromkeys(("attention_multiplier", "embedding_multiplier", "residual_multiplier"), NUMBER),
    **dict.fromkeys(("partial_rotary_factor", "rotary_pct"), SHARE),
    **dict.fromkeys(("use_sliding_window", "relative_attention", "position_biased_input", "share_att_key"), _SWITCH),
    **dict.fromkeys(("multi_query", "parallel_attn", "new_decoder_architecture", "use_qk_norm", "bias"), _SWITCH),
    **dict.fromkeys(("alibi", "rope_interleave", "is_decoder", "is_encoder_decoder", "sinusoidal_pos_embds"), _SWITCH),
    **dict.fromkeys(
        ("tie_word_embeddings", "scale_decoder_outputs", "is_gated_act", "attention_bias", "mlp_bias"), _SWITCH
    ),
    **dict.fromkeys(("use_dynamic_ntk", "use_logn_attn"), _SWITCH),
    **dict.fromkeys(("model_type", "position_embedding_type", "feed_forward_proj", "norm_rel_ebd"), TEXT),
    **dict.fromkeys(("rope_parameters", "rope_scaling", "attn_config"), GROUP),
    **dict.fromkeys(("sliding_window_pattern", "_sliding_window_pattern"), either(COUNT, TEXT)),  # text is EXAONE's
    "attn_temperature_tuning": either(FLAG, COUNT),
    **dict.fromkeys(("layer_types", "attention_layers"), several(TEXT)),
    "dual_chunk_attention_config": Kind(
        "a group whose chunk_size and local_size are whole numbers of 1 or more",
        lambda value: (
            GROUP.holds(value) and all(SIZE.holds(value.get(name, 1)) for name in ("chunk_size", "local_size"))
        ),
    ),
    "no_rope_layers": several(_SWITCH),
    "layer_rope_theta": several(AMOUNT),
    "pos_att_type": either(TEXT, several(TEXT)),
}
KINDS = {name: maybe(kind) for name, kind in _WHOLE.items()}
# Of rope_parameters, which the parameters of layer types may stand in.
ROPE_KINDS = {
    **{name: KINDS[name] for name in ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings")},
    **dict.fromkeys(("rope_type", "type"), maybe(TEXT)),
    **dict.fromkeys(("factor", "low_freq_factor", "high_freq_factor"), maybe(POSITIVE)),
    **dict.fromkeys(("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor"), maybe(NUMBER)),
    **dict.fromkeys(("truncate", "mrope_interleaved"), maybe(FLAG)),
    **dict.fromkeys(("short_factor", "long_factor"), maybe(several(POSITIVE, 1))),
    "mrope_section": maybe(several(COUNT, 1, 16)),
}
