"""A share of a set of labelled images."""

import dataclasses

import numpy as np

from posjax.data.containers import Images, NativeImages, digest_of


def subset(images: Images | NativeImages, fraction: float) -> Images | NativeImages:
    """A share of every class, at least one image of each; smaller shares lie within larger ones, whatever the seed of a run.

    The order within a class is drawn once for all, so a study of how much data a model needs changes nothing but that.

    Raises:
      ValueError: for a fraction outside (0, 1].
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction={fraction} of a set must lie in (0, 1]")
    if fraction == 1:
        return images
    order, kept = np.random.default_rng(0).permutation(len(images)), []
    for label in np.unique(images.label):
        members = order[images.label[order] == label]
        kept.append(members[: max(1, round(fraction * len(members)))])
    return _taken(images, np.sort(np.concatenate(kept)))


def spread(images: Images | NativeImages, count: int) -> Images | NativeImages:
    """`count` of the images, evenly spread over the set, which may be sorted by class; all where there are fewer.

    Raises:
      ValueError: for a count below 1.
    """
    if count < 1:
        raise ValueError(f"the number of images must be at least 1, got {count}")
    if count >= len(images):
        return images
    return _taken(images, np.arange(count) * len(images) // count)


def _taken(images: Images | NativeImages, index: np.ndarray) -> Images | NativeImages:
    digest = digest_of(np.frombuffer(images.digest.encode(), np.uint8), index)
    if isinstance(images, Images):
        return dataclasses.replace(images, image=images.image[index], label=images.label[index], digest=digest)
    pixels = np.concatenate([images[i].reshape(-1) for i in index.tolist()])
    return dataclasses.replace(images, pixels=pixels, size=images.size[index], label=images.label[index], digest=digest)
