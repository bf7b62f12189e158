"""The cost command: its runner with contenders of given times, its verdicts and its tables; nothing is timed here."""

import argparse
import json
import subprocess
import sys

import pytest

from experiments import benchmark
from experiments.benchmarks import accelerator, findings, inputs, plan, runner, table
from experiments.benchmarks.cases import Contender, Suite
from experiments.benchmarks.findings import Goal
from experiments.benchmarks.runner import Settings, Worker

FAKE_SIDE = """
import sys
from experiments.benchmarks.contender import Call, Seconds, Skip

def start(threads):
    print("a library prints")
    return {"fake": str(threads)}

def prepare(case):
    if case["kind"] == "absent":
        raise Skip("there is none")
    if case["kind"] == "dies":
        sys.exit("out of memory")
    if case["kind"] == "memory":
        return Call(None, 123)
    if case["kind"] == "counts":
        calls = iter(range(1, 10))
        return Call(lambda: Seconds(cpu=next(calls), wall=0), 7, lambda: next(calls))
    return Call(lambda: bytearray(32 * 2**20), 7)
"""


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
ENDED = {"skip": "no answer", "ended": True}
TIMED = {"seconds": 0.2, "temp_bytes": 8}
UNWELL = {"temp_bytes": None, "found": {"pallas": {"error": "XlaRuntimeError: INTERNAL: illegal address"}}}
VERSIONS = {"jax": "1", "platform": "gpu", "device": "a fast one"}


class Fake:
    """A worker that replies `prepare(case)` after `case["takes"]` seconds of the clock [seconds]; `log` says who ran when."""

    def __init__(self, name, log, prepare=lambda case: TIMED, clock=None, about=None):
        self.name, self.log, self.prepare, self.clock = name, log, prepare, clock or [0.0]
        self.about = about or {"allocator": "mallopt", "versions": VERSIONS}

    def close(self):
        self.log.append(f"{self.name} closed")

    def ask(self, limit, do, case=None, repeats=1, warm=False):
        if do == "run":
            self.log.append(f"{self.name} ran" + ", not warm" * (not warm))
            return {"cpu": self.reply["seconds"], "wall": 2 * self.reply["seconds"]}
        self.log.append(case.get("name", self.name))
        takes = case.get("takes", 1.0)
        self.clock[0] += min(takes, limit)
        self.reply = dict(self.prepare(case)) if takes <= limit else ENDED
        return self.reply


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(runner, "PAUSE_SECONDS", 0)


