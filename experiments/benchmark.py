"""Measures costs, time and memory: of attention and models beside other libraries, of long inputs, of trainings.

    python -m experiments.benchmark plan --config=configs/decoder.py --devices=8 --config.batch_size=64
    python -m experiments.benchmark attention                  # minutes; --quick: three of them
    python -m experiments.benchmark attention --lengths=2048,4096 --threads=1 --only="alibi;causal"
    python -m experiments.benchmark attention --only="H=4 n=2048 f: posjax"        # --list shows the names
    python -m experiments.benchmark all --peers_python=../peers/bin/python --out=results/benchmark
    python -m experiments.benchmark published --checkpoint=gemma-3-270m --threads=1,all --peers_python=../peers/bin/python
    python -m experiments.benchmark context --config=configs/decoder.py --memory=24GiB        # how long may the input be?
    python -m experiments.benchmark plan --config=configs/vit.py --config.model.variant=B/16 --accelerators=h100,tpu-v5e
    python -m experiments.benchmark plan --config=configs/decoder.py --compile=v5e:2x4,h100:8        # with their compilers
    python -m experiments.benchmark plan --config=configs/papers/full/fox_125m.py --row=rope --compile=h100:8
    python -m experiments.benchmark compiled --out=results/compiled      # every encoding; again: the rest
    python -m experiments.benchmark accelerator --out=DIR                # as much as fits 9 minutes; again: the rest
    python -m experiments.benchmark accelerator --part=1/4 --out=DIR     # a quarter of it, for one of four machines
    python -m experiments.benchmark training --peers_python=../peers/bin/python --out=DIR      # the same, of training steps
    python -m experiments.benchmark pipelines --peers_python=../peers/bin/python --out=results/pipelines     # --threads=all

Every contender has a process of its own; the head of the table says how it is measured. Under --out: table.md and
results.jsonl. New measurements replace old ones of their suite there. Errors are one line and exit code 2.
--peers_python names a Python that has torch and transformers; contenders whose package is missing are left out.

context: every program of a decoder (forward pass, training step, step of cached decoding; dense, blockwise and windowed
attention) is compiled for every length, which tells its memory without using it, unless it is predicted to need more than
twice --memory; it is run where it fits and a call is predicted to take at most --seconds.

plan: the program that `experiments.train` would run is compiled for --devices simulated devices, and is never run. Memory and
operations are XLA's own analysis. Times on accelerators are arithmetic from data sheets: at best, and at 40 % of the peak.
Of a study it is the training of a row, with all seeds and on random data. With --compile it is compiled for named machines by
the compilers of TPUs and GPUs, which need no such device: does it fit, which attention kernels run, what is sent. Programs
that were compiled before are read from programs.jsonl under --out.

compiled: one layer under every encoding, and training steps of known models, compiled for machines in the same way. The page
is README.md under --out. The same command goes on; a record that is deleted from results.jsonl is made anew.

accelerator: every encoding's output and gradients by every implementation are compared with dense attention on a GPU or
TPU, and attention, training steps and seeds are timed; on a CPU everything is small. It needs jax, jaxtyping, flax, optax and
numpy alone. A check that fails, hangs or ends its process is a record too. Records are written as they come, and the same
command goes on with the checks that are left. docs/accelerator.md says how to read its table.

training: steps of decoders and ViTs as `experiments.train` runs them, whose packages it needs, beside torch.compile and timm:
tokens or images a second, MFU, seconds of compiling and memory. It goes on, and is small on a CPU, as `accelerator` does.

pipelines: batches of streamed pictures and of windows of tokens, beside torch's DataLoader with timm's transforms, numpy's
memmap, and tf.data where TensorFlow is installed beside torch. Pictures are painted once, below the directory of runs.
"""

import argparse
import contextlib
import functools
import importlib.metadata
import inspect
import math
import os
import pathlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from experiments import cli
from experiments.benchmarks import accelerator, cases, compiled, described, inputs, machine, plan, runner, table
from experiments.benchmarks.compiled_page import compiled_text, machines_text
from experiments.benchmarks.findings import Record, cell_name, cell_text
from experiments.benchmarks.training import training, training_text
from experiments.benchmarks.units import bytes_of, gib
from experiments.studies.environment import add_fast_flags, set_fast_flags
from posjax.environment import compiler_flags
from posjax.extras import require
from posjax.jsonl import append_jsonl, read_jsonl

