"""Grain pipelines: shuffled training batches by step number, and evaluation batches in order.

A pipeline shuffles only indices and gathers one batch at a time. `ds[step]` is a pure function of the arguments and the
step, so the step number alone resumes a run exactly, and process p of n always holds the p-th slice of the same batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from posjax.data.containers import Images, Text
from posjax.data.host_augment import HostOperation, apply
from posjax.data.windows import Batch, Ladder, check_windows, gather_windows, in_blocks, phase_offsets

if TYPE_CHECKING:
    import grain


def image_batches(
    images: Images,
    *,
    batch_size: int,
    seed: int,
    augment: Sequence[HostOperation] = (),
    repeats: int = 1,
    process_index: int = 0,
    process_count: int = 1,
) -> grain.MapDataset:
    """Endless shuffled batches; every image comes once per epoch of N images, in a new order each epoch.

    Args:
      images: the split, N images.
      batch_size: images per step over all processes.
      seed: seed of the shuffle and of augmentation, 0 <= seed < 2**32.
      augment: operations on each image (`Recipe.host`), which keep its shape.
      repeats: copies of an image in a batch (`Recipe.repeats`).
      process_index: this process, 0..process_count-1.
      process_count: number of processes that share a batch.

    Returns:
      ds with ds[step] = {"image": [b, h, w, c] uint8, "label": [b] int32}, b = batch_size // process_count.

    Raises:
      ValueError: batch_size exceeds N or does not divide among the processes.

    >>> image, label = np.zeros((6, 8, 8, 1), np.uint8), np.arange(6, dtype=np.int32)
    >>> ds = image_batches(Images("mine", image, label, num_classes=6, digest=""), batch_size=3, seed=0)
    >>> sorted([*ds[0]["label"].tolist(), *ds[1]["label"].tolist()]), ds[0]["image"].shape    # an epoch has two steps
    ([0, 1, 2, 3, 4, 5], (3, 8, 8, 1))
    """
    if batch_size > len(images):
        raise ValueError(f"batch_size={batch_size} exceeds the {len(images)} images of {images.name!r}")

    def gather(epoch: np.ndarray, index: np.ndarray, copy: np.ndarray) -> Batch:
        image = images.image[index]
        if augment:
            draws = (np.random.default_rng((seed, *each)) for each in np.stack([epoch, index, copy], axis=1).tolist())
            image = np.stack([apply(augment, *each) for each in zip(image, draws, strict=True)])
        return {"image": image, "label": images.label[index]}

    return _batches(len(images), gather, batch_size, seed, process_index, process_count, repeats)


def text_batches(
    text: Text,
    *,
    length: int,
    batch_size: int,
    seed: int,
    positions: str = "document",
    ladder: Ladder | None = None,
    process_index: int = 0,
    process_count: int = 1,
) -> grain.MapDataset:
    """Endless shuffled batches of windows; every token is an input once per epoch of ceil(N / length) windows.

    Each epoch cuts the stream from a new random phase on, so windows do not always begin at the same tokens.

    Args:
      text: the split, N tokens.
      length: T, tokens per window.
      batch_size: windows per step over all processes.
      seed: seed of shuffle and phases, 0 <= seed < 2**32.
      positions: "document" is a token's true offset in its document, never restarted at a window's edge;
        "window" is 0..T-1; "stream" too, in rows that are one document each. See `gather_windows`.
      ladder: schedule of the context's length over the steps; None: always the whole window.
      process_index: this process, 0..process_count-1.
      process_count: number of processes that share a batch.

    Returns:
      ds with ds[step] = tokens, targets, position, segment [b, T] int32 and weight [b, T] float32, as
      `posjax.data.windows.gather_windows` describes them; b = batch_size // process_count.

    Raises:
      ValueError: the text is shorter than a window plus its last target, batch_size does not divide among the processes, or
        the ladder does not fit the length.

    >>> text = Text("mine", np.arange(20, dtype=np.uint8), starts=np.array([0, 12]), digest="")
    >>> batch = text_batches(text, length=9, batch_size=1, seed=2)[0]
    >>> for name in ("tokens", "targets", "position", "segment"):
    ...     print(name, batch[name][0].tolist())
    tokens [5, 6, 7, 8, 9, 10, 11, 12, 13]
    targets [6, 7, 8, 9, 10, 11, 12, 13, 14]
    position [5, 6, 7, 8, 9, 10, 11, 0, 1]
    segment [1, 1, 1, 1, 1, 1, 1, 2, 2]
    """
    check_windows(text, length, positions)
    ladder = ladder or Ladder()
    ladder.check(length)

    def gather(epoch: np.ndarray, index: np.ndarray, copy: np.ndarray) -> Batch:
        phase_of = {e: np.random.default_rng((seed, e)).integers(len(text)) for e in np.unique(epoch).tolist()}
        phase = np.array([phase_of[e] for e in epoch.tolist()])
        return gather_windows(text, *phase_offsets(len(text), length, index, phase), positions)

    batches = _batches(-(-len(text) // length), gather, batch_size, seed, process_index, process_count)
    if not ladder.steps:
        return batches

    def cut(step: int, batch: Batch) -> Batch:
        return batch if step >= ladder.steps else in_blocks(batch, ladder.context(step, length))

    return batches.map_with_index(cut)


def _batches(
    size: int,
    gather: Callable[[np.ndarray, np.ndarray, np.ndarray], Batch],
    batch_size: int,
    seed: int,
    process_index: int,
    process_count: int,
    repeats: int = 1,
) -> grain.MapDataset:
    """Returns batches gather(epoch [b], index [b], copy [b]) of indices below `size`, reshuffled every epoch."""
    import grain

    first, share = share_of(batch_size, seed, process_index, process_count)

    def mine(step: int, index: np.ndarray) -> Batch:
        turn, copy = np.divmod(step * batch_size + np.arange(batch_size), repeats)
        own = np.argsort(copy, kind="stable")[
            first : first + share
        ]  # no image is beside its copy, with which it would mix
        return gather(turn[own] // size, np.asarray(index)[own], copy[own])

    # Repeating before batching lets a batch span two epochs: nothing is dropped, and a step is a place in one stream.
    shuffled = grain.MapDataset.range(size).seed(seed).shuffle().repeat()
    if repeats > 1:
        places = grain.MapDataset.range(1).repeat()
        shuffled, once = places.map_with_index(lambda place, _: once[place // repeats]), shuffled
    return shuffled.batch(batch_size, drop_remainder=True).map_with_index(mine)


def share_of(batch_size: int, seed: int, process_index: int, process_count: int) -> tuple[int, int]:
    """Checks the arguments and returns (index of this process's first example in a batch, number of its examples)."""
    if batch_size < 1 or process_count < 1 or batch_size % process_count:
        raise ValueError(f"batch_size={batch_size} does not divide among process_count={process_count} processes")
    if not 0 <= process_index < process_count:
        raise ValueError(f"process_index={process_index} is not below process_count={process_count}")
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed={seed} must lie in 0..2**32-1")
    share = batch_size // process_count
    return process_index * share, share


def epoch(ds: grain.MapDataset, start_step: int, end_step: int) -> Iterator[Batch]:
    """Yields ds[start_step], ..., ds[end_step - 1], reading ahead in one thread."""
    import grain

    iterator = iter(ds.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)))
    try:
        iterator.set_state({"next_index": start_step})
        for _ in range(start_step, end_step):
            yield next(iterator)
    finally:
        iterator.close()  # otherwise the reading thread raises when the interpreter exits


