"""Checkpoints that are either exactly what was saved, or refused with the reason.

Orbax writes them: asynchronously, atomically per step, sharded, readable by its own tools. What it does not do is
notice damage (a flipped bit restores "successfully", a wrong dtype is cast), so every step also holds a *record* (step,
metrics, metadata, dtype/shape/digest of every leaf) and a *seal* (sha256 of every file), written before orbax commits
the step. Damage is therefore found before any parser sees the bytes, and no error has to be guessed at.

    <directory>/<step>/tree/...             orbax, a flat {tree path: leaf}
    <directory>/<step>/record/record.json   what it is
    <directory>/<step>/record/seal.json     sha256 of record.json and of every file under tree/

Example:
  with Checkpoints(workdir / "checkpoints", best="eval_loss") as checkpoints:
    restored = checkpoints.restore(jax.eval_shape(init, key))    # None: nothing saved yet
    checkpoints.save(step, state, {"eval_loss": 1.2})
"""

import errno
import json
import logging as std_logging
import math
import os
import pathlib
import shutil
import time
from collections.abc import Iterable, Mapping
from typing import Any, SupportsFloat

import jax
import orbax.checkpoint as ocp
from absl import logging
from orbax.checkpoint import checkpoint_managers

from posjax.training import _sealing
from posjax.training._sealing import CheckpointError, DamagedError
from posjax.training.metrics import strict

__all__ = ["CheckpointError", "Checkpoints"]

PyTree = Any


