"""Batches of images in their own aspects, cut into patches: one image a row, or several packed into each.

NaViT (Dehghani et al. 2023, arXiv 2307.06304) packs images of many resolutions into rows of one length; NaFlex (SigLIP 2,
arXiv 2502.14786) pads one image a row. A batch gives the place of each patch, and the image of the row that it belongs to:

    patches   [B, N, p, p, c] uint8: 0 where there is no patch
    position  [B, N, 2] int32: (row, column) in the image's own grid
    segment   [B, N] int32: 1, 2, ... the image within its row; 0 is padding
    prefix    [B, N] int32: 1..P on the P slots in front of each image for the model's own tokens, 0 on patches
    label     [B, I] int32 and weight [B, I] float32: of segment i + 1; weight 0 where there is no such image
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from posjax.data.containers import NativeImages
from posjax.data.pipelines import share_of
from posjax.data.preprocess import native_grids, resize
from posjax.data.windows import Batch
from posjax.encoding import Array, Site

if TYPE_CHECKING:
    import grain

_WINDOW = 256  # number of images that are packed into rows together
Row = list[tuple[int, tuple[int, int]]]  # (image, its grid) of each image of a row


class NativePatches:
    """Images resized to whole patches and cut: at most `max_patches` patches each, by `native_grids`.

    With one number for `max_patches` all images are resized here, once, and kept. With a pair (least, most) every image
    draws its own number in every epoch and is resized when it is gathered: the square root is uniform between the two
    square roots, as NaViT samples the side and not the area.

    Raises:
      ValueError: patch_size or max_patches is below 1, the pair falls, or the filter is unknown.
    """

    def __init__(
        self,
        images: NativeImages,
        patch_size: int = 8,
        max_patches: int | tuple[int, int] = 64,
        resample: str = "bicubic",
    ):
        self.images, self.patch_size, self._resample = images, patch_size, resample
        self.least, self.most = (max_patches, max_patches) if isinstance(max_patches, int) else max_patches
        if patch_size < 1 or not 1 <= self.least <= self.most:
            raise ValueError(f"{patch_size=} and {max_patches=} must be at least 1, and a pair must rise")
        self._least_grids = native_grids(images.size, self.least)
        self.fewest = int(self._least_grids.prod(axis=1).min())  # patches of an image, in any epoch
        self._starts, self._patches = None, None
        if self.fixed:
            self._starts = np.append(0, np.cumsum(self._least_grids.prod(axis=1)))
            shape = (self._starts[-1], patch_size, patch_size, images.channels)
            self._patches = np.empty(shape, np.uint8)
            for i, grid in enumerate(map(tuple, self._least_grids.tolist())):
                self._patches[self._starts[i] : self._starts[i + 1]] = self._cut(i, grid)

    def __len__(self) -> int:
        return len(self.images)

    @property
    def fixed(self) -> bool:
        """Whether an image has the same patches in every epoch."""
        return self.least == self.most

    def grids(self, seed: int, epoch: int) -> np.ndarray:
        """Returns [N, 2] int32, rows and columns of patches of each image in an epoch."""
        if self.fixed:
            return self._least_grids
        side = np.random.default_rng((seed, epoch, 1)).uniform(self.least**0.5, self.most**0.5, len(self))
        return native_grids(self.images.size, np.clip(np.round(side**2), self.least, self.most))

    def cut(self, index: int, grid: tuple[int, int]) -> np.ndarray:
        """Returns [rows * columns, p, p, c] uint8, the patches of an image in raster order."""
        if self._patches is None:
            return self._cut(index, grid)
        return self._patches[self._starts[index] : self._starts[index + 1]]

    def _cut(self, index: int, grid: tuple[int, int]) -> np.ndarray:
        (rows, columns), p = grid, self.patch_size
        pixels = resize(self.images[index], (rows * p, columns * p), self._resample)
        return pixels.reshape(rows, p, columns, p, -1).swapaxes(1, 2).reshape(rows * columns, p, p, -1)


def native_batches(
    source: NativePatches,
    *,
    batch_size: int,
    seed: int,
    prefix: int = 0,
    tokens: int | None = None,
    images_per_row: int | None = None,
    process_index: int = 0,
    process_count: int = 1,
) -> grain.MapDataset:
    """Endless shuffled batches; every image comes once per epoch, in a new order each epoch.

    `ds[step]` is a pure function of the arguments and the step. Epochs differ in their number of packed rows: to find a
    step, the earlier epochs are packed again (without their pixels), milliseconds per thousand images each.

    Args:
      source: the images.
      batch_size: B, rows per step over all processes.
      seed: seed of order and resolutions, 0 <= seed < 2**32.
      prefix: P, slots in front of each image for class token, registers and their like.
      tokens: N, tokens per packed row: each image goes to the first open row that has room. None pads instead, one image a
        row, N = P + the source's largest max_patches.
      images_per_row: I, the most images in a packed row; None: as many as can fit.
      process_index, process_count: see `image_batches`.

    Returns:
      ds with ds[step] = a batch (see the module's docstring) of batch_size // process_count rows.

    Raises:
      ValueError: an image may not fit into `tokens`, or batch_size does not divide among the processes.

    >>> from posjax.data import NativeImages
    >>> size, label = np.int32([[8, 8], [4, 8]]), np.int32([0, 1])
    >>> images = NativeImages("mine", np.zeros(96, np.uint8), size, label, classes=("a", "b"), channels=1, digest="")
    >>> batch = native_batches(NativePatches(images, patch_size=4, max_patches=4), batch_size=2, seed=0)[0]
    >>> batch["patches"].shape, batch["position"].shape
    ((2, 4, 4, 4, 1), (2, 4, 2))
    >>> site_of(batch).segment.tolist()
    [[1, 1, 1, 1], [1, 1, 0, 0]]
    """
    import grain

    first, share = share_of(batch_size, seed, process_index, process_count)
    layout = _Layout(source, prefix, tokens, images_per_row)
    rows = _Rows(layout, seed)

    def mine(step: int, _) -> Batch:
        start = step * batch_size + first
        return layout.batch(rows.between(start, start + share), share)

    return grain.MapDataset.range(1).repeat().map_with_index(mine)


def native_epoch(
    source: NativePatches,
    *,
    batch_size: int,
    prefix: int = 0,
    tokens: int | None = None,
    images_per_row: int | None = None,
) -> Iterator[Batch]:
    """Returns batches of every image once, in order if a row is one image; segment and weight 0 fill the last one up.

    Args:
      source: the images, with a single number for `max_patches`.
      batch_size: B, rows per batch.
      prefix, tokens, images_per_row: see `native_batches`.

    Raises:
      ValueError: batch_size is below 1, the source draws its resolutions, or an image may not fit into `tokens`.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size} must be at least 1")
    if not source.fixed:
        raise ValueError(f"max_patches={source.least, source.most} draws resolutions: evaluate at {source.most}")
    layout = _Layout(source, prefix, tokens, images_per_row)
    rows = layout.rows(np.arange(len(source)), source.grids(0, 0))
    return (layout.batch(rows[i : i + batch_size], batch_size) for i in range(0, len(rows), batch_size))


