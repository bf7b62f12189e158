"""What will a training need? Memory of each device by what holds it, operations of a step, and its time on accelerators.

    python -m experiments.plan --config=configs/decoder.py
    python -m experiments.plan --config=configs/decoder.py --devices=8 --config.batch_size=64 --accelerators=h100,tpu-v5e
    python -m experiments.plan --config=configs/vit.py --config.model.variant=B/16 --config.model.dtype=bfloat16

The program is the one that `experiments.train` would run, compiled for so many simulated devices on this machine and never
run; no parameter is made. Times on accelerators are arithmetic from data sheets, not measured: at best, and at 40 % of the
peak. What goes between devices is not counted. Under the workdir (runs/plan by default): plan.md and plan.json.
"""

import argparse
import pathlib
from collections.abc import Sequence

from ml_collections import ConfigDict

from experiments import cli

ACCELERATORS = ("a100-80", "h100", "h200", "b200", "tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e")


def main(
    config: ConfigDict, workdir: pathlib.Path, *, devices: int = 1, accelerators: Sequence[str] = ACCELERATORS
) -> None:
    """Plans, prints and writes.

    Args:
      devices: how many are simulated.
      accelerators: names of `experiments.cost.devices`.

    Raises:
      ValueError: an unknown accelerator, or what cannot be trained.
    """
    import json

    import jax

    from experiments.cost.devices import accelerator

    chosen = {name: accelerator(name) for name in accelerators}
    _simulate(devices)
    from experiments.cost.plan import plan, predict
    from posjax.files import replace_file
    from posjax.training.initial import as_started, start_of

    seeds = tuple(config.seeds) if "seeds" in config else (config.seed,)
    config = as_started(config, start_of(config))
    found = plan(config, seeds)
    text = _page(config, found, {name: predict(found, one) for name, one in chosen.items()})
    record = {**found._asdict(), "seeds": seeds, "jax": jax.__version__}
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


def _page(config: ConfigDict, found, predictions) -> str:
    from experiments.cost.table import duration, gib
    from posjax.describe.markdown import escape_markdown, grid

    parts = (
        ("parameters", found.parameters),
        ("state of the optimizer", found.optimizer),
        ("batch", found.batch),
        ("temporaries of the step, gradients among them", found.temporaries),
        ("- for the backward pass, as traced", found.activations),
        ("- of that, arrays of tokens by tokens", found.attention),
        ("**all that the step holds**", found.held),
    )
    if found.cache is not None:
        parts = (*parts, (f"cache of one sequence of {max(config.eval_lengths):,} tokens, in decoding", found.cache))
    rows = [(name, gib(size)) for name, size in parts]
    times = [
        (
            name,
            f"{one.share:.1%}{'' if one.share <= 1 else ' (too much)'}",
            duration(one.at_best),
            duration(one.typical),
        )
        for name, one in predictions.items()
    ]
    head = f"# {escape_markdown(str(config.model.get('encoding', 'a model')))}, {found.devices} devices"
    operations = f"{found.flops:.3g} operations a step on all devices, attention over all pairs of tokens."
    return "\n\n".join(
        (
            head,
            grid(("on each device", "bytes"), rows),
            operations,
            grid(("accelerator", "of its memory", "a step at best", "at 40 % of the peak"), times),
            "Memory is that of the program as XLA compiles it for CPUs; others fuse more or pad, and what a product of "
            "matrices works in is not counted: dense attention took half as much again on a CPU. Times are arithmetic "
            "from data sheets, without what goes between devices.",
        )
    )


def options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this command alone."""
    parser.add_argument("--devices", type=cli.positive, default=1, help="devices to plan for")
    names = dict(type=lambda text: text.split(","), default=list(ACCELERATORS))
    parser.add_argument("--accelerators", **names, help="names, with commas between")


if __name__ == "__main__":
    cli.run(main, __doc__, default_workdir=lambda config, given: cli.RUNS / "plan", options=options)
