"""Records: written records are read back, edited files lose only their damaged lines, and the table finds its cells."""

import json
import pathlib

import pytest
from study_records import of_metric, record

from experiments.records import (
    Records,
    append_records,
    last_written,
    point_text,
    read_records,
    read_study,
    with_scores,
)

RESULTS = pathlib.Path(__file__).parents[2] / "results"
LINES = (RESULTS / "quickstart" / "results.jsonl").read_text().splitlines()[:2]


def test_records_are_read_as_they_were_written(tmp_path):
    metrics = {"accuracy": 0.5, "loss": {64: None, 128: 2.0}, "loss by position": {(128, 0): 1.0, (128, 4.5): 2.0}}
    one = record(metrics=metrics, tuned={"chosen": {"a": 1}, "scores": {"1": 0.5}}, documents=("a", "b"), unit="byte")
    append_records(tmp_path / "results.jsonl", [one, record(seed=1)])
    assert read_records(tmp_path / "results.jsonl") == [one, record(seed=1)]
    assert json.loads((tmp_path / "results.jsonl").read_text().splitlines()[0])["metrics"]["loss by position"] == {
        "128/0": 1.0,
        "128/4.5": 2.0,
    }


def written(found):
    return json.loads(json.dumps(found.fields()))


def test_all_committed_records_are_read(warnings):
    for name in ("results.jsonl", "tuning.jsonl"):
        for path in RESULTS.glob(f"*/{name}"):
            lines = path.read_text().splitlines()
            if "config_hash" in json.loads(lines[0]):
                assert [json.loads(line) for line in lines] == [written(each) for each in read_records(path)], path
    assert not warnings


def test_the_table_of_a_study_finds_cells_and_keeps_the_order_of_records():
    found = Records([*of_metric("loss", {"b": [{64: 1.0, 8: 2.0}], "a": [{8: 3.0}]}), record("c", study="other")])
    assert list(found.studies) == ["digits", "other"]
    digits = found.studies["digits"]
    assert list(digits.rows) == ["b", "a"]
    assert digits.metrics == {"loss": [8, 64]}
    assert digits.values("b", "loss", 64) == {0: 1.0}
    assert digits.values("a", "loss", 64) == {}
    assert digits.cells() == [{0: 1.0}, {0: 2.0}, {0: 3.0}]
    assert list(map(len, found.rows)) == [1, 1, 1]
    with pytest.raises(ValueError, match="names two encodings"):
        Records([record(), record(seed=1, encoding="alibi()")])
    with pytest.raises(ValueError, match="seed 0 twice"):
        Records([record(), record()])


def test_a_row_that_is_run_again_replaces_itself_and_learns_of_later_points(tmp_path):
    old = [record(seed=seed, config_hash="old") for seed in (0, 1)]
    tuned = {
        "chosen": {"optimizer.learning_rate": 0.01},
        "scores": {"0.01": 0.9},
        "metric": "accuracy",
        "on": "x",
        "seeds": [9],
    }
    new = record(tuned=tuned)
    append_records(tmp_path / "results.jsonl", [*old, new])
    point = record("rope, 0.1", base="rope", seed=9, point={"optimizer.learning_rate": 0.1}, metrics={"accuracy": 0.7})
    append_records(tmp_path / "tuning.jsonl", [point])
    (found,) = read_study(tmp_path)
    assert found.config_hash == "rope"
    assert found.tuned["scores"] == {"0.01": 0.9, "0.1": 0.7}
    assert last_written([*old, new]) == [new]
    assert with_scores([new], []) == [new]
    assert point_text({"a": 0.001, "b": True}) == "0.001, True"


def changed(**fields):
    line = json.loads(LINES[0])
    for name, value in fields.items():
        if value is ...:
            del line[name]
        else:
            line[name] = value
    return json.dumps(line)


@pytest.mark.parametrize(
    ("line", "field"),
    [
        (changed(seed=...), "seed"),
        (changed(metrics={"loss": {"long": 1.0}}), "long"),
        (changed(colour="red"), "colour"),
        ("[1]", "JSON object"),
        ("{", "JSON"),
    ],
)
def test_a_line_that_is_no_record_is_named_and_the_others_are_kept(line, field, tmp_path, warnings):
    path = tmp_path / "results.jsonl"
    first, second = LINES
    path.write_text("\n".join([first, line, second, ""]))
    assert [each.seed for each in read_records(path)] == [json.loads(each)["seed"] for each in (first, second)]
    (warning,) = warnings
    assert f"{path}, line 2" in warning
    assert field in warning
