"""One record per run: all that a table needs and all that a reader would ask of a number."""

import pathlib
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from posjax.spec import layers_text, parse_layers
from posjax.training.loop import Result, identity
from posjax.training.metrics import config_hash, read_jsonl
from posjax.training.tasks import Task

_CURVE_POINTS = 100


def row_hash(config: ConfigDict) -> str:
    """Names what is computed: the config without what only says where and how often something is written."""
    return config_hash(identity(config))


def records_of(
    study: str,
    label: str,
    task: Task,
    config: ConfigDict,
    seeds: tuple[int, ...],
    result: Result,
    workdir: pathlib.Path,
    environment: dict[str, Any],
) -> list[dict[str, Any]]:
    """The records of one ensemble, one per seed."""
    curve = _curve(workdir / "metrics.jsonl")
    parameters = sum(leaf.size for leaf in jax.tree.leaves(result.state.params)) // len(seeds)
    common = {
        "study": study,
        "task": config.task,
        "label": label,
        "encoding": layers_text(parse_layers(config.model.encoding)) if hasattr(task.model, "encoding") else "-",
        "data": config.data.name,
        "data_digest": task.digest,
        "steps": config.steps,
        "parameters": parameters,
        "step_time": _finite(result.step_time / len(seeds)),  # null for a row too short to time
        "wall_time": result.wall_time,
        "config_hash": row_hash(config),
        "study_hash": config_hash(
            {**identity(config), "model.encoding": None}
        ),  # equal for all rows that may be compared
        "device": environment["device"],
        "allocator": environment["allocator"],
        "versions": {key: value for key, value in environment.items() if key not in ("device", "allocator")},
    }
    if config.task == "language_model":
        common["train_length"] = config.data.length
    return [
        {
            **common,
            "seed": seed,
            "metrics": _of_run(result.metrics, run),
            "curve": [[s, loss[run]] for s, loss in curve],
        }
        for run, seed in enumerate(seeds)
    ]


def _of_run(metrics: dict[str, Any], run: int) -> dict[str, Any]:
    """One run's share of the metrics; null where a number is not finite, as behind the end of a learned table."""
    return {name: _of_run(x, run) if isinstance(x, dict) else _finite(x[run]) for name, x in metrics.items()}


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _curve(path: pathlib.Path) -> list[tuple[int, np.ndarray]]:
    """(step, training loss [R]), evenly thinned; the last point is always there."""
    lines = [line for line in read_jsonl(path) if "loss" in line]
    every = max(1, -(-len(lines) // _CURVE_POINTS))
    return [(line["step"], line["loss"]) for line in lines[::-1][::every]][::-1]
