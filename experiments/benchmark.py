"""Measures time and memory: posjax beside its peers against goals, or how long the input of a decoder may be.

    python -m experiments.benchmark attention                  # minutes; --quick: three of them
    python -m experiments.benchmark attention --lengths=2048,4096 --threads=1 --only="alibi;causal"
    python -m experiments.benchmark attention --only="H=4 n=2048 f: posjax"        # --list shows the names
    python -m experiments.benchmark all --peers_python=../peers/bin/python --out=results/benchmark
    python -m experiments.benchmark published --checkpoint=gemma-3-270m --threads=1,all --peers_python=../peers/bin/python

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

The suite `accelerator` compares every encoding's output and gradients by every implementation with dense attention on a GPU
or TPU, and times attention, training steps and seeds; on a CPU everything is small. It needs jax, jaxtyping, flax, optax and
numpy alone. A check that fails, hangs or ends its process is a record too. Records are written as they come, and the same
command goes on with the checks that are left. docs/accelerator.md says how to read its table.

    python -m experiments.benchmark accelerator --out=DIR                # as much as fits 9 minutes; again: the rest
    python -m experiments.benchmark accelerator --part=1/4 --out=DIR     # a quarter of it, for one of four machines
    python -m experiments.benchmark accelerator --only="kernel;fb, 4096: alibi" --out=DIR
    python -m experiments.benchmark accelerator --list                   # the names of all checks here, and nothing more
"""

import argparse
import contextlib
import functools
import math
import os
import pathlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from experiments import cli
from experiments.benchmarks import inputs, machine, pool, running, suites, suites_of_costs, table
from experiments.benchmarks.accelerator import accelerator
from experiments.benchmarks.findings import Record, cell_name, cell_text
from experiments.benchmarks.plots import Panel, against_length
from experiments.benchmarks.units import bytes_of, gib
from posjax.jsonl import append_jsonl, read_jsonl, strict

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
    "published": suites_of_costs.published,
}
PUBLISHED, CONTEXT, ACCELERATOR = "published", "context", "accelerator"
OUT = cli.RUNS / "benchmark"
_CORES = {"1": (1,), "all": (0,), "1,all": (1, 0)}  # numbers of cores, 0 for all


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        config, args = cli.read(_parser(), argv) if CONTEXT in argv else (None, _parser().parse_args(argv))
    except (cli.UsageError, SyntaxError, *cli.USER_ERRORS) as error:
        return cli.tell(error)

    def work() -> None:
        left = 0
        if not args.list:
            args.out = cli.writable(args.out or (cli.RUNS / ACCELERATOR if args.suite == ACCELERATOR else OUT))
        if args.suite == CONTEXT:
            _measure_inputs(config, args)
        elif args.suite == ACCELERATOR:
            left = _measure_device(args)
        else:
            for name in [name for name in SUITES if name != PUBLISHED] if args.suite == "all" else [args.suite]:
                _measure(name, _published(args) if name == PUBLISHED else SUITES[name], args)
        if not args.list:
            _write(args.out, left)

    return cli.answer(work, args.imports, traceback=args.traceback)


