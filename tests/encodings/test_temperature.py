"""Scaled queries: printed values, and that nothing else is scaled."""

import jax
import jax.numpy as jnp
import numpy as np

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


def test_ssmax_starts_at_one_on_average_over_1024_keys():
    scaled = factors("ssmax", np.arange(1024))
    np.testing.assert_allclose(scaled.mean(axis=0), 1, atol=5e-3)
    np.testing.assert_array_equal(scaled[0], 0)
