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
