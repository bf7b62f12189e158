"""What an encoding does to two patches, and the frequencies of rotary ones, against known tables, angles and norms."""

import jax
import numpy as np
import pytest

import posjax as pj
from experiments.analysis.frequencies import frequency_use, waves
from experiments.analysis.positions import effects, similarity_map
from experiments.analysis.vit import filter_components

DIMS = pj.Dims(width=24, num_heads=3, head_dim=8, grid=(3, 4), prefix=1)
SITE = pj.grid(3, 4, prefix=1)


def hosted(spec):
    encoding = pj.parse(spec)
    return encoding, encoding.init(jax.random.key(0), DIMS)


@pytest.mark.slow
def test_waves_are_radians_per_patch():
    axial, (mixed, params) = waves(*hosted("axial_rope(base=100)"), DIMS, SITE), hosted("rope_mixed")
    np.testing.assert_allclose(axial.magnitude[0], [1, 0.1, 1, 0.1], atol=1e-4)
    learned = waves(mixed, params, DIMS, SITE)
    assert learned.pairs == [(0, 1), (2, 3), (4, 5), (6, 7)]
    np.testing.assert_allclose(learned.wave, params["wave"], atol=1e-4)
    scaled = waves(*hosted("dinov3"), DIMS, SITE)  # its positions are in [-1, 1]: the half turn of its base is known
    assert scaled.wave.shape == (2, 3, 4)
    assert waves(*hosted("learned"), DIMS, SITE) is None
    assert waves(*hosted("liere(generator_dim=4)"), DIMS, SITE) is None


@pytest.mark.slow
def test_agreement_of_a_rotation_is_the_mean_cosine():
    found = effects(*hosted("axial_rope(base=100)"), DIMS, SITE).agreement
    assert found.shape == (3, 3, 4, 3, 4)
    row, column = np.mgrid[:3, :4]
    rates = np.array([1.0, 0.1])  # base^(-2c / (D / 2)), two pairs on each axis
    expected = (np.cos(np.outer(row - 1, rates)).sum(axis=1) + np.cos(np.outer(column - 2, rates)).sum(axis=1)) / 4
    np.testing.assert_allclose(found[0, 1, 2].ravel(), expected, atol=1e-6)
    assert effects(*hosted("pope"), DIMS, SITE).agreement is None


def test_use_is_the_mean_norm_of_pairs():
    q, k = np.zeros((2, 2, 2, 4)), np.ones((2, 2, 1, 4))
    q[:, :, 0] = [3, 1, 4, 0]  # pairs (0, 2) and (1, 3)
    q[1, :, 0] *= 2
    expected = np.sqrt(2) * np.array([[7.5, 1.5], [0, 0]])  # keys have a norm of sqrt(2)
    np.testing.assert_allclose(frequency_use(q, k, [(0, 2), (1, 3)]), expected)


def test_use_leaves_out_tokens_that_stand_nowhere():
    q = np.ones((1, 13, 1, 2))
    q[:, 0] = 100
    np.testing.assert_allclose(frequency_use(q, q, [(0, 1)], SITE), 2)
    assert frequency_use(q, q, [(0, 1)]) > 10


def test_use_is_the_mean_of_products_and_not_the_product_of_means():
    """Queries and keys are long in the same image: (1 * 1 + 3 * 3) / 2 = 5, not 2 * 2."""
    x = np.ones((2, 4, 1, 2)) / np.sqrt(2)
    x[1] *= 3
    np.testing.assert_allclose(frequency_use(x, x, [(0, 1)]), [[5]])


def test_similarity_of_known_codes():
    """Codes that point along angles have the cosines of their differences; their length is nothing."""
    angle = np.linspace(0, 3, 6).reshape(2, 3)
    table = np.stack([np.cos(angle), np.sin(angle)], axis=-1) * np.arange(1, 7).reshape(2, 3, 1)
    np.testing.assert_allclose(similarity_map(table), np.cos(angle[:, :, None, None] - angle), atol=1e-12)
    table[0, 0] = 0
    assert np.isnan(similarity_map(table)[0, 0]).all()


def test_the_code_of_a_patch_is_its_row_of_the_table_and_the_map_of_a_bias_is_the_bias():
    encoding, params = hosted("raster(width=4) >> learned")
    codes = effects(encoding, params, DIMS, SITE).codes.reshape(12, 24)
    np.testing.assert_allclose(codes, jax.tree.leaves(params)[0][1:], rtol=1e-6)  # row 0 is the class token's
    alibi, params = hosted("alibi")
    found = effects(alibi, params, DIMS, SITE).bias
    assert found.shape == (3, 3, 4, 3, 4)
    q = np.zeros((13, 3, 8), np.float32)
    expected = np.broadcast_to(alibi.bias(params, q, SITE, q, SITE), (3, 13, 13))
    np.testing.assert_array_equal(found.reshape(3, 12, 12), expected[:, 1:, 1:])


def test_components_of_filters_made_of_two_patterns():
    rng = np.random.default_rng(0)
    patterns, _ = np.linalg.qr(rng.standard_normal((2 * 2 * 3, 2)))
    amounts = rng.standard_normal((2, 40)) * [[5.0], [1.0]]
    kernel = (patterns @ amounts + 7).reshape(2, 2, 3, 40)  # 7: the mean filter is no component
    filters, share = filter_components(kernel, count=5).values()
    assert filters.shape == (5, 2, 2, 3)
    np.testing.assert_allclose(share.sum(), 1)
    assert share[0] > 0.9
    assert share[2:].max() < 1e-12
    np.testing.assert_allclose(np.linalg.norm(filters.reshape(5, -1), axis=1), 1)
    projected = patterns @ (patterns.T @ filters[:2].reshape(2, -1).T)
    np.testing.assert_allclose(projected.T, filters[:2].reshape(2, -1), atol=1e-9)
    largest = np.abs(filters.reshape(5, -1)).argmax(axis=1)
    assert (filters.reshape(5, -1)[range(5), largest] > 0).all()
