"""Tables whose dimension, grid, waves and untrained rows are known."""

import jax
import numpy as np
import pytest

import posjax as pj
from experiments.analysis.tables import (
    learned_tables,
    mean_by_offset,
    radius_spread,
    row_plus_column,
    similarity_by_offset,
    sinusoid_share,
    spectrum,
    untrained_rows,
)

RNG = np.random.default_rng(0)


def circles(frequencies, radii, length=120, width=32):
    """Rows that turn in planes at right angles, around a mean of 3."""
    angle = np.arange(length)[:, None] * np.array(frequencies)
    planes, _ = np.linalg.qr(np.random.default_rng(1).standard_normal((width, 2 * len(radii))))
    return 3 + np.concatenate([np.cos(angle) * radii, np.sin(angle) * radii], axis=1) @ planes.T


def test_the_tables_of_a_model_come_without_the_rows_of_its_prefix():
    dims = pj.Dims(width=4, num_heads=1, head_dim=4, grid=(2, 3), prefix=2)
    table = pj.parse("learned").init(jax.random.key(0), dims)
    found = learned_tables({"params": {"trunk": {"encoding": table, "block": {"kernel": np.ones(3)}}}})
    assert list(found) == ["params/trunk/encoding"]
    np.testing.assert_array_equal(found["params/trunk/encoding"].reshape(6, 4), table.rows[2:])


def test_variance_of_two_directions():
    scores = np.array([[3.0, 0], [-3, 0], [0, 1], [0, -1]])
    found = spectrum(np.pad(scores, ((0, 0), (0, 3))) + 7)
    np.testing.assert_allclose(found, [0.9, 0.1, 0, 0], atol=1e-12)


def test_means_by_offset_on_a_line_and_a_grid():
    values = np.arange(9.0).reshape(3, 3)
    np.testing.assert_allclose(mean_by_offset(values, np.arange(3)[:, None]), [6, 5, 4, 3, 2])
    place = np.array([[0, 0], [0, 2], [1, 0]])
    found = mean_by_offset(np.stack([values, 2 * values]), place)
    assert found.shape == (2, 3, 5)
    assert found[0, 1, 2] == 4
    assert found[0, 1, 4] == values[0, 1]
    assert found[0, 2, 2] == values[0, 2]
    assert found[0, 2, 0] == values[1, 2]
    assert np.isnan(found[0, 0, 0])
    np.testing.assert_array_equal(found[1], 2 * found[0])


def test_similarity_of_angles_depends_on_their_difference_alone():
    angle = 0.3 * np.arange(6)
    found = similarity_by_offset(np.stack([np.cos(angle), np.sin(angle)], axis=1) * np.arange(1, 7)[:, None])
    np.testing.assert_allclose(found, np.cos(0.3 * np.arange(-5, 6)), atol=1e-12)
    rows, columns = 0.3 * np.arange(3)[:, None], 0.2 * np.arange(4)
    table = np.stack(np.broadcast_arrays(np.cos(rows), np.sin(rows), np.cos(columns), np.sin(columns)), axis=-1)
    expected = (np.cos(0.3 * np.arange(-2, 3))[:, None] + np.cos(0.2 * np.arange(-3, 4))) / 2
    np.testing.assert_allclose(similarity_by_offset(table), expected, atol=1e-12)


def test_rows_of_zeros_have_no_similarity():
    table = np.ones((4, 3))
    table[3] = 0
    found = similarity_by_offset(table)
    np.testing.assert_allclose(found, np.ones(5))


def test_a_row_code_and_a_column_code_explain_their_sum():
    row, column = RNG.standard_normal((5, 1, 8)), RNG.standard_normal((1, 7, 8))
    shares = row_plus_column(row + column + 2)
    assert sum(shares) == pytest.approx(1)
    assert min(shares) > 0.1
    assert row_plus_column(row + np.zeros((1, 7, 1))) == pytest.approx((1, 0))
    assert row_plus_column(column + np.zeros((5, 1, 1))) == pytest.approx((0, 1))
    product = (row[:, :, :4] - row.mean(axis=0)[:, :4]) * (column[:, :, :4] - column.mean(axis=1)[:, :4])
    assert row_plus_column(product + 5) == pytest.approx((0, 0))
    chance = row_plus_column(RNG.standard_normal((20, 10, 400)))
    np.testing.assert_allclose(chance, (19 / 199, 9 / 199), atol=0.01)


def test_rows_that_were_never_trained_are_told():
    table = circles([0.05, 0.2], [0.3, 0.3], length=100, width=64)
    table[60:] = np.random.default_rng(2).normal(0, 0.02, (40, 64))
    table[80] = 0
    table[0] = np.random.default_rng(3).normal(0, 0.5, 64)  # a class token: unlike its neighbour, but long
    assert untrained_rows(table).tolist() == [place >= 60 for place in range(100)]
    fresh = untrained_rows(np.random.default_rng(4).normal(0, 0.02, (12, 9, 64)))
    assert fresh.shape == (12, 9)
    assert fresh.mean() > 0.97


def test_the_radius_of_a_helix_is_told_from_that_of_noise():
    assert radius_spread(circles([2 * np.pi / 10, 2 * np.pi / 40], [2, 1])) < 1e-6
    assert radius_spread(circles([0.7, 0.11], [2, 1])) < 0.1
    assert radius_spread(RNG.standard_normal((120, 32))) > 0.3


def test_sinusoids_explain_a_helix_and_little_of_noise():
    table = circles([0.7, 0.11], [2, 1])
    assert sinusoid_share(table, count=1) == pytest.approx(0.8, abs=0.02)
    assert sinusoid_share(table, count=2) == pytest.approx(1, abs=0.02)
    assert sinusoid_share(RNG.standard_normal((120, 32)), count=2) < 0.15
