"""Sets of images of different sizes, from tensorflow-datasets and from folders or zips of pictures."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from posjax.data.containers import Images, NativeImages, StreamedImages, digest_of
from posjax.data.folders import pictures
from posjax.data.loading import Arrays, cached, examples, ready
from posjax.data.preprocess import preprocess, read_image, resize
from posjax.data.sets import resolve_data_dir, source_of
from posjax.data.sources import native_images_of
from posjax.data.subsets import parted


@parted
def load_native_images(
    name: str,
    split: str,
    data_dir: str | os.PathLike | None = None,
    *,
    channels: int | None = 3,
    short_side: int | None = None,
) -> NativeImages:
    """Loads a split of labelled images of any sizes.

    Args:
      name: "folder", or an image set of `SETS`, or one of your own (`register`), or any prepared TFDS set with features
        `image` and `label`. A TFDS set is decoded once, as in `load_images`; others are decoded each time.
      split: "train", "test", ... as the set has them.
      data_dir: directory of prepared sets; None is TFDS's default. For "folder", a directory that holds
        <split>/<class>/<picture>, <split>.zip with <class>/<picture>, or <class>/<picture> without splits: a hash of the
        names then holds out a fifth of each class. Classes are numbered in the order of their names, all splits alike.
      channels: 3 or 1; other images are converted as in `read_image`. None is 1 if a prepared set is declared grey, else 3.
      short_side: larger images are shrunk (bicubic) until their short side has this many pixels; None keeps them all.

    Raises:
      ValueError: unknown set or split, a picture that cannot be read, a test class that "train" lacks.
      FileNotFoundError: the set is not prepared, the message is the command that does it; no such folder.
    """
    if short_side is not None and short_side < 1:
        raise ValueError(f"short_side={short_side} must be at least 1 pixel, or None")
    if name == "folder":
        return _load_folder(resolve_data_dir(data_dir), split, channels or 3, short_side)
    if source := source_of(name):
        return native_images_of(source, split, data_dir, channels, lambda each, c: _decoded(each, c, short_side))
    builder, split = ready(name, split, data_dir, kind="images", features=("image", "label"))
    if channels is None:
        channels = 1 if builder.info.features["image"].shape[-1] == 1 else 3

    def decode(name: str, source: Any) -> Arrays:
        encoded = ((f"image {i} of {name}", e["image"], e["label"]) for i, e in enumerate(examples(source)))
        return _decoded(encoded, channels, short_side)

    how = f"native-{channels}-{short_side or 'whole'}-"
    arrays, digest = cached(builder, split, ("pixels", "size", "label"), decode, how)
    return NativeImages(
        name, **arrays, classes=tuple(builder.info.features["label"].names), channels=channels, digest=digest
    )


def as_images(
    images: NativeImages | StreamedImages,
    size: int | tuple[int, int],
    mode: str = "crop",
    *,
    resample: str = "bicubic",
    crop_fraction: float = 1.0,
) -> Images:
    """Makes all images one size by `preprocess`, for consumers of `Images`."""
    options = dict(channels=images.channels, resample=resample, crop_fraction=crop_fraction)
    image = np.stack([preprocess(images[i], size, mode, **options) for i in range(len(images))])
    return Images(images.name, image, images.label, images.num_classes, digest_of(image, images.label), images.classes)


def _load_folder(data_dir: pathlib.Path, split: str, channels: int, short_side: int | None) -> NativeImages:
    found = pictures(data_dir, split)
    encoded = ((found.name(i), found.read(i), label) for i, label in enumerate(found.label.tolist()))
    arrays = _decoded(encoded, channels, short_side)
    digest = digest_of(*arrays.values())
    return NativeImages(data_dir.name, **arrays, classes=found.classes, channels=channels, digest=digest)


def _decoded(encoded: Iterable[tuple[str, bytes | np.ndarray, int]], channels: int, short_side: int | None) -> Arrays:
    """Decodes (name, bytes or pixels, label) of each picture into arrays."""
    pixels, size, label = [], [], []
    for name, content, number in encoded:
        image = read_image(content, channels=channels, name=name)
        h, w = image.shape[:2]
        if short_side is not None and min(h, w) > short_side:
            image = resize(
                image, (max(1, round(h * short_side / min(h, w))), max(1, round(w * short_side / min(h, w))))
            )
        pixels.append(image.reshape(-1))
        size.append(image.shape[:2])
        label.append(number)
    return {
        "pixels": np.concatenate(pixels),
        "size": np.array(size, np.int32),
        "label": np.array(label, np.int32),
    }
