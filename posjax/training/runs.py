"""Runs that were trained before: their model and the parameters that its seeds have learned."""

import operator
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from posjax.training.checkpoints import Checkpoints
from posjax.training.identity import RUN, read_run
from posjax.training.loop import Result
from posjax.training.mesh import fetched
from posjax.training.optimizer import make_optimizer
from posjax.training.step import init_state
from posjax.training.tasks import Task, make_task

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
      workdir: the folder that holds run.json and checkpoints/.
      step: of the checkpoint; the newest intact one where None.
      data_dir: directory of the data sets, if not where the run found them.
      task_of: makes the task, and with it the model, of a config.

    Raises:
      ValueError: there is no checkpoint; CheckpointError, which is one, if none is intact or it is of another model.
    """
    workdir = pathlib.Path(workdir)
    checkpoints = Checkpoints(workdir / "checkpoints")
    if not checkpoints.steps():
        raise ValueError(f"there is no checkpoint in {workdir}: {_mend(workdir)}")
    about = read_run(workdir)
    config, seeds = ConfigDict(about["config"]), tuple(about["seeds"])
    config.mesh = ConfigDict()  # the devices that are here may be others
    if data_dir is not None:
        config.data.data_dir = data_dir
    task = task_of(config)
    optimizer, _ = make_optimizer(total_steps=config.steps, **config.optimizer)
    abstract = jax.eval_shape(lambda: init_state(task, optimizer, seeds))
    # Not None: there are steps.
    step, tree = checkpoints.restore({"state": abstract, "times": {"elapsed": 0.0, "step_time": 0.0}}, step=step)
    return Run(task, task.model, jax.tree.map(np.asarray, tree["state"].params), seeds, config, step, tree["times"])


def _mend(workdir: pathlib.Path) -> str:
    rows = sorted(str(path.parent) for path in workdir.glob(f"*/*/{RUN}"))
    if not rows:
        return "give the workdir of a run, or the folder of a row of an ablation"
    more = f" or {len(rows) - _ROWS_NAMED} others" if len(rows) > _ROWS_NAMED else ""
    return f"give the folder of one of its rows, {', '.join(rows[:_ROWS_NAMED])}{more}"
