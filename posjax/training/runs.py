"""Runs that were trained before: their model and the parameters that its seeds have learned.

A run has checkpoints/, from which its training can go on. A small run has only the parameters of one seed in their place.
"""

import operator
import os
import pathlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import logging
from ml_collections import ConfigDict

from posjax.files import replace_file
from posjax.jsonl import strict
from posjax.pretrained.files import WeightsFile, write_safetensors
from posjax.pretrained.parameters import is_encoding, paths_of, tree_of
from posjax.training.checkpoints import CheckpointError, Checkpoints
from posjax.training.clock import UNKNOWN_TIMES
from posjax.training.identity import RUN, counting_fields, digest, read_run, user_files, write_run
from posjax.training.loop import Result
from posjax.training.mesh import fetched
from posjax.training.step import starter
from posjax.training.tasks import Task, make_task

PARAMS = "params.safetensors"  # of a small run
_ROWS_NAMED = 8


class Run(NamedTuple):
    """An ensemble at the end of its training, or restored from a checkpoint.

    Attributes:
      params: of `model`, numpy arrays with a leading axis R, one entry for each of the `seeds`; their moving average where
        `config.ema` is set.
      config: of the training.
      step: number of steps taken.
      times: "elapsed" seconds, all processes together, and the median "step_time".
      speed: of the process that trained it, see `posjax.training.loop.Result`; empty for a run that was restored.
    """

    task: Task
    model: Any
    params: Any
    seeds: tuple[int, ...]
    config: ConfigDict
    step: int
    times: Mapping[str, float]
    speed: Mapping[str, float] = MappingProxyType({})

    @classmethod
    def of_result(cls, task: Task, config: ConfigDict, seeds: tuple[int, ...], result: Result) -> "Run":
        """Returns the run that `train` has just finished."""
        params = fetched(result.state.scored)
        times = {"elapsed": result.wall_time, "step_time": result.step_time}
        return cls(task, task.model, params, seeds, config, config.steps, times, result.speed)

    def of(self, index: int) -> Any:
        """Returns the parameters of one seed, the `index`-th."""
        return jax.tree.map(operator.itemgetter(index), self.params)


def is_run(path: str | os.PathLike) -> bool:
    """Says whether `load_run` takes this folder: it holds a run.json."""
    return (pathlib.Path(path) / RUN).is_file()


def load_run(
    workdir: str | os.PathLike,
    *,
    step: int | None = None,
    data_dir: str | None = None,
    task_of: Callable[[ConfigDict], Task] = make_task,
) -> Run:
    """Returns a run of `experiments.train`, or of a row of `experiments.ablate`.

        run = load_run("runs/vit")
        logits = run.model.apply({"params": run.of(0)}, images, run.model.sites(28, 28))

    Args:
      workdir: the folder that holds run.json and checkpoints/, or a small run.
      step: of the checkpoint; the newest intact one where None.
      data_dir: directory of the data sets, if not where the run found them.
      task_of: makes the task, and with it the model, of a config.

    Raises:
      ValueError: there is no checkpoint; CheckpointError, which is one, if none is intact or it is of another model.
    """
    workdir = pathlib.Path(workdir)
    checkpoints = Checkpoints(workdir / "checkpoints")
    small = is_run(workdir) and read_run(workdir).get("small")
    if not small and not checkpoints.steps():
        raise ValueError(f"there is no checkpoint in {workdir}: {_mend(workdir)}")
    about = read_run(workdir)
    config = ConfigDict(about["config"])
    config.mesh = ConfigDict()  # the devices that are here may be others
    if data_dir is not None:
        config.data.data_dir = data_dir
    _compare_code(workdir, about, config)
    task, seeds = task_of(config), tuple(about["seeds"])
    abstract = jax.eval_shape(starter(task, config, seeds))
    if small:
        if step not in (None, small["step"]):
            raise CheckpointError(f"there is no step {step} in {workdir}: this small run is of step {small['step']}")
        params = _read_small(workdir / PARAMS, abstract.params, small["digest"])
        times = {name: float(seconds) for name, seconds in small["times"].items()}
        return Run(task, task.model, params, seeds, config, small["step"], times)
    # Not None: there are steps.
    step, tree = checkpoints.restore({"state": abstract, "times": UNKNOWN_TIMES}, step=step)
    times = {name: tree["times"][name] for name in ("elapsed", "step_time")}
    return Run(task, task.model, jax.tree.map(np.asarray, tree["state"].scored), seeds, config, step, times)