def site_of(batch: Mapping[str, Array]) -> Site:
    """The sites of a native-aspect batch: leaves [B, N, ...]."""
    return Site(batch["position"], batch["segment"], batch["prefix"])


class _Layout:
    def __init__(self, source: NativePatches, prefix: int, tokens: int | None, images_per_row: int | None):
        if prefix < 0:
            raise ValueError(f"prefix={prefix} must not be negative")
        largest = prefix + source.most
        self.source, self.prefix, self.packed = source, prefix, tokens is not None
        self.tokens = largest if tokens is None else tokens
        if self.tokens < largest:
            raise ValueError(f"tokens={tokens} must be {largest} at least: {prefix} and {source.most} of an image")
        fit = self.tokens // (prefix + source.fewest) if self.packed else 1
        self.images_per_row = fit if images_per_row is None else images_per_row
        if self.images_per_row < 1 or (not self.packed and self.images_per_row != 1):
            raise ValueError(f"images_per_row={images_per_row} must be at least 1, and 1 where tokens is None")

    def rows(self, order: np.ndarray, grids: np.ndarray) -> list[Row]:
        """Returns the rows of the images in this order."""
        images = [(i, tuple(grids[i].tolist())) for i in order.tolist()]
        if not self.packed:
            return [[image] for image in images]
        return [row for i in range(0, len(images), _WINDOW) for row in self._first_fit(images[i : i + _WINDOW])]

    def _first_fit(self, images: Row) -> list[Row]:
        rows, room, opened = [], [], []  # `opened` holds the numbers of rows that may still take an image
        for image in images:
            need = self.prefix + image[1][0] * image[1][1]
            row = next((r for r in opened if room[r] >= need), len(rows))
            if row == len(rows):
                rows.append([])
                room.append(self.tokens)
                opened.append(row)
            rows[row].append(image)
            room[row] -= need
            if len(rows[row]) == self.images_per_row or room[row] < self.prefix + self.source.fewest:
                opened.remove(row)
        return rows

    def batch(self, rows: list[Row], batch_size: int) -> Batch:
        """Returns the batch of these rows, filled up to `batch_size`."""
        shape, source = (batch_size, self.tokens), self.source
        pixels = (source.patch_size, source.patch_size, source.images.channels)
        batch = {"patches": np.zeros((*shape, *pixels), np.uint8), "position": np.zeros((*shape, 2), np.int32)}
        batch |= {name: np.zeros(shape, np.int32) for name in ("segment", "prefix")}
        images = (batch_size, self.images_per_row)
        batch |= {"label": np.zeros(images, np.int32), "weight": np.zeros(images, np.float32)}
        for b, row in enumerate(rows):
            at = 0
            for i, (index, grid) in enumerate(row):
                patches = slice(at + self.prefix, at + self.prefix + grid[0] * grid[1])
                batch["patches"][b, patches] = source.cut(index, grid)
                batch["position"][b, patches] = np.indices(grid).reshape(2, -1).T
                batch["segment"][b, at : patches.stop] = i + 1
                batch["prefix"][b, at : patches.start] = np.arange(1, self.prefix + 1)
                batch["label"][b, i], batch["weight"][b, i] = source.images.label[index], 1
                at = patches.stop
        return batch


