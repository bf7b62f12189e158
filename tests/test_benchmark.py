"""The benchmark's harness, with contenders that take the time they are told: nothing is timed here."""

import sys

import pytest

from experiments import benchmark
from experiments.benchmarks import findings, pool, running, suites, suites_of_costs, table
from experiments.benchmarks.findings import Bound, Goal
from experiments.benchmarks.pool import Contender, Ended, Settings, Worker
from experiments.benchmarks.suites import Suite

FAKE_SIDE = """
import sys
from experiments.benchmarks.contender import Call, Skip

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
    return Call(lambda: bytearray(32 * 2**20), 7)
"""


class Fake:
    """A worker whose calls take `seconds(case)`; it writes down who ran when."""

    def __init__(self, name, log, seconds, peak=1, about=None):
        self.name, self.log, self.seconds, self.peak, self.case = name, log, seconds, peak, None
        self.about = about or {"allocator": "mallopt", "versions": {"fake": "1"}}

    def close(self):
        self.log.append(f"{self.name} closed")

    def ask(self, limit, do, case=None, repeats=1):
        if do == "prepare":
            self.case = case
            if case.get("kind") == "dies":
                raise Ended("killed")
            return {"seconds": self.seconds(case), "temp_bytes": 8, "peak_bytes": self.peak * case["length"]}
        self.log.append(self.name)
        return {"cpu": self.seconds(self.case), "wall": 2 * self.seconds(self.case)}


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(pool, "PAUSE_SECONDS", 0)