def _parser() -> argparse.ArgumentParser:
    parser = cli.parser("benchmark", __doc__)
    add = parser.add_argument
    add(
        "suite",
        choices=[*SUITES, CONTEXT, ACCELERATOR, "all"],
        help="what to measure; all: but published, context and accelerator",
    )
    add("--quick", action="store_true", help="few sizes and rounds")
    add(
        "--threads",
        choices=list(_CORES),
        metavar="CORES",
        help="1, all or 1,all: one pinned core, all cores (default: 1, and all for attention and window)",
    )
    add("--lengths", type=_numbers, metavar="N,N", help="tokens, instead of the suite's own")
    add(
        "--only",
        default="",
        metavar="TEXT;TEXT",
        help="only contenders with one of these in the name that --list shows",
    )
    add("--list", action="store_true", help="print the names of cells and contenders, and measure nothing")
    add("--part", type=_part, default=(1, 1), metavar="I/N", help="the I-th of N parts of the cells, from 1")
    add("--peers_python", default=sys.executable, metavar="PATH", help="a Python that has torch and transformers")
    add("--call_seconds", type=float, help="longest call that is tried (default: 45, --quick 2, accelerator 10)")
    add("--cell_seconds", type=float, help="timing of a cell (default: 15, --quick 4, accelerator 2)")
    add("--memory", type=bytes_of, metavar="SIZE", help="most for a program, as 24GiB (default: half of what is free)")
    add("--config", metavar="FILE", help="of context: the config of a language model")
    add("--checkpoint", type=pathlib.Path, metavar="DIR", help="of published: the folder of a decoder of transformers")
    add(
        "--seconds",
        type=float,
        help="of context: longest time of a call (default: 10); of accelerator: end by then (default: 540)",
    )
    add("--window", type=cli.positive, default=512, help="of context: keys of windowed attention (default: 512)")
    add("--batch", type=cli.positive, default=1, help="of context: sequences in a call (default: 1)")
    add("--out", type=cli.directory, metavar="DIR", help=f"default: {OUT}; of accelerator: {cli.RUNS / ACCELERATOR}")
    return parser


def _published(args: argparse.Namespace) -> Callable[..., suites.Suite]:
    """Returns the maker of the suite for a folder.

    Raises:
      ValueError: for a missing folder, or one without config.json.
    """
    if args.checkpoint is None or not (args.checkpoint / "config.json").exists():
        raise ValueError(
            f"--checkpoint={args.checkpoint} is no folder with config.json: give one that transformers reads"
        )
    return functools.partial(SUITES[PUBLISHED], folder=str(args.checkpoint.resolve()))


def _measure_inputs(config: "ConfigDict", args: argparse.Namespace) -> None:
    """Measures how long the input of a config's decoder may be.

    Raises:
      ValueError: for a config that is not a language model's; for a memory that no program fits.
    """
    if config.get("task") != "language_model":
        raise ValueError("the input of a language model has a length: give the config of one, as configs/decoder.py")
    memory, seconds = args.memory or _settings(args).memory_bytes, args.seconds or 10.0
    given = {"model": strict(config.model.to_dict()), "memory": memory, "window": args.window, "batch": args.batch}
    case = {**given, "optimizer": strict(config.optimizer.to_dict()), "steps": config.steps, "imports": args.imports}
    settings = _settings(args)._replace(memory_bytes=2 * memory, call_seconds=seconds)
    extra = {"given": {**given, "seconds": seconds, "command": cli.command_line("benchmark")}}
    _measure(CONTEXT, lambda quick, lengths, threads: inputs.inputs_suite(lengths, case), args, settings, extra)
    records = [] if args.list else _records(args.out, CONTEXT)
    if records and not any(record["seconds"] for record in records):
        least = min((r for r in records if r.get("held_bytes")), key=lambda r: r["held_bytes"], default=None)
        needed = (
            f": the smallest needs {gib(least['held_bytes'])} at {least['cell']['length']:,} tokens" if least else ""
        )
        mend = "raise --memory, or give shorter --lengths or a smaller model"
        raise ValueError(f"no program fits {gib(memory)}{needed}; {mend}")


def _measure_device(args: argparse.Namespace) -> int:
    """Makes the checks of this machine's accelerator that are left, until the time is over; returns how many still are.

    Raises:
      ValueError: jax does not start here, or an option is for other suites.
    """
    if unused := [f"--{name}" for name in ("quick", "lengths", "threads", "memory", "config") if getattr(args, name)]:
        raise ValueError(f"{', '.join(unused)}: the suite {ACCELERATOR} has its own, leave it out")
    end = time.monotonic() + (args.seconds or 540.0)
    module, cores = "experiments.benchmarks.accelerator_side", len(os.sched_getaffinity(0))
    try:
        with pool.Worker(module, sys.executable, None, cores) as worker:
            about = worker.about
    except pool.Ended as reason:
        raise ValueError(f"jax does not start here: {reason}") from None
    if reason := about.get("skip"):
        raise ValueError(f"{reason}: this command needs jax, jaxtyping, flax, optax and numpy")
    suite, versions = accelerator(about["versions"]["platform"]), about["versions"]
    limits = dict(cell_seconds=args.cell_seconds or 2.0, call_seconds=args.call_seconds or 10.0)
    settings = pool.Settings(rounds=5, prepare_seconds=120.0, **limits)
    threads = max(2, cores)  # more than one is timed by the clock, which an accelerator needs
    return _measure_turns(ACCELERATOR, suite, threads, args, settings, end=end, versions=versions)


