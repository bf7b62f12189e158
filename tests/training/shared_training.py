"""Checks that need several devices: python shared_training.py '[[check, arguments], ...]' prints a line of JSON for each."""

import json
import pathlib
import re
import sys
from unittest import mock

import jax
import numpy as np
from small import small_decoder

from posjax.training import loop, tasks
from posjax.training.mesh import filled_up, make_mesh, on_devices
from posjax.training.tasks import make_task


def task_on(config, sizes, devices=None):
    """The task on the first so many devices; as many as the sizes need where None."""
    count = devices or int(np.prod(list({"data": 1, **sizes}.values())))
    mesh = make_mesh(sizes, jax.devices()[:count])
    with mock.patch.object(tasks, "mesh_of", return_value=mesh):
        return make_task(config)


def config_of(data_dir, encoding, **overrides):
    encoding = tuple(encoding) if isinstance(encoding, list) else encoding
    sizes = dict(model__width=16, model__num_heads=4, model__num_kv_heads=2, model__dropout=0.1)
    sizes |= dict(eval_lengths=(16,), eval_batch_size=60, eval_tokens=4001, data__positions="document")
    # 24 tokens: no array of tokens is as large as one of parameters.
    sizes |= dict(data__length=24, model__depth=2 if isinstance(encoding, list) else 1)
    config = small_decoder(data_dir, **{**sizes, **overrides})
    with config.unlocked(), config.model.ignore_type():
        config.model.encoding = encoding  # a tuple is a pattern over the layers
    return config


def training(data_dir, encoding, meshes, others):
    """The curves of a training on each of `meshes`, and of one that goes on from the first of them on the second; the work
    of a batch's scores on each; what devices send in a step of the second, and, without accumulation, on each of `others`.
    """
    config = config_of(data_dir, encoding, steps=3, accumulate=2)
    runs = [loop.Programs(task_on(config, sizes), config, (0, 1)) for sizes in meshes]
    with mock.patch.object(loop.Checkpoints, "save"):  # it compiles a program for each shape
        curves = [curve(config, run, pathlib.Path(data_dir) / f"run{i}") for i, run in enumerate(runs)]
    parts = pathlib.Path(data_dir) / "parts"
    curves.append(curve(config, runs[0], parts, steps=2) + curve(config, runs[1], parts))
    config = config_of(data_dir, encoding)
    others = [loop.Programs(task_on(config, sizes), config, (0, 1)) for sizes in others]
    return curves, [work_of_scores(run) for run in runs], [collectives(run) for run in (runs[1], *others)]


def curve(config, programs, workdir, steps=None):
    """One row of losses and gradient norms a step, and one of scores."""
    rows = []

    def on_step(step, report):
        rows.append([*report["loss"].tolist(), *report["grad_norm"].tolist()])

    stop = (lambda: False) if steps is None else (lambda: len(rows) >= steps - 1)
    options = dict(programs=programs, on_step=on_step, should_stop=stop)
    try:
        done = loop.train(programs.task, config, (0, 1), workdir, **options)
    except loop.Stopped:
        return rows
    return [*rows, done.metrics["loss"]["16"].tolist()]


def work_of_scores(programs):
    """Floating-point operations of each device for the scores of a batch."""
    batch = next(iter(programs.task.evaluation()["16"]))
    assert len(batch["weight"]) % 8
    batch = on_devices(programs.mesh, filled_up(programs.mesh, batch), runs=False)
    return programs.score.lower(programs.shapes().params, batch).compile().cost_analysis()["flops"]


def collectives(programs):
    """([kind, [shape of each array]] of what devices of a compiled step send each other, sizes of the parameters)."""
    text = programs.step.lower(*programs.arguments()).compile().as_text()
    return collectives_of(text), [leaf.size for leaf in jax.tree.leaves(programs.shapes().params)]


def collectives_of(text):
    """Finds the collectives between several devices: an axis of one device leaves groups of one."""
    kinds = "all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute"
    found = []
    for line in text.splitlines():
        match = re.search(rf" = (.*?) ({kinds})\(", line)
        if match and not re.search(r"replica_groups=\{(\{\d+\},?)+\}", line):
            arrays = re.findall(r"([a-z]+\d+)\[([\d,]*)\]", match[1])
            floats = [shape for kind, shape in arrays if kind.startswith(("f", "bf"))]
            found.append([match[2], [[int(n) for n in shape.split(",") if n] for shape in floats]])
    return found


CHECKS = {"training": training}


if __name__ == "__main__":
    for check, arguments in json.loads(sys.argv[1]):
        print(json.dumps(CHECKS[check](*arguments)))
