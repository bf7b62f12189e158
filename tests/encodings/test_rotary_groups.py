"""Rotations in learned bases and with commuting generators: special cases of one another, and relativity."""

import jax
import numpy as np
import pytest

import posjax as pj
from posjax.describe.worlds import normal

T, H, D = 6, 2, 8
DIMS = pj.Dims(H * D, H, D, length=24)
ON_GRID = DIMS._replace(grid=(6, 7))
Q, K = (normal(seed, T, H, D) for seed in range(2))


def logits(spec, params, site, q=Q, k=K):
    encoding = pj.parse(spec)
    q, k = encoding.rotate(params, q, site, k, site)
    return np.asarray(encoding.product(q, site, k, site))


def began(spec, dims=ON_GRID):
    return pj.parse(spec).init(jax.random.key(1), dims)


def at(position):
    """A token at each place."""
    count = len(position)
    return pj.Site(
        position if isinstance(position, jax.Array) else np.asarray(position, np.int32),
        np.ones(count, np.int32),
        np.zeros(count, np.int32),
    )


def test_circulant_string_begins_with_its_frequencies():
    params = began("circulant_string(base=16)", DIMS)
    column = np.asarray(params["column"])
    found = 2 * np.fft.fft(column)[..., 1 : D // 2].imag
    np.testing.assert_allclose(np.abs(found), np.broadcast_to(16 ** -(np.arange(3) / 3), found.shape), rtol=1e-5)


@pytest.mark.slow
def test_three_axes():
    """Films and clouds: LieRE, ComRoPE and circulant STRING turn with a third axis."""
    dims, site = DIMS._replace(grid=(2, 3, 4)), at([[0, 1, 2], [1, 2, 0], [0, 0, 3], [1, 1, 1], [0, 2, 2], [1, 0, 0]])
    nearer = site._replace(position=site.position * np.int32([1, 1, 0]))
    for spec in ("liere(generator_dim=4)", "comrope(generator_dim=4)", "circulant_string()"):
        params = began(spec, dims)
        assert np.abs(logits(spec, params, site) - logits(spec, params, nearer)).max() > 0.1, spec
