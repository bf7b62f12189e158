"""Views: at which distance each pair meets, as worked out by hand, and what an encoding within them may do."""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax as pj
from posjax.attention import BEFORE_ATTENTION
from posjax.attention.dense import shown


@dataclass(frozen=True)
class Distance(pj.Encoding):
    """A bias that is the distance, and a read-out that is the mean distance of the attended keys."""

    def bias(self, params, q, q_site, k, k_site):
        return jnp.asarray(q_site.position[:, None] - k_site.position[None], jnp.float32)[None]

    def read(self, params, weights, q_site, k_site):
        return jnp.sum(weights * self.bias((), None, q_site, None, k_site), axis=-1).T[..., None]


def distances(spec, length, start=0):
    """[T, S]: how far before each query each key is seen; NaN where it is not."""
    encoding = pj.parse(spec) >> Distance()
    params = encoding.init(jax.random.key(0), pj.Dims(4, 1, 4))

    @jax.jit
    def run(q):
        site = encoding.place(params, pj.sites(length, start))
        return jnp.where(shown(encoding, site, site), encoding.bias(params, q, site, q, site)[0], jnp.nan)

    return np.asarray(run(jnp.zeros((length, 1, 4))))


def test_self_extend_floors_its_shift():
    """w / g is floored, as in the paper and LongLM's flash decoding; its eager code has 5 - 5 / 2 here."""
    last = distances("self_extend(group=2, window=5)", 10)[9]
    np.testing.assert_array_equal(last, [7, 7, 6, 6, 5, 4, 3, 2, 1, 0])


def test_dual_chunk():
    """The paper's figure 2, s = 6, w = 4: queries of a chunk see the one before from 6, 7, 8, 9, 9, 9, others from 9."""
    seen = distances("dual_chunk(chunk=6, local=4)", 18)
    np.testing.assert_array_equal(seen[6:12, 0], [6, 7, 8, 9, 9, 9])
    np.testing.assert_array_equal(seen[12:, 0], [9] * 6)
    np.testing.assert_array_equal(seen[12, :], [9, 8, 7, 6, 5, 4, 6, 5, 4, 3, 2, 1, 0, -1, -2, -3, -4, -5])


def test_streaming_counts_within_the_cache():
    """The cache of query 9 holds 0, 1, 7, 8 and 9, so that the sinks are 4 and 3 away."""
    seen = distances("streaming(num_sinks=2, window=3)", 10)
    np.testing.assert_array_equal(seen[9], [4, 3, *[np.nan] * 5, 2, 1, 0])
    np.testing.assert_array_equal(seen[3, :4], [3, 2, 1, 0])


def test_floors_are_exact_far_out():
    """Positions up to 2^24 as floats, which a quotient in float32 would round up to the next group."""
    position = np.float32(2**24 - 1 - np.arange(50))
    for group in (3, 8, 100):
        (_, _), (_, key) = pj.encodings.self_extend(group=group).views(jnp.asarray(position))
        np.testing.assert_array_equal(key, position.astype(np.int64) // group)


@pytest.mark.slow
def test_a_read_beside_the_values_is_of_each_view():
    encoding = pj.parse("self_extend(group=2, window=3)") >> Distance()
    assert "read" in encoding.hooks
    params, site = ((), ()), pj.sites(9)
    site = encoding.place(params, site)
    q = jnp.zeros((9, 1, 4))

    @functools.partial(jax.jit, static_argnums=0)
    def run(implementation):
        options = dict(causal=True, implementation=implementation)
        return pj.attend(encoding, params, q, q, jnp.zeros((9, 1, 1)), site, site, consumed=BEFORE_ATTENTION, **options)

    seen = distances("self_extend(group=2, window=3)", 9)
    weights = np.exp(seen) * np.tril(np.ones((9, 9)))
    expected = (weights * seen).sum(1) / weights.sum(1)
    for implementation in ("dense", "blockwise"):
        np.testing.assert_allclose(run(implementation)[:, 0, 0], expected, rtol=1e-5)


def test_views_within_views():
    """The outer views' positions are what the inner ones see."""
    seen = distances("self_extend(group=2, window=4) >> rerope(window=5)", 10)[9]
    np.testing.assert_array_equal(seen, [5, 5, 5, 5, 4, 4, 3, 2, 1, 0])


def test_the_softmax_of_a_view_reads_no_states():
    """Reports ask encodings about sites that no token was placed at."""
    encoding, site = pj.parse("self_extend(group=2, window=4) >> rope()"), pj.sites(6)
    logits, seen = jax.random.normal(jax.random.key(0), (2, 6, 6)), np.tril(np.ones((6, 6), bool))
    expected = jax.nn.softmax(logits, axis=-1, where=seen)
    np.testing.assert_allclose(encoding.weigh(((), ()), logits, seen, site, site), expected, atol=1e-6)
