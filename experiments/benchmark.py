"""Measures time and memory: posjax beside its peers against goals, or how long the input of a decoder may be.

    python -m experiments.benchmark attention                  # minutes; --quick: three of them
    python -m experiments.benchmark attention --lengths=2048,4096 --threads=1 --only=alibi,causal
    python -m experiments.benchmark all --peers_python=../peers/bin/python --out=results/benchmark

    python -m experiments.benchmark context --config=configs/decoder.py --memory=24GiB        # how long may the input be?
    python -m experiments.benchmark context --config=configs/decoder.py --lengths=4096,65536 --seconds=60 --window=1024

The peers are torch's and transformers', which posjax does not need: --peers_python names a Python that has them
(pip install torch transformers); missing packages are left out, with a line that says so. Every contender has a process
of its own; see the head of the table for how it is measured. Under --out: table.md, results.jsonl and a plot of each
suite. New measurements replace old ones there, the rest stays. Errors are one line and exit
code 2.

The suite `context` takes a config of a decoder, with overrides as --config.model.encoding=alibi. Every program (forward pass,
training step, step of cached decoding; dense, blockwise and windowed attention) is compiled for every length, which tells
its memory without using it, unless it is predicted to need more than twice --memory; it is run where it fits and a call is
predicted to take at most --seconds.

The suite `accelerator` checks and times everything on a GPU or TPU; it has options of its own, which
`python -m experiments.benchmark accelerator --help` shows.
"""

import argparse
import functools
import inspect
import os
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from experiments import cli
from experiments.benchmarks import findings, inputs, machine, pool, running, suites, suites_of_costs, table
from experiments.benchmarks.accelerator import command as accelerator
from experiments.benchmarks.plots import Panel, against_length
from experiments.benchmarks.units import bytes_of, gib

if TYPE_CHECKING:
    from ml_collections import ConfigDict

SUITES = {
    "attention": suites.attention,
    "window": suites.window,
    "rotary": suites.rotary,
    "tile": suites_of_costs.tile,
    "step": suites_of_costs.step,
    "decode": suites_of_costs.decode,
    "newest": suites_of_costs.newest,
    "models": suites_of_costs.models,
    "memory": suites_of_costs.memory,
}
CONTEXT, ACCELERATOR = "context", "accelerator"
OUT = cli.RUNS / "benchmark"


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == [ACCELERATOR]:
        return accelerator.main(argv[1:])
    if CONTEXT not in argv:
        config, args = None, _parser().parse_args(argv)
    else:
        try:
            config, args = cli.read(_parser(), argv)
        except (cli.UsageError, SyntaxError, *cli.USER_ERRORS) as error:
            return cli.tell(cli.message_of(error))

    def work() -> None:
        cli.writable(args.out)
        if args.suite == CONTEXT:
            _measure_inputs(config, args)
        for name in {"all": SUITES, CONTEXT: ()}.get(args.suite, [args.suite]):
            _measure(name, SUITES[name], args)
        _write(args.out)

    return cli.answer(work, args.imports, traceback=args.traceback)


def _parser() -> argparse.ArgumentParser:
    parser = cli.parser("benchmark", __doc__)
    add = parser.add_argument
    add(
        "suite",
        choices=[*SUITES, CONTEXT, ACCELERATOR, "all"],
        help="what to measure; all: but context and accelerator",
    )
    add("--quick", action="store_true", help="few sizes and rounds")
    add(
        "--threads",
        type=_threads,
        help="1, all or 1,all: one pinned core, all cores (default: 1, and all for attention and window)",
    )
    add("--lengths", type=_numbers, metavar="N,N", help="tokens, instead of the suite's own")
    add("--heads", type=_numbers, metavar="N,N", help="only these numbers of heads")
    add("--modes", type=_names, metavar="f,fb", help="only forward (f), or forward and backward (fb)")
    add("--only", type=_names, metavar="NAME,NAME", help="only contenders with one of these in their name")
    add("--peers_python", default=sys.executable, metavar="PATH", help="a Python that has torch and transformers")
    add("--call_seconds", type=float, help="longest call that is tried (default: 45, --quick 2)")
    add("--cell_seconds", type=float, help="timing of all contenders in a cell (default: 15, --quick 4)")
    add(
        "--memory",
        type=_bytes,
        metavar="SIZE",
        help="most for a program, as 24GiB (default: half of what is free)",
    )
    add("--config", metavar="FILE", help="of context: the config of a language model")
    add("--seconds", type=float, default=10.0, help="of context: longest time of a call (default: 10)")
    add("--window", type=cli.positive, default=512, help="of context: keys of windowed attention (default: 512)")
    add("--batch", type=cli.positive, default=1, help="of context: sequences in a call (default: 1)")
    add("--out", type=pathlib.Path, default=OUT, metavar="DIR", help=f"default: {OUT}")
    return parser


def _measure_inputs(config: "ConfigDict", args: argparse.Namespace) -> None:
    """Measures how long the input of a config's decoder may be.

    Raises:
      ValueError: for a config that is not a language model's; for a memory that no program fits.
    """
    from posjax.jsonl import strict

    if config.get("task") != "language_model":
        raise ValueError("the input of a language model has a length: give the config of one, as configs/decoder.py")
    memory = args.memory or _settings(args).memory_bytes
    given = {"model": strict(config.model.to_dict()), "memory": memory, "window": args.window, "batch": args.batch}
    case = {**given, "optimizer": strict(config.optimizer.to_dict()), "steps": config.steps, "imports": args.imports}
    settings = _settings(args)._replace(memory_bytes=2 * memory, call_seconds=args.seconds)
    extra = {"given": {**given, "seconds": args.seconds, "command": cli.command_line("benchmark")}}
    _measure(CONTEXT, lambda quick, lengths, threads: inputs.suite(lengths, case), args, settings, extra)
    records = _records(args.out, CONTEXT)
    if not any(record["seconds"] for record in records):
        least = min((r for r in records if r.get("held_bytes")), key=lambda r: r["held_bytes"], default=None)
        needed = (
            f": the smallest needs {gib(least['held_bytes'])} at {least['cell']['length']:,} tokens" if least else ""
        )
        mend = "raise --memory, or give shorter --lengths or a smaller model"
        raise ValueError(f"no program fits {gib(memory)}{needed}; {mend}")