class _Rows:
    """The rows of all epochs, one after another; caches the latest epochs."""

    def __init__(self, layout: _Layout, seed: int):
        self._layout, self._seed = layout, seed
        self._starts = (0,)  # number of the first row of each known epoch
        self._kept = {}

    def between(self, start: int, stop: int) -> list[Row]:
        """Returns rows start to stop - 1."""
        starts = self._starts
        while starts[-1] < stop:
            alone = len(self._layout.source)  # rows of an epoch without packing
            packed = self._layout.packed
            starts = (*starts, starts[-1] + (len(self._epoch(len(starts) - 1)) if packed else alone))
        self._starts = starts  # replaced whole: another thread reads the old or the new one
        epoch = int(np.searchsorted(starts, start, side="right")) - 1
        rows = []
        while start + len(rows) < stop:
            skip = max(start - starts[epoch], 0)
            rows += self._epoch(epoch)[skip : skip + stop - start - len(rows)]
            epoch += 1
        return rows

    def _epoch(self, epoch: int) -> list[Row]:
        kept = self._kept
        if epoch not in kept:
            order = np.random.default_rng((self._seed, epoch, 0)).permutation(len(self._layout.source))
            rows = self._layout.rows(order, self._layout.source.grids(self._seed, epoch))
            kept = self._kept = {**{e: r for e, r in kept.items() if e == epoch - 1}, epoch: rows}
        return kept[epoch]
