"""The audit of transformers' own rotary modules, 16 families, each beside its own configuration.

Needs torch and transformers, which the project does not install: `pip install "torch>=2.6" "transformers>=5"` beside posjax.
"""

import importlib

import pytest

import posjax as pj

torch = pytest.importorskip("torch", reason="torch is not installed: the extra goldens brings it")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: the extra goldens brings it")
pytestmark = pytest.mark.slow

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8192}
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 32, "long_factor": [1 + c / 8 for c in range(32)]}
LONGROPE |= {"original_max_position_embeddings": 2048, "factor": 4.0}
SMALL = {"hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 6, "head_dim": 64, "vocab_size": 99}


def plain(theta=10_000.0, **more):
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, **more}}


# module, keys of the configuration, the spec
FAMILIES = [
    ("llama", plain(), "rope()"),
    ("llama", {"rope_parameters": LLAMA3 | {"rope_theta": 5e5}}, "rope(base=500000, scaling=llama3())"),
    ("mistral", plain(1e6), "rope(base=1000000)"),
    ("qwen2", {"rope_parameters": YARN | {"rope_theta": 1e6}},
     "rope(base=1000000, scaling=yarn(factor=4, original_length=2048))"),
    ("qwen3", {"rope_parameters": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}},
     "rope(base=1000000, scaling=linear(factor=8))"),
    ("llama",
     {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}, "max_position_embeddings": 1024},
     "rope(scaling=dynamic_ntk(factor=2, original_length=1024))"),
    ("gpt_neox", plain(partial_rotary_factor=0.25), "rope(fraction=0.25)"),
    ("phi", plain(partial_rotary_factor=0.5), "rope(fraction=0.5)"),
    ("stablelm", plain(partial_rotary_factor=0.25), "rope(fraction=0.25)"),
    ("cohere", plain(8e6), "rope(base=8000000, layout='interleaved')"),
    ("glm", plain(partial_rotary_factor=0.5), "rope(layout='interleaved', fraction=0.5)"),
    ("phi3", {"rope_parameters": LONGROPE | {"rope_theta": 1e4}, "max_position_embeddings": 8192, "pad_token_id": 0}, None),
    ("gpt_oss", {"rope_parameters": YARN | {"rope_theta": 150_000.0, "truncate": False, "factor": 32.0}},
     "rope(base=150000, scaling=yarn(factor=32, original_length=2048, truncate=False))"),
    ("olmo2", plain(5e5), "rope(base=500000)"),
    ("starcoder2", plain(1e5), "rope(base=100000)"),
    ("granite", plain(), "rope()"),
]  # fmt: skip


def config_of(module, keys):
    classes = importlib.import_module(f"transformers.models.{module}.configuration_{module}")
    short = module.replace("_", "")
    names = {name.lower(): name for name in vars(classes)}
    return getattr(classes, names.get(f"{short}textconfig") or names[f"{short}config"])(**SMALL | keys)


def rotation(module, config, *layer_type):
    """The module's rotary embedding and the function by which its attention applies it, of q and k [B, H, T, D]."""
    code = importlib.import_module(f"transformers.models.{module}.modeling_{module}")
    kind = next(
        value for name, value in vars(code).items() if name.endswith("RotaryEmbedding") and "Vision" not in name
    )
    embed = kind(config)

    def rotate(q, k, position):
        where = position[None] if position.ndim == 1 else position.T[:, None]
        cos, sin = embed(q, where, *layer_type)
        size = 2 * cos.shape[-1] if module == "gpt_oss" else cos.shape[-1]
        turned = code.apply_rotary_pos_emb(q[..., :size], k[..., :size], cos, sin)
        return tuple(torch.cat([a, x[..., size:]], dim=-1) for a, x in zip(turned, (q, k), strict=True))

    return rotate


@pytest.mark.parametrize(("module", "keys", "spec"), FAMILIES, ids=[f"{m}-{s}" for m, _, s in FAMILIES])
def test_families(module, keys, spec):
    config = config_of(module, keys)
    found = pj.audit(rotation(module, config), order="BHTD", config=config.to_dict(), head_dim=64)
    print(f"{module} {keys}\n{found}")
    assert found.ok, str(found)
    assert found.residual < 2e-3
    assert spec is None or found.spec == spec
    found = pj.audit(rotation(module, config), order="BHTD", head_dim=64)
    assert found.residual < 2e-3
    if spec is not None and "dynamic" not in spec:  # of one length, other specs have the same frequencies
        assert (found.spec, found.findings) == (spec, ())


@pytest.mark.parametrize(("layer_type", "layer", "spec"), [
    ("sliding_attention", 0, "rope()"),
    ("full_attention", 5, "rope(base=1000000, scaling=linear(factor=8))"),
])  # fmt: skip
def test_gemma3_by_layer(layer_type, layer, spec):
    ropes = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": plain()["rope_parameters"],
    }
    config = importlib.import_module("transformers").Gemma3TextConfig(
        **SMALL, rope_parameters=ropes, sliding_window=512
    )
    found = pj.audit(rotation("gemma3", config, layer_type), order="BHTD", config=config.to_dict(), layer=layer)
    print(found)
    assert (found.spec, found.findings) == (spec, ())
    other = pj.audit(rotation("gemma3", config, layer_type), order="BHTD", config=config.to_dict(), layer=5 - layer)
    assert "config.json means" in other.findings[0]


def test_qwen2_vl_turns_by_time_row_and_column():
    config = config_of(
        "qwen2_vl", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]}}
    )
    found = pj.audit(rotation("qwen2_vl", config), order="BHTD", head_dim=64, num_axes=3)
    print(found)
    assert (found.spec, found.findings) == ("mrope(sections=(8, 12, 12))", ())


def test_gptj_pairs_neighbours():
    config = config_of("gptj", {"n_embd": 256, "n_head": 4, "rotary_dim": 32})
    code = importlib.import_module("transformers.models.gptj.modeling_gptj")
    table = code.create_sinusoidal_positions(4096, 32)

    def rotate(x, position):
        sin, cos = torch.split(table[position][None], 16, dim=-1)
        return torch.cat([code.apply_rotary_pos_emb(x[..., :32], sin, cos), x[..., 32:]], dim=-1)

    found = pj.audit(rotate, order="BTHD", config=config.to_dict(), head_dim=64)
    print(found)
    assert (found.spec, found.findings) == ("rope(layout='interleaved', fraction=0.5)", ())
