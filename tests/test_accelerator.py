"""The accelerator's command: its checks, its time limit, its records, and its requirements."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from experiments import benchmark
from experiments.benchmarks import pool
from experiments.benchmarks.accelerator import checks, running, table
from experiments.benchmarks.accelerator.checks import Check
from experiments.benchmarks.pool import Ended, Settings

REPO = pathlib.Path(__file__).parents[1]
VERSIONS = {"jax": "1", "platform": "gpu", "device": "a fast one"}
# What a machine with an accelerator may lack.
ABSENT = ("ml_collections", "grain", "tensorflow_datasets", "orbax", "matplotlib", "scipy", "tqdm", "torch")


class Clock:
    def __init__(self):
        self.time = 0.0

    def __call__(self):
        return self.time


class Fake:
    """A worker that takes `seconds` a check and does what the check's case says."""

    def __init__(self, clock, log):
        self.clock, self.log, self.about = clock, log, {"versions": VERSIONS}
        log.append("start")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.log.append("close")

    def ask(self, limit, do, case=None, repeats=1):
        if do == "run":
            return {"cpu": 0.1, "wall": 0.2}
        self.log.append(case["name"])
        self.clock.time += min(case.get("seconds", 1.0), limit)
        if case.get("seconds", 1.0) > limit or case.get("dies"):
            raise Ended("no answer")
        return case["reply"]


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(pool, "PAUSE_SECONDS", 0)


TIMED = {"seconds": 0.2, "temp_bytes": 8}
UNWELL = {"temp_bytes": None, "found": {"pallas": {"error": "XlaRuntimeError: INTERNAL: illegal address"}}}


def check(name, reply=TIMED, fresh=False, **case):
    return Check(name, name, {"name": name, "kind": "attend", "reply": reply, **case}, fresh)


def run(some, seconds=1000.0, prepare=100.0):
    clock, log = Clock(), []
    begin = lambda: Fake(clock, log)  # noqa: E731
    settings = Settings(rounds=3, prepare_seconds=prepare)
    return list(running.run(some, begin(), begin, seconds=seconds, settings=settings, now=clock)), log


def test_one_worker_serves_all_but_those_that_want_their_own():
    records, log = run([check("a"), check("b"), check("c", fresh=True), check("d")])
    assert log == ["start", "a", "b", "close", "start", "c", "d", "close"]
    assert [record["name"] for record in records] == ["a", "b", "c", "d"]
    assert records[0]["wall"] == [0.2] * 3
    assert records[0]["versions"] == VERSIONS


@pytest.mark.parametrize("bad", [check("b", dies=True), check("b", reply=UNWELL), check("b", seconds=200.0)])
def test_a_check_that_dies_hangs_or_hurts_the_device_costs_no_other(bad):
    records, log = run([check("a"), bad, check("c")])
    assert log == ["start", "a", "b", "close", "start", "c", "close"]
    assert [record["name"] for record in records] == ["a", "b", "c"]
    assert "no answer" in records[1].get("skip", "") or "illegal" in str(records[1]["found"])


def test_it_ends_in_time_and_what_time_cut_off_is_left_for_the_next_run():
    slow = check("b", seconds=90.0)
    records, log = run([check("a", seconds=50.0), slow, check("c")], seconds=100.0)
    assert [record["name"] for record in records] == ["a"]
    assert log[-1] == "close"


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_parts_have_all_checks_once_and_keep_groups_together(platform):
    every = checks.all_checks(platform)
    names = [check.name for check in every]
    assert len(set(names)) == len(names) > 150
    parts = [checks.part_of(every, index, 4) for index in (1, 2, 3, 4)]
    assert sorted(check.name for part in parts for check in part) == sorted(names)
    assert all(len({check.group for check in part}) > 20 for part in parts)
    groups = [{check.group for check in part} for part in parts]
    assert sum(map(len, groups)) == len(set.union(*groups))
    kernels = {check.case.get("implementation") for check in every} - {None, "auto", "dense", "blockwise", "xla"}
    assert kernels == {"cpu": set(), "gpu": {"pallas", "cudnn"}, "tpu": {"splash"}}[platform]


def timed(name, group, wall, **case):
    case = {"kind": "attend", "spec": "alibi", "mode": "f", "length": 64, **case}
    return dict(name=f"{group}: {name}", group=group, case=case, wall=wall, temp_bytes=2**20, **SHARED)