if TYPE_CHECKING:
    from ml_collections import ConfigDict

_MAKERS = (
    *(cases.attention, cases.window, cases.rotary, cases.tile, cases.step, cases.decode, cases.newest, cases.models),
    *(cases.memory, cases.published, cases.pipelines),
)
SUITES = {make.__name__: make for make in _MAKERS}
_APART = PUBLISHED, PIPELINES, CONTEXT, PLAN, ACCELERATOR, COMPILED, TRAINING = (
    *("published", "pipelines", "context", "plan", "accelerator", "compiled", "training"),
)
_SUITES = list(dict.fromkeys((*SUITES, *_APART, "all")))
OUT = cli.RUNS / "benchmark"
_DAY = 86_400.0  # seconds: the step of a large model may take minutes to compile
_COMPILING = 7200.0  # seconds: so long may a program of the table be compiled
_STEPS = 300.0  # seconds: so long may a training's step be compiled and taken; more is a hang


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    made = parser(next((word for word in argv if word in _SUITES), ""))
    config, args = cli.read(made, argv) if {CONTEXT, PLAN} & set(argv) else (None, made.parse_args(argv))

    def work() -> None:
        if args.list:
            for job in _jobs(config, argv, args):
                turns = chosen_turns(job.make(args.quick, args.lengths, job.threads[0]), args)
                print(*(f"{cell_name(cell)}: {c.name}" for cell, part in turns for c in part), sep="\n")
            return
        args.out = cli.writable(args.out)
        print(write_table(args.out, sum(_measure(job, args) for job in _jobs(config, argv, args))))
        print(args.out / "table.md", *sorted(args.out.glob("results*.jsonl")), sep="\n")

    return cli.answer(work, args.imports, traceback=args.traceback)


def parser(suite: str) -> argparse.ArgumentParser:
    """Returns the parser of the command with the options of a suite; of "" with those that all suites have."""
    made = cli.parser("benchmark", __doc__)
    made.set_defaults(quick=False, lengths=None, memory=None, peers_python=None)
    add = made.add_argument
    about = f"what to measure; all: but {', '.join(_APART)}. SUITE --help shows its options"
    add("suite", choices=_SUITES, help=about)
    about = "only contenders with one of these in the name that --list shows"
    add("--only", default="", metavar="TEXT;TEXT", help=about)
    add("--list", action="store_true", help="print the names of cells and contenders, and measure nothing")
    add("--part", type=cli.part_from(1), default=(1, 1), metavar="I/N", help="the I-th of N parts of the cells, from 1")
    add("--cell_seconds", type=float, help=f"timing of a cell (default: 15, --quick 4, {ACCELERATOR} 2)")
    out = cli.RUNS / suite if suite in (ACCELERATOR, COMPILED, TRAINING) else OUT
    add("--out", type=cli.directory, default=out, metavar="DIR", help="default: %(default)s")
    if suite in (CONTEXT, PLAN):
        add("--config", metavar="FILE", help="config of a training")
    if suite in (*SUITES, "all", CONTEXT):
        about = "1, all or 1,all: one pinned core, all cores (default: 1, and all for attention, window and context)"
        add("--threads", choices=("1", "all", "1,all"), metavar="CORES", help=about)
        lengths = lambda text: tuple(sorted(map(cli.positive, text.split(","))))  # noqa: E731
        add("--lengths", type=lengths, metavar="N,N", help="tokens, instead of the suite's own")
        about = "most for a program, as 24GiB (default: half of the free memory)"
        add("--memory", type=bytes_of, metavar="SIZE", help=about)
    if suite in (*SUITES, "all"):
        add("--quick", action="store_true", help="few sizes and rounds")
        about = "a Python that has torch and transformers (default: this one)"
        add("--peers_python", metavar="PATH", help=about)
    if suite == TRAINING:
        add("--peers_python", metavar="PATH", help="a Python that has torch and timm (default: no peers)")
        add_fast_flags(made)
    if suite == PUBLISHED:
        add("--checkpoint", type=pathlib.Path, metavar="DIR", help="folder of a decoder of transformers")
    if suite == CONTEXT:
        add("--seconds", type=float, default=10.0, help="longest call (default: 10)")
        add("--window", type=cli.positive, default=512, help="keys of windowed attention (default: 512)")
        add("--batch", type=cli.positive, default=1, help="sequences in a call (default: 1)")
    if suite in (ACCELERATOR, TRAINING):
        add("--seconds", type=float, default=540.0, help="end by then (default: 540)")
    if suite == PLAN:
        names = lambda text: text.split(",")  # noqa: E731
        add("--devices", type=cli.positive, help="devices to plan for (default: 1)")
        add("--accelerators", type=names, metavar="NAME,NAME", help=f"of {', '.join(plan.ACCELERATORS)}")
        about = f"machines to compile for, as v5e:2x4,v6e:1x1,h100:8, of the chips {', '.join(described.CHIPS)}"
        add("--compile", type=names, metavar="NAME,NAME", help=about)
        add("--row", metavar="LABEL", help="row of a study that is trained (default: the first)")
        add("--checkpoint", type=pathlib.Path, metavar="DIR", help="weights that the rows of a study tune")
    return made


