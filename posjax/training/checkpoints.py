"""Checkpoints that come back exactly as they were saved, or are passed over.

Orbax writes them: in the background, a step whole or not at all, sharded. It does not notice damage: a flipped bit restores
"successfully", and another dtype is cast. So each step also holds a record (its metrics, and the dtype and shape of every
leaf) and a seal (the sha256 of every file), which is written before orbax commits the step and checked before orbax reads it.

    <directory>/<step>/tree/...             orbax, a flat {tree path: leaf}
    <directory>/<step>/record/record.json   step, metrics, dtype and shape of every leaf
    <directory>/<step>/record/seal.json     sha256 of record.json and of every file under tree/
"""

import contextlib
import dataclasses
import errno
import json
import logging as std_logging
import math
import pathlib
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from typing import Any, SupportsFloat

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from orbax.checkpoint import checkpoint_managers

from posjax.files import free_bytes, room, sha256_of
from posjax.jsonl import parse_json, strict
from posjax.remote import publish
from posjax.training.processes import any_process, is_first, is_loss, synced

PyTree = Any
_RECORD, _SEAL = "record/record.json", "record/seal.json"
_MANIFEST = "tree/manifest.ocdbt"  # without it a tree cannot be read
_SCALARS = (bool, int, float)
_FAILURES = (OSError, RuntimeError, ValueError)  # of a save: the system's, XLA's (RuntimeError) and tensorstore's
_CENTURY = 100 * 365 * 24 * 3600  # seconds: orbax gives up on a save by the wall clock, which may be set forward
_Leaves = dict[str, Any]  # tree path, as jax.tree_util.keystr writes it: leaf


class CheckpointError(ValueError):
    """A checkpoint cannot be used as asked; the message says which, why, and what to do."""


class _DamagedError(Exception):
    """The bytes of a step differ from its seal."""


