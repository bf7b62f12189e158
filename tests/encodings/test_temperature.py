"""Scaled queries: printed values, and that nothing else is scaled."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax as pj


def factors(spec, position, prefix=None, num_heads=2):
    encoding = pj.parse(spec)
    params = encoding.init(jax.random.key(0), pj.Dims(8, num_heads, 4))
    position = np.asarray(position, np.int32)
    ones = np.ones_like(position)
    site = pj.Site(position, ones, 0 * ones if prefix is None else np.int32(prefix))
    q = jnp.ones((len(position), num_heads, 4))
    scaled, k = encoding.rotate(params, q, site, 2 * q, site)
    assert (k == 2 * q).all()
    assert (scaled == scaled[:, :, :1]).all()
    return np.asarray(scaled[:, :, 0])


def test_log_n_is_one_up_to_the_trained_length():
    scaled = factors("log_n(original_length=512)", [0, 1, 510, 511, 512**2 - 1, -5])[:, 0]
    np.testing.assert_allclose(scaled, [1, 1, 1, 1, 2, 1], rtol=1e-6)


def test_llama4_steps_at_the_last_token_of_a_stretch():
    """transformers' Llama 4 floors (p + 1) / 8192; its Ministral 3 floors p / 8192 and steps one token later."""
    scaled = factors("llama4_temperature", [0, 8190, 8191, 16382, 16383])[:, 0]
    step = 1 + 0.1 * math.log(2)
    np.testing.assert_allclose(scaled, [1, 1, step, step, 1 + 0.1 * math.log(3)], rtol=1e-6)


def test_ssmax_starts_at_one_on_average_over_1024_keys():
    scaled = factors("ssmax", np.arange(1024))
    np.testing.assert_allclose(scaled.mean(axis=0), 1, atol=5e-3)
    np.testing.assert_array_equal(scaled[0], 0)


def test_ssmax_learns_each_head():
    encoding, site = pj.parse("ssmax"), pj.sites(3, start=7)
    params = {"scale": jnp.array([1.0, 2.0])}
    scaled, _ = encoding.rotate(params, jnp.ones((3, 2, 4)), site, jnp.ones((3, 2, 4)), site)
    np.testing.assert_allclose(scaled[0, :, 0], [math.log(8), 2 * math.log(8)], rtol=1e-6)


def test_prefix_tokens_keep_their_queries():
    scaled = factors("ssmax(scale=3)", [50, 50, 50], prefix=[1, 2, 0])
    np.testing.assert_allclose(scaled, [[1, 1], [1, 1], [3 * math.log(51)] * 2], rtol=1e-6)


@pytest.mark.parametrize(
    "spec", ["log_n(original_length=2)", "llama4_temperature(attn_scale=1, floor_scale=1)", "ssmax"]
)
def test_biases_are_not_scaled(spec):
    """Content scaled and bias not, in either order of the sum."""
    site, q, k = pj.sites(6), *jax.random.normal(jax.random.key(1), (2, 6, 2, 4))
    bias = pj.parse("alibi").bias((), q, site, k, site)
    params = pj.parse(spec).init(jax.random.key(0), pj.Dims(8, 2, 4))
    content = jnp.einsum("thd,shd->hts", pj.parse(spec).rotate(params, q, site, k, site)[0], k) / 2
    later = ~np.tri(6, dtype=bool)
    expected = jax.nn.softmax(jnp.where(later, -jnp.inf, content + bias), axis=-1)
    for sum_spec, sum_params in ((f"{spec} + alibi", (params, ())), (f"alibi + {spec}", ((), params))):
        out = pj.attend(pj.parse(sum_spec), sum_params, q, k, k, site, site, causal=True, return_weights=True)
        np.testing.assert_allclose(out[1], expected, atol=2e-6)


def test_beam_counts_the_query_itself():
    """As transformers' code, not its docstring: at position 0 there is one key, so queries grow from the first one on."""
    x, site = jnp.ones((3, 1, 2)), pj.sites(3)
    q, _ = pj.parse("power_temperature()").rotate((), x, site, x, site)
    np.testing.assert_allclose(q[:, 0, 0], (1 + np.arange(1, 4) / 2048) ** 0.1, rtol=1e-6)
