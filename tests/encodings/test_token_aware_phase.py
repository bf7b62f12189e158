"""Token-aware phases by their formula, with queries and keys of a model's usual length."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax as pj
from posjax.describe.worlds import normal

T, HEADS, KEY_HEADS, DIM = 9, 4, 2, 8
Q, K = (normal(n, T, heads, DIM) for n, heads in ((0, HEADS), (1, KEY_HEADS)))


def product(spec, site, q=Q, k=K):
    return jax.jit(lambda q, k: pj.parse(spec).product(q, site, k, site))(q, k)


@pytest.mark.parametrize(("alpha", "theta"), [(0.1, 0.5), (0.7, 0.25)])
def test_a_phase_of_many_turns_is_that_of_float64(alpha, theta):
    """Logits behind the scale, of grouped queries; distances up to 2^20."""
    site = pj.sites(T)._replace(position=np.array([0, 1, 2, 3, 5, 9, 1000, 2**17, 2**20], np.int32))
    q, k = (np.asarray(x, np.float64) for x in (Q, np.repeat(K, HEADS // KEY_HEADS, axis=1)))
    split, away = int(theta * DIM), np.abs(np.subtract.outer(site.position, site.position)).astype(np.float64)

    def formula(q, k):
        turns = away**alpha * np.einsum("thc,shc->hts", q[..., split:], k[..., split:]) / np.sqrt((1 - theta) * DIM)
        return np.einsum("thc,shc->hts", q[..., :split], k[..., :split]) / np.sqrt(theta * DIM), turns

    amplitude, turns = formula(q, k)
    error = np.abs(
        product(f"tapa(alpha={alpha}, theta={theta})", site) / np.sqrt(DIM) - amplitude * np.cos(2 * np.pi * turns)
    )
    largest, most = formula(np.abs(q), np.abs(k))  # what sums of float32 round in proportion to
    near = most < 20
    assert (error <= 3e-7 * largest * (1 + 2 * np.pi * most))[near].all()
    assert (np.abs(turns[near]) > 5).any()


def test_gradients_at_one_place_are_finite():
    """The slope of |m - n|^0.1 is infinite there."""

    def loss(position):
        return jnp.sum(product("tapa()", pj.sites(T)._replace(position=position)))

    gradient = jax.grad(loss)(jnp.array([0, 1, 1, 2, 3, 4, 4, 5, 6], jnp.float32))
    assert np.isfinite(gradient).all()
    assert np.any(gradient)


def test_a_traced_scale_is_that_of_the_logits():
    """Phases are no linear function of queries: it cannot go into those."""
    site = pj.sites(len(Q))
    run = lambda scale, how: pj.attend(pj.parse("tapa"), (), Q, K, K, site, site, scale=scale, implementation=how)  # noqa: E731
    np.testing.assert_allclose(*jax.jit(lambda scale: (run(scale, "dense"), run(0.1, "dense")))(0.1), atol=1e-6)
    with pytest.raises(ValueError, match="implementation='blockwise' takes a number for it"):
        jax.eval_shape(lambda scale: run(scale, "blockwise"), 0.1)
