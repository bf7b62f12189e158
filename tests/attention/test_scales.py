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
Q, K, V = jax.random.normal(jax.random.key(0), (3, 6, 2, 8))


def by_hand(scale, seen):
    """Attention without an encoding, in numpy."""
    q, k, v = (np.asarray(x, np.float64) for x in (Q, K, V))
    weights = np.where(seen, np.exp(scale * np.einsum("thd,shd->hts", q, k)), 0)
    return np.einsum("hts,shd->thd", weights / weights.sum(axis=-1, keepdims=True), v)


CAUSAL = np.tri(6, dtype=bool)


@pytest.mark.parametrize("prefill", [True, False])
def test_a_cache_takes_a_scale(prefill):
    cache = empty_cache(8, 2, 8, SITE)
    out, _ = attend_cached(pj.parse("none"), (), Q, K, V, SITE, cache, prefill=prefill, scale=0.9)
    np.testing.assert_allclose(out, by_hand(0.9, CAUSAL), atol=1e-5)


@pytest.mark.parametrize("keys", ["gather", "ring"])
def test_devices_take_a_scale(keys):
    context = ContextParallel(Mesh(np.array(jax.devices()[:1]), ("context",)), keys=keys)
    options = dict(context=context, causal=True, implementation="blockwise", scale=0.9)
    out = jax.jit(lambda q: attend_parallel(pj.parse("none"), (), q, K, V, SITE, SITE, **options))(Q)
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
    x = jax.random.normal(jax.random.key(1), (9, 1, 1, 8))
    cache = empty_cache(slots_needed(encoding, site, 9), 1, 8, site)
    assert len(cache.order) == 6
    step = jax.jit(lambda x, site, cache: attend_cached(encoding, (), x, x, x, site, cache))
    lost = []
    for t in range(9):
        here = jax.tree.map(lambda leaf, t=t: leaf[t : t + 1], site)
        out, cache = step(x[t], here, cache)
        lost.append(bool(jnp.isnan(out).any()))
    assert lost == [False] * 6 + [True] * 3
