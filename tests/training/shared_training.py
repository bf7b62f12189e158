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
    sizes = dict(model__width=16, model__num_heads=4, model__num_kv_heads=2, model__depth=1, model__dropout=0.1)
    sizes |= dict(eval_lengths=(16,), eval_batch_size=60, eval_tokens=4001, data__positions="document")
    config = small_decoder(data_dir, **{**sizes, **overrides})
    with config.unlocked(), config.model.ignore_type():
        config.model.encoding = encoding  # a tuple is a pattern over the layers
    return config


def losses(data_dir, encoding, meshes):
    """Losses and gradient norms of three steps of two seeds, and the scores behind them, on each mesh."""
    config = config_of(data_dir, encoding, steps=3, model__depth=2 if isinstance(encoding, list) else 1, accumulate=2)
    return [curve(config, task_on(config, sizes), pathlib.Path(data_dir) / f"run{i}") for i, sizes in enumerate(meshes)]


def curve(config, task, workdir, steps=None):
    """One row a step, and one of scores."""
    rows = []

    def on_step(step, report):
        rows.append([*report["loss"].tolist(), *report["grad_norm"].tolist()])
        return step

    try:
        stop = (lambda: False) if steps is None else (lambda: len(rows) >= steps - 1)
        done = loop.train(task, config, (0, 1), workdir, on_step=on_step, should_stop=stop)
    except loop.Stopped:
        return rows
    return [*rows, done.metrics["loss"]["16"].tolist()]


def resumed(data_dir, counts):
    """The curve of a whole run on one device, and that of one which went on with other devices every other step."""
    config = config_of(data_dir, "rope() + t5()", steps=2 * len(counts))
    whole = curve(config, task_on(config, {}), pathlib.Path(data_dir) / "whole")
    parts = []
    for count in counts:
        task = task_on(config, {"data": -1, "fsdp": min(2, count), "tensor": 2 if count > 2 else 1}, count)
        parts += curve(config, task, pathlib.Path(data_dir) / "parts", None if count == counts[-1] else 2)
    return whole, parts


def work_of_evaluation(data_dir):
    """Floating-point operations of a batch's scores on one device, and of each device of eight that share them."""
    config = config_of(data_dir, "rope()")
    found = []
    for sizes in ({}, {"data": 8}):
        programs = loop.Programs(task_on(config, sizes), config, (0, 1))
        batch = next(iter(programs.task.evaluation()["16"]))
        lowered = programs.score.lower(
            programs.shapes().params, on_devices(programs.mesh, filled_up(programs.mesh, batch), runs=False)
        )
        assert len(batch["weight"]) % 8
        found.append(lowered.compile().cost_analysis()["flops"])
    return found


def collectives(data_dir, encoding, sizes):
    """([kind, [shape of each array]] of what devices of a compiled step send each other, sizes of the parameters)."""
    # 24 tokens: no array of tokens is as large as one of parameters.
    config = config_of(data_dir, encoding, model__depth=2 if isinstance(encoding, list) else 1, data__length=24)
    programs = loop.Programs(task_on(config, sizes), config, (0, 1))
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


CHECKS = {check.__name__: check for check in (losses, resumed, work_of_evaluation, collectives)}


if __name__ == "__main__":
    for check, arguments in json.loads(sys.argv[1]):
        print(json.dumps(CHECKS[check](*arguments)))
