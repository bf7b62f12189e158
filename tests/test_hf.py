"""transformers' spelling of rotary encodings, read and written. Its numbers are beside ours in tests/goldens."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from members import MEMBERS

import posjax as pj
from posjax.encodings import rope, t5
from posjax.hf import LayersDiffer
from posjax.hf.kinds import KINDS

# As published, without keys that do not concern the encoding.
LLAMA_31 = {
    "model_type": "llama",
    "hidden_size": 4096,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
}
QWEN_25_LONG = {
    "max_position_embeddings": 32768,
    "rope_theta": 1000000.0,
    "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"},
}
DEEPSEEK_V3 = {
    "max_position_embeddings": 163840,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
}
PHI_3 = {  # with fewer factors than it has
    "max_position_embeddings": 131072,
    "original_max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "rope_scaling": {"long_factor": [1.08, 1.11, 2], "short_factor": [1.0, 1.02, 1.03], "type": "longrope"},
}
PYTHIA = {
    "model_type": "gpt_neox",
    "max_position_embeddings": 2048,
    "rope_scaling": None,
    "rotary_emb_base": 10000,
    "rotary_pct": 0.25,
}
GEMMA_3_GLOBAL = {"rope_theta": 1000000.0, "rope_type": "linear", "factor": 8.0}
QWEN_2_VL = {"rope_theta": 1000000.0, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}
QWEN_3_VL = {
    "rope_theta": 5000000,
    "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
}
CODE_LLAMA = {"model_type": "llama", "rope_theta": 1000000, "rope_scaling": None}
GPT_OSS = {
    "rope_theta": 150000,
    "rope_parameters": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
}


@pytest.mark.parametrize(
    ("config", "spec"),
    [
        (LLAMA_31, "rope(base=500000, scaling=llama3())"),
        (QWEN_25_LONG, "rope(base=1000000, scaling=yarn(factor=4, original_length=32768))"),
        (DEEPSEEK_V3, "rope(scaling=yarn(factor=40, original_length=4096, mscale_all_dim=1))"),
        (
            PHI_3,
            "rope(scaling=longrope(short_factor=(1, 1.02, 1.03), long_factor=(1.08, 1.11, 2), factor=32, "
            "original_length=4096))",
        ),
        (PYTHIA, "rope(fraction=0.25)"),
        (GEMMA_3_GLOBAL, "rope(base=1000000, scaling=linear(factor=8))"),
        (CODE_LLAMA, "rope(base=1000000)"),
        (GPT_OSS, "rope(base=150000, scaling=yarn(factor=32, original_length=4096, truncate=False))"),
        (QWEN_2_VL, "mrope()"),
        (QWEN_3_VL, "mrope(base=5000000, sections=(24, 20, 20), interleaved=True)"),
        (None, "rope()"),
        ({}, "rope()"),
        ({"rope_type": "default", "rope_theta": 3.0}, "rope(base=3)"),
        ({"rope_type": "proportional", "partial_rotary_factor": 0.25}, "p_rope(proportion=0.25)"),
        ({"rope_type": "proportional", "factor": 8}, "p_rope(proportion=1, scaling=linear(factor=8))"),
    ],
)
def test_published_configurations(config, spec):
    assert pj.from_hf(config) == pj.parse(spec)


# Whole files, as published; parts that do not concern the encoding are shortened.
GPT_2 = {"model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_positions": 1024}
BERT = {"model_type": "bert", "hidden_size": 768, "max_position_embeddings": 512, "position_embedding_type": "absolute"}
ROBERTA = {"model_type": "roberta", "hidden_size": 768, "max_position_embeddings": 514, "pad_token_id": 1}
OPT = {"model_type": "opt", "hidden_size": 768, "max_position_embeddings": 2048}
BLOOM = {"model_type": "bloom", "hidden_size": 1024, "n_head": 16, "n_layer": 24, "attention_softmax_in_fp32": True}
MPT = {"model_type": "mpt", "d_model": 4096, "n_heads": 32, "attn_config": {"alibi": True, "alibi_bias_max": 8}}
FALCON_RW = {"model_type": "falcon", "alibi": True, "hidden_size": 2048, "num_attention_heads": 32}
FALCON_7B = {"model_type": "falcon", "alibi": False, "hidden_size": 4544, "num_attention_heads": 71}
T5_SMALL = {"model_type": "t5", "d_model": 512, "is_encoder_decoder": True, "relative_attention_num_buckets": 32}
DINO_V3 = {"model_type": "dinov3_vit", "hidden_size": 384, "rope_theta": 100.0, "patch_size": 16}
DEBERTA_V3 = {
    "model_type": "deberta-v2",
    "max_position_embeddings": 512,
    "max_relative_positions": -1,
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
    "position_buckets": 256,
    "relative_attention": True,
}
GPT_J = {"model_type": "gptj", "n_embd": 4096, "n_head": 16, "rotary_dim": 64}
QWEN_2_VL_TOWER = {"model_type": "qwen2_vl_vision", "embed_dim": 1280, "num_heads": 16}
PIXTRAL = {"model_type": "pixtral", "hidden_size": 1024, "rope_parameters": {"rope_theta": 1e4, "rope_type": "axial"}}
QWEN_3_5 = {
    "model_type": "qwen3_5_text",
    "head_dim": 256,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "rope_parameters": {
        "mrope_interleaved": True,
        "mrope_section": [11, 11, 10],
        "partial_rotary_factor": 0.25,
        "rope_theta": 10000000,
        "rope_type": "default",
    },
}
GEMMA_3 = {
    "model_type": "gemma3_text",
    "num_hidden_layers": 6,
    "rope_local_base_freq": 10000.0,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "rope_theta": 1000000.0,
    "sliding_window": 1024,
    "sliding_window_pattern": 6,
}
NESTED = {
    "full_attention": {"rope_type": "default", "rope_theta": 7.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 3.0},
}
GEMMA_3_NESTED = GEMMA_3 | {"rope_scaling": None, "rope_parameters": NESTED}
EXAONE_4 = {"model_type": "exaone4", "rope_theta": 1000000, "sliding_window": 4096, "num_hidden_layers": 4}
MISTRAL = {"model_type": "mistral", "num_hidden_layers": 2, "rope_theta": 10000.0, "sliding_window": 4096}
QWEN = {"model_type": "qwen", "num_hidden_layers": 2, "rotary_emb_base": 10000, "rotary_pct": 1.0, "seq_length": 8192}
QWEN_ROPE = "rope(scaling=dynamic_ntk(factor=2, original_length=8192, doubling=True))"
ESM = {"model_type": "esm", "rope_theta": 10000.0}
GPT_NEO = {"model_type": "gpt_neo", "num_layers": 4, "attention_types": [[["global", "local"], 2]], "window_size": 256}
LLAMA_1 = {"model_type": "llama", "hidden_size": 4096, "max_sequence_length": 2048}


@pytest.mark.parametrize(
    ("config", "spec"),
    [
        (GPT_2, "learned()"),
        (BERT, "learned()"),
        (ROBERTA, "learned()"),
        (OPT, "learned()"),
        (BLOOM, "alibi()"),
        (MPT, "alibi()"),
        (MPT | {"attn_config": None}, "alibi()"),
        (MPT | {"attn_config": {"alibi_bias_max": 16}}, "alibi(exponent=16)"),
        (FALCON_RW, "interpolate(factor=8) >> alibi()"),
        (FALCON_7B, "rope()"),
        (LLAMA_1, "rope()"),
        (GPT_J, "rope(fraction=0.25, layout='interleaved')"),
        (MISTRAL, "rope() + window(size=4096)"),
        (MISTRAL | {"sliding_window": None}, "rope()"),
        (QWEN_2_VL_TOWER, "axial_rope(base=10000)"),
        (PIXTRAL, "axial_rope(base=10000, frequencies='split')"),
        (QWEN_3_5, "mrope(base=10000000, sections=(11, 11, 10), interleaved=True, fraction=0.25)"),
        (PYTHIA | {"rotary_pct": None}, "rope(fraction=0.25)"),
        ({"model_type": "modernbert", "num_hidden_layers": 1}, "rope(base=160000)"),
        (ESM, "learned()"),
        (ESM | {"position_embedding_type": "rotary"}, "rope()"),
        (BERT | {"position_embedding_type": "alibi"}, "alibi()"),
        (LLAMA_31 | {"position_embedding_type": "alibi"}, "alibi()"),
        (DEBERTA_V3, "deberta(pos_att_type=('c2p', 'p2c'))"),
        (
            DEBERTA_V3 | {"position_biased_input": True, "pos_att_type": ["p2c"]},
            "learned() + deberta(pos_att_type=('p2c',))",
        ),
        (DEBERTA_V3 | {"relative_attention": False, "position_biased_input": True}, "learned()"),
        (QWEN, f"{QWEN_ROPE} + log_n(original_length=8192)"),
        (QWEN | {"use_dynamic_ntk": True, "use_logn_attn": True}, f"{QWEN_ROPE} + log_n(original_length=8192)"),
        (QWEN | {"use_dynamic_ntk": False, "use_logn_attn": True}, "rope() + log_n(original_length=8192)"),
        (QWEN | {"use_dynamic_ntk": False, "use_logn_attn": False}, "rope()"),
    ],
)
def test_whole_configurations_of_every_kind(config, spec):
    assert pj.from_hf(config) == pj.parse(spec)


GEMMA_3_PATTERN = ["rope() + window(size=1024)"] * 5 + ["rope(base=1000000, scaling=linear(factor=8))"]


@pytest.mark.parametrize(
    ("config", "specs"),
    [
        (GEMMA_3, GEMMA_3_PATTERN),
        (
            GEMMA_3_NESTED | {"layer_types": ["sliding_attention", "full_attention"] * 3},
            ["rope(base=3) + window(size=1024)", "rope(base=7)"] * 3,
        ),
        # A model that is not known here may say all of it.
        (
            {
                "model_type": "mamba",
                "sliding_window": 8,
                "layer_types": ["sliding_attention", "full_attention"],
                "rope_parameters": NESTED | {"full_attention": None},
            },
            ["rope(base=3) + window(size=8)", "none()"],
        ),
        (MISTRAL, ["rope() + window(size=4096)"] * 2),
        (LLAMA_1 | {"num_hidden_layers": 2}, ["rope()"] * 2),
        (GPT_2 | {"n_layer": 3}, ["learned()"] * 3),
        (GPT_NEO, ["learned()", "learned() + window(size=256)"] * 2),
        (
            GPT_NEO | {"attention_types": None, "attention_layers": ["local", "global"] * 2},
            ["learned() + window(size=256)", "learned()"] * 2,
        ),
        (
            {"model_type": "smollm3", "num_hidden_layers": 8, "rope_theta": 5e6},
            (["rope(base=5000000)"] * 3 + ["none()"]) * 2,
        ),
        (
            {"model_type": "cohere2", "num_hidden_layers": 4, "rope_theta": 5e4, "sliding_window": 4096},
            ["rope(base=50000, layout='interleaved') + window(size=4096)"] * 3 + ["none()"],
        ),
        (EXAONE_4, ["rope(base=1000000) + window(size=4096)"] * 3 + ["none()"]),
        (
            {"model_type": "afmoe", "sliding_window": 8, "rope_theta": 1e4, "layer_types": list(NESTED)},
            ["none()", "rope() + window(size=8)"],
        ),
        (EXAONE_4 | {"sliding_window": None, "layer_types": ["full_attention"] * 4}, ["rope(base=1000000)"] * 4),
        (
            {"model_type": "llama4_text", "num_hidden_layers": 4, "attention_chunk_size": 16, "floor_scale": 32},
            ["rope(base=500000, layout='interleaved') + chunked(size=16)"] * 3 + ["llama4_temperature(floor_scale=32)"],
        ),
        (
            {"model_type": "modernbert", "num_hidden_layers": 4, "local_attention": 128, "local_rope_theta": 1e4},
            ["rope(base=160000)", *["rope() + window(size=65)"] * 2, "rope(base=160000)"],
        ),
        (
            {"model_type": "gpt_oss", "num_hidden_layers": 2},
            [
                "rope(base=150000, scaling=yarn(factor=32, original_length=4096, truncate=False)) + " + more
                for more in ("window(size=128) + learned_sink()", "learned_sink()")
            ],
        ),
        (
            {"model_type": "inkling_text", "num_hidden_layers": 6, "shared_expert_sink": True, "rel_extent": 1024},
            ["window(size=512) + inkling(extent=512)"] * 5 + ["inkling()"],
        ),
        (
            {"model_type": "inkling_text", "num_hidden_layers": 2, "local_layer_ids": [1], "log_scaling_n_floor": 9},
            ["inkling(n_floor=9)", "window(size=512) + inkling(extent=512)"],
        ),
        (
            {
                "model_type": "inkling2_text",
                "num_hidden_layers": 2,
                "layer_types": ["hybrid_sliding", "hybrid"],
                "sliding_window_size": 8,
                "rel_l2_clip_threshold": 4.0,
            },
            [
                "window(size=8) + inkling(extent=8, clip=4) + token_sink()",
                "inkling(n_floor=128000, clip=4) + token_sink()",
            ],
        ),
        (
            {"model_type": "qwen2", "num_hidden_layers": 3, "use_sliding_window": True, "max_window_layers": 2},
            ["rope()", "rope()", "rope() + window(size=4096)"],
        ),
    ],
)
def test_layers_of_whole_configurations(config, specs):
    assert pj.from_hf_layers(config) == tuple(map(pj.parse, specs))


def test_dual_chunk_attention_stands_where_vllm_puts_it():
    """Queries at i mod s, min(i mod s + s, chunk_size) and min(2 s - 1, chunk_size), s = chunk_size - local_size."""
    chunks = {"chunk_size": 8, "local_size": 2}
    encoding = pj.from_hf(LLAMA_31 | {"rope_scaling": None, "dual_chunk_attention_config": chunks})
    assert encoding == pj.parse("dual_chunk(chunk=6, local=3) >> rope(base=500000)")
    within, same, last = (np.asarray(view[0]) for view in encoding.position_map.views(np.arange(20)))
    np.testing.assert_array_equal(within, np.arange(20) % 6)
    np.testing.assert_array_equal(same, np.minimum(np.arange(20) % 6 + 6, 8))
    assert set(last) == {8}


# Keys that say where tokens stand, what that does to logits or which tokens are seen, of transformers and of other code.
_KEYS = """
use_dynamic_ntk use_dynamic_ntk_rope ntk_alpha ntk_factor rope_ratio yarn_factor rope_scaling_layers layer_rope_theta
compress_rope_theta interpolation_factor rotary_embedding_base rope_local_base_freq global_rope_theta local_rope_theta
rotary_value rope_interleaved rotary use_rope use_rotary_embedding use_mem_rope num_spatial_rope_pairs_per_axis
rope_percent use_logn_attn use_log_n attn_temperature_tuning log_scaling_alpha log_scaling_n_floor
attention_temperature alibi use_alibi alibi_bias_max relative_attention relative_attention_num_buckets
relative_attention_max_distance position_buckets num_buckets has_relative_attention_bias rel_pos_bins max_rel_pos
use_relative_position_bias use_rel_pos pos_att_type encoder_max_relative_position position_bias_num_buckets
max_relative_positions relative_max_distance learned_pos_emb use_abs_pos use_absolute_position_embeddings
position_offset num_position_embeddings posemb_grid_size axial_pos_embds sinusoidal_pos_embds positional_encoding_type
use_xpos position_biased_input reset_position_ids position_embedding_type nope_layers nope_layer_interval
no_rope_layers no_rope_layer_interval local_layer_ids global_attention_blocks global_attn_indexes attention_sink_size
num_sink_tokens learnable_sink_init window_size attention_window attention_window_size sliding_window_size
keep_window_size attention_chunk_size chunk_size local_attention local_attention_window_len local_attn_chunk_length
num_global_tokens sparse_attention_config use_bidirectional_attention lsh_attn_chunk_length sliding_window
attention_dilation
"""
KEYS = _KEYS.split()


@pytest.mark.parametrize("key", KEYS)
def test_no_key_about_positions_is_dropped(key):
    """A key that asks for something is refused by its name, and one that asks for nothing is no key."""
    config = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
    with pytest.raises(ValueError, match=key):
        pj.from_hf_layers(config | {key: 3})
    for off in [None] if "rope" in key or "rotary" in key else [None, False, 0, -1, []]:
        if key not in KINDS or KINDS[key].holds(off):
            assert pj.from_hf_layers(config | {key: off}) == (rope(), rope())


def test_layers_without_attention_have_no_encoding():
    with pytest.raises(ValueError, match="layer 0 is 'linear_attention', which is no attention"):
        pj.from_hf_layers(QWEN_3_5)


def test_the_layout_is_what_the_caller_says():
    assert pj.from_hf(GPT_J, layout="half").layout == "half"
    deepseek = DEEPSEEK_V3 | {"model_type": "deepseek_v3", "qk_rope_head_dim": 64}
    assert pj.from_hf(deepseek).layout == "interleaved"
    assert pj.from_hf(deepseek | {"rope_interleave": False}).layout == "half"


@pytest.mark.parametrize(("width", "heads", "rotary_dim"), [(4096, 16, 64), (90, 1, 58), (98, 2, 28), (49, 1, 34)])
def test_a_rotary_dim_comes_back_from_its_share(width, heads, rotary_dim):
    config = GPT_J | {"n_embd": width, "n_head": heads, "rotary_dim": rotary_dim}
    assert int(pj.from_hf(config).fraction * (width // heads)) == rotary_dim


def test_a_t5_is_that_of_its_encoder_or_its_decoder():
    with pytest.raises(ValueError, match=r"'t5' has an encoder and a decoder.*decoder=True.*decoder=False"):
        pj.from_hf(T5_SMALL)
    assert pj.from_hf(T5_SMALL, decoder=False) == t5()
    large = T5_SMALL | {"relative_attention_num_buckets": 64, "relative_attention_max_distance": 256}
    assert pj.from_hf(large, decoder=True) == t5(64, 256, bidirectional=False)
    with pytest.raises(ValueError, match=r"this 'gpt2' is learned\(\): rope_theta"):
        pj.from_hf(GPT_2, rope_theta=1e4)
    with pytest.raises(ValueError, match="'gpt2' has one stack"):
        pj.from_hf(GPT_2, decoder=True)


def test_what_stands_beside_the_parameters():
    dynamic = {"type": "dynamic", "factor": 2.0}
    expected = pj.parse("rope(base=5, layout='interleaved', scaling=dynamic_ntk(factor=2, original_length=2048))")
    beside = dict(rope_theta=5, max_position_embeddings=2048, layout="interleaved")
    assert pj.from_hf(dynamic, **beside) == expected
    assert pj.from_hf({"rope_scaling": dynamic, "rope_theta": 9}, **beside) == expected
    assert pj.from_hf(dynamic | {"rope_theta": 7.0}, **beside).base == 7
    assert pj.from_hf({"rope_theta": 7.0}, partial_rotary_factor=0.5) == rope(base=7, fraction=0.5)
    assert pj.from_hf({"rope_theta": 7.0, "partial_rotary_factor": 0.25}, partial_rotary_factor=0.5).fraction == 0.25
    # Phi-3's original length goes before the one among the parameters, as in transformers.
    inside = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 100}
    assert pj.from_hf(inside).scaling.original_length == 100
    assert pj.from_hf(inside, original_max_position_embeddings=50).scaling.original_length == 50
    assert pj.from_hf(inside, max_position_embeddings=50).scaling.original_length == 100
    assert pj.from_hf({"rope_type": "yarn", "factor": 2.0}, max_position_embeddings=50).scaling.original_length == 50


def test_one_mscale_alone_is_not_heeded_there():
    config = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 0.707}
    assert pj.from_hf(config) == pj.parse("rope(scaling=yarn(factor=40, original_length=4096))")


YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8}
DUAL_CHUNK = {"chunk_size": 262144, "local_size": 8192}
CARD = {  # the snippet of a model card, applied to a folder of transformers 5
    "model_type": "llama",
    "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
    "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192},
}
WRONG = {
    "misspelt type": ({"rope_type": "yarm", "factor": 2}, "no rope_type is named 'yarm'; did you mean 'yarn'"),
    "misspelt key": (YARN | {"beta_fats": 3}, "'yarn' has no key 'beta_fats'; did you mean 'beta_fast'"),
    "missing": ({"rope_type": "linear"}, "'linear' needs factor"),
    "dynamic alone": (
        {"rope_type": "dynamic", "factor": 2.0},
        r"needs max_position_embeddings.*max_position_embedd.*=\.\.\.",
    ),
    "text": ({"rope_type": "linear", "factor": "2"}, "factor is '2', which is not a number above 0"),
    "nested": (
        {"full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_type": "default"}},
        r"several layer types \(full_attention, sliding_attention\).*rope_parameters\['full_attention'\]",
    ),
    "GPT-J of no size": ({"model_type": "gptj", "rotary_dim": 64}, "rotary_dim of 64.*partial_rotary_factor"),
    "an unknown rotary key": (
        LLAMA_31 | {"rope_ratio": 2},
        "does not know the key 'rope_ratio'.*rope_parameters alone",
    ),
    "layers that differ": (GEMMA_3, r"encodings of their own \(rope\(\) \+ window\(size=1024\).*from_hf_layers"),
    "an unknown window": (
        {"model_type": "llama", "sliding_window": 64, "num_hidden_layers": 2},
        "sliding_window=64 is not known here: give layer_types",
    ),
    "a Mistral of layer types": (
        {"model_type": "mistral", "num_hidden_layers": 1, "layer_types": ["full_attention"]},
        "does not heed layer_types",
    ),
    "a rotary_dim that its code does not read": (
        {"model_type": "minimax_m3_vl_text", "rotary_dim": 64, "head_dim": 128, "rope_theta": 5e6},
        "what the rotary_dim=64 of a 'minimax_m3_vl_text' says is not known here",
    ),
    "a model of its own way": (
        {"model_type": "ernie4_5_vl_moe_text", "rope_parameters": {"mrope_section": [22, 22, 20]}},
        "a 'ernie4_5_vl_moe_text' is not read: its sections come in another order",
    ),
    "a pattern in letters": (
        EXAONE_4 | {"sliding_window_pattern": "LLLG"},
        "'LLLG' is no number of layers: give layer_types",
    ),
    "sections dealt out otherwise": (
        QWEN_3_5 | {"rope_parameters": {"mrope_interleaved": False}},
        "mrope_interleaved=False, but the code of a 'qwen3_5_text' has it True",
    ),
    "a layer type without parameters": (
        GEMMA_3_NESTED | {"rope_parameters": {"full_attention": {"rope_theta": 5}}},
        "rope_parameters have no 'sliding_attention'",
    ),
    "an unknown model": (
        {"model_type": "mamba", "hidden_size": 768},
        r"'mamba' has no rotary key.*from_hf\(rope_parameters\).*known that do not: albert",
    ),
    "a model of text and images": (
        {"model_type": "llava", "text_config": {"model_type": "llama"}, "vision_config": {}},
        r"'llava' is made of several.*from_hf\(config\['text_config'\]\)",
    ),
    "an MPT without": (MPT | {"attn_config": {"alibi": False}}, "attn_config.alibi=False"),
    "a card's snippet in a folder of transformers 5": (
        CARD,
        r"rope_parameters and a rope_scaling.*leave rope_scaling out.*rope_parameters=\{.*'yarn', 'rope_theta': 500000.0",
    ),
    "types that disagree": (
        {"type": "linear", "rope_type": "dynamic", "factor": 2.0},
        "rope_type='dynamic' and type='linear'.*disagree: leave out",
    ),
    "a temperature of dual chunk attention": (
        LLAMA_1 | {"dual_chunk_attention_config": DUAL_CHUNK | {"original_max_position_embeddings": 262144}},
        "original_max_position_embeddings of dual_chunk_attention_config",
    ),
    "a GPT-Neo with too few layers": (GPT_NEO | {"num_layers": 5}, "attention_types, are 4"),
    "a DINOv3": (DINO_V3, "pretrained.load"),
}


@pytest.mark.parametrize(("config", "message"), WRONG.values(), ids=WRONG)
def test_wrong_configurations(config, message):
    with pytest.raises(ValueError, match=message):
        pj.from_hf(config)


def test_spellings_that_agree_are_read():
    merged = CARD["rope_parameters"] | CARD["rope_scaling"] | {"rope_type": "yarn"}
    del merged["type"]
    expected = pj.parse("rope(base=500000, scaling=yarn(factor=4, original_length=8192))")
    assert pj.from_hf(CARD | {"rope_parameters": merged}) == expected
    assert pj.from_hf(CARD | {"rope_parameters": merged, "rope_scaling": None}) == expected
    assert pj.from_hf(CARD | {"rope_parameters": None, "rope_theta": 500000.0}) == expected
    sections = {"mrope_section": [16, 24, 24]}
    for types in (
        {"type": "mrope"},
        {"type": "mrope", "rope_type": "default"},
        {"type": "default", "rope_type": "default"},
    ):
        assert pj.from_hf({"rope_scaling": sections | types}) == pj.parse("mrope(base=10000)")


def test_written():
    assert pj.to_hf(rope()) == {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
    dynamic = pj.parse("rope(fraction=0.5, scaling=dynamic_ntk(factor=2, original_length=2048))")
    assert pj.to_hf(dynamic) == {
        "rope_parameters": {
            "rope_type": "dynamic",
            "rope_theta": 10000.0,
            "factor": 2,
            "partial_rotary_factor": 0.5,
        },
        "max_position_embeddings": 2048,
    }
    deepseek = pj.parse("rope(scaling=yarn(factor=40, original_length=4096, mscale=0.707))")
    written = pj.to_hf(deepseek)["rope_parameters"]
    assert written["attention_factor"] == deepseek.scaling.attention(None, None)
    assert "mscale" not in written


def describable(encoding):
    unnamed = ("clipped", "dynamic_yarn", "dype", "ntk", "ntk_by_parts", "resonance", "riflex")
    return getattr(encoding.scaling, "spec_name", "") not in unnamed and not getattr(
        encoding.scaling, "doubling", False
    )


def arguments(name):
    return st.fixed_dictionaries(dict(MEMBERS[name].arguments)).map(lambda kw: pj.parse(name + "()").__class__(**kw))


@pytest.mark.filterwarnings("ignore:Do not use the `random` module")  # beartype does, to sample items for its checks
@settings(deadline=None, max_examples=30)
@given(arguments("rope").filter(describable))
def test_round_trip(encoding):
    """Writes transformers' spelling and reads it back; other settings (one mscale) are spelled otherwise, or refused."""
    if getattr(encoding.scaling, "start_tokens", 0):
        with pytest.raises(ValueError, match="no rope_type for the scaling longrope"):
            pj.to_hf(encoding, layout=encoding.layout)
        return
    written = pj.to_hf(encoding, layout=encoding.layout)
    back = pj.from_hf(written, layout=encoding.layout)
    if not (encoding.scaling and encoding.scaling.spec_name == "yarn"):
        assert back == encoding
    else:
        assert back.scaling.attention(None, None) == pytest.approx(encoding.scaling.attention(None, None))
        assert [back.scaling.factor, back.scaling.beta_fast, back.scaling.truncate] == [
            encoding.scaling.factor,
            encoding.scaling.beta_fast,
            encoding.scaling.truncate,
        ]
    assert pj.to_hf(back, layout=encoding.layout) == written


