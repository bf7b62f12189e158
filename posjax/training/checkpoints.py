"""Checkpoints that are either exactly as they were saved, or refused with the reason.

Orbax writes them: asynchronously, atomically per step, sharded, readable by its own tools. Orbax does not notice damage: a
flipped bit restores "successfully", a wrong dtype is cast. Each step therefore also holds a *record* (step, metrics, dtype
and shape of every leaf) and a *seal* (sha256 of every file), written before orbax commits the step. Damage is found before
a parser sees the bytes.

A save that fails, on a full disk for example, is one `CheckpointError` that names the directory and the room needed. The
next `check`, `save` or `wait` raises it. The files of that save are removed; earlier steps are whole.

    <directory>/<step>/tree/...             orbax, a flat {tree path: leaf}
    <directory>/<step>/record/record.json   step, metrics, dtype and shape of every leaf
    <directory>/<step>/record/seal.json     sha256 of record.json and of every file under tree/

Example:
  with Checkpoints(workdir / "checkpoints", best="eval_loss") as checkpoints:
    restored = checkpoints.restore(jax.eval_shape(init, key))    # None: nothing saved yet
    checkpoints.save(step, state, {"eval_loss": 1.2})
"""

import contextlib
import dataclasses
import errno
import json
import logging as std_logging
import math
import os
import pathlib
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, SupportsFloat

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from orbax.checkpoint import checkpoint_managers

from posjax.files import free_bytes, room, sha256_of
from posjax.jsonl import parse_json, strict
from posjax.training.processes import any_process, is_first, is_loss, synced

__all__ = ["CheckpointError", "Checkpoints"]

PyTree = Any
_RECORD, _SEAL = "record.json", "seal.json"
_MANIFEST = "tree/manifest.ocdbt"  # without it a tree cannot be read, and orbax only warns where it writes none
_SCALARS = (bool, int, float)
_NUMPY = (np.ndarray, np.generic)
_BESIDE = 2**16  # bytes of a step beside its arrays: orbax's metadata, the record, the seal
# Orbax gives up on a save after so many seconds of the wall clock, which may be set forward in the middle of one: a century.
_PATIENCE = 100 * 365 * 24 * 3600
_FAILURES = (OSError, RuntimeError, ValueError)  # of a save: the system's, XLA's (RuntimeError) and tensorstore's
_Leaves = dict[str, Any]  # tree path, as jax.tree_util.keystr writes it: leaf


class CheckpointError(ValueError):
    """A checkpoint cannot be used as asked; the message says which, why, and what to do."""


class _DamagedError(Exception):
    """The bytes of a step differ from its seal."""


