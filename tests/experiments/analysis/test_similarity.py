"""The likeness of two patches under an encoding, against known tables and angles."""

import jax
import numpy as np
import pytest
from test_frequencies import DIMS, SITE, hosted

from experiments.analysis.vision.filters import filter_components
from experiments.analysis.vision.positions import (
    bias_map,
    code_table,
    rotation_agreement,
    similarity_map,
)


def test_similarity_of_known_codes():
    """Codes that point along angles have the cosines of their differences; their length is nothing."""
    angle = np.linspace(0, 3, 6).reshape(2, 3)
    table = np.stack([np.cos(angle), np.sin(angle)], axis=-1) * np.arange(1, 7).reshape(2, 3, 1)
    found = similarity_map(table)
    np.testing.assert_allclose(found, np.cos(angle[:, :, None, None] - angle), atol=1e-12)
    table[0, 0] = 0
    assert np.isnan(similarity_map(table)[0, 0]).all()


def test_a_flat_table_is_refused(unchecked_shapes):
    with pytest.raises(ValueError, match=r"\[h, w, M\], got \(12, 8\)"):
        similarity_map(np.ones((12, 8)))


def test_the_code_of_a_patch_is_its_row_of_the_table():
    encoding, params = hosted("raster(width=4) >> learned")
    found = code_table(encoding, params, DIMS, SITE)
    np.testing.assert_allclose(
        found.reshape(12, 24), jax.tree.leaves(params)[0][1:], rtol=1e-6
    )  # row 0 is the class token's
    assert not code_table(*hosted("none"), DIMS, SITE).any()


@pytest.mark.slow
def test_agreement_of_a_rotation_is_the_mean_cosine():
    found = rotation_agreement(*hosted("axial_rope(base=100)"), DIMS, SITE)
    assert found.shape == (3, 3, 4, 3, 4)
    row, column = np.mgrid[:3, :4]
    rates = np.array([1.0, 0.1])  # base^(-2c / (D / 2)), two pairs on each axis
    expected = (np.cos(np.outer(row - 1, rates)).sum(axis=1) + np.cos(np.outer(column - 2, rates)).sum(axis=1)) / 4
    np.testing.assert_allclose(found[0, 1, 2].ravel(), expected, atol=1e-6)
    np.testing.assert_allclose(rotation_agreement(*hosted("none"), DIMS, SITE), 1)
    assert rotation_agreement(*hosted("pope"), DIMS, SITE) is None


def test_the_map_of_a_bias_is_the_bias():
    encoding, params = hosted("alibi")
    found = bias_map(encoding, params, DIMS, SITE)
    assert found.shape == (3, 3, 4, 3, 4)
    q = np.zeros((13, 3, 8), np.float32)
    expected = np.broadcast_to(encoding.bias(params, q, SITE, q, SITE), (3, 13, 13))
    np.testing.assert_array_equal(found.reshape(3, 12, 12), expected[:, 1:, 1:])
    assert (found[:, 0, 0, 2, 3] < found[:, 0, 0, 0, 1]).all()


def test_components_of_filters_made_of_two_patterns():
    rng = np.random.default_rng(0)
    patterns, _ = np.linalg.qr(rng.standard_normal((2 * 2 * 3, 2)))
    amounts = rng.standard_normal((2, 40)) * [[5.0], [1.0]]
    kernel = (patterns @ amounts + 7).reshape(2, 2, 3, 40)  # 7: the mean filter is no component
    found = filter_components(kernel, k=5)
    assert found.filters.shape == (5, 2, 2, 3)
    np.testing.assert_allclose(found.share.sum(), 1)
    assert found.share[0] > 0.9
    assert found.share[2:].max() < 1e-12
    np.testing.assert_allclose(np.linalg.norm(found.filters.reshape(5, -1), axis=1), 1)
    projected = patterns @ (patterns.T @ found.filters[:2].reshape(2, -1).T)
    np.testing.assert_allclose(projected.T, found.filters[:2].reshape(2, -1), atol=1e-9)
    largest = np.abs(found.filters.reshape(5, -1)).argmax(axis=1)
    assert (found.filters.reshape(5, -1)[range(5), largest] > 0).all()
    assert len(filter_components(kernel, k=100).share) == 12


def test_a_kernel_of_another_shape_is_refused(unchecked_shapes):
    with pytest.raises(ValueError, match=r"\[p, p, C, M\].*got \(12, 40\)"):
        filter_components(np.ones((12, 40)))
    with pytest.raises(ValueError, match="k=0 must be at least 1"):
        filter_components(np.ones((2, 2, 3, 4)), k=0)
