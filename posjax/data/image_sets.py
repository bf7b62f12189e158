"""Sets of images of any sizes: decoded into memory, or read by index and decoded when a batch needs them.

Of a set that streams nothing is held but names, labels and places. `posjax.data.epoch` decodes in other processes, to which a
set is sent pickled; each process opens its files for itself.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import pathlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from posjax.data.archives import kept_beside
from posjax.data.containers import Images, NativeImages, StreamedImages, digest_of
from posjax.data.folders import pictures
from posjax.data.loading import Arrays, cached, examples, ready
from posjax.data.preprocess import preprocess, read_image, resize
from posjax.data.sets import resolve_data_dir, source_of
from posjax.data.sources import labelled
from posjax.data.subsets import parted

if TYPE_CHECKING:
    from tensorflow_datasets.core import DatasetBuilder

_log = logging.getLogger(__name__)
IN_MEMORY = 4 * 2**30  # bytes of decoded images of one size; splits with more are streamed


class Records:
    """The undecoded pictures of a prepared TFDS set in array_record files."""

    def __init__(self, builder: DatasetBuilder, split: str):
        from tensorflow_datasets.core import decode

        self._name, self._split = builder.name, split
        self._files = [pathlib.Path(path) for path in sorted(builder.info.splits[split].filepaths)]
        self._source = builder.as_data_source(split, decoders={"image": decode.SkipDecoding()})
        sizes = "\n".join(f"{path.name} {path.stat().st_size}" for path in self._files)
        self.digest = digest_of(np.frombuffer(sizes.encode(), np.uint8))

    def __len__(self) -> int:
        return len(self._source)

    @functools.cached_property
    def label(self) -> np.ndarray:
        """[N] int32. All records are read for their labels once, which are kept beside the set."""
        read = lambda: np.array([each["label"] for each in examples(self._source)], np.int32)  # noqa: E731
        return kept_beside(self._files, f"posjax-labels-{self._split}", read, "reading the labels")

    def name(self, index: int) -> str:
        return f"image {index} of {self._name}"

    def read(self, index: int) -> bytes:
        return self._source[index]["image"]


@parted
def stream_images(
    name: str, split: str, data_dir: str | os.PathLike | None = None, *, channels: int | None = 3
) -> StreamedImages:
    """Opens a split of labelled images of any sizes, which are read when they are needed.

    Args:
      name: "folder", or any prepared TFDS set with features `image` and `label`.
      split: "train", "test", ... as the set has them.
      data_dir, channels: see `load_native_images`; a folder may hold tars, too, see `posjax.data.folders.pictures`.

    Raises:
      ValueError, FileNotFoundError: as `load_native_images`; ValueError for a registered set, which is in memory already.
    """
    if source_of(name):
        raise ValueError(f"{name!r} is registered by your own code, which holds its images: set data.stream=False")
    if name == "folder":
        data_dir = resolve_data_dir(data_dir)
        name, source = data_dir.name, pictures(data_dir, split)
        classes = source.classes
    else:
        builder, split, channels = _prepared(name, split, data_dir, channels)
        source, classes = Records(builder, split), tuple(builder.info.features["label"].names)
    if not len(source):
        raise ValueError(f"a split of {name!r} has no examples")
    return StreamedImages(name, source, np.arange(len(source)), classes, channels or 3, source.digest)


def _prepared(name: str, split: str, data_dir, channels: int | None) -> tuple[DatasetBuilder, str, int]:
    """Returns the builder of a prepared set of images, its name for a split, and the number of channels."""
    builder, split = ready(name, split, data_dir, kind="images", features=("image", "label"))
    return builder, split, channels or (1 if builder.info.features["image"].shape[-1] == 1 else 3)


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
    if source := source_of(name):
        images, label = labelled(source, split, data_dir)
        channels = channels or (1 if all(image.shape[2] == 1 for image in images) else 3)
        encoded = [(f"image {i} of {name}", image, label[i]) for i, image in enumerate(images)]
        classes = source.classes
    elif name == "folder":
        found = stream_images(name, split, data_dir, channels=channels)
        encoded = ((found.source.name(i), found.source.read(i), label) for i, label in enumerate(found.label.tolist()))
        name, channels, classes = found.name, found.channels, found.classes
    else:
        builder, split, channels = _prepared(name, split, data_dir, channels)

        def decode(name: str, source: Any) -> Arrays:
            encoded = ((f"image {i} of {name}", e["image"], e["label"]) for i, e in enumerate(examples(source)))
            return _decoded(encoded, channels, short_side)

        how, classes = f"native-{channels}-{short_side or 'whole'}-", tuple(builder.info.features["label"].names)
        arrays, digest = cached(builder, split, ("pixels", "size", "label"), decode, how)
        return NativeImages(name, **arrays, classes=classes, channels=channels, digest=digest)
    arrays = _decoded(encoded, channels, short_side)
    return NativeImages(name, **arrays, classes=classes, channels=channels, digest=digest_of(*arrays.values()))


def _decoded(encoded: Iterable[tuple[str, bytes | np.ndarray, int]], channels: int, short_side: int | None) -> Arrays:
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
    return {"pixels": np.concatenate(pixels), "size": np.array(size, np.int32), "label": np.array(label, np.int32)}


def open_images(
    name: str, split: str, data_dir: str | os.PathLike | None = None, *, channels: int | None = 3
) -> NativeImages | StreamedImages:
    """Opens a split by `stream_images`; a registered set, whose function returns arrays, by `load_native_images`."""
    load = load_native_images if source_of(name) else stream_images
    return load(name, split, data_dir, channels=channels)


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


def images_of_size(
    images: NativeImages | StreamedImages,
    size: tuple[int, int],
    mode: str = "crop",
    *,
    stream: bool | None = None,
    crop_fraction: float = 1.0,
) -> Images | StreamedImages:
    """Makes images one size in memory, or leaves them on disk where they would fill it, for a `Frame`.

    Args:
      images: of any sizes.
      size: (H, W) in pixels.
      mode: see `preprocess`.
      stream: whether streamed images stay so; None: if they have more than `IN_MEMORY` bytes at this size.
      crop_fraction: see `preprocess`; of images in memory. `Frame` has that of streamed ones.
    """
    needed = len(images) * math.prod(size) * images.channels
    if isinstance(images, StreamedImages) and (needed > IN_MEMORY if stream is None else stream):
        about = f"{len(images):,} images, {needed / 2**30:.1f} GiB at {size[0]}x{size[1]}"
        _log.warning("%s streams from disk: %s", images.name, about)
        return images
    return as_images(images, size, mode, crop_fraction=crop_fraction)