class Checkpoints:
    """The checkpoints of one run, in one directory, written by one job and read by any number.

    Args:
      directory: where the steps live; made by the first `save`, never by reading.
      keep_last: number of newest steps to keep (>= 1).
      best: name of the metric whose best step is kept as well, whatever its age; None keeps the newest only.
      best_mode: "min" or "max".

    Raises:
      ValueError: names the argument.
    """

    def __init__(
        self,
        directory: str | pathlib.Path,
        *,
        keep_last: int = 2,
        best: str | None = None,
        best_mode: str = "min",
    ):
        if keep_last < 1:
            raise ValueError(f"keep_last={keep_last} would delete every checkpoint; give at least 1")
        if best_mode not in ("min", "max"):
            raise ValueError(f"best_mode={best_mode!r} is not one of 'min', 'max'")
        std_logging.getLogger("absl").addFilter(_not_orbax_chatter)
        self.directory = pathlib.Path(directory).absolute()
        self._keep_last, self._best, self._sign = keep_last, best, 1.0 if best_mode == "min" else -1.0
        self._scores: dict[int, float] = {}  # step -> metric, the lower the better
        self._damaged: set[int] = set()
        self._manager: ocp.CheckpointManager | None = None
        self._saving: tuple[int, int] | None = None  # the step that is being saved, and the bytes that it needs
        self._link = contextlib.ExitStack()  # holds the manager's path to the directory

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None and is_loss(error):
            return  # the save under way waits for a process that is gone
        self.close()

    def close(self) -> None:
        """Waits for the save under way and stops orbax's threads; `save` may be called again later."""
        self.wait()
        if self._manager is not None:
            self._manager.close()
            self._manager = None
        self._link.close()

    def wait(self) -> None:
        """Blocks until the last `save` is on disk.

        Raises:
          CheckpointError: it failed; says why, and which room it needs.
        """
        if self._manager is not None and self._saving is not None:
            with self._failing_as_one(*self._saving):
                self._manager.wait_until_finished()
            self._saving = None

    def check(self) -> None:
        """Raises as `wait` does, but returns at once where the last `save` is still under way."""
        if self._manager is not None and self._saving is not None and not self._manager.is_saving_in_progress():
            self.wait()

    def refuse_full(self, tree: PyTree) -> None:
        """Refuses a tree that could not be saved once it has been computed.

        Raises:
          CheckpointError: the disk has no room for `tree`, or nothing can be written to the directory.
        """
        self._refuse(_bytes(_flatten(tree)), "a checkpoint")

    def _refuse(self, needed: int, what: str) -> None:
        at = next(path for path in (self.directory, *self.directory.parents) if path.exists())
        if not at.is_dir():
            raise CheckpointError(f"{what} cannot be saved in {self.directory}: {at} is a file; move it away")
        if not os.access(at, os.W_OK):
            raise CheckpointError(f"{what} cannot be saved in {self.directory}: nothing can be written there")
        if free_bytes(at) < needed:
            raise CheckpointError(
                f"{what} cannot be saved in {self.directory}, the disk is full: {room(at, needed)}; {self._goes_on()}"
            )

    def _goes_on(self) -> str:
        newest = max(self._steps_there(), default=None)
        whence = "its start" if newest is None else f"step {newest}, which is whole"
        return f"make room, and the same command goes on from {whence}"

    @contextlib.contextmanager
    def _failing_as_one(self, step: int, needed: int) -> Iterator[None]:
        """Turns any error of a save into a `CheckpointError`, and removes the files of that save."""
        try:
            yield
        except _FAILURES as error:
            self._saving, self._manager = None, None  # it would raise the same again
            self._remove_leftovers()
            reason = getattr(error, "strerror", None) or str(error).partition("\n")[0][:200]
            raise CheckpointError(
                f"step {step} could not be saved in {self.directory} ({reason}): "
                f"{room(self.directory, needed)}; {self._goes_on()}"
            ) from error

    def steps(self) -> list[int]:
        """Returns the complete steps on disk, in increasing order (after waiting for a save under way).

        Raises:
          NotADirectoryError: a file is in the way; orbax would wait for minutes before it says so.
        """
        self.wait()
        synced("checkpoints are written")
        if self.directory.exists() and not self.directory.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(self.directory))
        return self._steps_there()

    def _steps_there(self) -> list[int]:
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
          TypeError, ValueError: a leaf (named by its path) or a metric cannot be stored.
          CheckpointError: `step` is not newer than the steps there; this save, or the one before it, failed.
        """
        leaves = _flatten(tree)
        _check_storable(leaves)
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
        described = {path: _describe(path, leaf) for path, leaf in leaves.items()}
        text = json.dumps({"step": step, "metrics": strict(metrics), "leaves": described}, allow_nan=False)
        needed = _bytes(leaves) + len(text)
        self._refuse(needed, f"step {step}")
        items = ocp.args.Composite(tree=ocp.args.StandardSave(leaves), record=_RecordArgs(text))
        with self._failing_as_one(step, needed):
            manager = self._writer()
            self._score(step, metrics)
            self._saving = step, needed
            manager.save(step, args=items, force=True)

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
        steps = self.steps()
        if step is not None and step not in steps:
            raise CheckpointError(f"no checkpoint of step {step} in {self.directory}; the steps there are {steps}")
        return self._first_intact(abstract, steps[::-1] if step is None else [step])

    def restore_best(self, abstract: PyTree) -> tuple[int, PyTree] | None:
        """Returns the intact step with the best value of the metric `best`, as `restore` does.

        Raises:
          ValueError: no `best` was named.
          CheckpointError: as `restore`; no step has that metric.
        """
        if self._best is None:
            raise ValueError("restore_best needs Checkpoints(..., best=<name of a metric>)")
        steps = self.steps()
        self._load_scores(steps)
        ranked = sorted(self._scores.keys() & set(steps), key=lambda step: (self._scores[step], step))
        if steps and not ranked:
            raise CheckpointError(f"no checkpoint in {self.directory} has a readable metric {self._best!r}")
        return self._first_intact(abstract, ranked)

    def _first_intact(self, abstract: PyTree, candidates: Iterable[int]) -> tuple[int, PyTree] | None:
        wanted, reasons = _flatten(abstract), []
        for step in candidates:
            try:
                leaves = _read(self.directory / str(step), wanted)
            except _DamagedError as error:
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
            self._remove_leftovers()
            synced("no checkpoints are left over")
            self._manager = ocp.CheckpointManager(
                self._link.enter_context(_literal(self.directory)),
                options=ocp.CheckpointManagerOptions(
                    create=True,
                    preservation_policy=_Keep(self._keep_last, self._scores),
                    # Made in the background, a folder that cannot be made would be waited for.
                    async_options=ocp.AsyncOptions(timeout_secs=_PATIENCE, create_directories_asynchronously=False),
                ),
                # In this order: the record is sealed after the tree is complete.
                item_handlers={"tree": ocp.StandardCheckpointHandler(), "record": RecordHandler()},
            )
        return self._manager

    def _remove_leftovers(self) -> None:
        """Removes the files of killed and failed saves. Only a writer may: a reader would remove a live save."""
        for leftover in self.directory.glob("*.orbax-checkpoint-tmp*") if is_first() else ():
            shutil.rmtree(leftover, ignore_errors=True)  # threads of a failed save may still write there

    def _set_aside_damaged(self) -> None:
        """Renames damaged steps, so that the resumed run can save them again and nothing is lost."""
        if self._damaged & set(self.steps()):
            self.close()
            for step in self._damaged & set(self.steps()):
                self._scores.pop(step, None)
                if is_first():
                    (self.directory / str(step)).rename(self.directory / f"damaged-{step}-{time.time_ns()}")
            synced("damaged checkpoints are set aside")
        self._damaged.clear()

    def _load_scores(self, steps: Iterable[int]) -> None:
        for step in steps:
            try:
                self._score(step, _unseal(self.directory / str(step))[1]["metrics"])
            except _DamagedError as error:
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
    """Orbax logs tens of INFO lines per save, and the traceback of an error that it also raises; its warnings pass."""
    return "orbax" not in record.pathname or (record.levelno >= std_logging.WARNING and not record.exc_info)


# Record and seal


def _flatten(tree: Any) -> _Leaves:
    """Returns the leaves of `tree` by path, in tree order; ValueError if two of them have the same path."""
    leaves: _Leaves = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path)
        if name in leaves:
            raise ValueError(f"two leaves share the path {name}; give their pytree node keys that differ")
        leaves[name] = leaf
    return leaves


def _describe(path: str, leaf: Any) -> dict[str, Any]:
    """Returns {"dtype", "shape"} of an array, an abstract array or a Python number; TypeError for anything else."""
    if type(leaf) in _SCALARS:
        return {"dtype": type(leaf).__name__, "shape": []}
    if isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct)) or (
        isinstance(leaf, _NUMPY) and leaf.dtype.kind not in "OSUMm"
    ):
        return {"dtype": str(leaf.dtype), "shape": list(leaf.shape)}
    raise TypeError(
        f"{path} is {leaf!r:.80} of type {type(leaf).__name__}, which a checkpoint cannot hold; use arrays or Python "
        "bool/int/float"
    )


def _check_storable(leaves: _Leaves) -> None:
    """Refuses leaves that orbax would refuse in its background thread, where a failure can hang the exit."""
    if not leaves:
        raise ValueError("the tree has no leaves; there is nothing to save")
    for path, leaf in leaves.items():
        shape = _describe(path, leaf)["shape"]
        if isinstance(leaf, jax.ShapeDtypeStruct):
            raise TypeError(f"{path} is abstract ({leaf}); save the array itself")
        if 0 in shape:
            raise ValueError(f"{path} has no elements (shape {tuple(shape)}), which orbax cannot store; leave it out")
        if isinstance(leaf, int) and not -(2**63) <= leaf < 2**63:
            raise ValueError(f"{path} is {leaf}, which does not fit into 64 bits")


def _bytes(leaves: _Leaves) -> int:
    """Returns the largest size of a step of these leaves on a disk."""
    return _BESIDE + sum(_bytes_of(leaf) for leaf in leaves.values())


def _bytes_of(leaf: Any) -> int:
    if type(leaf) in _SCALARS:
        return 8
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.eval_shape(jax.random.key_data, leaf)
    return leaf.size * leaf.dtype.itemsize


def _read(directory: pathlib.Path, wanted: _Leaves) -> _Leaves:
    """Returns the leaves of the step in `directory`, as `wanted` describes them and in its order.

    Raises:
      _DamagedError: a file differs from its seal.
      CheckpointError: the checkpoint is sound but holds another tree than `wanted`.
    """
    seal, record = _unseal(directory)
    _check_same_tree(directory, record["leaves"], wanted)
    _check_files(directory, seal)
    with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer, _literal(directory) as path:
        targets = {path: _target(leaf) for path, leaf in wanted.items()}
        found = checkpointer.restore(path / "tree", args=ocp.args.StandardRestore(targets))
    return {path: found[path][()] if isinstance(leaf, np.generic) else found[path] for path, leaf in wanted.items()}


@contextlib.contextmanager
def _literal(directory: pathlib.Path) -> Iterator[pathlib.Path]:
    r"""Yields a path to `directory` that orbax takes literally: it sees patterns in `x[1]` and `**`, a separator in `a\b`."""
    if not re.search(r"[\[*\\]", str(directory)):
        yield directory
        return
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="posjax-", dir="/tmp") as folder:  # TMPDIR may hold such a character too
        link = pathlib.Path(folder) / "link"
        link.symlink_to(directory, target_is_directory=True)
        yield link


def _target(leaf: Any) -> Any:
    """Returns the target by which orbax restores a leaf like this one."""
    if type(leaf) in _SCALARS:
        return leaf
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    # 64-bit values come back as numpy when jax, with x64 off, would cut them in two.
    if isinstance(leaf, _NUMPY) or (not is_key and jax.dtypes.canonicalize_dtype(leaf.dtype) != leaf.dtype):
        return np.empty(leaf.shape, leaf.dtype)
    sharding = leaf.sharding or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _check_same_tree(directory: pathlib.Path, saved: Mapping[str, Mapping], wanted: _Leaves) -> None:
    mend = "use the config it was saved with, or another directory for this one"
    for path, leaf in wanted.items():
        if path not in saved:
            raise CheckpointError(f"{path} is not in the checkpoint {directory}, but this run has it; {mend}")
        described = _describe(path, leaf)
        for aspect in ("shape", "dtype"):
            if saved[path][aspect] != described[aspect]:
                raise CheckpointError(
                    f"{path} has {aspect} {saved[path][aspect]} in the checkpoint {directory}, but "
                    f"{described[aspect]} in this run; {mend}"
                )
    for path in saved:
        if path not in wanted:
            raise CheckpointError(f"the checkpoint {directory} has {path}, but this run has not; {mend}")


class RecordHandler(ocp.CheckpointHandler):
    """Writes the record; orbax calls `finalize` once the tree's files are final, which seals both."""

    def save(self, directory, args: "_RecordArgs"):
        if is_first():
            (pathlib.Path(directory) / _RECORD).write_text(args.text)

    def restore(self, directory, args=None):
        raise NotImplementedError("records are read by posjax, which checks the seal first")

    def finalize(self, directory):
        directory = pathlib.Path(directory)
        step = directory.parent
        files = [step / _MANIFEST, *(path for path in (step / "tree").rglob("*") if path.is_file())]
        seal = {str(path.relative_to(step)): sha256_of(path) for path in files}
        seal[f"record/{_RECORD}"] = sha256_of(directory / _RECORD)
        (directory / _SEAL).write_text(json.dumps(seal, indent=1))


