"""Rows of images in their own aspects: nothing lost, nothing twice, the same for ever."""

import itertools

import jax
import numpy as np
import pytest

from posjax import data
from posjax.data.preprocess import resize

SIZES = [(8, 8), (5, 20), (20, 5), (9, 16), (16, 9), (30, 31), (7, 3), (12, 40), (6, 6), (25, 10), (8, 9)]
N = len(SIZES)


def toy(channels=3):
    rng = np.random.default_rng(0)
    pixels = [rng.integers(1, 256, (h, w, channels), np.uint8) for h, w in SIZES]
    flat = np.concatenate([p.reshape(-1) for p in pixels])
    size = np.array(SIZES, np.int32)
    return data.NativeImages("toy", flat, size, np.arange(N, dtype=np.int32), tuple("abcdefghijk"), channels, "digest")


IMAGES = toy()
FIXED = data.NativePatches(IMAGES, patch_size=4, max_patches=12)
DRAWN = data.NativePatches(IMAGES, patch_size=4, max_patches=(4, 12))
PADDED, PACKED = {"prefix": 2}, {"prefix": 2, "tokens": 40}


def found(batch):
    """(label, picture) of each image of a batch, put together from its patches by their positions."""
    for row, segment in itertools.product(*map(range, batch["label"].shape)):
        of_image = batch["segment"][row] == segment + 1
        assert of_image.any() == (batch["weight"][row, segment] == 1)
        if not of_image.any():
            continue
        prefix = batch["prefix"][row][of_image]
        slots = np.flatnonzero(of_image)
        assert (np.diff(slots) == 1).all()
        assert (batch["patches"][row][of_image][prefix > 0] == 0).all()
        assert sorted(prefix[prefix > 0]) == list(range(1, 1 + (prefix > 0).sum()))
        position = batch["position"][row][of_image][prefix == 0]
        patches = np.asarray(batch["patches"])[row][of_image][prefix == 0]
        picture = np.zeros((*(position.max(0) + 1) * 4, patches.shape[-1]), patches.dtype)
        for (i, j), patch in zip(position, patches, strict=True):
            picture[4 * i : 4 * i + 4, 4 * j : 4 * j + 4] = patch
        yield int(batch["label"][row, segment]), picture


def assert_same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


@pytest.mark.parametrize("layout", [PADDED, PACKED], ids=["padded", "packed"])
def test_an_epoch_in_order_holds_every_picture_whole(layout):
    batches = list(data.native_epoch(FIXED, batch_size=4, **layout))
    pictures = [each for batch in batches for each in found(batch)]
    assert sorted(label for label, _ in pictures) == list(range(N))
    assert sum(batch["weight"].sum() for batch in batches) == N
    if layout is PADDED:
        assert [label for label, _ in pictures] == list(range(N))
    for label, picture in pictures:
        rows, columns = data.native_grids(np.array([IMAGES[label].shape[:2]]), 12)[0].tolist()
        np.testing.assert_array_equal(picture, resize(IMAGES[label], (4 * rows, 4 * columns)))
    tokens = layout.get("tokens", 2 + 12)
    for batch in batches:
        assert batch["patches"].shape == (4, tokens, 4, 4, 3)
        assert batch["patches"].dtype == np.uint8
        empty = batch["segment"] == 0
        for name in ("patches", "position", "prefix"):
            assert not batch[name][empty].any()
        assert {name: str(batch[name].dtype) for name in ("position", "segment", "prefix", "label", "weight")} == {
            "position": "int32",
            "segment": "int32",
            "prefix": "int32",
            "label": "int32",
            "weight": "float32",
        }


@pytest.mark.parametrize("source", [FIXED, DRAWN], ids=["fixed", "drawn"])
@pytest.mark.parametrize("layout", [PADDED, PACKED], ids=["padded", "packed"])
def test_every_image_once_per_epoch_in_a_new_order(source, layout):
    ds = data.native_batches(source, batch_size=2, seed=3, **layout)
    labels = list(itertools.islice((label for step in itertools.count() for label, _ in found(ds[step])), 4 * N))
    epochs = np.reshape(labels, (4, N))
    np.testing.assert_array_equal(np.sort(epochs), np.tile(np.arange(N), (4, 1)))
    assert len({tuple(epoch) for epoch in epochs}) == 4


