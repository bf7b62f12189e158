"""The containers of data sets: labelled images, in memory or on disk, or a stream of tokens made of documents."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from posjax.data.preprocess import open_image

if TYPE_CHECKING:
    from PIL import Image

DIGEST_LENGTH = 12


def digest_of(*arrays: np.ndarray) -> str:
    """Returns a short sha256 of decoded content (dtype, shape and bytes of each array), whatever files it came from."""
    sha = hashlib.sha256()
    for array in arrays:
        own = array.dtype.kind != "V"  # bfloat16 and its like are not numpy's own types, and have no buffers
        sha.update(f"{array.dtype.str if own else array.dtype.name}{array.shape}".encode())
        array = np.ascontiguousarray(array)
        sha.update(array.data if own else array.reshape(-1).view(np.uint8).data)
    return sha.hexdigest()[:DIGEST_LENGTH]


@dataclass(frozen=True)
class Images:
    """A split of labelled images, in memory (perhaps memory-mapped, then read-only).

    Attributes:
      name: the set's name.
      image: [N, h, w, c] uint8 in 0..255; a grey image has c = 1.
      label: [N] int32 in 0..num_classes-1.
      num_classes: number of classes of the set, not of the split.
      digest: short sha256 of the decoded content.
      classes: [num_classes] names of the classes; empty if unknown.
    """

    name: str
    image: np.ndarray
    label: np.ndarray
    num_classes: int
    digest: str
    classes: tuple[str, ...] = ()

    @property
    def channels(self) -> int:
        return self.image.shape[3]

    def __len__(self) -> int:
        return len(self.image)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.image[index]


class _Labelled:
    """Images with `label` [N] and `classes`."""

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    def __len__(self) -> int:
        return len(self.label)


@dataclass(frozen=True)
class NativeImages(_Labelled):
    """A split of labelled images, each of its own size, in memory (perhaps memory-mapped, then read-only).

    `images[i]` is image i as [h, w, channels].

    Attributes:
      name: the set's name.
      pixels: [total] uint8, the images one after another, each in the order [h, w, channels].
      size: [N, 2] int32, height and width of each.
      label: [N] int32 in 0..num_classes-1.
      classes: the names of the classes.
      channels: 1 or 3.
      digest: short sha256 of the decoded content.
    """

    name: str
    pixels: np.ndarray
    size: np.ndarray
    label: np.ndarray
    classes: tuple[str, ...]
    channels: int
    digest: str

    @functools.cached_property
    def starts(self) -> np.ndarray:
        """[N] int64, the offset in `pixels` at which each image starts."""
        return np.cumsum(np.append(0, self.size.prod(axis=1, dtype=np.int64) * self.channels))[:-1]

    def __getitem__(self, index: int) -> np.ndarray:
        (height, width), start = self.size[index].tolist(), self.starts[index]
        return self.pixels[start : start + height * width * self.channels].reshape(height, width, self.channels)


class Tokens:
    """Tokens [N] that lie in several arrays one after another, perhaps memory-mapped; read as an array is.

    An array of indices in 0..N-1 gives the tokens there, and a slice other `Tokens`, without reading. `np.asarray` joins all.

    >>> tokens = Tokens([np.arange(3), np.arange(10, 14)])
    >>> tokens[np.array([[2, 3], [6, 0]])].tolist(), np.asarray(tokens[1:5]).tolist()
    ([[2, 10], [13, 0]], [1, 2, 10, 11])
    """

    def __init__(self, arrays: Sequence[np.ndarray]):
        self._arrays = [np.asarray(array) for array in arrays if len(array)] or [np.asarray(arrays[0])]
        self._starts = np.cumsum([0, *map(len, self._arrays)], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, index: slice | np.ndarray) -> Tokens | np.ndarray:
        if isinstance(index, slice):
            first, stop, _ = index.indices(len(self))
            pairs = zip(self._starts.tolist(), self._arrays, strict=False)
            return Tokens([array[max(0, first - start) : max(0, stop - start)] for start, array in pairs])
        index = np.asarray(index)
        flat, read = index.reshape(-1), np.empty(index.size, self._arrays[0].dtype)
        own = np.searchsorted(self._starts, flat, side="right") - 1
        edges = [0, *(np.flatnonzero(np.diff(own)) + 1).tolist(), len(flat)]
        for a, b in itertools.pairwise(edges):  # windows: few runs of many tokens
            if b > a:
                read[a:b] = self._arrays[own[a]][flat[a:b] - self._starts[own[a]]]
        return read.reshape(index.shape)

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        joined = self._arrays[0] if len(self._arrays) == 1 else np.concatenate(self._arrays)
        return np.array(joined, dtype, copy=copy)


@dataclass(frozen=True)
class StreamedImages(_Labelled):
    """A split of labelled images on disk, each of its own size; `images[i]` is decoded on each access.

    Attributes:
      name: the set's name.
      source: the undecoded pictures, `Pictures` or `Records`: `label`, `name(index)`, `read(index)`.
      index: [N] int64, the pictures of the source that the split has.
      classes: names of the classes.
      channels: 1 or 3.
      digest: short sha256 of names and sizes: the pictures are not read for it.
    """

    name: str
    source: Any
    index: np.ndarray
    classes: tuple[str, ...]
    channels: int
    digest: str

    @functools.cached_property
    def label(self) -> np.ndarray:
        """[N] int32 in 0..num_classes-1."""
        return self.source.label[self.index]

    def __getitem__(self, index: int) -> Image.Image:
        """Returns an image in mode L or RGB, as `read_image` reads it.

        Raises:
          ValueError: it cannot be read as a picture.
        """
        place = self.index[index]
        return open_image(self.source.read(place), channels=self.channels, name=self.source.name(place))


@dataclass(frozen=True)
class Text:
    """A split of text as one stream of tokens, its documents one after another.

    Attributes:
      name: the set's name.
      tokens: [N] uint8, one byte a token, or int32, a tokenizer's ids; or `Tokens`, memory-mapped shards of uint16 or uint32.
      starts: [num_documents] int64, the offset in `tokens` where each document starts; starts[0] is 0, none is empty.
      digest: short sha256 of the decoded content.
      vocab_size: number of tokens of the vocabulary; every token is below it.
      tokenizer: sha256 of the tokenizer's file; None for bytes; a name where the file is not known.
      bos: tokens that begin every document, and every window of the text; () for none.
    """

    name: str
    tokens: np.ndarray | Tokens
    starts: np.ndarray
    digest: str
    vocab_size: int = 256
    tokenizer: str | None = None
    bos: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    def part(self, first: int, stop: int) -> Text:
        """Returns the tokens first..stop-1 as a text; the first of them opens a document."""
        tokens = self.tokens[first:stop]
        inside = self.starts[(self.starts > first) & (self.starts < stop)]
        starts = np.concatenate([[0], inside - first])
        if isinstance(tokens, Tokens):  # shards are not read for their digest
            digest = digest_of(np.frombuffer(self.digest.encode(), np.uint8), np.array([first, stop]))
        else:
            digest = digest_of(tokens, starts)
        return dataclasses.replace(self, tokens=tokens, starts=starts, digest=digest)
