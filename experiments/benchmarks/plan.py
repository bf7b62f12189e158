"""The needs of a training: memory of each device by its holder, operations of a step, and its time on accelerators."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments.benchmarks.cases import Contender, Suite
from experiments.benchmarks.findings import Record
from experiments.benchmarks.units import duration, gib
from experiments.cli import is_study
from posjax.describe.markdown import escape_markdown, grid
from posjax.spec import nearest

if TYPE_CHECKING:
    from ml_collections import ConfigDict

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
_ABOUT = (
    "Memory is that of the program as XLA compiles it for CPUs; others fuse more or pad, and the workspace of matrix "
    "products is not counted: dense attention took half as much again on a CPU. Times are arithmetic "
    "from data sheets, without traffic between devices."
)
_HOLDERS = {
    "parameters": "parameters",
    "optimizer": "state of the optimizer",
    "batch": "batch",
    "temporaries": "temporaries of the step, gradients and activations among them",
    "held_bytes": "**all that the step holds**",
}


class Prediction(NamedTuple):
    """Seconds of a step on an accelerator, and the share of its memory that is filled."""

    at_best: float  # the longer of computing at the peak and of moving the state and the temporaries once each way
    typical: float  # at `TYPICAL` of the peak, and no faster than memory allows
    share: float


def config_of_row(config: "ConfigDict", row: str | None, checkpoint: pathlib.Path | None) -> "ConfigDict":
    """Returns the config of a single run: the given one, or of a study one of its trainings.

    Raises:
      ValueError: a row or a checkpoint without a study, or of no training.
    """
    if is_study(config):
        import jax

        from experiments.studies.planned import planned

        jax.config.update("jax_platforms", "cpu")  # nothing is run
        return planned(config, row, checkpoint)
    if row or checkpoint:
        raise ValueError("--row and --checkpoint are of a study, and --config is of a single run: leave them out")
    return config


def given_of(config: "ConfigDict", accelerators: Sequence[str] | None) -> dict[str, Any]:
    """Returns the encoding and the names of accelerators for the record; all but the smallest if None.

    Raises:
      ValueError: an unknown accelerator.
    """
    accelerators = accelerators or [name for name in ACCELERATORS if name != "a100-40"]
    for name in accelerators:
        if name not in ACCELERATORS:
            raise ValueError(f"no accelerator is named {name!r}; {nearest(name, list(ACCELERATORS))}")
    return {"encoding": str(config.model.get("encoding", "a model")), "accelerators": accelerators}


def plan_suite(arguments: Sequence[str], imports: Sequence[str], devices: int, *sizes: Any) -> Suite:
    """The training step of the config that the arguments name, compiled for so many simulated devices; no `sizes` matter."""
    environment = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
    case = {"kind": "plan", "arguments": list(arguments), "imports": imports}
    contender = Contender("training step", "jax", case, environment=environment)
    return Suite([contender], [{"mode": "plan", "devices": devices}])


def predict(figures: Mapping[str, float], devices: int, on: Accelerator) -> Prediction:
    """Returns the time of a step on devices of this kind, if none waits for another."""
    computing = figures["flops"] / devices / (on.half if figures["half"] else on.single)
    moving = 2 * (figures["parameters"] + figures["optimizer"] + figures["temporaries"]) / on.bandwidth
    return Prediction(max(computing, moving), max(computing / TYPICAL, moving), figures["held_bytes"] / on.memory)


def plan_text(records: Sequence[Record]) -> str:
    """Returns what each device holds, and the time of a step on accelerators."""
    *_, record = records
    if record["skip"]:
        return record["skip"]
    devices = record["cell"]["devices"]
    rows = [(name, gib(record[figure])) for figure, name in _HOLDERS.items()]
    if record["cache"] is not None:
        rows.append((f"cache of one sequence of {record['tokens']:,} tokens, in decoding", gib(record["cache"])))
    times = []
    for name in record["given"]["accelerators"]:
        prediction = predict(record, devices, ACCELERATORS[name])
        share = f"{prediction.share:.1%}{'' if prediction.share <= 1 else ' (too much)'}"
        times.append((name, share, duration(prediction.at_best), duration(prediction.typical)))
    return "\n\n".join(
        (
            f"{escape_markdown(record['given']['encoding'])}, {devices} devices.",
            grid(("on each device", "bytes"), rows),
            f"{record['flops']:.3g} operations a step on all devices, attention over all pairs of tokens.",
            grid(("accelerator", "of its memory", "a step at best", "at 40 % of the peak"), times),
            _ABOUT,
        )
    )
