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
    from posjax.training.loop import Programs
    from posjax.training.tasks import make_task

    config = training_config(case)
    programs = Programs(make_task(config), config, tuple(range(case.get("seeds", 1))))
    began = time.perf_counter()
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
        config, source = load("configs/vit.py"), _noise(case["batch"], case["image"], case["classes"])
        fields |= {"model.patch_size": case["patch"]}
    else:
        config, source = load("configs/decoder.py"), _noise((case["batch"] + 1) * case["length"])
        fields |= {"model.vocab_size": case["vocabulary"], "data.positions": "stream"}
        fields |= {"data.length": case["length"], "eval_lengths": (case["length"],)}
    config.update_from_flattened_dict({**fields, "data.name": source, **case.get("fields", {})})
    return config


def _noise(count: int, side: int | None = None, classes: int | None = None) -> str:
    """Registers a data set of so many random images, or of one text of so many random bytes; returns its name."""
    from posjax import data

    rng, name = np.random.default_rng(0), f"noise {count} {side} {classes}"
    if name in data.registered():
        return name

    def read(split: str, data_dir: Any) -> Any:
        del split, data_dir
        if side is None:
            return [rng.integers(32, 127, count, np.uint8).tobytes()]
        return rng.integers(256, size=(count, side, side, 3), dtype=np.uint8), rng.integers(classes, size=count)

    data.register(name, classes=classes, splits=("train", "validation" if side is None else "test"))(read)
    return name


def _random_batch(programs: "Programs", case: Mapping[str, Any]) -> Mapping[str, jax.Array]:
    """Returns a batch for every seed, on the devices; tokens are of the whole vocabulary."""
    from posjax.training.mesh import on_devices

    batch, seeds, rng = dict(programs.task.batches(0)[0]), case.get("seeds", 1), np.random.default_rng(0)
    for name in ("tokens", "targets") if "tokens" in batch else ():
        batch[name] = rng.integers(case["vocabulary"], size=batch[name].shape, dtype=np.int32)
    batch = {name: np.stack([leaf] * seeds) for name, leaf in batch.items()}
    return on_devices(programs.mesh, batch, runs=True, share=programs.share)
