"""results.jsonl that somebody edited, or that was damaged: each line that is no record is named, the others are kept."""

import json
import math
import pathlib
import re

import pytest
from absl import logging
from fuzzing import counts as with_count
from fuzzing import damaged, damaged_json, fuzz
from hypothesis import strategies as st

from experiments.report.statistics import all_runs, group, line_of_curves, metric_values, metrics_of
from experiments.report.table import summarize
from experiments.studies.records import read_records

RESULTS = pathlib.Path(__file__).parents[3] / "results"
STUDIES = ("quickstart", "retrieval", "resolutions")
LINES = {name: next((RESULTS / name).rglob("results.jsonl")).read_text().splitlines()[:6] for name in STUDIES}


@pytest.fixture
def warnings(monkeypatch):
    seen = []
    monkeypatch.setattr(logging, "warning", lambda text, *args: seen.append(text % args))
    return seen


def test_all_that_is_committed_is_read(warnings):
    for path in RESULTS.rglob("results.jsonl"):
        lines = path.read_text().splitlines()
        if "config_hash" in json.loads(lines[0]):
            assert len(read_records(path)) == len(lines), path
    assert not warnings


def changed(**fields):
    record = json.loads(LINES["quickstart"][0])
    for name, value in fields.items():
        if value is ...:
            del record[name]
        else:
            record[name] = value
    return json.dumps(record)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (changed(seed=...), r"lacks \['seed'\]"),
        (changed(metrics=None), "metrics is None, which is not a group"),
        (changed(metrics={"accuracy": "0.5"}), "metrics is .* which is not"),
        (changed(metrics={"accuracy": math.nan}), "NaN is no number of JSON's"),
        (changed(metrics={"loss": {"long": 1.0}}), "metrics is .* which is not"),
        (changed(wall_time="12"), "wall_time is '12', which is not a number of 0 or more"),
        (changed(seed=True), "seed is True, which is not a whole number"),
        (changed(curve=[[1, 2, 3]]), "curve is .* which is not"),
        (changed(steps=-1), "steps is -1, which"),
        (changed(parameters=10**30), "parameters is 1000"),
        (changed(step_time=1).replace('"step_time": 1,', '"step_time": 1e999,'), "step_time is inf, which"),
        ("[1]", "is not a JSON object"),
        ("[" * 10**5, "is not JSON"),
        ("{", "is not JSON"),
    ],
)
def test_a_line_that_is_no_record_is_named_and_the_others_are_kept(line, message, tmp_path, warnings):
    path = tmp_path / "results.jsonl"
    first, second = LINES["quickstart"][:2]
    path.write_text("\n".join([first, line, second, ""]))
    records = read_records(path)
    assert [record.seed for record in records] == [json.loads(each)["seed"] for each in (first, second)]
    (warning,) = warnings
    assert f"{path}, line 2 is no record and is left out: " in warning
    assert re.search(message, warning), warning


def shown(path):
    """What a report computes of them."""
    records = [record.fields() for record in read_records(path)]
    if not records:
        raise ValueError("none is left")
    for rows in group(records).values():
        for metric in metrics_of(rows):
            for runs in rows.values():
                metric_values(runs, metric)
        for runs in rows.values():
            line_of_curves(runs)
        assert all_runs(rows)
    summarize(records)


@with_count(40, 100)
@pytest.mark.parametrize("study", STUDIES)
def test_damaged_records(study, count, tmp_path, warnings):
    path = tmp_path / "results.jsonl"
    trees = [json.loads(line) for line in LINES[study]]

    def once(drawn):
        index, tree = drawn
        lines = [*LINES[study]]
        lines[index] = tree.decode("latin-1") if isinstance(tree, bytes) else json.dumps(tree)
        path.write_text("\n".join(lines) + "\n", encoding="latin-1", errors="replace")
        kept = read_records(path)
        if len(kept) < len(lines) - 1 and "\n" not in lines[index]:
            raise AssertionError("others were lost")
        shown(path)
        if len(kept) < len(lines):
            raise ValueError("left out")

    def of(index):
        short = {name: value for name, value in trees[index].items() if name not in ("curve", "versions")}
        small = damaged_json(short).map(lambda tree: tree | {"curve": [[1, 2.0]]} if isinstance(tree, dict) else tree)
        return st.tuples(st.just(index), small | damaged(LINES[study][index].encode()))

    fuzz(count, st.integers(0, len(trees) - 1).flatmap(of), once)
