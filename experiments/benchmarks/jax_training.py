"""The training step of a config, as `experiments.train` runs it, on random data that stay on the device."""

import statistics
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from experiments.benchmarks.contender import Call, step_seconds
from experiments.benchmarks.hlo import read_program

if TYPE_CHECKING:
    from ml_collections import ConfigDict

    from posjax.training.loop import Programs


def config_step(case: Mapping[str, Any]) -> Call:
    """The compiled step of a decoder (with a `length`) or a ViT (with an `image`), and the seconds of `steps` of them.

    The case says the sizes, `spec`, and perhaps `seeds`, trained in one program, and `fields` of the config.
    """
    programs, began = _programs(case), time.perf_counter()
    program = programs.step.lower(*programs.arguments()).compile()
    compile_seconds = time.perf_counter() - began
    state, batch, report = programs.start(None), _random_batch(programs, case), None

    def take() -> Any:
        nonlocal state, report
        state, report = program(state, batch)
        return report

    seconds = step_seconds(take, jax.block_until_ready, case["steps"])
    device = jax.devices()[0]
    figures = {
        "wall": seconds,
        "compile_seconds": compile_seconds,
        "flops": programs.work.flops,
        "mfu": None,
        **programs.work.speed(statistics.median(seconds)),
        "peak_bytes": (device.memory_stats() or {}).get("peak_bytes_in_use"),
        "kernels": read_program(program.as_text())["kernels"],
        "device": device.device_kind,
        "loss": np.asarray(report["loss"]).tolist(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S"),
    }
    return Call(None, program.memory_analysis().temp_size_in_bytes, figures=figures)


def config_call(case: Mapping[str, Any]) -> Call:
    """The call of that step, which begins where the call before it ended."""
    programs = _programs(case)
    program = programs.step.lower(*programs.arguments()).compile()
    state, batch = programs.start(None), _random_batch(programs, case)

    def send() -> Any:
        nonlocal state
        state, report = program(state, batch)
        return report

    return Call(lambda: jax.block_until_ready(send()), program.memory_analysis().temp_size_in_bytes, send)


def _programs(case: Mapping[str, Any]) -> "Programs":
    from posjax.training.loop import Programs
    from posjax.training.tasks import make_task

    config = training_config(case)
    return Programs(make_task(config), config, tuple(range(case.get("seeds", 1))))


def training_config(case: Mapping[str, Any]) -> "ConfigDict":
    """Returns the config of the case: configs/decoder.py on rows of one document each, or configs/vit.py."""
    from experiments.cli import load

    fields = {
        "model.encoding": case["spec"],
        "model.width": case["width"],
        "model.depth": case["depth"],
        "model.num_heads": case["heads"],
        "model.dtype": case["dtype"],
        "batch_size": case["batch"],
    }
    if "image" in case:
        config, kind = load("configs/vit.py"), "images"
        fields |= {"model.patch_size": case["patch"], "data.image_size": (case["image"],) * 2}
        fields |= {"data.classes": case["classes"], "eval_batch_size": case["batch"]}
    else:
        config, kind = load("configs/decoder.py"), "tokens"
        fields |= {"model.vocab_size": case["vocabulary"], "data.positions": "stream"}
        fields |= {"data.length": case["length"], "eval_lengths": (case["length"],)}
    config.update_from_flattened_dict({**fields, "data.name": f"synthetic_{kind}", **case.get("fields", {})})
    return config


def _random_batch(programs: "Programs", case: Mapping[str, Any]) -> Mapping[str, jax.Array]:
    """Returns a batch for every seed, on the devices."""
    from posjax.training.mesh import on_devices

    batch = {name: np.stack([leaf] * case.get("seeds", 1)) for name, leaf in programs.task.batches(0)[0].items()}
    return on_devices(programs.mesh, batch, runs=True, share=programs.share)