@ocp.args.register_with_handler(RecordHandler, for_save=True, for_restore=True)
@dataclasses.dataclass
class _RecordArgs(ocp.args.CheckpointArgs):
    text: str


def _check_file(directory: pathlib.Path, name: str, digest: str) -> None:
    try:
        same = sha256_of(directory / name) == digest
    except (OSError, ValueError) as error:  # ValueError: a flipped bit made the name impossible
        raise _DamagedError(f"{name} cannot be read ({error})") from error
    if not same:
        raise _DamagedError(f"{name} differs from what was written")


def _check_files(directory: pathlib.Path, seal: dict[str, str]) -> None:
    """Checks this process's share of the files; all processes refuse the step if one does."""
    problem = None
    for name in sorted(seal)[jax.process_index() :: jax.process_count()]:
        try:
            _check_file(directory, name, seal[name])
        except _DamagedError as error:
            problem = error
            break
    if any_process(problem is not None):
        raise problem or _DamagedError("another process found a file that differs from what was written")


def _unseal(directory: pathlib.Path) -> tuple[dict[str, str], dict[str, Any]]:
    """Returns the seal of one step, and its record after checking the seal on it."""
    record, path = f"record/{_RECORD}", directory / "record" / _SEAL
    try:
        seal = parse_json(path.read_bytes(), _SEAL)
    except (OSError, ValueError) as error:
        raise _DamagedError(f"record/{_SEAL} cannot be read ({error})") from error
    if missing := {record, _MANIFEST} - seal.keys():
        raise _DamagedError(f"record/{_SEAL} does not list {min(missing)}")
    _check_file(directory, record, seal[record])
    return seal, parse_json((directory / record).read_bytes(), record)