class Job(NamedTuple):
    """A suite to measure.

    Attributes:
      make: function of (quick, lengths, threads).
      threads: numbers of cores.
      given: the field `given` of every record; None if they have none.
      end: time of `time.monotonic` at which to stop.
      keeps: whether a record of an earlier call is kept; None: the suite is measured anew.
    """

    name: str
    make: Callable[..., cases.Suite]
    threads: Sequence[int]
    settings: runner.Settings
    given: Mapping[str, object] | None = None
    end: float = math.inf
    keeps: Callable[[Record], bool] | None = None


def _jobs(config: "ConfigDict | None", argv: Sequence[str], args: argparse.Namespace) -> list[Job]:
    """Returns the suites that the command line names.

    Raises:
      ValueError: the config, the checkpoint, a machine or an accelerator does not do; jax does not start.
      ImportError: a compiler or a package is not installed.
    """
    free, quick = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), args.quick
    limits = dict(cell_seconds=args.cell_seconds or (4 if quick else 15), memory_bytes=args.memory or free / 2)
    settings = runner.Settings(3 if quick else 9, call_seconds=2 if quick else 45, **limits)
    cores = len(os.sched_getaffinity(0))
    counts = {"1": [1], "all": [cores], "1,all": [1, cores]}
    command = cli.command_line("benchmark", argv)
    if args.suite == CONTEXT:
        given, case = inputs.case_of(config, settings.memory_bytes, args.window, args.batch, args.imports)
        given |= {"seconds": args.seconds, "command": command}
        settings = settings._replace(memory_bytes=2 * settings.memory_bytes, call_seconds=given["seconds"])
        make = functools.partial(inputs.inputs_suite, case)
        return [Job(CONTEXT, make, counts[args.threads or "all"], settings, given)]
    if args.suite == PLAN:
        config = plan.config_of_row(config, args.row, args.checkpoint)
        given = plan.given_of(config, args.accelerators) | {"command": command}
        make = functools.partial(plan.plan_suite, argv, args.imports, args.devices or 1)
        if args.compile:
            if args.devices or args.accelerators:
                raise ValueError("--compile names machines: leave out --devices and --accelerators")
            machines = [described.machine_of(name) for name in args.compile]
            described.require_compilers(machines)
            cache = "" if args.list else str(args.out / "programs.jsonl")
            make = lambda *_: compiled.plan_suite(argv, args.imports, machines, cache)  # noqa: E731
        return [Job(PLAN, make, [cores], settings._replace(prepare_seconds=_DAY), given)]
    if args.suite in (ACCELERATOR, TRAINING):
        cores = max(2, cores)  # more than one are timed by the clock, which an accelerator needs
        return [_accelerator_job(args, cores) if args.suite == ACCELERATOR else _training_job(args, cores, command)]
    if args.suite == COMPILED:
        suite, version = compiled.compiled_suite(), importlib.metadata.version("jax")
        if not args.list:
            described.require_compilers([described.machine_of(c.name) for c in suite.contenders])
        keeps = lambda record: record["versions"]["jax"] == version  # noqa: E731
        settings = settings._replace(prepare_seconds=_COMPILING)
        return [Job(COMPILED, lambda *_: suite, [cores], settings, keeps=keeps)]
    makers = {name: SUITES[name] for name in ([args.suite] if args.suite in SUITES else SUITES) if name not in _APART}
    if args.suite == PIPELINES:
        require(f"benchmark {PIPELINES}", "grain", "PIL")
        makers[PIPELINES] = functools.partial(cases.pipelines, folder=str((cli.RUNS / PIPELINES).resolve()))
    if args.suite == PUBLISHED:
        if not (args.checkpoint and (args.checkpoint / "config.json").exists()):
            raise ValueError(f"--checkpoint={args.checkpoint}: give a folder of transformers, with config.json")
        makers[PUBLISHED] = functools.partial(cases.published, folder=str(args.checkpoint.resolve()))
    threads = {name: args.threads or ("1,all" if name in ("attention", "window") else "1") for name in makers}
    return [Job(name, make, counts[threads[name]], settings) for name, make in makers.items()]