SHARED = dict(versions=VERSIONS, commit="c", date="d")


def compared(spec, **found):
    return dict(
        name=spec, group=spec, case={"kind": "compare", "spec": spec, "dtype": "float32"}, found=found, **SHARED
    )


def test_the_table_says_what_agrees_and_what_is_fastest():
    records = [
        compared("rope()", pallas={"errors": {"output": 1e-6}}, cudnn={"refused": "it is float32"}),
        compared("alibi()", pallas={"errors": {"output": 1e-6, "tokens": 0.5}}, blockwise={"error": "TypeError: no"}),
        compared("t5()", pallas={"errors": {"output": "NaN"}}),
        timed("alibi, pallas", "attention, f, 64", [0.2, 0.2, 0.2], implementation="pallas") | {"runs": 10},
        timed("alibi, dense", "attention, f, 64", [0.06], implementation="dense"),
        timed("jax.nn, cuDNN, no encoding", "attention, f, 64", [0.01], kind="library"),
        {**compared("none", blockwise={}), "found": {}, "skip": "RuntimeError: out of memory"},
    ]
    text = table.to_markdown(records, left=3)
    assert "| pallas | float32 | 1 | 2 | 0 | 0 | inf, t5() |" in text
    assert "| cudnn | float32 | 0 | 0 | 0 | 1 |  |" in text
    assert "alibi(), blockwise: TypeError: no" in text
    assert "tokens 5.0e-01" in text
    assert "| alibi, pallas | 20 | 0% | 2.00 | 1.0 |  |" in text
    assert "| alibi | f | 64 | pallas | 3.00x dense |" in text
    assert "none: RuntimeError: out of memory" in text
    assert "3 checks of this part are left" in text
    assert "CPU" not in text
    small = [{**records[0], "versions": {**VERSIONS, "platform": "cpu"}}]
    assert "This was run on a CPU, in small" in table.to_markdown(small, left=0)


@pytest.mark.parametrize(
    ("argument", "message"), [("--part=5/4", "I from 1 to N"), ("--onl=a", "did you mean --only"), ("--part=1", "I/N")]
)
def test_mistakes_are_one_line(argument, message, capsys):
    with pytest.raises(SystemExit) as left:
        benchmark.main(["accelerator", argument])
    assert left.value.code == 2
    assert message in capsys.readouterr().err


def test_it_is_imported_without_what_a_machine_with_an_accelerator_may_lack():
    code = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ABSENT}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
import experiments.benchmark, experiments.benchmarks.accelerator.checks, experiments.benchmarks.accelerator.running
import experiments.benchmarks.accelerator.table, experiments.benchmarks.machine, posjax.jsonl
ours = [name for name in sys.modules if name.partition(".")[0] == "absl"]
import experiments.benchmarks.accelerator.side, experiments.benchmarks.worker
print(ours)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr[-2000:]


@pytest.mark.slow
def test_it_runs_in_small_on_a_cpu_and_goes_on_where_it_was(tmp_path):
    """The whole way, with what may be absent absent: workers, records, the table, and a second call."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] in {ABSENT}: raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
    )
    only = "kernel, kerple();seeds;decoder step: none, auto;attention, fb, 128: alibi"
    command = [sys.executable, "-m", "experiments.benchmark", "accelerator", f"--out={tmp_path}", f"--only={only}"]
    cheap = {name: os.environ[name] for name in ("JAX_DISABLE_MOST_OPTIMIZATIONS", "XLA_FLAGS") if name in os.environ}
    environment = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    environment |= {"JAX_PLATFORMS": "cpu", **cheap}
    told = [subprocess.run(command, cwd=REPO, capture_output=True, text=True, env=environment).stdout for _ in range(2)]
    records = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert len({record["name"] for record in records}) == len(records) >= 6
    assert not [record["name"] for record in records if record.get("skip")]
    (kernel,) = (record for record in records if "found" in record)
    assert {"blockwise", "dense", "pallas_interpret"} == set(kernel["found"])
    assert all(table.agrees(kernel, found) for found in kernel["found"].values())
    assert "This was run on a CPU, in small" in (tmp_path / "table.md").read_text()
    assert "0 checks on cpu" in told[1]