class Checkpoints:
    """The checkpoints of one run, in one directory, written by one job and read by any number.

    Args:
      directory: where the steps live; made by the first `save`, never by reading.
      keep_last: how many of the newest steps to keep (>= 1).
      best: name of the metric whose best step is kept as well, whatever its age; None keeps the newest only.
      best_mode: "min" or "max": what is good in that metric.
      metadata: anything JSON can hold (config, versions); stored with every step, see `record`.
    """

    def __init__(
        self,
        directory: str | pathlib.Path,
        *,
        keep_last: int = 2,
        best: str | None = None,
        best_mode: str = "min",
        metadata: Mapping[str, Any] | None = None,
    ):
        if keep_last < 1:
            raise ValueError(f"keep_last={keep_last} would delete every checkpoint; give at least 1")
        if best_mode not in ("min", "max"):
            raise ValueError(f"best_mode={best_mode!r} is not one of 'min', 'max'")
        std_logging.getLogger("absl").addFilter(_not_orbax_chatter)
        self.directory = pathlib.Path(directory).absolute()
        self._keep_last, self._best, self._sign = keep_last, best, 1.0 if best_mode == "min" else -1.0
        self._metadata = strict(dict(metadata or {}))
        self._scores: dict[int, float] = {}  # step -> metric, the lower the better
        self._damaged: set[int] = set()
        self._manager: ocp.CheckpointManager | None = None

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Waits for the save under way and stops orbax's threads; `save` may be called again later."""
        if self._manager is not None:
            self._manager.close()
            self._manager = None

    def wait(self) -> None:
        """Blocks until the last `save` is on disk; raises what went wrong in it (a full disk, say)."""
        if self._manager is not None:
            self._manager.wait_until_finished()

    def steps(self) -> list[int]:
        """The complete steps on disk, in increasing order (after waiting for a save under way).

        Raises:
          NotADirectoryError: a file is in the way; orbax would wait for minutes before it says so.
        """
        self.wait()
        if self.directory.exists() and not self.directory.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(self.directory))
        if not self.directory.is_dir():
            return []
        return sorted(int(path.name) for path in self.directory.iterdir() if path.name.isdigit())

    def save(self, step: int, tree: PyTree, metrics: Mapping[str, SupportsFloat] | None = None) -> None:
        """Saves `tree` as `step`, in the background; its buffers may be donated or changed at once.

        Args:
          step: >= 0 and greater than every step already there.
          tree: any pytree of arrays, typed PRNG keys and Python bool/int/float; at least one leaf.
          metrics: numbers of this step; should hold the metric named by `best`.
        Raises:
          TypeError, ValueError: a leaf (named by its path) or a metric that cannot be stored.
          CheckpointError: `step` is not newer than what is there.
        """
        leaves = _sealing.flatten(tree)
        _sealing.check_storable(leaves)
        metrics = {name: float(value) for name, value in (metrics or {}).items()}
        if metrics and self._best is not None and self._best not in metrics:
            raise ValueError(f"metrics hold {sorted(metrics)}, but not best={self._best!r}")
        self._set_aside_damaged()
        newest = max(self.steps(), default=-1)
        if step <= newest:
            raise CheckpointError(
                f"cannot save step {step}: {self.directory} already holds step {newest}; continue from that step, "
                "remove the later ones, or use another directory"
            )
        described = {
            path: {**_sealing.describe(path, leaf), "digest": _sealing.digest(leaf)} for path, leaf in leaves.items()
        }
        record = {
            "format": 1,
            "step": step,
            "metrics": strict(metrics),
            "metadata": self._metadata,
            "leaves": described,
        }
        text = json.dumps(record, allow_nan=False)
        manager = self._writer()
        self._score(step, metrics)
        items = ocp.args.Composite(tree=ocp.args.StandardSave(leaves), record=_sealing.RecordArgs(text))
        manager.save(step, args=items, force=True)

    def restore(self, abstract: PyTree, *, step: int | None = None) -> tuple[int, PyTree] | None:
        """The newest intact checkpoint (or exactly `step`), as (step, tree); None if nothing was ever saved.

        A damaged step is reported with a warning and the one before it is taken.

        Args:
          abstract: the tree expected back: arrays or `jax.ShapeDtypeStruct`s, with a sharding where it matters
            (the default is this process's first device), numpy arrays to get numpy, Python scalars to get those.
        Raises:
          CheckpointError: checkpoints exist but none is intact; `step` is not there; or the tree saved differs from
            `abstract` (a changed config): names the first path that does. Nothing is deleted or overwritten.
        """
        steps = self.steps()
        if step is not None and step not in steps:
            raise CheckpointError(f"no checkpoint of step {step} in {self.directory}; the steps there are {steps}")
        return self._first_intact(abstract, steps[::-1] if step is None else [step])

    def restore_best(self, abstract: PyTree) -> tuple[int, PyTree] | None:
        """As `restore`, but the step with the best value of the metric `best`; ValueError if none was named."""
        if self._best is None:
            raise ValueError("restore_best needs Checkpoints(..., best=<name of a metric>)")
        steps = self.steps()
        self._load_scores(steps)
        ranked = sorted(self._scores.keys() & set(steps), key=lambda step: (self._scores[step], step))
        if steps and not ranked:
            raise CheckpointError(f"no checkpoint in {self.directory} has a readable metric {self._best!r}")
        return self._first_intact(abstract, ranked)

    def record(self, step: int) -> dict[str, Any]:
        """What was stored beside the tree: "step", "metrics", "metadata", and per leaf dtype, shape and digest."""
        try:
            return _sealing.unseal(self.directory / str(step))
        except DamagedError as error:
            raise CheckpointError(f"the record of step {step} in {self.directory} is damaged: {error}") from error

    def _first_intact(self, abstract: PyTree, candidates: Iterable[int]) -> tuple[int, PyTree] | None:
        wanted, reasons = _sealing.flatten(abstract), []
        for step in candidates:
            try:
                leaves = _sealing.read(self.directory / str(step), wanted)
            except DamagedError as error:
                logging.warning("checkpoint %d in %s is damaged and not used: %s", step, self.directory, error)
                reasons.append(f"step {step}: {error}")
                self._damaged.add(step)
                continue
            return step, jax.tree.unflatten(jax.tree.structure(abstract), list(leaves.values()))
        if reasons:
            raise CheckpointError(
                f"no usable checkpoint in {self.directory} ({'; '.join(reasons)}). Put back a copy of it, or move the "
                "directory away to start afresh"
            )
        return None

    def _writer(self) -> ocp.CheckpointManager:
        if self._manager is None:
            self._load_scores(self.steps())
            # A killed save leaves one of these. Only a writer may remove them: a reader would take a live one.
            for leftover in self.directory.glob("*.orbax-checkpoint-tmp*"):
                shutil.rmtree(leftover)
            self._manager = ocp.CheckpointManager(
                self.directory,
                options=ocp.CheckpointManagerOptions(
                    create=True, preservation_policy=_Keep(self._keep_last, self._scores)
                ),
                # In this order: the record is sealed after the tree is complete.
                item_handlers={"tree": ocp.StandardCheckpointHandler(), "record": _sealing.RecordHandler()},
            )
        return self._manager

    def _set_aside_damaged(self) -> None:
        """Renames the steps found damaged, so that the resumed run can save them again and nothing is lost."""
        if self._damaged & set(self.steps()):
            self.close()
            for step in self._damaged & set(self.steps()):
                self._scores.pop(step, None)
                (self.directory / str(step)).rename(self.directory / f"damaged-{step}-{time.time_ns()}")
        self._damaged.clear()

    def _load_scores(self, steps: Iterable[int]) -> None:
        for step in steps:
            try:
                self._score(step, _sealing.unseal(self.directory / str(step))["metrics"])
            except DamagedError as error:
                logging.warning("checkpoint %d in %s has no readable metrics: %s", step, self.directory, error)

    def _score(self, step: int, metrics: Mapping[str, float | str]) -> None:
        value = float(metrics.get(self._best, math.nan))
        if not math.isnan(value):
            self._scores[step] = self._sign * value


class _Keep(checkpoint_managers.PreservationPolicy):
    """Keeps the newest `keep_last` steps and the best one; orbax's own BestN forgets metrics on reopening."""

    def __init__(self, keep_last: int, scores: Mapping[int, float]):
        self._keep_last, self._scores = keep_last, scores

    def should_preserve(self, checkpoints, *, context):
        del context
        steps = [info.step for info in checkpoints]
        scored = [step for step in steps if step in self._scores]
        best = [min(scored, key=lambda step: (self._scores[step], step))] if scored else []
        kept = {*sorted(steps)[-self._keep_last :], *best}
        return [step in kept for step in steps]


def _not_orbax_chatter(record: std_logging.LogRecord) -> bool:
    """Orbax logs tens of INFO lines per save; its warnings pass."""
    return record.levelno >= std_logging.WARNING or "orbax" not in record.pathname
