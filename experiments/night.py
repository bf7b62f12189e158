"""The experiments of configs/papers/full: what a night of them takes on this machine, and the night.

    python -m experiments.night                      # trainings, operations, hours, memory and disk of each
    python -m experiments.night --device=H100 --devices=8
    python -m experiments.night --go --data FINEWEB=/data/fineweb DOCUMENTS=/data/long --workdir=runs/night

The plan computes nothing: shapes of parameters, on random data. Hours assume --mfu of the peak. --go trains one
experiment after the other, each by its own command, which the plan shows; the same command goes on where it was stopped. An
experiment whose data are not given is passed over. Errors are one line and exit code 2.
"""

import argparse
import pathlib
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

from experiments import cli

if TYPE_CHECKING:
    from ml_collections import ConfigDict

    from experiments.report.studies import KnownStudy

ORDER = ("partial_rope_124m", "length_107m", "fox_125m", "vit_s16_i1k", "rope_vit_s")
_GIB = 2**30


class Cost(NamedTuple):
    """What the trainings of a study take, one seed after the other."""

    trainings: int
    flops: float  # operations of all of them
    state: int  # bytes of the largest model's parameters and optimizer
    disk: int  # bytes of all checkpoints that are kept


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = cli.parser("night", __doc__, imports=False)
    add = parser.add_argument
    add("--device", help="a device whose peak is known, as H100; by default this machine's")
    add("--devices", type=cli.positive, help="number of devices; by default this machine's")
    add("--mfu", type=float, default=0.35, help="share of the peak (default: 0.35)")
    add("--go", action="store_true", help="train, one experiment after the other")
    add("--data", nargs="*", default=[], metavar="NAME=PATH", help="paths for the words in capitals of the commands")
    add("--workdir", type=pathlib.Path, default=cli.RUNS / "night", help="folder of the results (default: runs/night)")
    args = parser.parse_args(argv)
    return cli.answer(lambda: _night(args), traceback=args.traceback)


def _night(args: argparse.Namespace) -> int:
    from experiments.report.studies import study_of

    paths = dict(word.split("=", 1) for word in args.data if "=" in word)
    studies = [study_of(name) for name in ORDER]
    commands = [command_of(study, paths, args.workdir) for study in studies]
    if not args.go:
        _show(args, studies, commands)
        return 0
    for study, (command, missing) in zip(studies, commands, strict=True):
        if missing:
            print(f"{study.name} is passed over: give --data {missing}=PATH")
        elif code := subprocess.run([sys.executable, *command]).returncode:
            return code
    return 0


def command_of(study: "KnownStudy", paths: dict[str, str], workdir: pathlib.Path) -> tuple[list[str], str | None]:
    """Returns the arguments of Python for a study, and a word in capitals that has no path yet."""
    words = shlex.split(study.command.removeprefix("python "))
    words[-1] = f"--workdir={workdir / study.name}"
    flags = [word.split("=", 1) for word in words[2:]]
    missing = [value for _, value in flags if value.isupper() and value not in paths]
    given = [f"{name}={paths.get(value, value)}" for name, value in flags]
    return [*words[:2], *given], missing[0] if missing else None


def _show(args: argparse.Namespace, studies: list, commands: list) -> None:
    import jax

    from posjax.training.speed import PEAKS

    device, count = args.device or jax.devices()[0].device_kind, args.devices or jax.device_count()
    peak = next((PEAKS[name] for name in sorted(PEAKS, key=len, reverse=True) if name in device), None)
    if args.device and peak is None:
        raise ValueError(f"the peak of --device={device} is unknown; known: {', '.join(PEAKS)}")
    if peak is None:
        print(f"The peak of {device} is unknown: hours are those of an H100.")
        device, peak = "H100", PEAKS["H100"]
    hours = lambda flops: flops / (peak * count * args.mfu * 3600)  # noqa: E731
    print(f"{count} x {device} at {args.mfu:.0%} of {peak / 1e12:.0f} TFLOP/s\n")
    print(f"{'experiment':20}{'trainings':>10}{'FLOP':>10}{'hours':>8}{'GiB a device':>14}{'GiB on disk':>13}")
    costs = [cost(study.config) for study in studies]
    for study, each in zip(studies, costs, strict=True):
        numbers = f"{each.trainings:10}{each.flops:10.1e}{hours(each.flops):8.1f}"
        print(f"{study.name:20}{numbers}{each.state / _GIB:14.1f}{each.disk / _GIB:13.1f}")
    total = sum(each.flops for each in costs)
    print(f"{'all':20}{sum(each.trainings for each in costs):10}{total:10.1e}{hours(total):8.1f}\n")
    print("GiB a device: parameters and the optimizer's state, whole on each device, without activations.\n")
    for command, _ in commands:
        print("python", shlex.join(command))


def cost(config: "ConfigDict") -> Cost:
    """Returns what the trainings of a study's config take, by the first row of each table. Nothing is read or computed."""
    import jax

    from experiments.studies.plan import rows_of, seeds_of, tables_of
    from experiments.studies.planned import on_random_data
    from posjax.training.loop import Programs
    from posjax.training.tasks import make_task

    trainings, flops, largest, disk = 0, 0.0, 0, 0
    for name, table in tables_of(config).items():
        trained = {row.base: row.training for row in rows_of(name, table)}
        training = next(iter(trained.values()))  # operations of encodings are not counted
        small = on_random_data(training)
        with small.unlocked():
            small.update(batch_size=jax.device_count(), eval_batch_size=jax.device_count(), accumulate=1)
        programs = Programs(make_task(small), small, (0,))
        state = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(programs.shapes()[1:3]))
        count = len(trained) * len(seeds_of(config, table))
        trainings, largest = trainings + count, max(largest, state)
        flops += count * programs.work.flops * training.steps * training.batch_size / small.batch_size
        disk += count * state * (training.keep_last + 1)  # and the best one
    return Cost(trainings, flops, largest, disk)


if __name__ == "__main__":
    sys.exit(main())
