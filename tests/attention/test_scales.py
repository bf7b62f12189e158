"""Arguments reach the implementation: scales, both sides of a window, and the forgotten tokens of a ring."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import posjax as pj
from posjax.attention import ContextParallel, attend_cached, attend_parallel, empty_cache, slots_needed
from posjax.attention.dense import Operands
from posjax.attention.library import splash

SITE = pj.sites(6)
Q, K, V = jnp.asarray(np.random.default_rng(0).normal(size=(3, 6, 2, 8)), jnp.float32)


def by_hand(scale, seen):
    """Attention without an encoding, in numpy."""
    q, k, v = (np.asarray(x, np.float64) for x in (Q, K, V))
    weights = np.where(seen, np.exp(scale * np.einsum("thd,shd->hts", q, k)), 0)
    return np.einsum("hts,shd->thd", weights / weights.sum(axis=-1, keepdims=True), v)


CAUSAL = np.tri(6, dtype=bool)


def test_a_cache_takes_a_scale():
    def run(q, prefill):
        cache = empty_cache(8, 2, 8, SITE)
        return attend_cached(pj.parse("none"), (), q, K, V, SITE, cache, prefill=prefill, scale=0.9)[0]

    for out in jax.jit(lambda q: [run(q, True), run(q, False)])(Q):
        np.testing.assert_allclose(out, by_hand(0.9, CAUSAL), atol=1e-5)


def test_devices_take_a_scale():
    def run(q, keys):
        context = ContextParallel(Mesh(np.array(jax.devices()[:1]), ("context",)), keys=keys)
        options = dict(context=context, causal=True, implementation="blockwise", scale=0.9)
        return attend_parallel(pj.parse("none"), (), q, K, V, SITE, SITE, **options)

    for out in jax.jit(lambda q: [run(q, "gather"), run(q, "ring")])(Q):
        np.testing.assert_allclose(out, by_hand(0.9, CAUSAL), atol=1e-5)


@pytest.mark.parametrize(("spec", "behind", "ahead"), [("window(2)", 1, 1), ("window(4, ahead=1)", 3, 1)])
def test_a_window_of_splash_looks_to_both_sides(spec, behind, ahead):
    """Not causal."""
    out = splash(pj.parse(spec), Operands((), Q, K, Q, K, V, SITE, SITE), scale=0.9, interpret=True)
    offset = np.arange(6) - np.arange(6)[:, None]
    np.testing.assert_allclose(out, by_hand(0.9, (-behind <= offset) & (offset <= ahead)), atol=1e-5)


def test_a_token_at_a_sinks_place_is_missed_though_it_came_late():
    """Positions 0 and 1 are seen by all. Here they are the third and the fourth token, which a ring overwrites."""
    encoding = pj.parse("sinks(num_sinks=2, window=4)")
    site = pj.sites(9)._replace(position=np.int32([5, 6, 0, 1, 7, 8, 9, 10, 11]))
    slots = slots_needed(encoding, site, 9)
    assert slots == 6

    @jax.jit
    def run(x):
        def step(cache, new):
            x, here = new
            out, cache = attend_cached(encoding, (), x, x, x, here, cache)
            return cache, jnp.isnan(out).any()

        one_by_one = jax.tree.map(lambda leaf: leaf[:, None], site)
        return jax.lax.scan(step, empty_cache(slots, 1, 8, site), (x, one_by_one))[1]

    x = np.random.default_rng(1).normal(size=(9, 1, 1, 8)).astype(np.float32)
    assert run(x).tolist() == [False] * 6 + [True] * 3
