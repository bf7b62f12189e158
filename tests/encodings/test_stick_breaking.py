"""Stick-breaking attention by hand, and its effect on the other parts of a sum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax as pj
from posjax.attention.tiles import tile_sizes
from posjax.describe.worlds import normal

HEADS, DIM = 2, 4
SITE = pj.sites(6)
Q, K, V = (normal(seed, 6, HEADS, DIM) for seed in range(3))


def attended(spec, q=Q, k=K, v=V, site=SITE, **options):
    encoding = pj.parse(spec)
    params = encoding.init(jax.random.key(0), pj.Dims(8, HEADS, DIM))
    options = {"causal": True, "return_weights": True, "q_site": site} | options
    return jax.jit(lambda *qkv: pj.attend(encoding, params, *qkv, k_site=site, **options))(q, k, v)


def close(a, b, atol=1e-6):
    np.testing.assert_allclose(a, b, rtol=0, atol=atol)


def test_a_sure_key_takes_all_that_is_left():
    """Logits of +-1e4: no product of shares is lost, nothing is NaN, and neither are gradients."""
    q, k = jnp.full_like(Q, 0).at[..., 0].set(2.0), jnp.full_like(K, 0).at[:, :, 0].set(-1e4).at[2, :, 0].set(1e4)
    close(attended("stick_breaking()", q, k)[1][0, 5], [0, 0, 1, 0, 0, 0])
    gradients = jax.grad(lambda q, k: jnp.sum(attended("stick_breaking()", q, k)[0]), argnums=(0, 1))(q, k)
    assert all(np.isfinite(leaf).all() for leaf in gradients)


def test_a_long_walk_keeps_what_is_left():
    """The farthest of 2000 keys that take 1/1000 each: logs in float32 add up to within 2e-5."""
    beta = 1e-3
    q = np.full((1, 1, 1), np.log(beta / (1 - beta)), np.float32)
    k, last = np.ones((2000, 1, 1), np.float32), pj.sites(1, start=2000)
    _, weights = attended("stick_breaking()", q, k, k, pj.sites(2000), q_site=last, causal=False, scale=1.0)
    np.testing.assert_allclose(weights[0, 0, [0, -1]], [beta * (1 - beta) ** 1999, beta], rtol=2e-5)


def test_tokens_at_one_position_do_not_weigh_each_other():
    """A later query comes first to the one that lies later."""
    tied = SITE._replace(position=np.array([0, 1, 1, 2, 2, 3], np.int32))
    _, weights = attended("stick_breaking()", 0 * Q, site=tied, causal=False)
    close(weights[0, 1:3], [[0.5, 0, 0, 0, 0, 0]] * 2)
    close(weights[0, 5], 0.5 ** np.array([5.0, 4, 3, 2, 1, np.inf]))
    _, weights = attended("stick_breaking(attend_current=True)", 0 * Q, site=tied, causal=False)
    close(weights[0, 1], [1 / 8, 1 / 4, 1 / 2, 0, 0, 0])


def test_a_class_token_gets_what_is_left_and_asks_last():
    """Wherever it lies; of registers the later one comes first."""
    site = SITE._replace(prefix=np.array([0, 2, 0, 1, 0, 0], np.int32))
    _, weights = attended("stick_breaking()", 0 * Q, site=site, causal=False)
    close(weights[0, 4], [1 / 4, 1 / 8, 1 / 2, 1 / 16, 0, 0])
    close(weights[0, 3], [1 / 16, 1 / 32, 1 / 8, 0, 1 / 4, 1 / 2])


class Gated(pj.Encoding):
    """Weights by a learned slope of each head and the positions of keys: all that a `weigh` may read."""

    def weigh(self, params, logits, seen, q_site, k_site):
        return jnp.where(seen, jax.nn.sigmoid(params[:, None, None] * logits) * k_site.position, 0.0)


class Whither(pj.Encoding):
    """Reads by the positions of keys, along a learned vector of each head, and has no bias of its own."""

    def read(self, params, weights, q_site, k_site):
        return jnp.einsum("hts,s,he->the", weights, jnp.cos(1.0 * k_site.position), params)


def test_what_weighs_is_given_whole_rows():
    """It need not say so itself."""
    for encoding in (Gated(), pj.parse("rope") + Gated(), pj.parse("stick_breaking")):
        assert tile_sizes(encoding, 16, 16, 4, "cpu") == (4, 16)
    assert tile_sizes(pj.parse("rope"), 16, 16, 4, "cpu") == (4, 4)


SLOPES, VECTORS = jnp.array([0.5, 2.0]), jnp.ones((HEADS, DIM))


@pytest.mark.parametrize(
    ("other", "own", "params"),
    [
        ("none()", Gated(), SLOPES),
        pytest.param("t5(num_buckets=4)", Gated(), SLOPES, marks=pytest.mark.slow),
        pytest.param("shaw(2)", Gated(), SLOPES, marks=pytest.mark.slow),
        pytest.param("t5(num_buckets=4)", Whither(), VECTORS, marks=pytest.mark.slow),
    ],
)
def test_what_weighs_or_reads_gets_its_gradient(other, own, params):
    """Composed with a bias that tiles share, and one that reads values too."""
    encoding = pj.parse(other) + own
    params = encoding.init(jax.random.key(1), pj.Dims(8, HEADS, DIM))[0], params
    whole = other.startswith("t5")
    position = SITE.position if whole else SITE.position.astype(np.float32)

    def gradients(implementation):
        def loss(params, position, *qkv):
            site = SITE._replace(position=position)
            out = pj.attend(encoding, params, *qkv, site, site, causal=True, implementation=implementation)
            return jnp.sum(jnp.sin(out))

        return jax.jit(jax.grad(loss, (0, 2, 3, 4) if whole else (0, 1, 2, 3, 4)))(params, position, Q, K, V)

    dense, blockwise = map(gradients, ("dense", "blockwise"))
    assert np.any(dense[0][1])
    jax.tree.map(lambda a, b: close(a, b, 1e-5), blockwise, dense)
