"""Grain pipelines: shuffled training batches by step number, and evaluation batches in order.

A pipeline shuffles only indices and gathers one batch at a time. `ds[step]` is a pure function of the arguments and the
step, so the step number alone resumes a run exactly, and process p of n always holds the p-th slice of the same batch.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from posjax.data.containers import Images, Text
from posjax.data.host_augment import Frame
from posjax.data.subsets import AnyImages
from posjax.data.windows import Batch, Ladder, check_windows, gather_windows, in_blocks, phase_offsets

if TYPE_CHECKING:
    import grain


def image_batches(
    images: AnyImages,
    *,
    batch_size: int,
    seed: int,
    frame: Frame | None = None,
    repeats: int = 1,
    process_index: int = 0,
    process_count: int = 1,
) -> grain.MapDataset:
    """Endless shuffled batches; every image comes once per epoch of N images, in a new order each epoch.

    Args:
      images: the split, N images.
      batch_size: images per step over all processes.
      seed: seed of the shuffle and of the draws of `frame`, 0 <= seed < 2**32.
      frame: makes the images one size, by draws of its own for each image, epoch and copy; None takes `Images` as they are.
      repeats: copies of an image in a batch (`Recipe.repeats`); an epoch has so many batches more.
      process_index: this process, 0..process_count-1.
      process_count: number of processes that share a batch.

    Returns:
      ds with ds[step] = {"image": [b, h, w, c] uint8, "label": [b] int32}, b = batch_size // process_count.

    Raises:
      ValueError: batch_size exceeds N or does not divide among the processes; images of many sizes have no frame.

    >>> image, label = np.zeros((6, 8, 8, 1), np.uint8), np.arange(6, dtype=np.int32)
    >>> ds = image_batches(Images("mine", image, label, num_classes=6, digest=""), batch_size=3, seed=0)
    >>> sorted([*ds[0]["label"].tolist(), *ds[1]["label"].tolist()]), ds[0]["image"].shape    # an epoch has two steps
    ([0, 1, 2, 3, 4, 5], (3, 8, 8, 1))
    """
    if batch_size > repeats * len(images):
        raise ValueError(f"batch_size={batch_size} exceeds the {repeats * len(images)} images of {images.name!r}")
    _check_sizes(images, frame)

    def gather(epoch: np.ndarray, index: np.ndarray, copy: np.ndarray) -> Batch:
        if frame is None:
            return {"image": images.image[index], "label": images.label[index]}
        draws = zip(epoch.tolist(), index.tolist(), copy.tolist(), strict=True)
        made = [frame.trained(images[each[1]], np.random.default_rng((seed, *each))) for each in draws]
        return {"image": np.stack(made), "label": images.label[index]}

    return _batches(len(images), gather, batch_size, seed, process_index, process_count, repeats)


def _check_sizes(images: AnyImages, frame: Frame | None) -> None:
    if frame is None and not isinstance(images, Images):
        raise ValueError(f"{images.name!r} has images of many sizes: give a frame, which makes them one size")


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
      process_index, process_count: see `image_batches`.

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
        own = np.argsort(copy, kind="stable")[first : first + share]  # mixup does not mix an image with its copy
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


def epoch(ds: grain.MapDataset, start_step: int, end_step: int, workers: int = 0) -> Iterator[Batch]:
    """Yields ds[start_step], ..., ds[end_step - 1], read ahead.

    Args:
      workers: number of processes that make batches, each its own, to which `ds` is pickled; 0: a thread of this process.
        Each holds at most three batches.
    """
    import grain
    from absl import flags

    reading = grain.ReadOptions(num_threads=int(not workers), prefetch_buffer_size=0 if workers else 2)
    steps = ds[start_step:end_step].to_iter_dataset(reading)
    if workers:
        if not flags.FLAGS.is_parsed():
            flags.FLAGS.mark_as_parsed()  # where absl starts no program, grain's own flags have their defaults
        options = grain.MultiprocessingOptions(min(workers, end_step - start_step), per_worker_buffer_size=1)
        steps = steps.mp_prefetch(options, worker_init_fn=_follow_parent)
    iterator = iter(steps)
    try:
        yield from iterator
    finally:
        iterator.close()  # otherwise the reading thread raises when the interpreter exits, and processes stay
        if workers:
            del iterator, steps
            gc.collect()  # grain's iterators are in cycles, which hold shared memory


def _follow_parent(worker: int, count: int) -> None:
    """Leaves Ctrl-C to the parent, which saves and stops, and ends with a parent that was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def image_epoch(images: AnyImages, *, batch_size: int, frame: Frame | None = None, workers: int = 0) -> Iterator[Batch]:
    """Returns batches of every image once, in order; zeros of weight 0 fill the last one up.

    A batch is {"image": [b, h, w, c] uint8, "label": [b] int32, "weight": [b] float32}.

    Args:
      images, batch_size, frame: as in `image_batches`.
      workers: see `epoch`; only with a frame.

    Raises:
      ValueError: batch_size is below 1, or images of many sizes have no frame.
    """
    _check_sizes(images, frame)

    def gather(rows: slice) -> Batch:
        made = images.image[rows] if frame is None else [frame.scored(images[i]) for i in range(rows.start, rows.stop)]
        weight = np.ones(rows.stop - rows.start, np.float32)
        return {"image": np.asarray(made), "label": images.label[rows], "weight": weight}

    return _in_order(len(images), batch_size, gather, workers)


def text_epoch(
    text: Text, *, length: int, batch_size: int, positions: str = "document", align: int | None = None
) -> Iterator[Batch]:
    """Returns batches of every target once, in order, in windows of `length` without overlap, as `text_batches` has them.

    Segment and weight 0 fill the last one up.

    Args:
      text: the split, N tokens, hence N - 1 targets.
      length, batch_size, positions: as in `text_batches`.
      align: a multiple of `length`, say the longest length evaluated. Only the first floor((N-1) / align) * align
        targets are scored then, so every length scores exactly the same tokens. None scores all N - 1.

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


def _in_order(
    size: int, batch_size: int, gather: Callable[[slice], Batch], workers: int | None = None
) -> Iterator[Batch]:
    """Yields batches of rows 0..size-1; zeros fill up the last one. Batches are read ahead if `workers` is not None."""
    import grain

    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size} must be at least 1")

    def batch(step: int) -> Batch:
        rows = gather(slice(step * batch_size, min((step + 1) * batch_size, size)))
        lack = batch_size - len(rows["weight"])
        return {name: np.pad(array, [(0, lack)] + [(0, 0)] * (array.ndim - 1)) for name, array in rows.items()}

    steps = -(-size // batch_size)
    return epoch(grain.MapDataset.range(steps).map(batch), 0, steps, workers) if workers else map(batch, range(steps))
