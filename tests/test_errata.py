"""Rows of docs/errata.md, shown on the peer's own code where it is installed."""

import importlib

import jax.numpy as jnp
import numpy as np
import pytest

import posjax as pj
from posjax.encodings.scaling import Spectrum


def growth(spec, head_dim, base=1e4):
    count = head_dim // 2
    return pj.parse(f"rope(scaling={spec})").scaling.multiplier(Spectrum(base, count, np.arange(count)), None)


def peer(module):
    return pytest.importorskip(module, reason=f"{module} is not installed")


def test_transformers_scales_nothing_where_no_channel_turns():
    transformers, rope = peer("transformers"), peer("transformers.modeling_rope_utils")
    peer("torch")
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 100.0, "original_max_position_embeddings": 2}
    config = transformers.LlamaConfig(hidden_size=16, num_attention_heads=1, rope_parameters=yarn)
    theirs, _ = rope.ROPE_INIT_FUNCTIONS["yarn"](config)
    np.testing.assert_allclose(theirs.numpy() * 100 ** (np.arange(8) / 8), 1, rtol=1e-5)
    np.testing.assert_allclose(growth("yarn(factor=4, original_length=2)", 16, base=100), 1 / 4)


def test_litgpt_mirrors_the_ramp_of_yarn():
    settings = dict(factor=4.0, beta_fast=32.0, beta_slow=1.0, original_max_seq_len=1024)
    cos, sin = peer("litgpt.model").build_rope_cache(2, 16, extra_config=settings)
    theirs = np.arctan2(sin, cos)[1, :8] * 1e4 ** (np.arange(8) / 8)
    np.testing.assert_allclose(theirs, 1.25 - growth("yarn(factor=4, original_length=1024)", 16), rtol=1e-4)


def test_equinox_gives_a_second_rope_the_angles_of_the_first():
    nn, x = peer("equinox").nn, jnp.ones((5, 28))  # a size of its own: the cache is the process's
    first, second = (nn.RotaryPositionalEmbedding(28, theta=base)(x) for base in (1e2, 1e6))
    np.testing.assert_array_equal(first, second)


def test_local_attention_turns_queries_by_the_window_ahead():
    """Equal queries and keys: the logit of a query should be greatest at itself."""
    torch, local = peer("torch"), peer("local_attention")
    rotary = importlib.import_module("local_attention.rotary")
    for ahead, at in ((0, 0), (1, 8)):
        layer = local.LocalAttention(dim=16, window_size=8, look_forward=ahead, use_rotary_pos_emb=True)
        keys = torch.ones(1, 1, 8 * (2 + ahead), 16)
        angle, scale = layer.rel_pos(keys)
        q, k = rotary.apply_rotary_pos_emb(keys[..., :8, :], keys, angle, scale=scale)
        assert (q @ k.mT)[0, 0].argmax(dim=-1).tolist() == [8 + query + at for query in range(8)]


def test_keras_hub_divides_all_frequencies_under_dynamic():
    layer = peer("keras_hub").layers.RotaryEmbedding(scaling_factor=4.0, rope_type="dynamic")
    turned = np.asarray(layer(np.repeat(np.float32([[[1, 0]]] * 2).swapaxes(0, 1), 8, axis=2)))[0, 1]  # at position 1
    theirs = np.arctan2(turned[8:], turned[:8]) * 1e4 ** (np.arange(8) / 8)
    np.testing.assert_allclose(theirs, 4 ** (-8 / 7), rtol=1e-4)
    np.testing.assert_allclose(growth("ntk(factor=4)", 16), 4 ** (-np.arange(8) / 7))


def test_timm_has_all_sines_first_unless_they_are_interleaved():
    peer("torch")
    theirs = peer("timm.layers").build_sincos2d_pos_embed([3, 5], dim=16).numpy()
    ours = pj.parse("sinusoidal(layout='concatenated')").embed((), jnp.zeros((15, 16)), pj.grid(3, 5))
    sines_first = np.asarray(ours).reshape(15, 2, 2, 4).swapaxes(1, 2).reshape(15, 16)  # axis, sine or cosine
    np.testing.assert_allclose(theirs, sines_first, atol=1e-6)


@pytest.mark.parametrize(
    ("length", "base", "printed"), [(2048, 11_600, 1.6e4), (16_384, 234_500, 3.1e5), (32_768, 630_200, 6.4e5)]
)
def test_least_bases_are_smaller_than_men_et_al_print(length, base, printed):
    """Their condition: the cosines of 64 frequencies sum to 0 or more at every distance below the length."""
    (wave,) = pj.parse(f"rope(base={base})").wave(1, 64)
    assert base < 0.99 * printed
    assert np.cos(np.outer(np.arange(length), wave)).sum(axis=1).min() >= 0