def _measure(
    name: str,
    make: Callable[..., suites.Suite],
    args: argparse.Namespace,
    settings: pool.Settings | None = None,
    extra: Mapping[str, object] | None = None,
) -> None:
    """Measures a suite on one core, on all or on both."""
    default = {"attention": "1,all", "window": "1,all", CONTEXT: "all"}.get(name, "1")
    counts = [count or len(os.sched_getaffinity(0)) for count in _CORES[args.threads or default]]
    for threads in counts[:1] if args.list else counts:
        _measure_turns(name, make(args.quick, args.lengths, threads), threads, args, settings or _settings(args), extra)


def _measure_turns(
    name: str,
    suite: suites.Suite,
    threads: int,
    args: argparse.Namespace,
    settings: pool.Settings,
    extra: Mapping[str, object] | None = None,
    *,
    end: float = math.inf,
    versions: Mapping[str, str] | None = None,
) -> int:
    """Measures the chosen turns of a suite; returns the number of measurements that `end` cut off.

    Args:
      extra: fields of every record; the records of a turn, and a table with them, are on disk before the next one.
      versions: versions of a device, whose records by this code are kept; other suites are measured anew.
    """
    began, about, turns = time.monotonic(), machine.about(), chosen_turns(suite, args)
    if args.list:
        print(*(f"{cell_name(cell)}: {c.name}" for cell, part in turns for c in part), sep="\n")
        return 0
    index, count = args.part
    path = args.out / ("results.jsonl" if count == 1 else f"results-{index}of{count}.jsonl")
    if versions is None:
        _forget(path, name, threads)
    else:
        code = versions, about["commit"]
        done = [r for r in _records(args.out, name) if (r["versions"], r["about"]["commit"]) == code]
        names = {(record["cell"]["title"], record["contender"]) for record in done}
        turns = [(cell, part) for cell, part in turns if (cell["title"], part[0].name) not in names]
        print(f"{len(turns)} checks on {versions['device']}, {len(done)} are there already", flush=True)
    left = sum(len(part) for _, part in turns)
    cpus = [max(os.sched_getaffinity(0))] if threads == 1 else None
    pythons = {"torch": args.peers_python}
    begin = functools.partial(pool.start_worker, interpreters=pythons, cpus=cpus, threads=threads)
    with _progress(left, name, threads) if versions is None else contextlib.nullcontext() as progress:
        write = functools.partial(print, flush=True) if progress is None else progress.write
        for records in running.run_suite(name, suite, turns, threads, begin, settings, end=end):
            append_jsonl(path, [{**record, "about": about, **(extra or {})} for record in records])
            for record in records:
                text = f"{cell_text(record)}: {record['contender']}: {table.outcome(record)}"
                write(f"{time.monotonic() - began:6.0f} s  {text}")
            if progress is not None:
                progress.update(len(records))
            left -= len(records)
            write_table(args.out, left if versions else 0)
    return left


def _progress(total: int, name: str, threads: int) -> Any:
    """Returns a bar of contenders; a machine with an accelerator may lack its library."""
    from experiments.studies.running import bar

    return bar(total, "contender", desc=f"{name}, {threads} core{'s' if threads > 1 else ''}")