def _accelerator_job(args: argparse.Namespace, cores: int) -> Job:
    """Returns the checks of this machine's accelerator, until the time is over."""
    end, versions = time.monotonic() + args.seconds, _versions(cores)
    settings = runner.Settings(5, args.cell_seconds or 2.0, call_seconds=10.0, prepare_seconds=120.0)
    suite = accelerator.accelerator(versions["platform"])
    code = versions, machine.about()["commit"]
    keeps = lambda record: (record["versions"], record["about"]["commit"]) == code  # noqa: E731
    return Job(ACCELERATOR, lambda *_: suite, [cores], settings, end=end, keeps=keeps)


def _training_job(args: argparse.Namespace, cores: int, command: str) -> Job:
    """Returns the training steps of posjax, and of its peers if a Python was named, until the time is over.

    A record is kept if the commit, the flags and posjax' versions are the same. A peer without its package is tried again.
    """
    require(f"benchmark {TRAINING}", "ml_collections", "grain", "tensorflow_datasets", "PIL", "orbax")
    end = time.monotonic() + args.seconds
    if args.fast_flags:
        set_fast_flags()
    versions, flags, commit = _versions(cores), compiler_flags(), machine.about()["commit"]

    def keeps(record: Record) -> bool:
        same = (record["given"]["flags"], record["about"]["commit"]) == (flags, commit)
        used = record.get("versions", {})
        return same and (used == versions or ("torch" in used and "is not installed" not in (record["skip"] or "")))

    suite = training(versions["platform"], bool(args.peers_python))
    settings, given = runner.Settings(prepare_seconds=_STEPS), {"flags": flags, "command": command}
    return Job(TRAINING, lambda *_: suite, [cores], settings, given, end=end, keeps=keeps)


def _versions(cores: int) -> Mapping[str, str]:
    """Returns the versions and the device that a process of jax measures.

    Raises:
      ValueError: jax does not start here.
    """
    begin = functools.partial(runner.Worker, pythons={"jax": sys.executable}, cpus=None, threads=cores)
    with contextlib.closing(begin(cases.Contender("", "jax", {}))) as worker:
        about = worker.about
    if reason := about.get("skip"):
        raise ValueError(f"jax does not start here: {reason}; this command needs jax, jaxtyping, flax, optax and numpy")
    return about["versions"]


