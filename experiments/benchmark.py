"""Measures posjax against its peers, in one interleaved run, and says where it stands to what was set out to be reached.

    python -m experiments.benchmark attention                  # minutes; --quick: three of them
    python -m experiments.benchmark attention --lengths=2048,4096 --threads=1 --only=alibi,causal
    python -m experiments.benchmark all --peers_python=../peers/bin/python --out=results/benchmark

The peers are torch's and transformers', which posjax does not need: --peers_python names a Python that has them
(pip install torch transformers); what is not there is left out, with a line that says so. Every contender has a process
of its own; see the head of the table for how it is measured. Under --out: table.md, results.jsonl and a plot of each
suite. What is measured again is replaced there, the rest stays. Errors are one line and exit
code 2.
"""

import argparse
import functools
import inspect
import os
import pathlib
import platform
import sys
import time
from collections.abc import Sequence

from experiments import cli
from experiments.benchmarks import findings, pool, running, suites, suites_of_costs, table

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
OUT = cli.RUNS / "benchmark"


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    args = _parser().parse_args(argv)

    def work() -> None:
        cli.writable(args.out)
        for name in SUITES if args.suite == "all" else [args.suite]:
            _measure(name, args)
        _write(args.out)

    return cli.answer(work, traceback=args.traceback)


def _parser() -> argparse.ArgumentParser:
    parser = cli.parser("benchmark", __doc__, imports=False)
    add = parser.add_argument
    add("suite", choices=[*SUITES, "all"], help="what to measure")
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
    add("--memory", type=float, metavar="GIB", help="most that a contender may take (default: half of what is free)")
    add("--out", type=pathlib.Path, default=OUT, metavar="DIR", help=f"default: {OUT}")
    return parser


def _measure(name: str, args: argparse.Namespace) -> None:
    """Measures a suite; its records are on disk after each cell."""
    from experiments.studies.running import bar
    from posjax.jsonl import append_jsonl

    about, counts = _about(), args.threads or ((1, 0) if name in ("attention", "window") else (1,))
    for threads in [count or len(os.sched_getaffinity(0)) for count in counts]:
        suite = _chosen(SUITES[name](args.quick, args.lengths, threads), args)
        _forget(args.out / "results.jsonl", name, threads)
        cores = "1 core" if threads == 1 else f"{threads} cores"
        with bar(len(suite.cells), "cell", desc=f"{name}, {cores}") as progress:
            options = (name, suite, threads, {"torch": args.peers_python}, _settings(args))
            told = functools.partial(progress.set_postfix, refresh=False)
            for records in running.run(*options, on_cell=told):
                append_jsonl(args.out / "results.jsonl", [{**record, "about": about} for record in records])
                progress.update()


def _chosen(suite: suites.Suite, args: argparse.Namespace) -> suites.Suite:
    """The suite without what was not asked for."""
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
        memory_bytes=args.memory * 2**30 if args.memory else free / 2,
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
            paths += _plots(name, own, out)
    text = "\n\n".join(parts) + "\n"
    replace_file(out / "table.md", text.encode())
    print(text)
    print(out / "table.md", out / "results.jsonl", *paths, sep="\n")


def _plots(name: str, records: Sequence[findings.Record], out: pathlib.Path) -> list[pathlib.Path]:
    """One picture of a suite's time and memory, if it was measured at several lengths."""
    from experiments.cost.plots import against_length
    from posjax.describe.figures import save

    panels = table.panels(records)
    return [save(against_length(panels, columns=3), out / f"{name}.png", dpi=120)] if panels else []


def _about() -> dict[str, object]:
    from posjax.training.environment import commit

    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "memory": f"{total / 2**30:.0f} GiB",
        "platform": f"{platform.system()} {platform.machine()}",
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
    }


def _processor() -> str:
    """The processor's name, as Linux tells it, with what says more than the name of virtual machines."""
    path = pathlib.Path("/proc/cpuinfo")
    if not path.exists():
        return platform.processor() or platform.machine()
    fields = dict(line.split(":", 1) for line in path.read_text().split("\n\n")[0].splitlines() if ":" in line)
    fields = {name.strip(): value.strip() for name, value in fields.items()}
    name = fields.get("model name", platform.machine())
    where = f" (family {fields['cpu family']}, model {fields['model']})" if "cpu family" in fields else ""
    return name + where


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


def _names(text: str) -> Sequence[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


if __name__ == "__main__":
    sys.exit(main())
