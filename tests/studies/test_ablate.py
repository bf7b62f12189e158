"""What an ablation does around its rows, without training any."""

import json
from types import SimpleNamespace

import pytest
from ml_collections import ConfigDict

from experiments import ablate
from posjax.training.metrics import append_jsonl


def config(**encodings) -> ConfigDict:
    study = {"encodings": encodings, "steps": 4, "model": {"encoding": ""}, "data": {"name": "digits"}, "log_every": 1}
    return ConfigDict({"name": "tiny", "title": "Tiny", "notes": "", "seeds": (0, 1), "studies": {"images": study}})


def record(label, seed, row, **other):
    from posjax.studies.records import row_hash

    about = {"study": "images", "label": label, "encoding": label, "seed": seed, "task": "classification", "curve": []}
    numbers = {"metrics": {"accuracy": 0.5 + seed / 10, "loss": 1.0}, "parameters": 10, "step_time": 0.1}
    return {**about, **numbers, "data": "digits", "data_digest": "aa", "config_hash": row_hash(row), **other}


def test_a_diverging_row_costs_no_other_row(tmp_path, monkeypatch, capsys):
    def run_row(study, label, row, task, seeds, workdir, progress, should_stop):
        if label == "bad":
            raise FloatingPointError("step 3: loss is nan")
        append_jsonl(workdir / "results.jsonl", [record(label, seed, row) for seed in seeds])

    monkeypatch.setattr(ablate, "_waiting", lambda rows, seeds, workdir: {row[:2]: (None, seeds) for row in rows})
    monkeypatch.setattr(ablate, "_run_row", run_row)
    with pytest.raises(FloatingPointError, match=r"images, row 'bad': step 3: loss is nan"):
        ablate.main(config(none="none", bad="rope", good="alibi"), tmp_path)
    assert "good" in capsys.readouterr().out
    assert "| good |" in (tmp_path / "table.md").read_text()


def test_what_is_only_written_or_where_does_not_make_another_row(tmp_path):
    (_, _, row), *_ = ablate.plan(config(none="none"))
    append_jsonl(tmp_path / "results.jsonl", [record("none", seed, row) for seed in (0, 1)])
    other = config(none="none")
    other.studies.images.log_every = 7
    (_, _, same), *_ = ablate.plan(other)
    assert len(ablate._finished(tmp_path, "images", "none", same)) == 2
    other.studies.images.steps = 5
    (_, _, changed), *_ = ablate.plan(other)
    assert ablate._finished(tmp_path, "images", "none", changed) == []


def test_rows_are_not_run_on_other_data_than_the_finished_ones(tmp_path):
    (_, _, row), *_ = ablate.plan(config(none="none"))
    append_jsonl(tmp_path / "results.jsonl", [record("none", 0, row)])
    ablate._refuse_other_data(SimpleNamespace(digest="aa"), "images", row, tmp_path)
    with pytest.raises(ValueError, match=r"'digits' is not what the finished rows .*digest bb, theirs aa"):
        ablate._refuse_other_data(SimpleNamespace(digest="bb"), "images", row, tmp_path)


def test_a_killed_append_leaves_all_records_or_none(tmp_path, monkeypatch):
    path = tmp_path / "results.jsonl"
    append_jsonl(path, [{"seed": 0}])

    def killed(self, target):
        raise KeyboardInterrupt

    monkeypatch.setattr("pathlib.Path.replace", killed)
    with pytest.raises(KeyboardInterrupt):
        append_jsonl(path, [{"seed": 1}, {"seed": 2}])
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"seed": 0}]


@pytest.mark.parametrize(
    ("seeds", "encodings", "message"),
    [
        ((), {"none": "none"}, "seeds must be given"),
        ((1, 1), {"none": "none"}, "differ"),
        ((0,), {"a": "ropee"}, "'rope'"),
        ((0,), {}, "has no rows: give encodings"),
    ],
)
def test_plans_that_cannot_be(seeds, encodings, message):
    bad = config(**encodings)
    bad.seeds = seeds
    with pytest.raises(ValueError, match=message):
        ablate.plan(bad)