def _records(out: pathlib.Path, suite: str) -> list[findings.Record]:
    from posjax.jsonl import read_jsonl

    return [record for record in read_jsonl(out / "results.jsonl") if record["suite"] == suite]


def _measure(
    name: str,
    make: Callable[..., suites.Suite],
    args: argparse.Namespace,
    settings: pool.Settings | None = None,
    extra: Mapping[str, object] | None = None,
) -> None:
    """Measures a suite; its records, with `extra`, are on disk after each cell."""
    from experiments.studies.running import bar
    from posjax.jsonl import append_jsonl

    default = {"attention": (1, 0), "window": (1, 0), CONTEXT: (0,)}.get(name, (1,))
    about, counts = machine.about(), args.threads or default
    for threads in [count or len(os.sched_getaffinity(0)) for count in counts]:
        suite = _chosen(make(args.quick, args.lengths, threads), args)
        _forget(args.out / "results.jsonl", name, threads)
        cores = "1 core" if threads == 1 else f"{threads} cores"
        with bar(len(suite.cells), "cell", desc=f"{name}, {cores}") as progress:
            options = (name, suite, threads, {"torch": args.peers_python}, settings or _settings(args))
            told = functools.partial(progress.set_postfix, refresh=False)
            for records in running.run(*options, on_cell=told):
                append_jsonl(
                    args.out / "results.jsonl", [{**record, "about": about, **(extra or {})} for record in records]
                )
                progress.update()


def _chosen(suite: suites.Suite, args: argparse.Namespace) -> suites.Suite:
    """The suite with the chosen modes, lengths and contenders alone."""
    keep = [c for c in suite.contenders if not args.only or any(part in c.name for part in args.only)]
    if not keep:
        raise ValueError(
            f"--only={','.join(args.only)}: the contenders are {', '.join(c.name for c in suite.contenders)}"
        )
    cells = [
        cell
        for cell in suite.cells
        if (not args.heads or cell.get("heads", args.heads[0]) in args.heads)
        and (not args.modes or cell["mode"] in args.modes)
    ]
    if not cells:
        raise ValueError("--heads and --modes leave nothing to measure")
    return suite._replace(contenders=keep, cells=cells)


def _settings(args: argparse.Namespace) -> pool.Settings:
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return pool.Settings(
        rounds=3 if args.quick else 9,
        cell_seconds=args.cell_seconds or (4 if args.quick else 15),
        call_seconds=args.call_seconds or (2 if args.quick else 45),
        memory_bytes=args.memory or free / 2,
    )


def _forget(path: pathlib.Path, suite: str, threads: int) -> None:
    """Drops what an earlier run of a suite left."""
    from posjax.jsonl import append_jsonl, read_jsonl

    if path.exists():
        kept = [record for record in read_jsonl(path) if (record["suite"], record["threads"]) != (suite, threads)]
        path.unlink()
        append_jsonl(path, kept)


def _write(out: pathlib.Path) -> None:
    """The table and the plots of all that is in results.jsonl."""
    from posjax.files import replace_file
    from posjax.jsonl import read_jsonl

    records, paths = read_jsonl(out / "results.jsonl"), []
    parts = ["# Benchmark", table.about_text(records)]
    for name, make in SUITES.items():
        own = [record for record in records if record["suite"] == name]
        if own:
            suite = make(False, None, 1)
            found = findings.judge(own, suite.goals, suite.controls)
            note = " ".join(filter(None, (inspect.getdoc(make), suite.note)))
            parts.append(table.to_markdown(name, own, found, note).rstrip())
            paths += _plots(name, table.panels(own), out, columns=3)
    if own := [record for record in records if record["suite"] == CONTEXT]:
        parts += [f"## {CONTEXT}", inputs.to_markdown(own), f"Made by `{own[0]['given']['command']}`."]
        paths += _plots(CONTEXT, inputs.panels(own), out, columns=2)
    text = "\n\n".join(parts) + "\n"
    replace_file(out / "table.md", text.encode())
    print(text)
    print(out / "table.md", out / "results.jsonl", *paths, sep="\n")


def _plots(name: str, panels: Sequence[Panel], out: pathlib.Path, columns: int) -> list[pathlib.Path]:
    """One picture of a suite's time and memory, if it was measured at several lengths."""
    from posjax.describe.figures import save

    return [save(against_length(panels, columns=columns), out / f"{name}.png", dpi=120)] if panels else []


def _threads(text: str) -> tuple[int, ...]:
    """1 for one core, 0 for all."""
    known = {"1": 1, "all": 0}
    if not set(text.split(",")) <= set(known):
        raise argparse.ArgumentTypeError(f"expected 1, all or 1,all, got {text!r}")
    return tuple(known[part] for part in text.split(","))


def _numbers(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(f"expected positive whole numbers with commas between, got {text!r}")
    return tuple(sorted(map(int, parts)))


def _bytes(text: str) -> float:
    try:
        return bytes_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(error) from error


def _names(text: str) -> Sequence[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


if __name__ == "__main__":
    sys.exit(main())