def chosen_turns(suite: suites.Suite, args: argparse.Namespace) -> list[suites.Turn]:
    """The turns with the chosen names, and of these the chosen part."""
    texts = [text.strip() for text in args.only.split(";")]
    turns = []
    for cell, part in suite.turns():
        part = [c for c in part if any(text in f"{cell_name(cell)}: {c.name}" for text in texts)]
        turns += [(cell, part)] if part else []
    if not turns:
        raise ValueError(f"--only={args.only}: nothing has that in its name; --list shows the names")
    index, count = args.part
    own = list(dict.fromkeys(cell_name(cell) for cell, _ in turns))[index - 1 :: count]
    return [(cell, part) for cell, part in turns if cell_name(cell) in own]


def _settings(args: argparse.Namespace) -> pool.Settings:
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return pool.Settings(
        rounds=3 if args.quick else 9,
        cell_seconds=args.cell_seconds or (4 if args.quick else 15),
        call_seconds=args.call_seconds or (2 if args.quick else 45),
        memory_bytes=args.memory or free / 2,
    )


def _forget(path: pathlib.Path, suite: str, threads: int) -> None:
    """Drops the records of an earlier run of a suite."""
    if path.exists():
        kept = [record for record in read_jsonl(path) if (record["suite"], record["threads"]) != (suite, threads)]
        path.unlink()
        append_jsonl(path, kept)


def _records(out: pathlib.Path, suite: str | None = None) -> list[Record]:
    """The records of all parts, of all suites or of one."""
    records = [record for path in sorted(out.glob("results*.jsonl")) for record in read_jsonl(path)]
    return [record for record in records if suite in (None, record["suite"])]


def write_table(out: pathlib.Path, left: int = 0) -> str:
    """Writes the table of all records; `left` checks of an accelerator are still to be made."""
    from posjax.files import replace_file

    records = _records(out)
    parts = ["# Benchmark", table.about_text(records)]
    if any(record["suite"] != ACCELERATOR for record in records):
        parts.append(table.HOW)
    for name, make in SUITES.items():
        if own := [record for record in records if record["suite"] == name]:
            parts.append(table.suite_text(name, make, make(False, None, 1), own))
    if own := [record for record in records if record["suite"] == CONTEXT]:
        parts += [f"## {CONTEXT}", inputs.inputs_text(own), f"Made by `{own[0]['given']['command']}`."]
    if own := [record for record in records if record["suite"] == ACCELERATOR]:
        suite = accelerator("cpu" if any(r["versions"]["platform"] == "cpu" for r in own) else "gpu")
        if left:
            more = f"{left} checks of this part are left: the same command goes on with them."
            suite = suite._replace(note=f"{suite.note}\n\n{more}")
        parts.append(table.suite_text(ACCELERATOR, accelerator, suite, own))
    text = "\n\n".join(parts) + "\n"
    replace_file(out / "table.md", text.encode())
    return text


def _write(out: pathlib.Path, left: int = 0) -> None:
    """Writes the table and the plots of all records, and prints it."""
    text = write_table(out, left)
    records = _records(out)
    plots = {name: (table.cost_panels([r for r in records if r["suite"] == name]), 3) for name in SUITES}
    if own := [record for record in records if record["suite"] == CONTEXT]:
        plots[CONTEXT] = inputs.input_panels(own), 2
    paths = [_plot(out / f"{name}.png", panels, columns) for name, (panels, columns) in plots.items() if panels]
    print(text)
    print(out / "table.md", *sorted(out.glob("results*.jsonl")), *paths, sep="\n")


def _plot(path: pathlib.Path, panels: Sequence[Panel], columns: int) -> pathlib.Path:
    from posjax.describe.figures import save

    return save(against_length(panels, columns=columns), path, dpi=120)


def _part(text: str) -> tuple[int, int]:
    index, slash, count = text.partition("/")
    if not (index.isdigit() and count.isdigit() and 1 <= int(index) <= int(count)):
        raise argparse.ArgumentTypeError(f"expected I/N with I from 1 to N, as in 1/4, got {text!r}")
    return int(index), int(count)


def _numbers(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(f"expected positive whole numbers with commas between, got {text!r}")
    return tuple(sorted(map(int, parts)))


if __name__ == "__main__":
    sys.exit(main())