@pytest.mark.parametrize(
    "spec",
    [
        "p_rope(proportion=0.25)",
        "p_rope(scaling=linear(factor=3))",
        "p_rope(base=7)",
        "mrope(interleaved=True)",
        "mrope(sections=(11, 11, 10), interleaved=True, fraction=0.25)",
        "axial_rope(base=5)",
        "mrope(sections=(8, 12, 12), scaling=yarn(factor=4, original_length=32768))",
    ],
)
def test_round_trip_of_others(spec):
    assert pj.from_hf(pj.to_hf(pj.parse(spec))) == pj.parse(spec)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("alibi()", r"describe rope, p_rope and mrope with a scaling, and axial_rope, not alibi\(\)"),
        ("axial_rope(indexing='xy')", r"no key for the arguments of axial_rope\(indexing='xy'\) beside base"),
        ("mrope(time_last=True)", "deal out no channels as time_last=True does"),
        ("rope(scaling=dynamic_ntk(factor=2, original_length=8, doubling=True))", "no rope_type for the scaling"),
        ("p_rope(scaling=ntk(factor=2))", r"scales p_rope by linear\(...\) only, not by ntk\(factor=2\)"),
        (
            "rope(layout='interleaved')",
            r"layout='interleaved', the model layout='half': to_hf\(..., layout='interleaved'\)",
        ),
    ],
)
def test_what_transformers_cannot_say(spec, message):
    with pytest.raises(ValueError, match=message):
        pj.to_hf(pj.parse(spec))


def test_a_whole_longrope_has_a_text_that_is_read():
    """Covers Phi-3's number of factors, with all their digits."""
    factors = [1 + 0.1234567890123 * c for c in range(64)]
    config = {"rope_type": "longrope", "short_factor": factors, "long_factor": factors[::-1], "factor": 32.0}
    encoding = pj.from_hf(config, original_max_position_embeddings=4096)
    assert len(str(encoding)) > 2000
    assert pj.parse(str(encoding)) == encoding


def test_only_layers_that_differ_are_told_by_an_error_of_their_own():
    """`from_hf_layers` reads these, and no other refused configuration."""
    with pytest.raises(LayersDiffer):
        pj.from_hf(GEMMA_3)
    nested = {"full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_type": "default"}}
    with pytest.raises(ValueError, match="parameters of several layer types") as told:
        pj.from_hf(nested)
    assert not isinstance(told.value, LayersDiffer)
