"""A share of a set: of every class, the same whoever asks, smaller ones within larger ones."""

import numpy as np
import pytest

from posjax import data


def images(count=100, classes=4):
    label = np.random.default_rng(0).integers(0, classes, count).astype(np.int32)
    return data.Images("toy", np.arange(count, dtype=np.uint8)[:, None, None, None], label, classes, "digest")


def numbers(some):
    return set(some.image[:, 0, 0, 0].tolist())


def test_shares_are_nested_and_of_every_class():
    whole, before = images(), set()
    counts = np.bincount(whole.label)
    for fraction in (0.01, 0.1, 0.3, 1.0):
        some = data.subset(whole, fraction)
        assert np.bincount(some.label).tolist() == [max(1, round(fraction * n)) for n in counts]
        assert numbers(some) >= before
        assert [whole.label[i] for i in some.image[:, 0, 0, 0]] == some.label.tolist()
        before = numbers(some)
    assert data.subset(whole, 1.0) is whole


def test_a_share_has_a_digest_of_its_own():
    digests = {data.subset(images(), fraction).digest for fraction in (0.1, 0.2, 1.0)}
    assert len(digests) == 3
    assert data.subset(images(), 0.1).digest in digests


def test_images_of_different_sizes_stay_whole():
    size = np.array([[2, 3], [1, 4], [5, 1], [2, 2]], np.int32)
    pixels = np.arange(int(size.prod(axis=1).sum()), dtype=np.uint8)
    label = np.array([0, 0, 1, 1], np.int32)
    whole = data.NativeImages("toy", pixels, size, label, ("a", "b"), 1, "digest")
    some = data.subset(whole, 0.5)
    assert len(some) == 2
    for i in range(2):
        (where,) = [j for j in range(4) if np.array_equal(whole[j], some[i])]
        assert whole.label[where] == some.label[i]


@pytest.mark.parametrize("fraction", [0.0, -1.0, 1.5])
def test_a_share_lies_between_nothing_and_all(fraction):
    with pytest.raises(ValueError, match=rf"fraction={fraction} of a set must lie in \(0, 1\]"):
        data.subset(images(), fraction)


@pytest.fixture(scope="module")
def sets():
    """Sets under names of their own, read by the loaders."""
    whole = images()
    data.register("held_images", classes=4, splits=("train",))(lambda split, data_dir: (whole.image, whole.label))
    data.register("held_text", splits=("train",))(lambda split, data_dir: ["abcdef", "gh", "ijklmnopqrst"])


def test_what_is_held_out_and_what_is_left_share_nothing(sets):
    left, held = data.held_out_names("train", 0.2)
    assert (left, held) == ("train without 20%", "20% of train")
    whole, *parts = (data.load_images("held_images", split) for split in ("train", left, held))
    assert numbers(parts[0]) | numbers(parts[1]) == numbers(whole)
    assert not numbers(parts[0]) & numbers(parts[1])
    assert np.bincount(parts[1].label).tolist() == [round(0.2 * n) for n in np.bincount(whole.label)]
    assert len({whole.digest, *(part.digest for part in parts)}) == 3
    native = data.load_native_images("held_images", held, channels=None)
    assert native.label.tolist() == parts[1].label.tolist()


def test_of_text_the_end_is_held_out(sets):
    left, held = (data.load_text("held_text", split) for split in data.held_out_names("train", 0.25))
    assert (bytes(left.tokens), left.starts.tolist()) == (b"abcdefghijklmno", [0, 6, 8])
    assert (bytes(held.tokens), held.starts.tolist()) == (b"pqrst", [0])
    left, held = (data.load_stream("held_text", split) for split in data.held_out_names("train", 0.7))
    assert (bytes(left.tokens), left.starts.tolist()) == (b"abcdef", [0])
    assert (bytes(held.tokens), held.starts.tolist()) == (b"ghijklmnopqrst", [0, 2])
    assert data.load_stream("held_text", "65% of train").starts.tolist() == [0, 1]


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1])
def test_a_share_that_leaves_nothing_is_refused(share):
    with pytest.raises(ValueError, match=r"a share of \S+ of 'train' cannot be held out: it must lie in"):
        data.held_out_names("train", share)