def _measure(job: Job, args: argparse.Namespace) -> int:
    """Measures the chosen turns of a suite; returns the number of measurements that `job.end` cut off.

    The records of a turn, and a table with them, are on disk before the next one.
    """
    about, left = machine.about(), 0
    index, count = args.part
    for threads in job.threads:
        suite = job.make(args.quick, args.lengths, threads)
        turns = chosen_turns(suite, args)
        path = args.out / ("results.jsonl" if count == 1 else f"results-{index}of{count}.jsonl")
        if job.keeps is not None:
            done = [record for record in _records(args.out, job.name) if job.keeps(record)]
            names = {(record["cell"]["title"], record["contender"]) for record in done}
            turns = [(cell, part) for cell, part in turns if (cell["title"], part[0].name) not in names]
            print(f"{len(turns)} to measure, {len(done)} are there already", flush=True)
        elif path.exists():  # drops the records of an earlier run of the suite
            own = job.name, threads
            kept = [record for record in read_jsonl(path) if (record["suite"], record["threads"]) != own]
            path.unlink()
            append_jsonl(path, kept)
        left = total = sum(len(part) for _, part in turns)
        began = time.monotonic()
        shared = {"suite": job.name, "threads": threads, "about": about} | ({"given": job.given} if job.given else {})
        cpus = [max(os.sched_getaffinity(0))] if threads == 1 else None
        pythons = {"jax": sys.executable, "torch": args.peers_python or sys.executable}
        begin = functools.partial(runner.Worker, pythons=pythons, cpus=cpus, threads=threads)
        for records in runner.run_suite(suite, turns, begin, job.settings, end=job.end):
            records = [{**record, **shared} for record in records]
            append_jsonl(path, records)
            left -= len(records)
            spent = time.monotonic() - began
            still = spent / (total - left) * left  # as if all took the same time
            for record in records:
                text = f"{cell_text(record)}: {record['contender']}: {table.outcome(record)}"
                print(f"{spent:6.0f} s, about {still:.0f} s left  {text}", flush=True)
            write_table(args.out, left if job.keeps else 0)
    records = _records(args.out, job.name)
    if job.name == PLAN and (reason := records[0]["skip"]):
        raise ValueError(reason)
    if job.name == CONTEXT and not any(record["seconds"] for record in records):
        memory = gib(job.given["memory"])
        raise ValueError(f"no program fits {memory}: raise --memory, or give shorter --lengths or a smaller model")
    return left


def chosen_turns(suite: cases.Suite, args: argparse.Namespace) -> list[cases.Turn]:
    """Returns the turns with the chosen names, and of these the chosen part."""
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


def _records(out: pathlib.Path, suite: str | None = None) -> list[Record]:
    """Returns the records of all parts, of all suites or of one."""
    records = [record for path in sorted(out.glob("results*.jsonl")) for record in read_jsonl(path)]
    return [record for record in records if suite in (None, record["suite"])]


def write_table(out: pathlib.Path, left: int = 0) -> str:
    """Writes the table of all records; `left` checks of an accelerator are still to be made."""
    from posjax.files import replace_file

    records = _records(out)
    if pages := [record for record in records if record["suite"] == COMPILED]:
        replace_file(out / "README.md", (text := compiled_text(pages, left)).encode())
        return text
    parts = ["# Benchmark", table.about_text(records)]
    if any(record["suite"] not in (PLAN, ACCELERATOR, TRAINING) for record in records):
        parts.append(table.HOW)
    for name in [*SUITES, CONTEXT, PLAN, ACCELERATOR, TRAINING]:
        if own := [record for record in records if record["suite"] == name]:
            parts += [f"## {name}", _section(name, own, left)]
            parts += [f"Made by `{own[0]['given']['command']}`."] if "given" in own[0] else []
    text = "\n\n".join(parts) + "\n"
    replace_file(out / "table.md", text.encode())
    return text


def _section(name: str, records: Sequence[Record], left: int) -> str:
    """Returns the tables of a suite."""
    if name == CONTEXT:
        return inputs.inputs_text(records)
    if name == PLAN:
        return machines_text(records) if "programs" in records[-1] else plan.plan_text(records)
    if name in SUITES:
        return table.suite_text(inspect.getdoc(SUITES[name]), SUITES[name](False, None, 1), records)
    make = accelerator.accelerator if name == ACCELERATOR else training
    suite = make("cpu" if any(record.get("versions", {}).get("platform") == "cpu" for record in records) else "gpu")
    if left:
        more = f"{left} checks of this part are left: the same command goes on with them."
        suite = suite._replace(note=f"{suite.note}\n\n{more}")
    text = table.suite_text if name == ACCELERATOR else training_text
    return text(inspect.getdoc(make), suite, records)


if __name__ == "__main__":
    sys.exit(main())
