"""The suite of an accelerator: its loop with one process, its time limit, its records, and its requirements."""

import argparse
import json
import os
import pathlib
import subprocess
import sys

import pytest

from experiments import benchmark
from experiments.benchmarks import pool, running, table
from experiments.benchmarks.accelerator import accelerator
from experiments.benchmarks.agreement import agrees
from experiments.benchmarks.pool import Contender, Ended, Settings
from experiments.benchmarks.suites import Suite

REPO = pathlib.Path(__file__).parents[1]
VERSIONS = {"jax": "1", "platform": "gpu", "device": "a fast one"}
# Python that hides the packages that a machine with an accelerator may lack.
ABSENT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        absent = "ml_collections", "grain", "tensorflow_datasets", "orbax", "matplotlib", "scipy", "tqdm", "torch"
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""


class Fake:
    """A worker that takes `seconds` a check, by a clock [seconds], and does what the check's case says."""

    def __init__(self, clock, log):
        self.clock, self.log, self.about = clock, log, {"versions": VERSIONS}
        log.append("start")

    def close(self):
        self.log.append("close")

    def ask(self, limit, do, case=None, repeats=1):
        if do == "run":
            return {"cpu": 0.1, "wall": 0.2}
        self.log.append(case["name"])
        self.clock[0] += min(case.get("seconds", 1.0), limit)
        if case.get("seconds", 1.0) > limit or case.get("dies"):
            raise Ended("no answer")
        return case["reply"]


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(pool, "PAUSE_SECONDS", 0)


TIMED = {"seconds": 0.2, "temp_bytes": 8}
UNWELL = {"temp_bytes": None, "found": {"pallas": {"error": "XlaRuntimeError: INTERNAL: illegal address"}}}


def check(name, reply=TIMED, fresh=False, **case):
    case = {"name": name, "kind": "attend", "reply": reply, **case}
    return Contender(name, "accelerator", case, {"title": [name]}, fresh)


def run(some, seconds=1000.0, prepare=100.0):
    clock, log = [0.0], []
    cells = [{"title": each.name, "mode": "f", "length": 8} for each in some]
    suite = Suite(some, cells, (), {}, one_by_one=True)
    settings = Settings(rounds=3, prepare_seconds=prepare)
    begin = lambda contender: Fake(clock, log)  # noqa: E731
    turns = running.run_suite("s", suite, suite.turns(), 2, begin, settings, end=seconds, now=lambda: clock[0])
    return [record for records in turns for record in records], log


def test_one_worker_serves_all_but_those_that_want_their_own():
    records, log = run([check("a"), check("b"), check("c", fresh=True), check("d")])
    assert log == ["start", "a", "b", "close", "start", "c", "d", "close"]
    assert [record["contender"] for record in records] == ["a", "b", "c", "d"]
    assert records[0]["wall"] == [0.2] * 3
    assert records[0]["versions"] == VERSIONS


@pytest.mark.parametrize("bad", [check("b", dies=True), check("b", reply=UNWELL), check("b", seconds=200.0)])
def test_a_check_that_dies_hangs_or_hurts_the_device_costs_no_other(bad):
    records, log = run([check("a"), bad, check("c")])
    assert log == ["start", "a", "b", "close", "start", "c", "close"]
    assert [record["contender"] for record in records] == ["a", "b", "c"]
    assert "no answer" in (records[1]["skip"] or "") or "illegal" in str(records[1]["found"])


def test_it_ends_in_time_and_what_time_cut_off_is_left_for_the_next_run():
    records, log = run([check("a", seconds=50.0), check("b", seconds=90.0), check("c")], seconds=100.0)
    assert [record["contender"] for record in records] == ["a"]
    assert log[-1] == "close"


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_parts_have_all_checks_once_and_keep_cells_together(platform):
    suite = accelerator(platform)
    every = [(cell["title"], contender.name) for cell, (contender,) in suite.turns()]
    assert len(set(every)) == len(every) > 150
    parts = []
    for index in (1, 2, 3, 4):
        args = argparse.Namespace(suite="accelerator", part=(index, 4), only="")
        parts.append([(cell["title"], contender.name) for cell, (contender,) in benchmark.chosen_turns(suite, args)])
    assert sorted(name for part in parts for name in part) == sorted(every)
    titles = [{title for title, _ in part} for part in parts]
    assert all(len(own) > 20 for own in titles)
    assert sum(map(len, titles)) == len(set.union(*titles))
    kernels = {contender.case.get("implementation") for _, (contender,) in suite.turns()}
    kernels -= {None, "auto", "dense", "blockwise", "xla"}
    assert kernels == {"cpu": set(), "gpu": {"pallas", "cudnn"}, "tpu": {"splash"}}[platform]


