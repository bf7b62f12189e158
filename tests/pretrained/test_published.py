"""Configurations as they were published, with the keys of their day, give models of the published sizes and encodings.

No published weights are at hand: only what the configurations say is read.
"""

import math

import jax
import pytest

from posjax.hf import from_hf_layers
from posjax.pretrained.language import FAMILIES
from posjax.pretrained.language.family import pattern_text
from posjax.pretrained.parameters import expected_params

_LLAMA_31 = {
    "architectures": ["LlamaForCausalLM"],
    **dict(attention_bias=False, attention_dropout=0.0, bos_token_id=128000, eos_token_id=128001, hidden_act="silu"),
    **dict(hidden_size=4096, initializer_range=0.02, intermediate_size=14336, max_position_embeddings=131072),
    **dict(mlp_bias=False, model_type="llama", num_attention_heads=32, num_hidden_layers=32, num_key_value_heads=8),
    **dict(pretraining_tp=1, rms_norm_eps=1e-05, rope_theta=500000.0, tie_word_embeddings=False),
    **dict(torch_dtype="bfloat16", transformers_version="4.43.0.dev0", use_cache=True, vocab_size=128256),
    "rope_scaling": {
        **dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192),
        "rope_type": "llama3",
    },
}
_GPT_2 = {
    **dict(activation_function="gelu_new", architectures=["GPT2LMHeadModel"], attn_pdrop=0.1, bos_token_id=50256),
    **dict(embd_pdrop=0.1, eos_token_id=50256, initializer_range=0.02, layer_norm_epsilon=1e-05, model_type="gpt2"),
    **dict(n_ctx=1024, n_embd=768, n_head=12, n_layer=12, n_positions=1024, resid_pdrop=0.1, vocab_size=50257),
    **dict(summary_activation=None, summary_first_dropout=0.1, summary_proj_to_labels=True, summary_type="cls_index"),
    **dict(summary_use_proj=True, task_specific_params={"text-generation": {"do_sample": True, "max_length": 50}}),
}
_PYTHIA = {
    **dict(architectures=["GPTNeoXForCausalLM"], bos_token_id=0, eos_token_id=0, hidden_act="gelu", hidden_size=768),
    **dict(initializer_range=0.02, intermediate_size=3072, layer_norm_eps=1e-05, max_position_embeddings=2048),
    **dict(model_type="gpt_neox", num_attention_heads=12, num_hidden_layers=12, rotary_emb_base=10000, rotary_pct=0.25),
    **dict(tie_word_embeddings=False, torch_dtype="float16", use_cache=True, use_parallel_residual=True),
    "vocab_size": 50304,
}
_GPT_J = {
    **dict(activation_function="gelu_new", attn_pdrop=0.0, bos_token_id=50256, embd_pdrop=0.0, eos_token_id=50256),
    **dict(gradient_checkpointing=False, initializer_range=0.02, layer_norm_epsilon=1e-05, model_type="gptj"),
    **dict(n_embd=4096, n_head=16, n_inner=None, n_layer=28, n_positions=2048, resid_pdrop=0.0, rotary=True),
    **dict(rotary_dim=64, scale_attn_weights=True, tie_word_embeddings=False, use_cache=True, vocab_size=50400),
}
_BLOOM = {
    **dict(apply_residual_connection_post_layernorm=False, attention_dropout=0.0, attention_softmax_in_fp32=True),
    **dict(bias_dropout_fusion=True, bos_token_id=1, eos_token_id=2, hidden_dropout=0.0, initializer_range=0.02),
    **dict(layer_norm_epsilon=1e-05, masked_softmax_fusion=True, model_type="bloom", n_embed=1024, n_inner=None),
    **dict(n_layer=24, num_attention_heads=16, offset_alibi=100, pad_token_id=3, pretraining_tp=1, seq_length=2048),
    **dict(skip_bias_add=True, skip_bias_add_qkv=False, unk_token_id=0, vocab_size=250880),
}
_FALCON = {
    **dict(alibi=False, apply_residual_connection_post_layernorm=False, architectures=["FalconForCausalLM"]),
    **dict(attention_dropout=0.0, bias=False, bos_token_id=11, eos_token_id=11, hidden_dropout=0.0, hidden_size=4544),
    **dict(initializer_range=0.02, layer_norm_epsilon=1e-05, model_type="falcon", multi_query=True),
    **dict(new_decoder_architecture=False, num_attention_heads=71, num_hidden_layers=32, parallel_attn=True),
    **dict(auto_map={"AutoConfig": "configuration_falcon.FalconConfig"}, vocab_size=65024, use_cache=True),
}
_MISTRAL = {
    **dict(architectures=["MistralForCausalLM"], bos_token_id=1, eos_token_id=2, hidden_act="silu", hidden_size=4096),
    **dict(initializer_range=0.02, intermediate_size=14336, max_position_embeddings=32768, model_type="mistral"),
    **dict(num_attention_heads=32, num_hidden_layers=32, num_key_value_heads=8, rms_norm_eps=1e-05),
    **dict(rope_theta=10000.0, sliding_window=4096, tie_word_embeddings=False, vocab_size=32000),
}
_QWEN_25 = {
    **dict(architectures=["Qwen2ForCausalLM"], attention_dropout=0.0, hidden_act="silu", hidden_size=896),
    **dict(initializer_range=0.02, intermediate_size=4864, max_position_embeddings=32768, max_window_layers=24),
    **dict(model_type="qwen2", num_attention_heads=14, num_hidden_layers=24, num_key_value_heads=2, rms_norm_eps=1e-06),
    **dict(rope_theta=1000000.0, sliding_window=32768, tie_word_embeddings=True, use_sliding_window=False),
    "vocab_size": 151936,
}
_QWEN_3 = {
    **dict(architectures=["Qwen3ForCausalLM"], attention_bias=False, head_dim=128, hidden_act="silu", hidden_size=1024),
    **dict(intermediate_size=3072, max_position_embeddings=40960, max_window_layers=28, model_type="qwen3"),
    **dict(num_attention_heads=16, num_hidden_layers=28, num_key_value_heads=8, rms_norm_eps=1e-06, rope_scaling=None),
    **dict(rope_theta=1000000, sliding_window=None, tie_word_embeddings=True, use_sliding_window=False),
    "vocab_size": 151936,
}
_GEMMA_2 = {
    **dict(
        architectures=["Gemma2ForCausalLM"],
        attention_bias=False,
        attn_logit_softcapping=50.0,
        cache_implementation="hybrid",
    ),
    **dict(final_logit_softcapping=30.0, head_dim=256, hidden_act="gelu_pytorch_tanh", hidden_size=2304),
    **dict(hidden_activation="gelu_pytorch_tanh", intermediate_size=9216, max_position_embeddings=8192),
    **dict(model_type="gemma2", num_attention_heads=8, num_hidden_layers=26, num_key_value_heads=4),
    **dict(query_pre_attn_scalar=256, rms_norm_eps=1e-06, rope_theta=10000.0, sliding_window=4096, vocab_size=256000),
}
_GEMMA_3 = {
    **dict(architectures=["Gemma3ForCausalLM"], attention_bias=False, attn_logit_softcapping=None, head_dim=256),
    **dict(cache_implementation="hybrid", final_logit_softcapping=None, hidden_activation="gelu_pytorch_tanh"),
    **dict(hidden_size=1152, intermediate_size=6912, max_position_embeddings=32768, model_type="gemma3_text"),
    **dict(num_attention_heads=4, num_hidden_layers=26, num_key_value_heads=1, query_pre_attn_scalar=256),
    **dict(rms_norm_eps=1e-06, rope_local_base_freq=10000, rope_scaling=None, rope_theta=1000000, sliding_window=512),
    **dict(sliding_window_pattern=6, vocab_size=262144),
}
_PHI_3 = {
    **dict(
        architectures=["Phi3ForCausalLM"], attention_bias=False, embd_pdrop=0.0, hidden_act="silu", hidden_size=3072
    ),
    **dict(intermediate_size=8192, max_position_embeddings=131072, model_type="phi3", num_attention_heads=32),
    **dict(num_hidden_layers=32, num_key_value_heads=32, original_max_position_embeddings=4096, resid_pdrop=0.0),
    **dict(rms_norm_eps=1e-05, rope_theta=10000.0, sliding_window=262144, tie_word_embeddings=False, vocab_size=32064),
    "rope_scaling": {"long_factor": [2.0] * 48, "short_factor": [1.1] * 48, "type": "longrope"},
}
_GPT_OSS = {  # without its quantization_config, which is refused
    **dict(
        architectures=["GptOssForCausalLM"], attention_bias=True, experts_per_token=4, head_dim=64, hidden_act="silu"
    ),
    **dict(hidden_size=2880, initial_context_length=4096, intermediate_size=2880, max_position_embeddings=131072),
    **dict(layer_types=["sliding_attention", "full_attention"] * 12, model_type="gpt_oss", num_attention_heads=64),
    **dict(num_experts_per_tok=4, num_hidden_layers=24, num_key_value_heads=8, num_local_experts=32),
    **dict(output_router_logits=False, rms_norm_eps=1e-05, rope_theta=150000, router_aux_loss_coef=0.9),
    **dict(sliding_window=128, swiglu_limit=7.0, tie_word_embeddings=False, vocab_size=201088),
    "rope_scaling": {
        **dict(beta_fast=32.0, beta_slow=1.0, factor=32.0, original_max_position_embeddings=4096, rope_type="yarn"),
        "truncate": False,
    },
}
_OLMO_3 = {
    **dict(architectures=["Olmo3ForCausalLM"], attention_bias=False, attention_dropout=0.0, eos_token_id=100257),
    **dict(hidden_act="silu", hidden_size=4096, initializer_range=0.02, intermediate_size=11008, model_type="olmo3"),
    **dict(layer_types=(["sliding_attention"] * 3 + ["full_attention"]) * 8, max_position_embeddings=65536),
    **dict(num_attention_heads=32, num_hidden_layers=32, num_key_value_heads=32, pad_token_id=100277),
    **dict(rms_norm_eps=1e-06, rope_theta=500000, sliding_window=4096, tie_word_embeddings=False, use_cache=False),
    "rope_scaling": {
        **dict(attention_factor=1.2079441541679836, beta_fast=32.0, beta_slow=1.0, factor=8.0, rope_type="yarn"),
        "original_max_position_embeddings": 8192,
    },
    "vocab_size": 100278,
}
_GRANITE_33 = {
    **dict(architectures=["GraniteForCausalLM"], attention_bias=False, attention_dropout=0.0, bos_token_id=0),
    **dict(attention_multiplier=0.015625, embedding_multiplier=12.0, hidden_act="silu", hidden_size=2048),
    **dict(initializer_range=0.02, intermediate_size=8192, logits_scaling=8.0, max_position_embeddings=131072),
    **dict(mlp_bias=False, model_type="granite", num_attention_heads=32, num_hidden_layers=40, num_key_value_heads=8),
    **dict(residual_multiplier=0.22, rms_norm_eps=1e-05, rope_scaling=None, rope_theta=10000000.0),
    **dict(tie_word_embeddings=True, torch_dtype="bfloat16", use_cache=True, vocab_size=49159),
}
_COMMAND_R7B = {
    **dict(architectures=["Cohere2ForCausalLM"], attention_bias=False, attention_dropout=0.0, bos_token_id=5),
    **dict(cache_implementation="hybrid", eos_token_id=255001, head_dim=128, hidden_act="silu", hidden_size=4096),
    **dict(initializer_range=0.02, intermediate_size=14336, layer_norm_eps=1e-05, layer_switch=4, logit_scale=0.25),
    **dict(max_position_embeddings=132096, model_type="cohere2", num_attention_heads=32, num_hidden_layers=32),
    **dict(num_key_value_heads=8, order_of_interleaved_layers="local_attn_first", pad_token_id=0, rope_scaling=None),
    **dict(position_embedding_type="rope_gptj", rope_theta=50000, rotary_pct=1.0, sliding_window=4096),
    **dict(sliding_window_pattern=4, use_embedding_sharing=True, use_gated_activation=True, use_parallel_block=True),
    **dict(use_parallel_embedding=True, vocab_size=256000),
}
_EXAONE_4 = {
    **dict(architectures=["Exaone4ForCausalLM"], attention_dropout=0.0, bos_token_id=1, eos_token_id=361),
    **dict(head_dim=64, hidden_act="silu", hidden_size=2048, initializer_range=0.02, intermediate_size=4096),
    **dict(layer_types=["full_attention"] * 30, max_position_embeddings=65536, model_type="exaone4"),
    **dict(num_attention_heads=32, num_hidden_layers=30, num_key_value_heads=8, rms_norm_eps=1e-05),
    **dict(rope_theta=1000000, sliding_window=None, sliding_window_pattern=None, tie_word_embeddings=True),
    "rope_scaling": {
        **dict(factor=16.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192),
        "rope_type": "llama3",
    },
    "vocab_size": 102400,
}
_PHI_2 = {
    **dict(architectures=["PhiForCausalLM"], attention_dropout=0.0, bos_token_id=50256, embd_pdrop=0.0),
    **dict(eos_token_id=50256, hidden_act="gelu_new", hidden_size=2560, initializer_range=0.02, model_type="phi"),
    **dict(intermediate_size=10240, layer_norm_eps=1e-05, max_position_embeddings=2048, num_attention_heads=32),
    **dict(num_hidden_layers=32, num_key_value_heads=32, partial_rotary_factor=0.4, qk_layernorm=False),
    **dict(resid_pdrop=0.1, rope_scaling=None, rope_theta=10000.0, tie_word_embeddings=False, vocab_size=51200),
}
_GLM_4 = {
    **dict(architectures=["Glm4ForCausalLM"], attention_bias=False, attention_dropout=0.0, head_dim=128),
    **dict(eos_token_id=[151329, 151336, 151338], hidden_act="silu", hidden_size=4096, intermediate_size=13696),
    **dict(max_position_embeddings=32768, model_type="glm4", num_attention_heads=32, num_hidden_layers=40),
    **dict(num_key_value_heads=2, pad_token_id=151329, partial_rotary_factor=0.5, rms_norm_eps=1e-05),
    **dict(rope_theta=10000.0, tie_word_embeddings=False, use_cache=True, vocab_size=151552),
}
_OLMO = "rope(base=500000)"
_OLMO_YARN = "rope(base=500000, scaling=yarn(factor=8, original_length=8192, attention_factor=1.2079441541679836))"
_NEIGHBOURS = "rope(base=50000, layout='interleaved') + window(size=4096)"
_YARN = "rope(base=150000, scaling=yarn(factor=32, original_length=4096, truncate=False))"
_LOCAL = "rope() + window(size=512)"
# By name: the configuration, the number of parameters, the encoding.
PUBLISHED = {
    "Llama 3.1 8B": (_LLAMA_31, 8_030_261_248, "rope(base=500000, scaling=llama3())"),
    "GPT-2": (_GPT_2, 124_439_808, "learned()"),
    "Pythia 160M": (_PYTHIA, 162_322_944, "rope(fraction=0.25)"),
    "GPT-J 6B": (_GPT_J, 6_050_882_784, "rope(layout='interleaved', fraction=0.25)"),
    "BLOOM 560M": (_BLOOM, 559_214_592, "alibi()"),
    "Falcon 7B": (_FALCON, 6_921_720_704, "rope()"),
    "Mistral 7B v0.1": (_MISTRAL, 7_241_732_096, "rope() + window(size=4096)"),
    "Qwen2.5 0.5B": (_QWEN_25, 494_032_768, "rope(base=1000000)"),
    "Qwen3 0.6B": (_QWEN_3, 596_049_920, "rope(base=1000000)"),
    "Gemma 2 2B": (_GEMMA_2, 2_614_341_888, "rope() + window(size=4096), rope()"),
    "Gemma 3 1B": (_GEMMA_3, 999_885_952, f"{_LOCAL}, " * 5 + "rope(base=1000000)"),
    "Phi-3 mini 128k": (_PHI_3, 3_821_079_552, None),
    "OLMo 3 7B": (_OLMO_3, 7_298_011_136, f"{_OLMO} + window(size=4096), " * 3 + _OLMO_YARN),
    "Granite 3.3 2B": (_GRANITE_33, 2_533_539_840, "rope(base=10000000)"),
    "Command R7B": (_COMMAND_R7B, 8_028_033_024, f"{_NEIGHBOURS}, " * 3 + "none()"),
    "EXAONE 4.0 1.2B": (_EXAONE_4, 1_279_391_488, "rope(base=1000000, scaling=llama3(factor=16))"),
    "Phi-2": (_PHI_2, 2_779_683_840, "rope(fraction=0.4)"),
    "GLM-4 9B 0414": (_GLM_4, 9_400_094_720, "rope(layout='interleaved', fraction=0.5)"),
    "gpt-oss 20B": (_GPT_OSS, 20_914_757_184, f"{_YARN} + window(size=128) + learned_sink(), {_YARN} + learned_sink()"),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_encodings_of_published_configurations(name):
    config, _, encoding = PUBLISHED[name]
    model = FAMILIES[config["model_type"]].made(config)
    if name != "GPT-J 6B":  # `from_hf_layers` refuses its key `rotary`
        assert pattern_text(from_hf_layers(config)) == model.encoding
    if encoding is not None:
        assert model.encoding == encoding
    if name.startswith("Phi-3"):
        assert "original_length=4096" in model.encoding
        assert "factor=32" in model.encoding


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_of_published_configurations(name):
    """From models of one layer and of two: all layers are alike."""
    config, number, _ = PUBLISHED[name]
    depth = FAMILIES[config["model_type"]].made(config).depth
    key = next(key for key in ("num_hidden_layers", "n_layer") if key in config)
    cut = {key: value for key, value in config.items() if key != "layer_types"}
    few = [_count(cut | {key: layers}) for layers in (1, 2)]
    assert few[0] + (depth - 1) * (few[1] - few[0]) == number


def _count(config) -> int:
    model = FAMILIES[config["model_type"]].made(config)
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(expected_params(model)))