@pytest.mark.parametrize("layout", [PADDED, PACKED], ids=["padded", "packed"])
def test_a_step_is_the_same_however_one_comes_to_it(layout):
    def make(**options):
        return data.native_batches(DRAWN, batch_size=4, seed=7, **layout, **options)

    straight = list(data.epoch(make(), 0, 12))
    for step in (11, 0, 5):
        assert_same(straight[step], make()[step])
    for resumed, batch in zip(data.epoch(make(), 9, 12), straight[9:], strict=True):
        assert_same(resumed, batch)
    parts = [make(process_index=p, process_count=2)[8] for p in range(2)]
    assert_same(straight[8], {name: np.concatenate([part[name] for part in parts]) for name in parts[0]})
    other = data.native_batches(DRAWN, batch_size=4, seed=8, **layout)[0]
    assert (other["label"] != straight[0]["label"]).any()


def test_resolutions_are_drawn_anew_and_in_bounds():
    counts = np.stack([DRAWN.grids(0, epoch).prod(axis=1) for epoch in range(200)])
    assert counts.max() <= 12
    assert len(np.unique(counts[:, 1])) > 2
    least, most = (data.native_grids(IMAGES.size, bound).prod(axis=1) for bound in (4, 12))
    assert (counts.min(axis=0) == least).all()
    assert (counts.max(axis=0) == most).all()
    np.testing.assert_array_equal(DRAWN.grids(0, 5), DRAWN.grids(0, 5))
    assert (DRAWN.grids(0, 5) != DRAWN.grids(1, 5)).any()
    batch = data.native_batches(DRAWN, batch_size=N, seed=0, prefix=2)[0]
    for label, picture in found(batch):
        np.testing.assert_array_equal(picture.shape[:2], DRAWN.grids(0, 0)[label] * 4)


def test_packing_fills_rows():
    rng = np.random.default_rng(0)
    size = rng.integers(20, 200, (700, 2)).astype(np.int32)
    total = size.prod(axis=1).sum()
    images = data.NativeImages("big", np.zeros(total, np.uint8), size, np.arange(700, dtype=np.int32), ("a",), 1, "")
    source = data.NativePatches(images, patch_size=1, max_patches=(4, 16))
    ds = data.native_batches(source, batch_size=50, seed=0, prefix=1, tokens=64)
    batch = ds[0]
    assert (batch["segment"] > 0).mean() > 0.95
    assert batch["label"].shape[1] == 64 // (1 + source.fewest)
    few = data.native_batches(source, batch_size=50, seed=0, prefix=1, tokens=64, images_per_row=3)[0]
    assert few["weight"].sum(axis=1).max() == 3


def test_a_mirrored_row_is_the_row_of_the_mirrored_picture():
    batch = next(data.native_epoch(FIXED, batch_size=6, **PACKED))
    key = jax.random.key(0)
    mirror = jax.jit(lambda key, batch, first: data.flip_native(key, batch, first=first), static_argnums=2)
    mirrored = mirror(key, batch, 0)
    before, after = dict(found(batch)), dict(found(jax.tree.map(np.asarray, mirrored)))
    turned = {label for label in before if (before[label] != after[label]).any()}
    assert 0 < len(turned) < len(before)
    for label in before:
        expected = before[label][:, ::-1] if label in turned else before[label]
        np.testing.assert_array_equal(after[label], expected)
    halves = [mirror(key, {name: x[i : i + 3] for name, x in batch.items()}, i) for i in (0, 3)]
    assert_same(mirrored, {name: np.concatenate([half[name] for half in halves]) for name in batch})


def test_wrong_arguments_are_named():
    for call, message in (
        (lambda: data.NativePatches(IMAGES, 4, (9, 4)), r"max_patches=\(9, 4\)"),
        (lambda: data.NativePatches(IMAGES, 4, 8, "cubic"), "'cubic'"),
        (lambda: data.native_batches(FIXED, batch_size=3, seed=0, process_count=2), "batch_size=3"),
        (lambda: data.native_batches(FIXED, batch_size=3, seed=0, prefix=1, tokens=12), "tokens=12"),
        (lambda: data.native_batches(FIXED, batch_size=3, seed=0, images_per_row=2), "images_per_row=2"),
        (lambda: data.native_epoch(DRAWN, batch_size=2), "max_patches"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