class Checkpoints:
    """The checkpoints of one run, in one directory, written by one job and read by any number.

    Args:
      directory: made by the first `save`, never by reading.
      keep_last: number of newest steps to keep (>= 1).
      best, best_mode: name of the metric whose best step ("min" or "max") is kept as well; None keeps the newest only.

    Raises:
      ValueError: orbax would read the directory's name as a pattern.
    """

    def __init__(
        self,
        directory: str | pathlib.Path,
        *,
        keep_last: int = 2,
        best: str | None = None,
        best_mode: str = "min",
    ):
        self.directory = pathlib.Path(directory).absolute()
        if re.search(r"[\[*\\]", str(self.directory)):
            raise ValueError(f"checkpoints cannot lie in {self.directory}: take a path without [, * and \\")
        std_logging.getLogger("absl").addFilter(_not_orbax_chatter)
        self._keep_last, self._best, self._sign = keep_last, best, 1.0 if best_mode == "min" else -1.0
        self._scores: dict[int, float] = {}  # step -> metric, the lower the better
        self._damaged: set[int] = set()
        self._manager: ocp.CheckpointManager | None = None
        self._saving: int | None = None  # the step that is being saved

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None and is_loss(error):
            return  # the save under way waits for a process that is gone
        self.wait()
        if self._manager is not None:
            self._manager.close()
            self._manager = None

    def wait(self) -> None:
        """Blocks until the last `save` is on disk.

        Raises:
          CheckpointError: it failed; says why.
        """
        if self._manager is not None and self._saving is not None:
            with self._failing_as_one(self._saving):
                self._manager.wait_until_finished()
            self._saving = None

    def check(self) -> None:
        """Raises as `wait` does, but returns at once where the last `save` is still under way."""
        if self._manager is not None and self._saving is not None and not self._manager.is_saving_in_progress():
            self.wait()

    @contextlib.contextmanager
    def _failing_as_one(self, step: int) -> Iterator[None]:
        """Turns any error of a save into a `CheckpointError`, and removes the files of that save."""
        try:
            yield
        except _FAILURES as error:
            self._saving, self._manager = None, None  # it would raise the same again
            self._remove_leftovers()
            reason = getattr(error, "strerror", None) or str(error).partition("\n")[0][:200]
            newest = max(self._steps_there(), default=None)
            start = "its start" if newest is None else f"step {newest}, which is whole"
            raise CheckpointError(
                f"step {step} could not be saved in {self.directory} ({reason}): mend that, and the same command goes on "
                f"from {start}"
            ) from error

    def steps(self) -> list[int]:
        """Returns the complete steps on disk, in increasing order (after waiting for a save under way)."""
        self.wait()
        synced("checkpoints are written")
        return self._steps_there()

    def _steps_there(self) -> list[int]:
        if not self.directory.is_dir():
            return []
        return sorted(int(path.name) for path in self.directory.iterdir() if path.name.isdigit())

    def save(self, step: int, tree: PyTree, metrics: Mapping[str, SupportsFloat] | None = None) -> None:
        """Saves `tree` as `step`, in the background; its buffers may be donated or changed at once.

        Args:
          step: >= 0 and greater than every step already there.
          tree: any pytree of arrays, typed PRNG keys and Python bool/int/float.
          metrics: numbers of this step; should hold the metric named by `best`.

        Raises:
          TypeError, ValueError: a leaf (named by its path) cannot be stored.
          CheckpointError: `step` is not newer than the steps there; this save, or the one before it, failed.
        """
        leaves = _flatten(tree)
        described = {path: _describe(path, leaf) for path, leaf in leaves.items()}
        metrics = {name: float(value) for name, value in (metrics or {}).items()}
        record = {"step": step, "metrics": strict(metrics), "leaves": described}
        args = ocp.args.Composite(tree=ocp.args.StandardSave(leaves), record=_RecordArgs(json.dumps(record)))
        newest = max(set(self.steps()) - self._damaged, default=-1)
        if step <= newest:
            raise CheckpointError(f"cannot save step {step}: {self.directory} holds {newest}; go on from there")
        self.check_room(step, tree)  # tensorstore would speak of it in many lines
        with self._failing_as_one(step):
            manager = self._writer()
            self._score(step, metrics)
            self._saving = step
            manager.save(step, args=args, force=True)

    def check_room(self, step: int, tree: PyTree) -> None:
        """Checks that the disk has room for `tree`, before it is computed; raises CheckpointError."""
        needed = 2**16 + sum(getattr(leaf, "nbytes", 8) for leaf in jax.tree.leaves(tree))  # and orbax's own files
        with self._failing_as_one(step):
            if free_bytes(self.directory) < needed:
                raise OSError(errno.ENOSPC, f"the disk is full: {room(self.directory, needed)}")

    def restore(self, abstract: PyTree, *, step: int | None = None) -> tuple[int, PyTree] | None:
        """Returns the newest intact checkpoint (or exactly `step`) as (step, tree); None if nothing was ever saved.

        A damaged step is passed over with a warning.

        Args:
          abstract: the tree expected back: arrays or `jax.ShapeDtypeStruct`s, with a sharding where it matters
            (the default is this process's first device), numpy arrays to get numpy, Python scalars to get those.
        Raises:
          CheckpointError: checkpoints exist but none is intact; `step` is not there; or the tree saved differs from
            `abstract` (a changed config): names the first path that does. Nothing is deleted or overwritten.
        """
        steps, wanted, reasons = self.steps(), _flatten(abstract), []
        if step is not None and step not in steps:
            raise CheckpointError(f"no checkpoint of step {step} in {self.directory}; the steps there are {steps}")
        for candidate in steps[::-1] if step is None else [step]:
            try:
                leaves = _read(self.directory / str(candidate), wanted)
            except _DamagedError as error:
                logging.warning("checkpoint %d in %s is damaged and not used: %s", candidate, self.directory, error)
                reasons.append(f"step {candidate}: {error}")
                self._damaged.add(candidate)
                continue
            return candidate, jax.tree.unflatten(jax.tree.structure(abstract), [leaves[path] for path in wanted])
        if reasons:
            raise CheckpointError(f"no usable checkpoint in {self.directory} ({'; '.join(reasons)}): put back a copy")
        return None

    def _writer(self) -> ocp.CheckpointManager:
        if self._manager is None:
            for step in self._damaged if is_first() else ():  # the resumed run can save it again, and nothing is lost
                (self.directory / str(step)).rename(self.directory / f"damaged-{step}-{time.time_ns()}")
            synced("damaged checkpoints are set aside")
            self._damaged.clear()
            for step in self._steps_there():
                with contextlib.suppress(_DamagedError):
                    self._score(step, _unseal(self.directory / str(step))[1]["metrics"])
            self._remove_leftovers()
            synced("no checkpoints are left over")
            self._manager = ocp.CheckpointManager(
                self.directory,
                options=ocp.CheckpointManagerOptions(
                    create=True,
                    preservation_policy=_Keep(self._keep_last, self._scores),
                    # Made in the background, a folder that cannot be made would be waited for.
                    async_options=ocp.AsyncOptions(timeout_secs=_CENTURY, create_directories_asynchronously=False),
                ),
                # In this order: the record is sealed after the tree is complete.
                item_handlers={"tree": ocp.StandardCheckpointHandler(), "record": RecordHandler()},
            )
        return self._manager

    def _remove_leftovers(self) -> None:
        """Removes the files of killed and failed saves. Only a writer may: a reader would remove a live save."""
        for leftover in self.directory.glob("*.orbax-checkpoint-tmp*") if is_first() else ():
            shutil.rmtree(leftover, ignore_errors=True)  # threads of a failed save may still write there

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
    """Orbax logs tens of INFO lines per save, and the traceback of an error that it also raises; its warnings pass."""
    return "orbax" not in record.pathname or (record.levelno >= std_logging.WARNING and not record.exc_info)


