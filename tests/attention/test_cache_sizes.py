"""Contents of a cache (key heads, channels), and its refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import rows

import posjax as pj
from posjax.attention import attend_cached, empty_cache, key_channels, slots_needed
from posjax.encoding import Needs

TOKENS, HEADS, KV_HEADS, HEAD_DIM = 5, 4, 2, 4
SITE = pj.sites(TOKENS)
Q, K, V = (
    jax.random.normal(jax.random.key(n), (TOKENS, h, HEAD_DIM)) for n, h in enumerate((HEADS, KV_HEADS, KV_HEADS))
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


@pytest.mark.slow
def test_shared_keys_that_heads_turn_differently_are_kept_as_they_are():
    out, cache = attend_cached(ByHead(), (), Q, K, V, SITE, cache_of())
    np.testing.assert_allclose(out, full(ByHead(), Q, K, V), atol=1e-5)
    np.testing.assert_allclose(jnp.swapaxes(cache.key, 0, 1)[:TOKENS], K)


@pytest.mark.parametrize("channels", [HEAD_DIM, 2 * HEAD_DIM], ids=["raw", "as multiplied"])
def test_keys_that_get_more_channels_are_kept_as_the_cache_was_made(channels):
    encoding, wide = pj.parse("pope"), jnp.repeat(K, 2, axis=1)
    params = encoding.init(jax.random.key(0), pj.Dims(16, HEADS, HEAD_DIM))
    values = jnp.repeat(V, 2, axis=1)
    expected = pj.attend(encoding, params, Q, wide, values, SITE, SITE, causal=True, implementation="dense")
    out, cache = jax.jit(lambda q, k, v, cache: attend_cached(encoding, params, q, k, v, SITE, cache))(
        Q, wide, values, empty_cache(8, HEADS, channels, SITE, value_dim=HEAD_DIM)
    )
    np.testing.assert_allclose(out, expected, atol=1e-5)
    held = wide if channels == HEAD_DIM else encoding.rotate(params, Q, SITE, wide, SITE)[1]
    np.testing.assert_allclose(jnp.swapaxes(cache.key, 0, 1)[:TOKENS], held, atol=1e-6)
    assert key_channels(encoding, params, Q, wide, values, SITE) == 2 * HEAD_DIM
    assert key_channels(encoding, params, Q, K, V, SITE) == HEAD_DIM  # heads that share a key turn it differently


def test_a_cache_of_other_sizes_is_refused():
    rope, cache = pj.parse("rope"), cache_of()
    made = f"made for {KV_HEADS} key heads of {HEAD_DIM} channels with values of {HEAD_DIM}"
    mend = rf"k and v have 1 key heads of {HEAD_DIM} .*: empty_cache\(size, 1, {HEAD_DIM}, site, value_dim={HEAD_DIM}\) fits"
    with pytest.raises(ValueError, match=f"{made}, {mend}"):
        attend_cached(rope, (), Q, K[:, :1], V[:, :1], SITE, cache)
    with pytest.raises(ValueError, match=f"{made}, .* value_dim=3"):
        attend_cached(rope, (), Q, K, V[..., :3], SITE, cache)
    with pytest.raises(ValueError, match="5 tokens, q_site 2"):
        attend_cached(rope, (), Q, K, V, rows(SITE, slice(2)), cache)


def test_values_may_have_other_channels_than_keys():
    rope, wide = pj.parse("rope"), jnp.concatenate([V, V[..., :2]], axis=-1)
    out, _ = jax.jit(lambda v: attend_cached(rope, (), Q, K, v, SITE, cache_of(value_dim=6)))(wide)
    np.testing.assert_allclose(out, full(rope, Q, K, wide), atol=1e-5)


@pytest.mark.parametrize("spec", ["window(4) + rope", "sinks(num_sinks=2, window=2) + rope"])
def test_a_ring_takes_sites_that_are_known(spec):
    """Numpy sites, closed over by a jitted function."""
    encoding = pj.parse(spec)
    params = encoding.init(jax.random.key(0), pj.Dims(16, HEADS, HEAD_DIM))

    def prefill(q):
        cache = empty_cache(slots_needed(encoding, SITE, 20), KV_HEADS, HEAD_DIM, SITE)
        return attend_cached(encoding, params, q, K, V, SITE, cache, prefill=True)

    out, cache = jax.jit(prefill)(Q)
    np.testing.assert_allclose(
        out, pj.attend(encoding, params, Q, K, V, SITE, SITE, causal=True, implementation="dense"), atol=1e-5
    )
    assert len(cache.order) == 4
    assert not cache.lost
