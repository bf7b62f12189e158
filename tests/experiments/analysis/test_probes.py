"""Shuffling and shifting move the requested patches and pixels; the probe finds positions only if tokens have them."""

import numpy as np
import pytest

from experiments.analysis.probes import position_probe, right_when_translated, shuffle_patches, translate
from posjax import grid


def images_of(count=5, height=6, width=8, channels=2):
    return np.arange(count * height * width * channels).reshape(count, height, width, channels)


def patches_of(images, size):
    count, height, width, _ = images.shape
    cut = images.reshape(count, height // size, size, width // size, size, -1).swapaxes(2, 3)
    return cut.reshape(count, -1, size * size * images.shape[-1])


@pytest.mark.parametrize(("share", "moved"), [(0, 0), (0.1, 0), (0.25, 3), (0.5, 6), (1, 12)])
def test_as_many_patches_as_asked_are_moved_whole(share, moved):
    images = images_of()
    before, after = (
        patches_of(each, 2) for each in (images, shuffle_patches(images, 2, share, np.random.default_rng(0)))
    )
    assert ((before != after).any(axis=-1).sum(axis=1) == moved).all()
    for one, other in zip(before, after, strict=True):
        assert sorted(map(tuple, one)) == sorted(map(tuple, other))


def test_images_are_shuffled_differently_and_by_the_generator_alone():
    images = np.tile(images_of(1), (4, 1, 1, 1))
    found = shuffle_patches(images, 2, 1.0, np.random.default_rng(0))
    assert len(np.unique(found, axis=0)) > 1
    np.testing.assert_array_equal(found, shuffle_patches(images, 2, 1.0, np.random.default_rng(0)))
    assert (found != shuffle_patches(images, 2, 1.0, np.random.default_rng(1))).any()


def test_content_moves_down_and_right():
    images = images_of() + 1
    moved = translate(images, 2, 3)
    np.testing.assert_array_equal(moved[:, 2:, 3:], images[:, :-2, :-3])
    assert not moved[:, :2].any()
    assert not moved[:, :, :3].any()
    np.testing.assert_array_equal(translate(images, -1, 0)[:, :-1], images[:, 1:])
    np.testing.assert_array_equal(translate(images, 0, 0), images)
    np.testing.assert_array_equal(translate(images, -2, 1, "wrap"), np.roll(images, (-2, 1), axis=(1, 2)))
    np.testing.assert_array_equal(translate(images, 1, 0, "edge")[:, 0], images[:, 0])
    np.testing.assert_array_equal(translate(images, 1, 0, "reflect")[:, 0], images[:, 1])


def test_who_counts_pixels_does_not_mind_a_shift_and_who_looks_at_a_corner_does():
    images = np.random.default_rng(0).integers(0, 2, (40, 6, 8, 1))
    labels = images.sum(axis=(1, 2, 3)) % 5
    corners = images[:, 0, 0, 0]
    wrapped = right_when_translated(lambda each: each.sum(axis=(1, 2, 3)) % 5, images, labels, [0, 1, 3], "wrap")
    assert wrapped.shape == (3, 4, 40)
    assert wrapped.all()
    assert right_when_translated(lambda each: each[:, 0, 0, 0], images, corners, [1]).mean() < 0.8


def test_a_token_that_holds_its_position_is_read_and_noise_is_not():
    site, rng = grid(3, 4, prefix=2), np.random.default_rng(0)
    noise = rng.standard_normal((2, 30, 14, 16))
    row, column, patch = position_probe(*noise, site)
    assert -0.2 < row < 0.05
    assert -0.2 < column < 0.05
    assert patch < 0.2
    rows_only = noise.copy()
    rows_only[:, :, 2:, 3] += 10 * site.position[2:, 0]
    row, column, _ = position_probe(*rows_only, site)
    assert row > 0.95
    assert column < 0.05
    table = noise.copy()
    table[:, :, 2:, :12] = 5 * np.eye(12)
    assert position_probe(*table, site) == pytest.approx((1, 1, 1), abs=1e-4)


def test_a_feature_that_never_varies_is_no_feature_and_one_row_has_no_r_squared():
    constant = np.ones((4, 6, 3))
    assert position_probe(constant, constant, grid(2, 3))[:2] == pytest.approx((0, 0), abs=1e-12)
    assert np.isnan(position_probe(constant, constant, grid(1, 6))[0])
