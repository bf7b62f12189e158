"""The needs of a training: memory of each device by what holds it, operations of a step, and its time on accelerators.

    python -m experiments.plan --config=configs/decoder.py
    python -m experiments.plan --config=configs/decoder.py --devices=8 --config.batch_size=64 --accelerators=h100,tpu-v5e
    python -m experiments.plan --config=configs/vit.py --config.model.variant=B/16 --config.model.dtype=bfloat16

The program is the one that `experiments.train` would run, compiled for so many simulated devices on this machine and never
run; no parameter is made. Memory and operations are XLA's own analysis. Times on accelerators are arithmetic from data
sheets, not measured: at best, and at 40 % of the peak. Traffic between devices is not counted. Under the workdir (runs/plan
by default): plan.md and plan.json.
"""

import argparse
import copy
import math
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from experiments import cli
from experiments.benchmarks.units import duration, gib

TYPICAL = 0.4  # of an accelerator's peak: what well-tuned trainings of transformers reach


class Accelerator(NamedTuple):
    """One chip by its maker's data sheet: operations a second in dense products, bytes a second to and from its memory.

    `single` is float32 as jax multiplies it by default: in TF32 on GPUs, in passes of bfloat16 on TPUs.
    """

    half: float  # bfloat16
    single: float
    bandwidth: float
    memory: float  # bytes


ACCELERATORS = {
    "a100-40": Accelerator(312e12, 156e12, 1.555e12, 40e9),
    "a100-80": Accelerator(312e12, 156e12, 2.039e12, 80e9),
    "h100": Accelerator(989e12, 494e12, 3.35e12, 80e9),
    "h200": Accelerator(989e12, 494e12, 4.8e12, 141e9),
    "b200": Accelerator(2250e12, 1125e12, 8e12, 180e9),
    "tpu-v4": Accelerator(275e12, 275e12, 1.228e12, 32 * 2**30),
    "tpu-v5e": Accelerator(197e12, 197e12, 0.819e12, 16 * 2**30),
    "tpu-v5p": Accelerator(459e12, 459e12, 2.765e12, 95 * 2**30),
    "tpu-v6e": Accelerator(918e12, 918e12, 1.64e12, 32 * 2**30),
}


class Plan(NamedTuple):
    """Bytes on each device, and the operations of a step on all of them."""

    devices: int
    parameters: int
    optimizer: int
    batch: int
    temporaries: int  # of the compiled step, gradients and activations among them
    held: int  # all of the step, as compiled
    cache: int | None  # of a decoder: keys, values and sites of one sequence of the longest evaluated length
    flops: float
    half: bool  # whether products are of half precision


class Prediction(NamedTuple):
    """Seconds of a step on an accelerator, and the share of its memory that is filled."""

    at_best: float  # the longer of computing at the peak and of moving the state and the temporaries once each way
    typical: float  # at `TYPICAL` of the peak, and no faster than memory allows
    share: float


def main(
    config: ConfigDict,
    workdir: pathlib.Path,
    *,
    devices: int = 1,
    accelerators: Sequence[str] = tuple(name for name in ACCELERATORS if name != "a100-40"),
) -> None:
    """Plans, prints and writes.

    Args:
      devices: how many are simulated.
      accelerators: names of `ACCELERATORS`.

    Raises:
      ValueError: an unknown accelerator, or a config that cannot be trained.
    """
    import json

    import jax

    from posjax.files import replace_file
    from posjax.spec import nearest
    from posjax.training.initial import as_started, start_of

    for name in accelerators:
        if name not in ACCELERATORS:
            raise ValueError(f"no accelerator is named {name!r}; {nearest(name, list(ACCELERATORS))}")
    _simulate(devices)
    seeds = tuple(config.seeds) if "seeds" in config else (config.seed,)
    config = as_started(config, start_of(config))
    planned = plan(config, seeds)
    text = _page(config, planned, {name: predict(planned, ACCELERATORS[name]) for name in accelerators})
    record = {**planned._asdict(), "seeds": seeds, "jax": jax.__version__}
    replace_file(workdir / "plan.md", text.encode())
    replace_file(workdir / "plan.json", (json.dumps(record, indent=1) + "\n").encode())
    print(text, workdir / "plan.md", workdir / "plan.json", sep="\n")


def _simulate(devices: int) -> None:
    """Makes jax run on so many devices, all of them this machine's processor.

    Raises:
      ValueError: jax has begun to compute on others.
    """
    import jax

    try:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", devices)
    except RuntimeError as error:
        raise ValueError(f"--devices={devices}: {error}") from error
    if jax.device_count() != devices:
        raise ValueError(f"--devices={devices}: jax runs on {jax.device_count()} already, in this process")


