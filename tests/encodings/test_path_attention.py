"""Products along paths: their gradients, which go by a rule of their own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import posjax as pj

T, HEADS, DIM = 6, 2, 4


@pytest.mark.slow
def test_gradients_are_slopes():
    """Gradients of the logits with respect to the directions and strengths of the transforms."""
    encoding, site = pj.parse("path(stddev=0.5)"), pj.sites(T)
    params = encoding.init(jax.random.key(0), pj.Dims(HEADS * DIM, HEADS, DIM))
    x, q, k = jax.random.normal(jax.random.key(1), (3, T, HEADS * DIM))
    q, k = (each.reshape(T, HEADS, DIM) for each in (q, k))
    site = encoding.observe(params, x, site)

    def logits(w, beta):
        seen = site._replace(state=(w, beta, *site.state[2:]))
        return jnp.tril(encoding.product(q, seen, k, seen))

    assert np.any(logits(*site.state[:2]) != logits(0 * site.state[0], site.state[1]))
    check_grads(logits, site.state[:2], order=1, atol=2e-2, rtol=2e-2, eps=1e-2)
