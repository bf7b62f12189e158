"""Loads a split of a prepared set into arrays, decoded once and cached beside the set."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import logging
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from posjax.data.containers import Images, Text, digest_of
from posjax.data.preparing import prepare
from posjax.data.sets import SETS, command, find_builder, is_prepared, source_of
from posjax.data.sources import images_of, text_of
from posjax.data.subsets import parted, split_among
from posjax.files import replace_file, sha256_of
from posjax.jsonl import parse_json

if TYPE_CHECKING:
    from tensorflow_datasets.core import DatasetBuilder

_log = logging.getLogger(__name__)
_TEXT_FEATURE = {"pg19": "book_text"}  # sets that name their text otherwise

Arrays = dict[str, np.ndarray]


@parted
def load_images(name: str, split: str, data_dir: str | os.PathLike | None = None) -> Images:
    """Loads a split of labelled images of one size.

    Args:
      name: an image set of `SETS`, one of your own (`register`), or any prepared TFDS set with `image` and `label`.
      split: "train", "test", ... as the set has them.
      data_dir: directory of prepared sets; None is TFDS's default.

    Raises:
      ValueError: the set or split is unknown, is text, has images of different sizes, or is in another format.
      FileNotFoundError: the set is not prepared; the message is the command that prepares it.
    """
    if source := source_of(name):
        return images_of(source, split, data_dir)
    builder, split = ready(name, split, data_dir, kind="images", features=("image", "label"))
    classes = tuple(builder.info.features["label"].names)
    arrays, digest = cached(builder, split, ("image", "label"), decode_images)
    return Images(name, arrays["image"], arrays["label"], len(classes), digest, classes)


@parted
def load_text(name: str, split: str, data_dir: str | os.PathLike | None = None) -> Text:
    """Loads a split of text as a stream of UTF-8 bytes.

    Args:
      name: a text set of `SETS`, one of your own (`register`), or any prepared TFDS set with a feature `text` (pg19:
        `book_text`).
      split, data_dir: as in `load_images`.

    Raises:
      ValueError, FileNotFoundError: as `load_images`.
    """
    if source := source_of(name):
        return text_of(source, split, data_dir)
    builder, split = ready(name, split, data_dir, kind="text", features=(_TEXT_FEATURE.get(name, "text"),))
    arrays, digest = cached(builder, split, ("tokens", "starts"), _decode_text)
    return Text(name, arrays["tokens"], arrays["starts"], digest)


def ready(name: str, split: str, data_dir, *, kind: str, features: tuple[str, ...]) -> tuple[DatasetBuilder, str]:
    """Returns the builder of a prepared set that holds the split, and its name for the split."""
    known = SETS.get(name)
    builder = find_builder(name, data_dir)
    lacks = [feature for feature in features if feature not in builder.info.features]
    if lacks or (known is not None and known.kind != kind):
        other = {"images": "load_text", "text": "load_images"}[kind]
        has = ", ".join(builder.info.features)
        raise ValueError(f"{name!r} is not a set of {kind}: its features are {has}; perhaps {other}({name!r}, ...)?")
    if not is_prepared(builder):
        if known is None or not known.bundled:
            where = builder.data_dir_root
            raise FileNotFoundError(f"{name!r} is not prepared in {where}; run: {command(name, data_dir)}")
        prepare(name, data_dir)
        builder = find_builder(name, data_dir)
    split = split_among(split, list(builder.info.splits), repr(name))
    if builder.info.file_format.value != "array_record":
        raise ValueError(f"{builder.data_path} is no array_record: prepare it elsewhere: {command(name, 'DIR')}")
    return builder, split


def cached(
    builder: DatasetBuilder, split: str, fields: tuple[str, ...], decode: Callable[[str, Any], Arrays], how: str = ""
) -> tuple[Arrays, str]:
    """Returns the decoded arrays and their digest, memory-mapped if the cache was made from these very files.

    `how` names a way of decoding; each has its own cache.
    """
    kind = f"{how}{split}"
    # A set that is prepared anew gets a new cache.
    sums = "".join(sha256_of(path) for path in sorted(builder.info.splits[split].filepaths))
    key = hashlib.sha256(sums.encode()).hexdigest()[:16]
    stem = pathlib.Path(builder.data_path, f"posjax-{kind}-{key}")
    if (found := _read_cache(stem, fields)) is not None:
        return found
    skip = None
    if "image" in builder.info.features:
        from tensorflow_datasets.core import decode as tfds_decode

        skip = {"image": tfds_decode.SkipDecoding()}
    source = builder.as_data_source(split, decoders=skip)
    if not len(source):
        raise ValueError(f"split {split!r} of {builder.name!r} has no examples")
    arrays = decode(builder.name, source)
    digest = digest_of(*(arrays[field] for field in fields))
    _write_cache(stem, kind, arrays, digest)
    return arrays, digest


def _read_cache(stem: pathlib.Path, fields: tuple[str, ...]) -> tuple[Arrays, str] | None:
    index = _beside(stem, "json")
    if not index.exists():
        return None
    arrays = {field: np.load(_beside(stem, f"{field}.npy"), mmap_mode="r", allow_pickle=False) for field in fields}
    return arrays, parse_json(index.read_bytes(), index)["digest"]


def _write_cache(stem: pathlib.Path, kind: str, arrays: Arrays, digest: str) -> None:
    """Writes the arrays, then the index, which marks the cache as whole."""
    try:
        for old in stem.parent.glob(f"posjax-{kind}-*"):
            if not old.name.startswith(stem.name):
                old.unlink(missing_ok=True)
        for field, array in arrays.items():
            buffer = io.BytesIO()
            np.save(buffer, array, allow_pickle=False)
            replace_file(_beside(stem, f"{field}.npy"), buffer.getbuffer())
        replace_file(_beside(stem, "json"), json.dumps({"digest": digest}).encode())
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        _log.warning("%s is read-only, so the decoded set is not cached there", stem.parent)


def _beside(stem: pathlib.Path, ending: str) -> pathlib.Path:
    return stem.with_name(f"{stem.name}.{ending}")


def examples(source) -> Iterator[dict]:
    """Yields the source's examples in order, read a thousand at a time: three times as fast as one by one."""
    for first in range(0, len(source), 1000):
        yield from source.__getitems__(range(first, min(first + 1000, len(source))))


def decode_images(name: str, source) -> Arrays:
    from PIL import Image

    image = label = None
    for i, example in enumerate(examples(source)):
        with Image.open(io.BytesIO(example["image"])) as picture:
            pixels = np.asarray(picture)
        pixels = pixels[..., None] if pixels.ndim == 2 else pixels
        if image is None:
            image = np.empty((len(source), *pixels.shape), np.uint8)
            label = np.empty(len(source), np.int32)
        if pixels.shape != image.shape[1:] or pixels.dtype != np.uint8:
            raise ValueError(f"{name!r} mixes images: load_native_images({name!r}, ...) takes all sizes")
        image[i], label[i] = pixels, example["label"]
    return {"image": image, "label": label}


def _decode_text(name: str, source) -> Arrays:
    texts = (example[_TEXT_FEATURE.get(name, "text")] for example in examples(source))
    documents = [text.encode() if isinstance(text, str) else text for text in texts]
    documents = [document for document in documents if document]
    starts = np.cumsum([0, *map(len, documents)], dtype=np.int64)[:-1]
    return {"tokens": np.frombuffer(b"".join(documents), np.uint8), "starts": starts}
