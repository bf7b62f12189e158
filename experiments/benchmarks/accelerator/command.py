"""Checks and timings on a GPU or TPU, by one command that needs jax, flax, optax and numpy alone.

    python -m experiments.benchmark accelerator --out=DIR                  # what fits 9 minutes; again: what is left
    python -m experiments.benchmark accelerator --part=1/4 --out=DIR       # a quarter of it, for one of four machines
    python -m experiments.benchmark accelerator --only="kernel;fb, 4096: alibi" --out=DIR
    python -m experiments.benchmark accelerator --list                     # the names of all checks here, and nothing more

Every encoding's output and gradients by every implementation against dense attention, in float32 and bfloat16; attention
with and without encodings by length against cuDNN, and against cuDNN with the bias as an array; training steps with the peak
of the device's memory; seeds in one vmap against one by one. Records are written as they come, so a run that is cut off
keeps them and the same command goes on. A check that fails, hangs or ends its process is a record too. On a CPU everything
is small, and the table says so. docs/accelerator.md says how to read it. Under --out: table.md and results.jsonl (of a part
results-1of4.jsonl; the table is made of all that are there). Errors are one line and exit code 2.
"""

import argparse
import os
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from experiments import cli

if TYPE_CHECKING:
    from experiments.benchmarks.accelerator.checks import Check

OUT = cli.RUNS / "accelerator"
_SECONDS = 540.0
_SIDE = "experiments.benchmarks.accelerator.side"


def main(argv: list[str]) -> int:
    """Runs the arguments behind `accelerator`; returns the exit code."""
    args = _parser().parse_args(argv)

    def work() -> None:
        began = time.monotonic()
        if not args.list:
            cli.writable(args.out)
        worker = _begin()
        with worker:
            checks = _chosen(worker.about["versions"]["platform"], args)
            if args.list:
                print(*(check.name for check in checks), sep="\n")
                return
            _measure(checks, worker, args, began)

    return cli.answer(work, traceback=args.traceback)


def _parser() -> argparse.ArgumentParser:
    parser = cli.parser("benchmark accelerator", __doc__, imports=False)
    add = parser.add_argument
    add("--part", type=_part, default=(1, 1), metavar="I/N", help="the I-th of N parts, from 1")
    add("--seconds", type=float, default=_SECONDS, help=f"end by then (default: {_SECONDS:g})")
    add("--only", type=_names, default=(), metavar="TEXT;TEXT", help="only checks with one of these in their name")
    add("--list", action="store_true", help="print the names of the checks")
    add("--out", type=pathlib.Path, default=OUT, metavar="DIR", help=f"default: {OUT}")
    return parser


def _begin() -> Any:
    """A worker whose jax has found its device.

    Raises:
      ValueError: it has not.
    """
    from experiments.benchmarks.pool import Ended, Worker

    try:
        worker = Worker(_SIDE, sys.executable, None, os.cpu_count())
    except Ended as reason:
        raise ValueError(f"jax does not start here: {reason}") from None
    if reason := worker.about.get("skip"):
        worker.close()
        raise ValueError(f"{reason}: this command needs jax, jaxtyping, flax, optax and numpy")
    return worker


def _chosen(platform: str, args: argparse.Namespace) -> "list[Check]":
    from experiments.benchmarks.accelerator.checks import all_checks, part_of

    every = all_checks(platform)
    checks = [check for check in every if not args.only or any(part in check.name for part in args.only)]
    if not checks:
        raise ValueError(f"--only={';'.join(args.only)}: no check has that in its name; --list shows them")
    return part_of(checks, *args.part)


def _measure(checks: "Sequence[Check]", worker: Any, args: argparse.Namespace, began: float) -> None:
    from experiments.benchmarks.accelerator import running
    from experiments.benchmarks.pool import Settings
    from posjax.environment import commit
    from posjax.jsonl import append_jsonl, strict

    index, count = args.part
    path = args.out / ("results.jsonl" if count == 1 else f"results-{index}of{count}.jsonl")
    about = {"commit": commit(), "date": time.strftime("%Y-%m-%d")}
    done = {
        r["name"] for r in _records(args.out) if (r["versions"], r["commit"]) == (_versions(worker), about["commit"])
    }
    todo = [check for check in checks if check.name not in done]
    settings = Settings(rounds=5, cell_seconds=2.0, call_seconds=10.0, prepare_seconds=120.0)
    limit = args.seconds - (time.monotonic() - began)
    print(f"{len(todo)} checks on {_versions(worker)['device']}, {len(done)} are there already", flush=True)
    for record in running.run(todo, worker, _begin, seconds=limit, settings=settings):
        append_jsonl(path, [strict({**record, **about})])
        done.add(record["name"])
        print(f"{time.monotonic() - began:6.0f} s  {record['name']}: {_told(record)}", flush=True)
        _write(args.out, len(checks) - len(done.intersection(check.name for check in checks)))
    _write(args.out, len(checks) - len(done.intersection(check.name for check in checks)))


def _versions(worker: Any) -> dict[str, str]:
    return worker.about["versions"]


def _records(out: pathlib.Path) -> list[dict[str, Any]]:
    """The records of all parts."""
    from posjax.jsonl import read_jsonl

    return [record for path in sorted(out.glob("results*.jsonl")) for record in read_jsonl(path)]


def _write(out: pathlib.Path, left: int) -> None:
    from experiments.benchmarks.accelerator.table import to_markdown
    from posjax.files import replace_file

    if records := _records(out):
        replace_file(out / "table.md", to_markdown(records, left).encode())


def _told(record: dict[str, Any]) -> str:
    from experiments.benchmarks.accelerator.table import agrees, seconds

    if record.get("skip"):
        return record["skip"]
    if record.get("wall"):
        return f"{1e3 * seconds(record):.4g} ms"
    found = {name: one for name, one in record.get("found", {}).items() if "refused" not in one}
    return ", ".join(f"{name} {'agrees' if agrees(record, one) else 'DIFFERS'}" for name, one in found.items())


def _part(text: str) -> tuple[int, int]:
    index, slash, count = text.partition("/")
    if not (index.isdigit() and count.isdigit() and 1 <= int(index) <= int(count)):
        raise argparse.ArgumentTypeError(f"expected I/N with I from 1 to N, as in 1/4, got {text!r}")
    return int(index), int(count)


def _names(text: str) -> Sequence[str]:
    return [part.strip() for part in text.split(";") if part.strip()]