@pytest.fixture
def worker(tmp_path, monkeypatch):
    (tmp_path / "fake_side.py").write_text(FAKE_SIDE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(Contender, "module", "fake_side")
    worker = Worker(Contender("fake", "", {}), {"": sys.executable}, None, 1)
    yield worker
    worker.close()


def record(contender, cpu, *, threads=1, skip=None, temp=None, **cell):
    cell = {"mode": "f", "length": 2048, **cell}
    times = {"cpu": cpu, "wall": cpu and [10 * second for second in cpu]}
    extra = dict(peak_bytes=2**20, load=0.5, allocator="mallopt", versions={"jax": "1"})
    return dict(
        suite="s", contender=contender, cell=cell, threads=threads, skip=skip, temp_bytes=temp, **times, **extra
    )


def test_a_worker_prepares_times_and_measures_memory(worker):
    assert worker.about["versions"] == {"fake": "1"}
    reply = worker.ask(20, do="prepare", case={"kind": "works"})
    assert (reply["temp_bytes"], 30 * 2**20 < reply["peak_bytes"] < 64 * 2**20) == (7, True)
    assert all(0 < time < 5 for time in worker.ask(20, do="run", repeats=3, warm=False).values())
    assert worker.ask(20, do="prepare", case={"kind": "memory"}) == {"temp_bytes": 123}
    assert worker.ask(20, do="prepare", case={"kind": "absent"}) == {"skip": "there is none"}
    assert worker.ask(20, do="prepare", case={"kind": "dies"}) == {"skip": "out of memory", "ended": True}
    assert worker.ask(20, do="run", repeats=1, warm=True)["ended"]


def test_a_turn_of_brief_calls_begins_with_one_that_is_not_timed(worker):
    worker.ask(20, do="prepare", case={"kind": "counts"})  # two calls, and one between them that nobody waits for
    times = [worker.ask(20, do="run", repeats=1, warm=warm)["cpu"] for warm in (True, False, True)]
    assert times == [5, 6, 8]


def test_contenders_take_turns():
    log = []
    workers = {name: Fake(name, log) for name in "abc"}
    replies = runner.time_in_turn(workers, {name: {} for name in "abc"}, Settings(rounds=3, cell_seconds=100))
    assert log == [*"abc", *(f"{name} ran" for name in "abcabcabc")]
    assert replies["a"]["cpu"] == [0.2, 0.2, 0.2]
    assert replies["a"]["wall"] == [0.4, 0.4, 0.4]


def test_short_calls_are_repeated_and_long_ones_make_few_rounds():
    settings = Settings(rounds=9, cell_seconds=15)
    assert runner.schedule({"a": 0.01, "b": 0.2}, False, settings) == ({"a": 10, "b": 1}, 9)
    assert [runner.schedule({"a": seconds}, False, settings)[1] for seconds in (4.0, 20.0)] == [3, 2]
    assert runner.schedule({"a": 100.0}, True, settings)[1] == 0  # the first call was counted


def run_suite(suite, begin, settings, **limits):
    turns = runner.run_suite(suite, suite.turns(), begin, settings, **limits)
    return [record for records in turns for record in records]


def cells(*lengths):
    return [{"mode": "f", "length": n} for n in lengths]


def test_what_would_take_too_long_or_too_much_is_left_out_with_the_reason():
    def begin(contender):
        return Fake("a", [], lambda case: {"seconds": 1e-6 * case["length"] ** 2, "peak_bytes": 2**20 * case["length"]})

    suite = Suite([Contender("a", "jax", {})], cells(1024, 2048, 4096, 8192))
    slow = run_suite(suite, begin, Settings(rounds=1, call_seconds=10))
    assert [r["skip"] for r in slow] == [None, None, *["a call would take about 17 s"] * 2]
    large = run_suite(suite, begin, Settings(rounds=1, call_seconds=999, memory_bytes=5 * 2**30))
    assert [r["skip"] for r in large] == [None, None, None, "would take about 8 GiB of memory"]
    compiled = run_suite(suite._replace(compiles=True), begin, Settings(rounds=1, call_seconds=10))
    assert [r["skip"] for r in compiled] == [None] * 4


def test_a_contender_that_dies_or_cannot_start_costs_no_other():
    started = []

    def begin(contender):
        started.append(contender.name)
        about = {"skip": "torch is not installed"} if contender.name == "c" else None
        return Fake("", [], lambda case: ENDED if case.get("kind") == "dies" else TIMED, about=about)

    contenders = [Contender("a", "jax", {"kind": "dies"}), Contender("b", "jax", {}), Contender("c", "torch", {})]
    replies = {
        (r["contender"], r["cell"]["length"]): r["skip"]
        for r in run_suite(Suite(contenders, cells(8, 16)), begin, Settings())
    }
    skips = {"a": "no answer", "b": None, "c": "torch is not installed"}
    assert replies == {(name, length): skip for name, skip in skips.items() for length in (8, 16)}
    assert started == ["a", "b", "c"]  # a contender that died at a shorter length is not tried at a longer one


def run_checks(checks, seconds=1000.0, **cases_of):
    """Runs checks of an accelerator, by one worker at a time; returns their records and the log."""
    clock, log = [0.0], []
    contenders = [
        Contender(name, "jax", {"name": name, **cases_of.get(name, {})}, {"title": [name]}, fresh=name == "own")
        for name in checks
    ]
    suite = Suite(contenders, [{"title": name, "mode": "f", "length": 8} for name in checks], one_by_one=True)

    def begin(contender):
        log.append("start")
        return Fake("", log, lambda case: case.get("reply", TIMED), clock)

    settings = Settings(rounds=3, prepare_seconds=100.0)
    records = run_suite(suite, begin, settings, end=seconds, now=lambda: clock[0])
    return records, [line.strip() for line in log if line != " ran"]


def test_one_worker_serves_all_checks_but_those_that_want_their_own():
    records, log = run_checks(["a", "b", "own", "d"])
    assert log == ["start", "a", "b", "closed", "start", "own", "d", "closed"]
    assert [record["contender"] for record in records] == ["a", "b", "own", "d"]
    assert (records[0]["wall"], records[0]["versions"]) == ([0.4] * 3, VERSIONS)


@pytest.mark.parametrize(
    "bad", [{"reply": ENDED}, {"reply": UNWELL}, {"takes": 200.0}], ids=["dies", "unwell", "hangs"]
)
def test_a_check_that_dies_hangs_or_hurts_the_device_costs_no_other(bad):
    records, log = run_checks("abc", b=bad)
    assert log == ["start", "a", "b", "closed", "start", "c", "closed"]
    assert [record["contender"] for record in records] == ["a", "b", "c"]
    assert "no answer" in (records[1]["skip"] or "") or "illegal" in str(records[1]["found"])


def test_it_ends_in_time_and_what_time_cut_off_is_left_for_the_next_run():
    records, log = run_checks("abc", seconds=100.0, a={"takes": 50.0}, b={"takes": 90.0})
    assert [record["contender"] for record in records] == ["a"]
    assert log[-1] == "closed"


def test_verdicts():
    ratios = {2.1: "aim met", 1.596: "met", 1.2: "**missed by 25%**"}  # 1.596 is shown as 1.60
    assert {ratio: findings.verdict(ratio, 1.6, 2.0, False) for ratio in ratios} == ratios
    assert [findings.verdict(ratio, 1.6, 2.0, True) for ratio in (1.5, 2.0)] == ["met", "**missed by 25%**"]


def test_goals_are_judged_where_both_were_measured():
    records = [record("peer", [4.0]), record("ours", [2.0]), record("ours again", [2.2])]
    records += [record("peer", None, skip="too long", length=4096), record("ours", [5.0], length=4096)]
    records += [record("peer", [1.0], length=512), record("ours", [2.0], length=512)]
    goal = Goal("peer / ours", "peer", "ours", {"f": (1.6, 2.0)}, lambda cell: cell["length"] >= 2048)
    (one,) = findings.verdicts(records, [goal])
    assert (one.cell, one.value, one.verdict, one.control) == ("n=2048 f, 1 core", "2.00", "aim met", "1.10")
    wanted = {"f": (50, None)}
    memory = Goal("temporaries", "peer", "ours", wanted, quantity="temporaries")
    records = [record("peer", [1.0], temp=100 * 2**20), record("ours", [1.0], temp=2**20)]
    assert findings.verdicts(records, [memory])[0].value == "100.00"


def test_bounds_on_growth_and_size():
    records = [record("a", [1.0], length=n, temp=2**20 * n // 1024) for n in (16384, 4096)]
    growth = Goal("growth", "a", None, {"f": (1.1, None)}, at_most=True, grows=True)
    at_16384 = dict(where=lambda cell: cell["length"] == 16384)
    size = Goal("size", "a", None, {"f": (8, None)}, at_most=True, quantity="temporaries", **at_16384)
    first, second = findings.verdicts(records, [growth, size])
    assert (first.value, first.wanted, first.verdict) == ("0.25", "at most 1.1", "met")
    assert (second.value, second.wanted, second.verdict) == ("16 MiB", "at most 8 MiB", "**missed by 100%**")


ABOUT = dict(processor="P", cpus=2, memory="1 GiB", platform="L", commit="abc")


def test_the_table_has_goals_figures_and_reasons():
    records = [record("peer", [4.0, 4.0]), record("ours", [2.0, 2.0], temp=2**20), record("x|y", None, skip="no *gcc*")]
    goal = Goal("peer / ours", "peer", "ours", {"f": (3, None)})
    text = table.suite_text("s", Suite((), (), [goal], "A note."), records)
    assert "| peer / ours | n=2048 f, 1 core | 2.00 | at least 3 | **missed by 33%** |  |" in text
    assert "|  | ours | 2000 | 0.0% | 2 | 1.0 | 1.0 |" in text
    assert "| ours | 2000 | - | 1 |" in table.measurements([record("ours", [2.0])])  # one round has no spread
    assert r"* x\|y, n=2048 f, 1 core: no \*gcc\*" in text
    others = [{**record, "about": about} for record in records for about in (ABOUT, {**ABOUT, "processor": "Q"})]
    assert [line[:7] for line in table.about_text(others).splitlines() if "jax 1" in line] == ["* s: P,", "* s: Q,"]


@pytest.mark.parametrize("name", benchmark.SUITES)
def test_goals_name_contenders_that_are_measured(name):
    suite = benchmark.SUITES[name](False, None, 1)
    names = {contender.name for contender in suite.contenders}
    for goal in suite.goals:
        assert {goal.over, goal.under or goal.over} <= names
    assert {name.removesuffix(" again") for name in names} <= names
    for contender in suite.contenders:
        assert any(contender in part for _, part in suite.turns())


def test_the_command_writes_and_replaces(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(runner, "Worker", lambda *_, **__: Fake("", [], lambda case: {**TIMED, "seconds": 0.01}))
    line = ["window", "--quick", "--threads=1", "--only= f:", f"--out={tmp_path}"]
    assert benchmark.main(line) == 0
    assert benchmark.main(line) == 0
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 6  # 3 contenders, 2 lengths
    assert "| posjax window(512) |" in (tmp_path / "table.md").read_text()
    capsys.readouterr()
    assert benchmark.main([*line, "--list", "--only=f: posjax window(512) again", "--part=2/2"]) == 0
    assert capsys.readouterr().out == "H=4 n=8192 f: posjax window(512) again\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("window --only=nobody", "--only=nobody"),
        ("accelerator --quick", "--quick"),
        ("published --checkpoint=nowhere", "config.json"),
        ("context --config=configs/decoder.py --lengths=64", "two lengths or more"),
        ("context", "--config=FILE is missing"),
        ("plan --config=configs/decoder.py --accelerators=h10", "did you mean 'h100'"),
    ],
)
def test_mistakes_are_one_line(line, message, capsys):
    try:
        code = benchmark.main([*line.split(), "--list"])
    except SystemExit as stop:
        code = stop.code
    assert code == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert message in error


def test_parts_of_an_accelerator_have_all_checks_once_and_keep_cells_together():
    suite = accelerator.accelerator("gpu")
    every = [(cell["title"], contender.name) for cell, (contender,) in suite.turns()]
    parts = []
    for index in (1, 2, 3, 4):
        args = argparse.Namespace(part=(index, 4), only="")
        parts.append([(cell["title"], contender.name) for cell, (contender,) in benchmark.chosen_turns(suite, args)])
    assert sorted(name for part in parts for name in part) == sorted(set(every)) == sorted(every)
    titles = [{title for title, _ in part} for part in parts]
    assert sum(map(len, titles)) == len(set.union(*titles))
    kernels = {contender.case.get("implementation") for _, (contender,) in suite.turns()}
    assert {"pallas", "cudnn"} <= kernels


SHARED = dict(suite="accelerator", threads=2, skip=None, temp_bytes=None, peak_bytes=None, load=0.5, versions=VERSIONS)
SHARED["about"] = ABOUT


def timed(contender, wall):
    cell = {"title": "attention, f, 64", "mode": "f", "length": 64}
    return {**SHARED, "contender": contender, "cell": cell, "wall": wall, "temp_bytes": 2**20}


def compared(spec, **found):
    cell = {"title": spec, "mode": "compare", "spec": spec, "dtype": "float32"}
    return {**SHARED, "contender": "against dense", "cell": cell, "wall": None, "found": found}


def test_the_table_of_an_accelerator_says_what_agrees_and_what_is_fastest(tmp_path):
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
    outcomes = [table.outcome(record) for record in records]
    assert outcomes[:2] == ["pallas agrees", "pallas DIFFERS, blockwise DIFFERS"]
    assert outcomes[3:5] == ["20 ms", "60 ms"]


def test_it_is_imported_without_what_a_machine_with_an_accelerator_may_lack():
    code = f"""{ABSENT}
import experiments.benchmark
ours = [name for name in sys.modules if name.partition(".")[0] == "absl"]
import experiments.benchmarks.jax_side, experiments.benchmarks.worker
print(ours)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr[-2000:]


GIVEN = {"memory": 2.0**30, "seconds": 3.0, "window": 8, "batch": 1, "model": {"encoding": "rope"}}


def of_length(length, held, seconds, attention="dense", work="forward"):
    times = [] if seconds is None else [seconds]
    cell = {"mode": work, "length": length}
    figures = dict(skip=None, threads=2, cpu=times, wall=times, held_bytes=held)
    return dict(suite="context", contender=attention, cell=cell, given=GIVEN, **figures)


def test_a_fit_finds_the_polynomial_and_meets_the_longest():
    quadratic, linear = (lambda n: 3 + 2 * n + 5 * n**2), (lambda n: 7 + 2 * n)
    assert inputs.fit([(n, quadratic(n)) for n in (8, 64, 512)], 2)(4096) == pytest.approx(quadratic(4096), rel=1e-6)
    assert inputs.fit([(n, linear(n)) for n in (8, 64)], 1)(4096) == pytest.approx(linear(4096), rel=1e-6)
    assert inputs.fit([(8, 1.0), (16, 3.0), (32, 50.0)], 1)(32) == pytest.approx(50)


def test_input_lengths_are_answered_first_with_how_far_beyond_the_measured_they_are():
    records = [of_length(n, 2**10 * n**2, (n / 512) ** 2) for n in (256, 512)]
    records += [of_length(2048, None, None), of_length(256, 2**20, None, "window")]
    records += [of_length(512, 2**20, None, "window")]
    text = inputs.inputs_text(records)
    assert "| dense | forward | **886** | time | 1,020 (2.0x) | 886 (1.7x) |" in text
    assert "| window | forward | **no limit** | nothing | no limit | not run |" in text
    assert "| dense | forward | 2,048 | 4 GiB |  |  | 16 s |  |  |" in text
    assert "not measured" in inputs.inputs_text(records[:1])


def test_a_planned_time_is_arithmetic():
    figures = dict(parameters=10, optimizer=20, temporaries=100, held_bytes=131, flops=4e3, half=False)
    slow = plan.predict(figures, 2, plan.Accelerator(half=200.0, single=100.0, bandwidth=1e3, memory=262.0))
    assert slow == pytest.approx((20.0, 50.0, 0.5))
    starved = plan.predict(figures, 2, plan.Accelerator(200.0, 100.0, 1.0, 262.0))
    assert starved.at_best == starved.typical == 2 * 130
    half = {**figures, "half": True}
    assert plan.predict(half, 2, plan.Accelerator(200.0, 100.0, 1e3, 262.0)).at_best == 10
    assert all(0 < chip.bandwidth < chip.single <= chip.half for chip in plan.ACCELERATORS.values())