SHARED = dict(suite="accelerator", threads=2, skip=None, temp_bytes=None, peak_bytes=None, load=0.5, versions=VERSIONS)
SHARED["about"] = dict(processor="P", cpus=2, memory="1 GiB", platform="L", commit="abc")


def timed(contender, wall):
    cell = {"title": "attention, f, 64", "mode": "f", "length": 64}
    return {**SHARED, "contender": contender, "cell": cell, "wall": wall, "temp_bytes": 2**20}


def compared(spec, **found):
    cell = {"title": spec, "mode": "compare", "spec": spec, "dtype": "float32"}
    return {**SHARED, "contender": "against dense", "cell": cell, "wall": None, "found": found}


def test_the_table_says_what_agrees_and_what_is_fastest(tmp_path):
    records = [
        compared("rope()", pallas={"errors": {"output": 1e-6}}, cudnn={"refused": "it is float32"}),
        compared("alibi()", pallas={"errors": {"output": 1e-6, "tokens": 0.5}}, blockwise={"error": "TypeError: no"}),
        compared("t5()", pallas={"errors": {"output": "NaN"}}),
        timed("alibi, pallas", [0.2, 0.2, 0.2]) | {"runs": 10},
        timed("alibi, dense", [0.06]),
        timed("jax.nn, cuDNN, no encoding", [0.01]),
        compared("none") | {"skip": "RuntimeError: out of memory"},
    ]

    def page(records, left):
        (tmp_path / "results-1of2.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        return benchmark.write_table(tmp_path, left)

    text = page(records, 3)
    assert "| pallas | float32 | 1 | 2 | 0 | 0 | inf, t5() |" in text
    assert "| cudnn | float32 | 0 | 0 | 0 | 1 |  |" in text
    assert "alibi(), blockwise: TypeError: no" in text
    assert "tokens 5.0e-01" in text
    assert "| attention, f, 64 | alibi, pallas | 20 | 0.0% | 3 | 1.0 |  | 2.00 |" in text
    assert "| alibi | f | 64 | pallas | 3.00x dense |" in text
    assert "none: RuntimeError: out of memory" in text
    assert "3 checks of this part are left" in text
    assert "device a fast one" in text
    assert "CPU" not in text
    small = [{**records[0], "versions": {**VERSIONS, "platform": "cpu"}}]
    assert "This was run on a CPU, in small" in page(small, 0)
    told = [table.outcome(record) for record in records]
    assert told[:2] == ["pallas agrees", "pallas DIFFERS, blockwise DIFFERS"]
    assert told[3:5] == ["20 ms", "60 ms"]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--part=5/4", "I from 1 to N"),
        ("--onl=a", "did you mean --only"),
        ("--part=1", "I/N"),
        ("--quick", "leave it out"),
    ],
)
def test_mistakes_are_one_line(argument, message, capsys):
    try:
        code = benchmark.main(["accelerator", argument, "--list"])
    except SystemExit as left:
        code = left.code
    assert code == 2
    assert message in capsys.readouterr().err


def test_it_is_imported_without_what_a_machine_with_an_accelerator_may_lack():
    code = f"""{ABSENT}
import experiments.benchmark
ours = [name for name in sys.modules if name.partition(".")[0] == "absl"]
import experiments.benchmarks.accelerator_side, experiments.benchmarks.worker
print(ours)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr[-2000:]


@pytest.mark.slow
def test_it_runs_in_small_on_a_cpu_and_goes_on_where_it_was(tmp_path):
    """The whole way, with what may be absent absent: workers, records, the table, and a second call."""
    (tmp_path / "sitecustomize.py").write_text(ABSENT)
    only = "kernel, kerple();seeds;decoder step: none, auto;attention, fb, 128: alibi"
    command = [sys.executable, "-m", "experiments.benchmark", "accelerator", f"--out={tmp_path}", f"--only={only}"]
    cheap = {name: os.environ[name] for name in ("JAX_DISABLE_MOST_OPTIMIZATIONS", "XLA_FLAGS") if name in os.environ}
    environment = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    environment |= {"JAX_PLATFORMS": "cpu", **cheap}
    told = [subprocess.run(command, cwd=REPO, capture_output=True, text=True, env=environment).stdout for _ in range(2)]
    records = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    names = [(record["cell"]["title"], record["contender"]) for record in records]
    assert len(set(names)) == len(records) >= 6
    assert not [record["skip"] for record in records if record["skip"]]
    (kernel,) = (record for record in records if "found" in record)
    ran = {name: result for name, result in kernel["found"].items() if "refused" not in result}
    assert {"blockwise", "dense", "pallas_interpret"} == set(ran)
    assert all(agrees(kernel, result) for result in ran.values())
    assert "This was run on a CPU, in small" in (tmp_path / "table.md").read_text()
    assert "0 checks on cpu" in told[1]
