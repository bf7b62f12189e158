"""Parabolas by hand, their symmetries, and what float32 carries."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax as pj

H, D = 2, 16
Q = jnp.zeros((6, H, D))


def bias(spec, params, x, site):
    encoding = pj.parse(spec)
    site = encoding.observe(params, x, site)
    return np.asarray(encoding.bias(params, Q[: len(x)], site, Q[: len(x)], site))


def test_a_parabola_by_hand():
    """d = 2 (q - k); a = softplus(ln(e^3 - 1)) = 3, b = 5: 5 d - 3 d^2."""
    params = {"direction": jnp.full((1, H, 1), 2.0), "curve": jnp.float32([[np.log(np.expm1(3))], [5]])}
    params["curve"] = jnp.broadcast_to(params["curve"][None, :, :, None], (1, 2, H, 1))
    d = 2.0 * (np.arange(4)[:, None] - np.arange(4))
    out = bias("pape(parabolas=1)", params, jnp.ones((4, 1)), pj.sites(4))
    np.testing.assert_allclose(out, np.broadcast_to(5 * d - 3 * d**2, (H, 4, 4)), rtol=1e-6)


@pytest.mark.parametrize("spec", ["pape(parabolas=3)", "pape_ri"])
def test_parabolas_are_exact_far_out(spec):
    encoding, x = pj.parse(spec), jax.random.normal(jax.random.key(0), (6, 8))
    params = encoding.init(jax.random.key(1), pj.Dims(8, H, D))
    near, far = (bias(spec, params, x, pj.sites(6, start)) for start in (0, 2**20))
    np.testing.assert_array_equal(near, far)


def test_only_pape_ri_is_the_same_whichever_way_the_image_is_turned():
    """The query's content is the same everywhere; keys one patch up, down, left and right of it."""
    x, site = jnp.ones((5, 8)), pj.grid(1, 5)._replace(position=np.int32([[3, 3], [2, 3], [4, 3], [3, 2], [3, 4]]))
    for spec, same in (("pape_ri", True), ("pape(parabolas=3)", False)):
        params = pj.parse(spec).init(jax.random.key(1), pj.Dims(8, H, D, grid=(5, 5)))
        around = bias(spec, params, x, site)[:, 0, 1:]
        assert (np.ptp(around, axis=1).max() < 1e-7) == same


def test_parabolas_decide_by_the_query_alone():
    """Another content of the keys changes nothing."""
    params = pj.parse("pape").init(jax.random.key(1), pj.Dims(8, H, D))
    x = jax.random.normal(jax.random.key(0), (6, 8))
    other = x.at[1:].set(0.0)
    out, theirs = (bias("pape", params, each, pj.sites(6)) for each in (x, other))
    np.testing.assert_array_equal(out[:, 0], theirs[:, 0])
    assert np.abs(out - theirs).max() > 1e-2


def test_directions_of_other_axes_are_refused():
    params = pj.parse("pape").init(jax.random.key(0), pj.Dims(8, H, D))
    with pytest.raises(ValueError, match=r"initialised for positions of 1 axes, got 2: give Dims\(grid=...\)"):
        bias("pape", params, jnp.ones((6, 8)), pj.grid(2, 3))