@pytest.fixture
def worker(tmp_path, monkeypatch):
    (tmp_path / "fake_side.py").write_text(FAKE_SIDE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Worker("fake_side", sys.executable, None, 1) as worker:
        yield worker


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
    times = worker.ask(20, do="run", repeats=3)
    assert 0 < times["cpu"] < 5
    assert 0 < times["wall"] < 5
    assert worker.ask(20, do="prepare", case={"kind": "memory"}) == {"temp_bytes": 123}
    assert worker.ask(20, do="prepare", case={"kind": "absent"}) == {"skip": "there is none"}
    with pytest.raises(Ended, match="out of memory"):
        worker.ask(20, do="prepare", case={"kind": "dies"})


def test_a_module_that_is_not_installed_is_a_reason():
    with Worker("no_such_package", sys.executable, None, 1) as worker:
        assert "no_such_package is not installed" in worker.about["skip"]


def test_contenders_take_turns():
    log = []
    workers = {name: Fake(name, log, lambda case: 1.0) for name in "abc"}
    found = pool.time_in_turn(workers, {name: {"length": 4} for name in "abc"}, Settings(rounds=3, cell_seconds=100))
    assert "".join(log) == "abcabcabc"
    assert found["a"]["cpu"] == [1.0, 1.0, 1.0]
    assert found["a"]["wall"] == [2.0, 2.0, 2.0]


def test_short_calls_are_repeated_and_long_ones_make_few_rounds():
    settings = Settings(rounds=9, cell_seconds=15)
    assert pool.schedule({"a": 0.01, "b": 0.2}, False, settings) == ({"a": 10, "b": 1}, 9)
    assert pool.schedule({"a": 4.0}, False, settings)[1] == 3
    assert pool.schedule({"a": 20.0}, False, settings)[1] == 2
    assert pool.schedule({"a": 100.0}, True, settings)[1] == 0  # the first call was counted
    assert pool.schedule({}, True, settings) == ({}, 0)


def fake_suite(*contenders, lengths=(1024, 2048, 4096), goals=()):
    cells = [{"mode": "f", "length": n} for n in lengths]
    return Suite(contenders, cells, goals, {})


def run_fake(suite, begin, **settings):
    settings = Settings(rounds=1, **settings)
    return [record for turn in running.run_suite("s", suite, suite.turns(), 2, begin, settings) for record in turn]


def test_what_would_take_too_long_or_too_much_is_left_out_with_the_reason():
    def begin(contender):
        return Fake(contender.name, [], lambda case: 1e-6 * case["length"] ** 2, peak=2**20)

    slow = run_fake(fake_suite(Contender("a", "jax", {})), begin, call_seconds=10)
    assert [r["skip"] for r in slow] == [None, None, "a call would take about 17 s"]
    large = fake_suite(Contender("a", "jax", {}), lengths=(1024, 2048, 4096, 8192))
    found = run_fake(large, begin, call_seconds=999, memory_bytes=5 * 2**30)
    assert [r["skip"] for r in found] == [None, None, None, "would take about 8 GiB of memory"]


def test_a_contender_that_dies_is_started_again_for_other_cells_only():
    started = []

    def begin(contender):
        started.append(contender.name)
        return Fake(contender.name, [], lambda case: 0.5)

    suite = fake_suite(Contender("a", "jax", {"kind": "dies"}), Contender("b", "jax", {}), lengths=(8, 16))
    found = {(r["contender"], r["cell"]["length"]): r["skip"] for r in run_fake(suite, begin)}
    assert found == {("a", 8): "killed", ("b", 8): None, ("a", 16): "killed", ("b", 16): None}
    assert started == ["a", "b"]  # what died at a shorter length is not tried at a longer one


def test_a_contender_that_cannot_start_does_not_lose_the_others():
    def begin(contender):
        if contender.name == "a":
            raise Ended("no such interpreter")
        return Fake(contender.name, [], lambda case: 0.5, about={"skip": "torch is not installed"})

    suite = fake_suite(Contender("a", "jax", {}), Contender("b", "torch", {}), lengths=(8,))
    assert [r["skip"] for r in run_fake(suite, begin)] == ["no such interpreter", "torch is not installed"]


def test_only_what_a_contender_takes_part_in():
    contender = Contender("a", "jax", {}, {"mode": ["f"], "length": (8, 16)})
    suite = Suite([contender], [{"mode": "f", "length": 8}, {"mode": "fb", "length": 8}], (), {})
    assert [part for _, part in suite.turns()] == [[contender], []]


def test_statistics():
    assert pool.relative_spread([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2 / 3)
    assert pool.relative_spread([4.0]) == 0
    pinned, free = record("a", [1.0, 9.0, 2.0]), record("a", [1.0, 9.0, 2.0], threads=2)
    assert (findings.seconds(pinned), findings.seconds(free)) == (2.0, 20.0)


@pytest.mark.parametrize(
    ("ratio", "at_most", "expected"),
    [
        (2.1, False, "aim met"),
        (1.7, False, "met"),
        (1.596, False, "met"),  # shown as 1.60
        (1.2, False, "**missed by 25%**"),
        (1.5, True, "met"),
        (2.0, True, "**missed by 25%**"),
    ],
)
def test_verdicts(ratio, at_most, expected):
    assert findings.verdict(ratio, 1.6, 2.0, at_most) == expected


def test_goals_are_judged_where_both_were_measured():
    records = [record("peer", [4.0]), record("ours", [2.0]), record("ours again", [2.2])]
    records += [record("peer", None, skip="too long", length=4096), record("ours", [5.0], length=4096)]
    records += [record("peer", [1.0], length=512), record("ours", [2.0], length=512)]
    goal = Goal("peer / ours", "peer", "ours", {"f": (1.6, 2.0)}, lambda cell: cell["length"] >= 2048)
    (found,) = findings.verdicts(records, [goal], {"ours": "ours again"})
    assert (found.cell, found.value, found.verdict, found.control) == ("n=2048 f, 1 core", "2.00", "aim met", "1.10")
    wanted = {"f": (50, None)}
    memory = Goal("temporaries", "peer", "ours", wanted, quantity="temporaries")
    records = [record("peer", [1.0], temp=100 * 2**20), record("ours", [1.0], temp=2**20)]
    assert findings.verdicts(records, [memory], {})[0].value == "100.00"


def test_bounds_on_growth_and_size():
    records = [record("a", [1.0], length=n, temp=2**20 * n // 1024) for n in (16384, 4096)]
    growth = Bound("growth", "a", findings.growth(findings.seconds), 1.1, "", ["f"])
    size = Bound("size", "a", findings.largest, 8, "MiB", ["f"])
    first, second = findings.verdicts(records, [growth, size], {})
    assert (first.value, first.verdict) == ("0.25", "met")
    assert (second.value, second.verdict) == ("16 MiB", "**missed by 100%**")


_ABOUT = dict(processor="P", cpus=2, memory="1 GiB", platform="L", commit="abc")


def test_the_table_has_goals_figures_and_reasons():
    records = [record("peer", [4.0, 4.0]), record("ours", [2.0, 2.0], temp=2**20), record("x|y", None, skip="no *gcc*")]
    goal = Goal("peer / ours", "peer", "ours", {"f": (3, None)})
    text = table.suite_text("s", suites.window, Suite((), (), [goal], {}, "A note."), records)
    assert "| peer / ours | n=2048 f, 1 core | 2.00 | at least 3 | **missed by 33%** |  |" in text
    assert "|  | ours | 2000 | 0.0% | 2 | 1.0 | 1.0 |" in text
    assert "| ours | 2000 | - | 1 |" in table.measurements([record("ours", [2.0])])  # one round has no spread
    assert r"* x\|y, n=2048 f, 1 core: no \*gcc\*" in text
    made = [{**record, "about": about} for record in records for about in (_ABOUT, {**_ABOUT, "processor": "Q"})]
    assert [line[:7] for line in table.about_text(made).splitlines() if "jax 1" in line] == ["* s: P,", "* s: Q,"]
    panels = table.cost_panels([*records, record("ours", [5.0], length=4096)])
    assert panels[0].curves[1].values == {2048: 2000.0, 4096: 5000.0}


MAKERS = [suites.attention, suites.window, suites.rotary]
MAKERS += [suites_of_costs.tile, suites_of_costs.step, suites_of_costs.decode, suites_of_costs.memory]
MAKERS += [suites_of_costs.models, suites_of_costs.newest]


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_goals_name_contenders_that_are_measured(make):
    suite = make(False, None, 1)
    names = {contender.name for contender in suite.contenders}
    for goal in suite.goals:
        assert {goal.contender} <= names if isinstance(goal, Bound) else {goal.over, goal.under} <= names
    for ours, twin in suite.controls.items():
        assert {ours, twin} <= names
    for contender in suite.contenders:
        assert any(contender in part for _, part in suite.turns())


def test_the_command_writes_and_replaces(tmp_path, monkeypatch, capsys):
    begin = lambda contender, **_: Fake(contender.name, [], lambda case: 0.01)  # noqa: E731
    monkeypatch.setattr(pool, "start_worker", begin)
    line = ["window", "--quick", "--threads=1", "--only= f:", f"--out={tmp_path}"]
    assert benchmark.main(line) == 0
    assert benchmark.main(line) == 0
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 6  # 3 contenders, 2 lengths
    assert "| posjax window(512) |" in (tmp_path / "table.md").read_text()
    assert (tmp_path / "window.png").stat().st_size > 1000
    capsys.readouterr()
    assert benchmark.main([*line, "--only=nobody"]) == 2
    assert "--only=nobody: nothing has that in its name; --list shows" in capsys.readouterr().err
    assert benchmark.main([*line, "--list", "--only=f: posjax window(512) again", "--part=2/2"]) == 0
    assert capsys.readouterr().out == "H=4 n=8192 f: posjax window(512) again\n"