def image_epoch(images: Images, *, batch_size: int) -> Iterator[Batch]:
    """Every image once, in order; the last batch is filled up with zeros of weight 0.

    Args:
      images: the split, N images.
      batch_size: b.

    Returns:
      Iterator over {"image": [b, h, w, c] uint8, "label": [b] int32, "weight": [b] float32}.

    Raises:
      ValueError: batch_size is below 1.
    """
    fields = {"image": images.image, "label": images.label, "weight": np.ones(len(images), np.float32)}
    return _in_order(len(images), batch_size, lambda rows: {name: array[rows] for name, array in fields.items()})


def text_epoch(
    text: Text, *, length: int, batch_size: int, positions: str = "document", align: int | None = None
) -> Iterator[Batch]:
    """Every target once, in order, in windows of `length` without overlap; filled up with segment and weight 0.

    Args:
      text: the split, N tokens, hence N - 1 targets.
      length: T, tokens per window.
      batch_size: b, windows per batch.
      positions: as in `text_batches`.
      align: a multiple of `length`, say the longest length evaluated. Only the first floor((N-1) / align) * align
        targets are scored then, so every length scores exactly the same tokens. None scores all N - 1.

    Returns:
      Iterator over batches as in `text_batches`.

    Raises:
      ValueError: the text is shorter than a window (or than `align`) plus its last target, or align is not a multiple.
    """
    check_windows(text, length, positions)
    targets = len(text) - 1
    if align is not None:
        if align < 1 or align % length:
            raise ValueError(f"align={align} must be a positive multiple of length={length}")
        check_windows(text, align, positions)
        targets -= targets % align

    def gather(rows: slice) -> Batch:
        offset = np.arange(rows.start, rows.stop)[:, None] * length + np.arange(length)
        return gather_windows(text, np.minimum(offset, targets), offset < targets, positions)

    return _in_order(-(-targets // length), batch_size, gather)


def _in_order(size: int, batch_size: int, gather: Callable[[slice], Batch]) -> Iterator[Batch]:
    """Yields batches of rows 0..size-1; zeros fill up the last one."""
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size} must be at least 1")

    def batches() -> Iterator[Batch]:
        for first in range(0, size, batch_size):
            batch = gather(slice(first, min(first + batch_size, size)))
            lack = batch_size - len(batch["weight"])
            yield {name: np.pad(array, [(0, lack)] + [(0, 0)] * (array.ndim - 1)) for name, array in batch.items()}

    return batches()
