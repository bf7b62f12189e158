"""Runs that were trained before: their model and the parameters that its seeds have learned.

A run has checkpoints/, from which its training can go on. A kept one has in their place the parameters of one seed alone.
"""

import operator
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from posjax.jsonl import strict
from posjax.pretrained.files import WeightsFile, write_safetensors
from posjax.pretrained.parameters import is_encoding, paths_of, tree_of
from posjax.training.checkpoints import CheckpointError, Checkpoints
from posjax.training.identity import RUN, digest, read_run, write_run
from posjax.training.loop import Result
from posjax.training.mesh import fetched
from posjax.training.optimizer import make_optimizer
from posjax.training.step import init_state
from posjax.training.tasks import Task, make_task

KEPT = "params.safetensors"
_ROWS_NAMED = 8


class Run(NamedTuple):
    """An ensemble at the end of its training, or restored from a checkpoint.

    Attributes:
      params: of `model`, numpy arrays with a leading axis R, one entry for each of the `seeds`.
      config: of the training.
      step: number of steps taken.
      times: "elapsed" seconds, all processes together, and the median "step_time".
    """

    task: Task
    model: Any
    params: Any
    seeds: tuple[int, ...]
    config: ConfigDict
    step: int
    times: Mapping[str, float]

    @classmethod
    def of_result(cls, task: Task, config: ConfigDict, seeds: tuple[int, ...], result: Result) -> "Run":
        """Returns the run that `train` has just finished."""
        params = fetched(result.state.params)
        times = {"elapsed": result.wall_time, "step_time": result.step_time}
        return cls(task, task.model, params, seeds, config, config.steps, times)

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
      workdir: the folder that holds run.json and checkpoints/, or what `keep` wrote.
      step: of the checkpoint; the newest intact one where None.
      data_dir: directory of the data sets, if not where the run found them.
      task_of: makes the task, and with it the model, of a config.

    Raises:
      ValueError: there is no checkpoint; CheckpointError, which is one, if none is intact or it is of another model.
    """
    workdir = pathlib.Path(workdir)
    checkpoints, kept = Checkpoints(workdir / "checkpoints"), (workdir / KEPT).is_file()
    if not kept and not checkpoints.steps():
        raise ValueError(f"there is no checkpoint in {workdir}: {_mend(workdir)}")
    about = read_run(workdir)
    config, seeds = ConfigDict(about["config"]), tuple(about["seeds"])
    config.mesh = ConfigDict()  # the devices that are here may be others
    if data_dir is not None:
        config.data.data_dir = data_dir
    task = task_of(config)
    optimizer, _ = make_optimizer(total_steps=config.steps, **config.optimizer)
    abstract = jax.eval_shape(lambda: init_state(task, optimizer, seeds))
    if kept:
        params, own = _read_kept(workdir, abstract.params, about["kept"]["digest"]), about["kept"]["step"]
        if step not in (None, own):
            raise CheckpointError(f"there is no step {step} in {workdir}: the one that was kept is {own}")
        times = {name: float(seconds) for name, seconds in about["kept"]["times"].items()}
        return Run(task, task.model, params, seeds, config, own, times)
    # Not None: there are steps.
    step, tree = checkpoints.restore({"state": abstract, "times": {"elapsed": 0.0, "step_time": 0.0}}, step=step)
    return Run(task, task.model, jax.tree.map(np.asarray, tree["state"].params), seeds, config, step, tree["times"])


def keep(run: Run, index: int, workdir: str | os.PathLike, folder: str | os.PathLike) -> None:
    """Writes what `load_run` needs of one seed of a run, and nothing that only its training goes on from.

    Parameters are in float16, and those of encodings in float32, since angles come of them: a decoder of a quarter of a
    million parameters takes half a megabyte.

    Args:
      run: as `load_run` read it.
      index: of the seed.
      workdir: where the run was read.
      folder: to be written.

    Raises:
      ValueError: a parameter is too large for float16.
      OSError: the folder cannot be written.
    """
    tensors = {}
    for name, leaf in paths_of(run.of(index)).items():
        dtype = np.float32 if is_encoding(name) else np.float16
        if not np.all(np.abs(leaf) <= np.finfo(dtype).max):
            raise ValueError(f"{name} of {workdir} is not finite in {dtype.__name__}: keep the whole run")
        tensors[name] = np.asarray(leaf, dtype)
    write_safetensors(pathlib.Path(folder) / KEPT, tensors, {})
    kept = {"step": run.step, "digest": digest(tensors), "times": strict(run.times)}
    write_run(folder, {**read_run(workdir), "seeds": [run.seeds[index]], "kept": kept})


def _read_kept(workdir: pathlib.Path, like: Any, expected: str) -> Any:
    """Returns the parameters that `keep` wrote, in this form and with a leading axis of one seed."""
    weights, wanted = WeightsFile.of(workdir / KEPT), paths_of(like)
    if weights.shapes != {name: leaf.shape[1:] for name, leaf in wanted.items()} or digest(dict(weights)) != expected:
        raise CheckpointError(f"{workdir / KEPT} does not hold the parameters that {RUN} is of: put back both files")
    return tree_of(like, {name: np.array(weights[name], leaf.dtype)[None] for name, leaf in wanted.items()})


def _mend(workdir: pathlib.Path) -> str:
    rows = sorted(str(path.parent) for path in workdir.glob(f"*/*/{RUN}"))
    if not rows:
        return "give the workdir of a run, or the folder of a row of an ablation"
    more = f" or {len(rows) - _ROWS_NAMED} others" if len(rows) > _ROWS_NAMED else ""
    return f"give the folder of one of its rows, {', '.join(rows[:_ROWS_NAMED])}{more}"
