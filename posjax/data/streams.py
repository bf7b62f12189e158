"""Sets of images that are read by index and decoded when a batch needs them: nothing is held but names, labels and places.

`posjax.data.epoch` decodes in other processes, to which a set is sent pickled; each process opens its files for itself.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import pathlib
from typing import TYPE_CHECKING, Any

import numpy as np

from posjax.data.archives import kept_beside
from posjax.data.containers import Encoded, Images, NativeImages, StreamedImages, digest_of
from posjax.data.folders import pictures
from posjax.data.loading import ready
from posjax.data.native_loading import as_images, load_native_images
from posjax.data.sets import resolve_data_dir, source_of
from posjax.data.subsets import parted

if TYPE_CHECKING:
    from tensorflow_datasets.core import DatasetBuilder

_log = logging.getLogger(__name__)
IN_MEMORY = 4 * 2**30  # bytes of decoded images of one size; splits with more are streamed
_TOGETHER = 256  # records that are read at once for their labels


class Records:
    """The undecoded pictures of a prepared TFDS set in array_record files."""

    def __init__(self, builder: DatasetBuilder, split: str):
        from tensorflow_datasets.core import decode

        self._name, self._split = builder.name, split
        self._files = [pathlib.Path(path) for path in sorted(builder.info.splits[split].filepaths)]
        self._source = builder.as_data_source(split, decoders={"image": decode.SkipDecoding()}).data_source
        sizes = "\n".join(f"{path.name} {path.stat().st_size}" for path in self._files)
        self.digest = digest_of(np.frombuffer(sizes.encode(), np.uint8))

    def __len__(self) -> int:
        return len(self._source)

    @functools.cached_property
    def label(self) -> np.ndarray:
        """[N] int32. All records are read for their labels once, which are kept beside the set."""
        return kept_beside(self._files, f"posjax-labels-{self._split}", self._labels, "reading the labels")

    def _labels(self) -> np.ndarray:
        rows = (range(first, min(first + _TOGETHER, len(self))) for first in range(0, len(self), _TOGETHER))
        records = (record for several in rows for record in self._source.__getitems__(several))
        return np.fromiter((_feature(record, "label").int64_list.value[0] for record in records), np.int32, len(self))

    def name(self, index: int) -> str:
        return f"image {index} of {self._name}"

    def read(self, index: int) -> bytes:
        return _feature(self._source[index], "image").bytes_list.value[0]


def _feature(record: bytes, name: str) -> Any:
    from tensorflow_datasets.proto import tf_example_pb2

    return tf_example_pb2.Example.FromString(record).features.feature[name]


@parted
def stream_images(
    name: str, split: str, data_dir: str | os.PathLike | None = None, *, channels: int | None = 3
) -> StreamedImages:
    """Opens a split of labelled images of any sizes, which are read when they are needed.

    Args:
      name: "folder", or any prepared TFDS set with features `image` and `label`.
      split: "train", "test", ... as the set has them.
      data_dir: see `load_native_images`; a folder of pictures may be tars, too, see `posjax.data.folders.pictures`.
      channels: see `load_native_images`.

    Raises:
      ValueError: see `load_native_images`; also for a registered set, whose images are in memory already.
      FileNotFoundError: see `load_native_images`.
    """
    if source_of(name):
        raise ValueError(f"{name!r} is registered by your own code, which holds its images: set data.stream=False")
    if name == "folder":
        data_dir = resolve_data_dir(data_dir)
        found = pictures(data_dir, split)
        return _whole(data_dir.name, found, len(found), found.classes, channels or 3)
    builder, split = ready(name, split, data_dir, kind="images", features=("image", "label"))
    if channels is None:
        channels = 1 if builder.info.features["image"].shape[-1] == 1 else 3
    records = Records(builder, split)
    return _whole(name, records, len(records), tuple(builder.info.features["label"].names), channels)


def _whole(name: str, source: Encoded, count: int, classes: tuple[str, ...], channels: int) -> StreamedImages:
    if not count:
        raise ValueError(f"a split of {name!r} has no examples")
    return StreamedImages(name, source, np.arange(count), classes, channels, source.digest)


def open_images(
    name: str, split: str, data_dir: str | os.PathLike | None = None, *, channels: int | None = 3
) -> NativeImages | StreamedImages:
    """Opens a split by `stream_images`; a registered set, whose function returns arrays, by `load_native_images`."""
    load = load_native_images if source_of(name) else stream_images
    return load(name, split, data_dir, channels=channels)


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