def _compare_code(workdir: pathlib.Path, about: Mapping[str, Any], config: ConfigDict) -> None:
    """Warns of user code that has changed since the training."""
    files = ", ".join(str(workdir / name if (workdir / name).is_file() else name) for name in about.get("files") or ())
    try:
        code = counting_fields(config).get("code")
    except ValueError as error:
        raise ValueError(f"{error}; {workdir} was trained with --import={files or 'none'}") from error
    if about["fields"].get("code") not in (None, code):
        changed = files or "the code of its encoding"
        logging.warning("%s was trained with other code, %s has changed: numbers may be wrong", workdir, changed)


def save_small(run: Run, index: int, workdir: str | os.PathLike, folder: str | os.PathLike) -> None:
    """Writes a small run, which `load_run` reads: run.json and the parameters of one seed, from which no training goes on.

    Parameters are in float16, and those of encodings in float32, since angles come of them: a decoder of a quarter of a
    million parameters takes half a megabyte. The files of the user's code that define its encoding, and the files that these
    import from their own folder, lie beside them. Data and tokenizer stay where they are.

    Args:
      index: of the seed.
      workdir: where `load_run` read the run.
      folder: a new one, or that of a small run.

    Raises:
      ValueError: a parameter is too large for float16, or the folder holds a run that would be lost.
      OSError: the folder cannot be written.
    """
    folder = pathlib.Path(folder)
    if is_run(folder) and "small" not in read_run(folder):
        raise ValueError(f"{folder} holds a run, which would be lost: give another folder")
    tensors = {}
    for name, leaf in paths_of(run.of(index)).items():
        dtype = np.float32 if is_encoding(name) else np.float16
        if not np.all(np.abs(leaf) <= np.finfo(dtype).max):
            raise ValueError(f"{name} of {workdir} is not finite in {dtype.__name__}: copy the whole run")
        tensors[name] = np.asarray(leaf, dtype)
    write_safetensors(folder / PARAMS, tensors, {})
    small = {"step": run.step, "digest": digest(tensors), "times": strict(run.times)}
    files = user_files(run.config)
    root = os.path.commonpath(map(os.path.dirname, files)) if files else ""
    names = [os.path.relpath(file, root) for file in files]
    for name, file in zip(names, files, strict=True):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        replace_file(folder / name, pathlib.Path(file).read_bytes())
    about = {"seeds": [run.seeds[index]], "small": small} | ({"files": names} if files else {})
    write_run(folder, read_run(workdir) | about)


def _read_small(path: pathlib.Path, like: Any, expected: str) -> Any:
    """Returns the parameters that `save_small` wrote, in this form and with a leading axis of one seed."""
    if not path.is_file():
        raise CheckpointError(f"{path} is missing: put it back")
    weights, shapes = WeightsFile.of(path), {name: leaf.shape[1:] for name, leaf in paths_of(like).items()}
    for name in sorted(weights.shapes.keys() | shapes.keys()):
        there, needed = weights.shapes.get(name), shapes.get(name)
        if there != needed:
            raise CheckpointError(f"{name} is {there} in {path}, but {needed} by {RUN}: the code has changed")
    if digest(dict(weights)) != expected:
        raise CheckpointError(f"{path} differs from what was written: put back a copy of it")
    return tree_of(like, {name: np.array(weights[name], leaf.dtype)[None] for name, leaf in paths_of(like).items()})


def _mend(workdir: pathlib.Path) -> str:
    rows = sorted(str(path.parent) for path in workdir.glob(f"*/*/{RUN}"))
    if not rows:
        return "give the workdir of a run, or the folder of a row of an ablation"
    more = f" or {len(rows) - _ROWS_NAMED} others" if len(rows) > _ROWS_NAMED else ""
    return f"give the folder of one of its rows, {', '.join(rows[:_ROWS_NAMED])}{more}"