# Leaves


def _flatten(tree: Any) -> _Leaves:
    """Returns the leaves of `tree` by path, in tree order."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _describe(path: str, leaf: Any) -> dict[str, Any]:
    """Returns {"dtype", "shape"} of a leaf; refuses what orbax would refuse in the background, where it can hang the exit."""
    if type(leaf) in _SCALARS:
        return {"dtype": type(leaf).__name__, "shape": []}
    if not isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct, np.ndarray, np.generic)):
        raise TypeError(f"{path} is of type {type(leaf).__name__}, which a checkpoint cannot hold")
    if 0 in leaf.shape:
        raise ValueError(f"{path} has no elements (shape {leaf.shape}), which orbax cannot store; leave it out")
    return {"dtype": str(leaf.dtype), "shape": list(leaf.shape)}


def _target(leaf: Any) -> Any:
    if type(leaf) in _SCALARS:
        return leaf
    if isinstance(leaf, np.ndarray):
        return np.empty(leaf.shape, leaf.dtype)
    sharding = leaf.sharding or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _read(directory: pathlib.Path, wanted: _Leaves) -> _Leaves:
    """Returns the leaves of the step in `directory`, as `wanted` describes them."""
    seal, record = _unseal(directory)
    _check_same_tree(directory, record["leaves"], wanted)
    _check_files(directory, seal)
    with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
        targets = {path: _target(leaf) for path, leaf in wanted.items()}
        return checkpointer.restore(directory / "tree", args=ocp.args.StandardRestore(targets))


def _check_same_tree(directory: pathlib.Path, saved: Mapping[str, Mapping], wanted: _Leaves) -> None:
    described = {path: _describe(path, leaf) for path, leaf in wanted.items()}
    for path in [*described, *saved]:
        was, is_now = saved.get(path, "not there"), described.get(path, "not there")
        if was != is_now:
            raise CheckpointError(f"{path} is {was} in {directory}, {is_now} here: use the config it was saved with")


# Record and seal


class RecordHandler(ocp.CheckpointHandler):
    """Writes the record; orbax calls `finalize` once the tree's files are final, which seals both."""

    def save(self, directory, args: "_RecordArgs"):
        if is_first():
            (pathlib.Path(directory) / "record.json").write_text(args.text)

    def restore(self, directory, args=None):
        raise NotImplementedError("records are read by posjax, which checks the seal first")

    def finalize(self, directory):  # whose name is not final yet
        directory = pathlib.Path(directory)
        step = directory.parent
        files = [step / _MANIFEST, *(path for path in (step / "tree").rglob("*") if path.is_file())]
        seal = {str(path.relative_to(step)): sha256_of(path) for path in files}
        seal[_RECORD] = sha256_of(directory / "record.json")
        (directory / "seal.json").write_text(json.dumps(seal, indent=1))
        publish(step, sealed=step)  # to its bucket, if it has one, before the step has its name here


@ocp.args.register_with_handler(RecordHandler, for_save=True, for_restore=True)
@dataclasses.dataclass
class _RecordArgs(ocp.args.CheckpointArgs):
    text: str


def _unseal(directory: pathlib.Path) -> tuple[dict[str, str], dict[str, Any]]:
    """Returns the seal of one step, and its record after checking the seal on it."""
    try:
        seal = parse_json((directory / _SEAL).read_bytes(), _SEAL)
    except (OSError, ValueError) as error:
        raise _DamagedError(f"{_SEAL} cannot be read ({error})") from error
    if missing := {_RECORD, _MANIFEST} - seal.keys():
        raise _DamagedError(f"{_SEAL} does not list {min(missing)}")
    _check_file(directory, _RECORD, seal[_RECORD])
    return seal, parse_json((directory / _RECORD).read_bytes(), _RECORD)


def _check_files(directory: pathlib.Path, seal: dict[str, str]) -> None:
    """Checks this process's share of the files; all processes refuse the step if one does."""
    problem = None
    for name in sorted(seal)[jax.process_index() :: jax.process_count()]:
        try:
            _check_file(directory, name, seal[name])
        except _DamagedError as error:
            problem = error
    if any_process(problem is not None):
        raise problem or _DamagedError("another process found a file that differs from what was written")


def _check_file(directory: pathlib.Path, name: str, digest: str) -> None:
    try:
        same = sha256_of(directory / name) == digest
    except (OSError, ValueError) as error:  # ValueError: a flipped bit made the name impossible
        raise _DamagedError(f"{name} cannot be read ({error})") from error
    if not same:
        raise _DamagedError(f"{name} differs from what was written")
