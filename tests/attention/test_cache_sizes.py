"""The sizes of a cache: key heads, channels, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax as pj
from posjax.attention import attend_cached, empty_cache, key_channels, slots_needed
from posjax.encoding import Needs

TOKENS, HEADS, KV_HEADS, HEAD_DIM = 5, 4, 2, 4
SITE = pj.sites(TOKENS)
RNG = np.random.default_rng(0)
Q, K, V = (
    jnp.asarray(RNG.normal(size=(TOKENS, heads, HEAD_DIM)), jnp.float32) for heads in (HEADS, KV_HEADS, KV_HEADS)
)


def cache_of(**sizes):
    return empty_cache(8, KV_HEADS, HEAD_DIM, SITE, **sizes)


def full(encoding, q, k, v):
    return pj.attend(encoding, (), q, k, v, SITE, SITE, causal=True, implementation="dense")


class ByHead(pj.Encoding):
    """Queries and keys scaled by the number of their head."""

    needs = Needs.EVERY_HEAD

    def rotate(self, params, q, q_site, k, k_site):
        return tuple(x * jnp.arange(1.0, HEADS + 1)[:, None] for x in (q, k))


def test_shared_keys_that_heads_turn_differently_are_kept_as_they_are():
    @jax.jit
    def run(q):
        return *attend_cached(ByHead(), (), q, K, V, SITE, cache_of()), full(ByHead(), q, K, V)

    out, cache, expected = run(Q)
    np.testing.assert_allclose(out, expected, atol=1e-5)
    np.testing.assert_allclose(np.swapaxes(cache.key, 0, 1)[:TOKENS], K)


@pytest.mark.parametrize("channels", [HEAD_DIM, 2 * HEAD_DIM], ids=["raw", "as multiplied"])
def test_keys_that_get_more_channels_are_kept_as_the_cache_was_made(channels):
    encoding = pj.parse("pope")
    params = encoding.init(jax.random.key(0), pj.Dims(16, HEADS, HEAD_DIM))
    wide, values = (np.repeat(x, 2, axis=1) for x in (K, V))

    @jax.jit
    def run(q, k, v):
        cache = empty_cache(8, HEADS, channels, SITE, value_dim=HEAD_DIM)
        expected = pj.attend(encoding, params, q, k, v, SITE, SITE, causal=True, implementation="dense")
        return (
            *attend_cached(encoding, params, q, k, v, SITE, cache),
            expected,
            encoding.rotate(params, q, SITE, k, SITE)[1],
        )

    out, cache, expected, rotated = run(Q, wide, values)
    np.testing.assert_allclose(out, expected, atol=1e-5)
    held = wide if channels == HEAD_DIM else rotated
    np.testing.assert_allclose(np.swapaxes(cache.key, 0, 1)[:TOKENS], held, atol=1e-6)
    assert key_channels(encoding, params, Q, wide, values, SITE) == 2 * HEAD_DIM
    assert key_channels(encoding, params, Q, K, V, SITE) == HEAD_DIM  # heads that share a key turn it differently


def test_values_may_have_other_channels_than_keys():
    rope, wide = pj.parse("rope"), np.concatenate([V, V[..., :2]], axis=-1)
    run = jax.jit(lambda v: (attend_cached(rope, (), Q, K, v, SITE, cache_of(value_dim=6))[0], full(rope, Q, K, v)))
    np.testing.assert_allclose(*run(wide), atol=1e-5)


def test_a_ring_takes_sites_that_are_known():
    """Numpy sites, closed over by a jitted function."""
    encoding = pj.parse("sinks(num_sinks=2, window=2) + rope")
    params = encoding.init(jax.random.key(0), pj.Dims(16, HEADS, HEAD_DIM))

    @jax.jit
    def run(q):
        cache = empty_cache(slots_needed(encoding, SITE, 20), KV_HEADS, HEAD_DIM, SITE)
        out = attend_cached(encoding, params, q, K, V, SITE, cache, prefill=True)
        return *out, pj.attend(encoding, params, q, K, V, SITE, SITE, causal=True, implementation="dense")

    out, cache, expected = run(Q)
    np.testing.assert_allclose(out, expected, atol=1e-5)
    assert len(cache.order) == 4
    assert not cache.lost
