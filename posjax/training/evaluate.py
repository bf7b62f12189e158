"""Scores of an ensemble on whole evaluation sets."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from posjax.training.mesh import filled_up, on_devices, replicated
from posjax.training.step import over_runs
from posjax.training.tasks import Evaluated, Task

Metrics = dict[str, Any]  # metric -> [R], or metric -> {name of the evaluation set -> [R]}


def make_score(task: Evaluated, mesh: Mesh | None = None, seed_axis: str | None = None) -> Callable:
    """Returns (params [R, ...], batch) -> sums [R] by metric; compiled once per shape of the batch.

    Args:
      mesh: the devices that hold parameters and batches; None for one device.
      seed_axis: axis of the mesh along which devices share the runs; None if they do not.
    """
    score = over_runs(task.score, seed_axis)
    return jax.jit(score) if mesh is None else jax.jit(score, out_shardings=replicated(mesh))


def evaluate(task: Evaluated, score: Callable, params: Any, mesh: Mesh | None = None) -> Metrics:
    """Returns means over every evaluation set of the task, summed in float64.

    Args:
      mesh: the devices that share each batch; None for one device.
    """
    metrics: Metrics = {}
    for name, batches in task.evaluation().items():
        sums: dict[str, np.ndarray] = {}
        # The next batch is dispatched before the last one's sums are fetched.
        pending = None
        for batch in batches:
            if mesh is not None:
                batch = on_devices(mesh, filled_up(mesh, batch), runs=False)
            pending, done = score(params, batch), pending
            _add(sums, done)
        _add(sums, pending)
        weight = sums.pop("weight")
        for metric, total in sums.items():
            if name is None:
                metrics[metric] = total / weight
            else:
                metrics.setdefault(metric, {})[name] = total / weight
    return getattr(task, "summed_up", lambda metrics: metrics)(metrics)


def headline(task: Task, metrics: Metrics) -> float:
    """Returns the mean over seeds of the metric that selects the best checkpoint (at the shortest length evaluated)."""
    value = metrics[task.headline]
    value = value[min(value, key=int)] if isinstance(value, dict) else value
    return float(np.mean(value))


def _add(sums: dict[str, np.ndarray], scores: dict[str, jax.Array] | None) -> None:
    for metric, value in (scores or {}).items():
        sums[metric] = sums.get(metric, 0.0) + np.asarray(value, np.float64)
