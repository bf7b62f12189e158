"""Image batches by step number, and augmentation on the device."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax import data

N = 50
IMAGES = data.Images(
    "toy",
    np.arange(N, dtype=np.uint8)[:, None, None, None] * np.ones((1, 6, 5, 3), np.uint8),
    np.arange(N, dtype=np.int32),
    N,
    "digest",
)


def test_batch_holds_the_images_of_its_labels():
    batch = data.image_batches(IMAGES, batch_size=8, seed=0)[3]
    assert batch["image"].shape == (8, 6, 5, 3)
    assert batch["image"].dtype == np.uint8
    assert batch["label"].dtype == np.int32
    np.testing.assert_array_equal(batch["image"][:, 0, 0, 0], batch["label"])


def test_every_image_once_per_epoch_in_a_new_order():
    ds = data.image_batches(IMAGES, batch_size=8, seed=0)
    stream = np.concatenate([ds[step]["label"] for step in range(25)]).reshape(4, N)
    for epoch in stream:
        np.testing.assert_array_equal(np.sort(epoch), np.arange(N))
    assert len({tuple(epoch) for epoch in stream}) == 4
    assert (stream[0] != np.arange(N)).any()


def test_deterministic_and_seeded():
    first, again, other = (data.image_batches(IMAGES, batch_size=8, seed=seed)[2]["label"] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_processes_share_the_batch_of_one_in_order():
    count = 4
    alone = data.image_batches(IMAGES, batch_size=8, seed=0)
    shared = [
        data.image_batches(IMAGES, batch_size=8, seed=0, process_index=p, process_count=count) for p in range(count)
    ]
    for step in range(8):
        np.testing.assert_array_equal(alone[step]["label"], np.concatenate([ds[step]["label"] for ds in shared]))


def test_resuming_by_step_is_bit_identical():
    ds = data.image_batches(IMAGES, batch_size=8, seed=0)
    straight = [batch["label"] for batch in data.epoch(ds, 0, 20)]
    np.testing.assert_array_equal(straight, [ds[step]["label"] for step in range(20)])
    resumed = [batch["label"] for batch in data.epoch(data.image_batches(IMAGES, batch_size=8, seed=0), 13, 20)]
    np.testing.assert_array_equal(straight[13:], resumed)


def test_evaluation_is_in_order_and_padded_with_weight_zero():
    batches = list(data.image_epoch(IMAGES, batch_size=16))
    assert [len(batch["label"]) for batch in batches] == [16] * 4
    weight = np.concatenate([batch["weight"] for batch in batches])
    assert weight.dtype == np.float32
    np.testing.assert_array_equal(weight, [1] * N + [0] * 14)
    np.testing.assert_array_equal(np.concatenate([b["label"] for b in batches])[weight > 0], IMAGES.label)
    np.testing.assert_array_equal(np.concatenate([b["image"] for b in batches])[weight > 0], IMAGES.image)


def test_errors_name_the_value():
    with pytest.raises(ValueError, match="batch_size=51 exceeds the 50 images of 'toy'"):
        data.image_batches(IMAGES, batch_size=51, seed=0)
    with pytest.raises(ValueError, match="batch_size=9 does not divide among process_count=2"):
        data.image_batches(IMAGES, batch_size=9, seed=0, process_count=2)
    with pytest.raises(ValueError, match="process_index=2"):
        data.image_batches(IMAGES, batch_size=8, seed=0, process_index=2, process_count=2)
    with pytest.raises(ValueError, match="seed=-1"):
        data.image_batches(IMAGES, batch_size=8, seed=-1)


def test_normalise():
    grey = data.normalise(np.array([0, 51, 255], np.uint8))
    assert grey.dtype == jnp.float32
    np.testing.assert_allclose(grey, [-1, -0.6, 1], atol=1e-6)
    # One for all channels, as configs have it.
    colours = data.normalise(np.full((1, 2, 2, 3), 255, np.uint8), (0.4,), [0.2])
    np.testing.assert_allclose(colours, np.full((1, 2, 2, 3), 3.0), atol=1e-6)


def random_images(count=64, size=6):
    return np.random.default_rng(1).random((count, size, size, 3), np.float32)


@functools.partial(jax.jit, static_argnames=("first", "text"))
def augmented(seed, images, first, text):
    for operation in data.parse_augment(text).device:
        images = operation(jax.random.key(seed), images, first)
    return images


@pytest.mark.parametrize(("fill", "pad"), [("reflect", {"mode": "reflect"}), ("black", {"constant_values": -1})])
def test_shift_shows_a_window_of_the_padded_image_at_every_corner_and_half_are_mirrored(fill, pad):
    x = random_images()
    y = np.asarray(augmented(0, x, 0, f"shift(2, {fill!r}) + flip"))
    corners, mirrored = set(), 0
    for before, after in zip(x, y, strict=True):
        padded = np.pad(before, ((2, 2), (2, 2), (0, 0)), **pad)
        windows = {
            (i, j, flip): (padded[i : i + 6, j : j + 6][:, :: -1 if flip else 1] == after).all()
            for i in range(5)
            for j in range(5)
            for flip in (False, True)
        }
        ((i, j, flip),) = [place for place, same in windows.items() if same]
        corners.add((i, j))
        mirrored += flip
    assert {i for i, _ in corners} == {j for _, j in corners} == set(range(5))
    assert any(i != j for i, j in corners)
    assert 20 < mirrored < 44


def test_draws_depend_on_key_and_global_index_only():
    x = random_images()
    whole = augmented(0, x, 0, "shift(2) + flip")
    np.testing.assert_array_equal(whole[32:], augmented(0, x[32:], 32, "shift(2) + flip"))
    assert (whole != augmented(1, x, 0, "shift(2) + flip")).any()


def test_a_random_part_becomes_the_whole():
    """The images hold their own coordinates: row and column, in pixels."""
    rows, columns = np.mgrid[:8, :12].astype(np.float32)
    x = np.broadcast_to(np.stack([rows, columns], axis=-1), (64, 8, 12, 2))
    y = np.asarray(augmented(0, x, 0, "resized_crop(0.25)"))
    inside = y[:, 2:-2, 2:-2]  # away from the edges, where linear interpolation repeats
    steps = np.diff(inside[..., 0], axis=1).mean(axis=(1, 2)), np.diff(inside[..., 1], axis=2).mean(axis=(1, 2))
    area, ratio = steps[0] * steps[1], steps[1] / steps[0]
    assert 0.2 < area.min() < 0.4 < 0.8 < area.max() < 1.01
    assert 0.7 < ratio.min() < 0.85 < 1.2 < ratio.max() < 1.4
    for axis, extent in ((0, 7), (1, 11)):  # parts lie everywhere within the image
        assert y[..., axis].min() >= -1e-4
        assert y[..., axis].max() <= extent + 1e-4
        assert np.ptp(y[:, 4, 6, axis]) > extent / 4
    half = augmented(0, x[32:], 32, "resized_crop(0.25)")
    np.testing.assert_allclose(y[32:], half, rtol=1e-5, atol=1e-5)  # pixels; another batch size may round otherwise
    assert (y != augmented(1, x, 0, "resized_crop(0.25)")).any()
