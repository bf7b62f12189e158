"""Rotations in learned bases and with commuting generators: special cases of one another, and relativity."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import posjax as pj

T, H, D = 6, 2, 8
DIMS = pj.Dims(H * D, H, D, length=24)
ON_GRID = DIMS._replace(grid=(6, 7))
Q, K = jax.random.normal(jax.random.key(0), (2, T, H, D))


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


@pytest.mark.parametrize("name", ["cayley_string", "harope(keys='inverse')"])
def test_a_basis_that_is_not_learned_changes_nothing(name):
    params, site = began(name), pj.grid(2, 3)
    rotary = pj.parse(name).rotary
    np.testing.assert_allclose(
        logits(name, params, site), logits(str(rotary), params["rotary"], site), rtol=1e-6, atol=2e-6
    )


def test_string_is_the_exponential_of_commuting_generators():
    """P^T RoPE(r) P of theorem 3.4 is exp(L r) with L = P^T L_rope P."""
    spec = "cayley_string(rotary=rope(base=100, layout='interleaved'), stddev=0.5)"
    params, site = began(spec, DIMS), at([0, 3, 7, 8, 11, 20])
    entries = iter(np.asarray(params["skew"][1], np.float64))
    s = np.zeros((D, D))
    s[np.triu_indices(D, 1)] = list(entries)
    s = s - s.T
    basis = (np.eye(D) - s) @ np.linalg.inv(np.eye(D) + s)
    np.testing.assert_allclose(basis @ basis.T, np.eye(D), atol=1e-12)
    plane = [100 ** (-c / 4) * np.array([[0, -1], [1, 0]]) for c in range(4)]
    generator = basis.T @ scipy.linalg.block_diag(*plane) @ basis
    turn = [scipy.linalg.expm(p * generator) for p in site.position]
    expected = [[Q[i, 1] @ turn[i].T @ turn[j] @ K[j, 1] for j in range(T)] for i in range(T)]
    np.testing.assert_allclose(logits(spec, params, site)[1], expected, atol=2e-5)


def test_circulant_string_begins_with_its_frequencies_and_ignores_even_parts():
    params = began("circulant_string(base=16)", DIMS)
    column = np.asarray(params["column"])
    found = 2 * np.fft.fft(column)[..., 1 : D // 2].imag
    np.testing.assert_allclose(np.abs(found), np.broadcast_to(16 ** -(np.arange(3) / 3), found.shape), rtol=1e-5)
    even = {"column": column + np.cos(2 * np.pi * np.arange(D) / D).astype(np.float32)}
    np.testing.assert_allclose(*(logits("circulant_string()", p, pj.sites(T)) for p in (params, even)), atol=1e-5)


def test_harope_of_one_place():
    """Equation 7 reweights the logits of tokens at one place; the authors' code leaves them."""
    site = at([4] * T)
    plain = np.einsum("thc,shc->hts", Q, K)
    assert np.abs(logits("harope()", began("harope(stddev=0.5)"), site) - plain).max() > 0.5
    inverse = logits("harope(keys='inverse')", began("harope(stddev=0.5)"), site)
    np.testing.assert_allclose(inverse, plain, atol=2e-5)


@pytest.mark.slow
def test_comrope_is_liere_with_the_generators_that_it_says():
    """And with blocks of two and axes by turns it is axial rotation."""
    site, params = pj.grid(2, 3), began("comrope(generator_dim=4)")
    shown = {"generator": params["generator"] * params["multiplier"][:, None, :, None]}
    ours, theirs = logits("comrope(generator_dim=4)", params, site), logits("liere(generator_dim=4)", shown, site)
    np.testing.assert_array_equal(ours, theirs)
    frequencies = np.float32([[1, 0.1], [0.5, 0.05]])  # of each axis
    axial = {"generator": -np.broadcast_to(frequencies[:, None, :, None], (2, H, 2, 1))}
    wave = np.zeros((2, H, 4), np.float32)
    for axis in (0, 1):
        wave[axis, :, axis::2] = frequencies[axis]
    turned = logits("comrope(generator_dim=2, kind='axial')", axial, site)
    np.testing.assert_allclose(turned, logits("rope_mixed()", {"wave": wave}, site), atol=1e-5)


def test_spherical_rotations_are_relative_along_columns_of_patches_alone():
    """Row and column turn about two axes, the row last: moved down an image pairs of tokens look alike, moved right not."""
    turned = jax.jit(
        lambda position: pj.parse("spherical_rope(base=10)").rotate((), Q[:2], at(position), K[:2], at(position))
    )
    near, down, right = (turned(np.int32(place)) for place in ([[1, 2], [3, 5]], [[5, 2], [7, 5]], [[1, 3], [3, 6]]))
    near, down, right = (np.einsum("thc,shc->hts", *pair) for pair in (near, down, right))
    np.testing.assert_allclose(down, near, atol=1e-5)
    assert np.abs(right - near).max() > 0.1


@pytest.mark.slow
def test_three_axes():
    """Films and clouds: LieRE, ComRoPE and circulant STRING turn with a third axis."""
    dims, site = DIMS._replace(grid=(2, 3, 4)), at([[0, 1, 2], [1, 2, 0], [0, 0, 3], [1, 1, 1], [0, 2, 2], [1, 0, 0]])
    nearer = site._replace(position=site.position * np.int32([1, 1, 0]))
    for spec in ("liere(generator_dim=4)", "comrope(generator_dim=4)", "circulant_string()"):
        params = began(spec, dims)
        assert np.abs(logits(spec, params, site) - logits(spec, params, nearer)).max() > 0.1, spec


@pytest.mark.parametrize(
    ("spec", "dims", "message"),
    [
        ("cayley_string(rotary=alibi())", None, r"cayley_string\(rotary=...\) takes a rotary encoding.* got alibi"),
        ("harope(rotary=dinov3())", None, "turns queries and keys and does no more"),
        ("harope(keys='inverted')", None, "harope has no keys 'inverted'; did you mean 'inverse'"),
        ("circulant_string()", DIMS._replace(head_dim=7), "must be even and at least 4, got 7"),
        ("comrope(kind='ld')", None, "comrope has no kind 'ld'"),
        ("comrope(generator_dim=8, kind='axial')", ON_GRID, "among 2 position axes, got 1 blocks"),
    ],
)
def test_what_cannot_be(spec, dims, message):
    with pytest.raises(ValueError, match=message):
        began(spec, dims or DIMS)


def test_a_column_for_other_axes_is_refused():
    with pytest.raises(ValueError, match="initialised for positions of 1 axes, got 2"):
        logits("circulant_string()", began("circulant_string()", DIMS), pj.grid(2, 3))
    with pytest.raises(ValueError, match="head_dim must be at least 3, got 2"):
        logits("spherical_rope()", (), pj.grid(2, 3), jnp.ones((T, H, 2)), jnp.ones((T, H, 2)))