def plan(config: ConfigDict, seeds: tuple[int, ...]) -> Plan:
    """The plan of a training of these seeds on all devices of this process.

    Raises:
      ValueError: as `train` does for a config that cannot be trained.
    """
    import jax
    import jax.numpy as jnp

    from experiments.benchmarks.compiling import held_bytes
    from experiments.benchmarks.jax_inputs import cache_shapes
    from posjax.models import Decoder
    from posjax.training.loop import Programs
    from posjax.training.tasks import make_task

    splits: dict = {}
    task = make_task(config, splits)
    programs = Programs(task, config, seeds)
    state, batch = programs.arguments()
    held = held_bytes(programs.step.lower(state, batch).compile())
    parameters, optimizer, given = map(_bytes, (state.params, state.opt_state, batch))
    cache = None
    if isinstance(task.model, Decoder):
        one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), state.params)
        cache = _bytes(cache_shapes(task.model.with_fields(context=None), {"params": one}, 1, max(config.eval_lengths)))
    return Plan(
        devices=jax.device_count(),
        parameters=parameters,
        optimizer=optimizer,
        batch=given,
        temporaries=held - parameters - optimizer - given,
        held=held,
        cache=cache,
        flops=_operations(config, seeds, splits),
        half=jnp.dtype(config.model.get("dtype") or "float32").itemsize == 2,
    )


def _operations(config: ConfigDict, seeds: tuple[int, ...], splits: dict) -> float:
    """XLA's count of the operations of a step's gradients on all devices together.

    Counted of a program without loops, whose bodies XLA counts once: dense attention over all pairs of tokens, and a copy
    of each layer. Loops within an encoding are still counted once.
    """
    import jax

    from posjax.models.transformer import BlockModel
    from posjax.training.loop import Programs
    from posjax.training.tasks import make_task

    config = config.copy_and_resolve_references()
    config.model.update({name: x for name, x in (("implementation", "dense"), ("scan", False)) if name in config.model})
    task = make_task(config, splits)
    state, batch = Programs(task, config, seeds).arguments()
    alone = copy.copy(task)
    if isinstance(task.model, BlockModel):
        alone.model = task.model.with_fields(context=None)

    def gradients(params, batch, key):
        return jax.value_and_grad(lambda params: alone.loss(params, batch, key), has_aux=True)(params)

    params, batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (state.params, batch))
    key = jax.eval_shape(lambda: jax.random.key(0))
    return jax.jit(jax.vmap(gradients, (0, 0, None))).lower(params, batch, key).cost_analysis()["flops"]


def _bytes(tree: Any) -> int:
    """Bytes of an array tree on each device."""
    import jax
    import jax.numpy as jnp

    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape) if leaf.sharding else leaf.shape) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
        if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    )


def predict(plan: Plan, on: Accelerator) -> Prediction:
    """The time of a step on devices of this kind, if none waits for another."""
    computing = plan.flops / plan.devices / (on.half if plan.half else on.single)
    moving = 2 * (plan.parameters + plan.optimizer + plan.temporaries) / on.bandwidth
    return Prediction(max(computing, moving), max(computing / TYPICAL, moving), plan.held / on.memory)


def _page(config: ConfigDict, planned: Plan, predictions: dict[str, Prediction]) -> str:
    from posjax.describe.markdown import escape_markdown, grid

    rows = [
        ("parameters", gib(planned.parameters)),
        ("state of the optimizer", gib(planned.optimizer)),
        ("batch", gib(planned.batch)),
        ("temporaries of the step, gradients and activations among them", gib(planned.temporaries)),
        ("**all that the step holds**", gib(planned.held)),
    ]
    if planned.cache is not None:
        length = max(config.eval_lengths)
        rows.append((f"cache of one sequence of {length:,} tokens, in decoding", gib(planned.cache)))
    times = [
        (name, f"{x.share:.1%}{'' if x.share <= 1 else ' (too much)'}", duration(x.at_best), duration(x.typical))
        for name, x in predictions.items()
    ]
    return "\n\n".join(
        (
            f"# {escape_markdown(str(config.model.get('encoding', 'a model')))}, {planned.devices} devices",
            grid(("on each device", "bytes"), rows),
            f"{planned.flops:.3g} operations a step on all devices, attention over all pairs of tokens.",
            grid(("accelerator", "of its memory", "a step at best", "at 40 % of the peak"), times),
            "Memory is that of the program as XLA compiles it for CPUs; others fuse more or pad, and the workspace of matrix "
            "products is not counted: dense attention took half as much again on a CPU. Times are arithmetic "
            "from data sheets, without traffic between devices.",
        )
    )


def options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this command alone."""
    parser.add_argument("--devices", type=cli.positive, default=1, help="devices to plan for")
    names = dict(type=lambda text: text.split(","), default=[name for name in ACCELERATORS if name != "a100-40"])
    parser.add_argument("--accelerators", **names, help="names, with commas between")


if __name__ == "__main__":
    cli.run(main, __doc__, default_workdir=lambda config, given: cli.RUNS / "plan", options=options)
