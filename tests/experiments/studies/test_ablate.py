"""What a study does around its rows, without training any."""

import json
import sys
from unittest import mock

import numpy as np
import pytest
from ml_collections import ConfigDict

from experiments import ablate
from experiments.studies import environment, study
from experiments.studies.ablation import Ablation
from experiments.studies.records import Record, append_records, read_records, row_hash
from posjax.training import loop
from posjax.training.metrics import append_jsonl


def config(**encodings) -> ConfigDict:
    images = {"encodings": encodings, "steps": 4, "model": {"encoding": ""}, "data": {"name": "digits"}, "log_every": 1}
    images["task"] = "classification"
    return ConfigDict({"name": "tiny", "title": "Tiny", "notes": "", "seeds": (0, 1), "studies": {"images": images}})


class Toy:
    """A task with one parameter."""

    model, mesh, digest = None, None, "aa"
    headline, headline_mode = "accuracy", "max"
    batches = loss = score = evaluation = len  # none of them is called

    def init(self, key):
        return {"weight": np.zeros(3, np.float32)}


@pytest.fixture(autouse=True)
def trained(monkeypatch):
    """(encoding, seeds) of what would have been trained; an encoding of alibi diverges."""
    calls = []

    def train(task, config, seeds, workdir, **told):
        calls.append((config.model.encoding, seeds))
        if config.model.encoding == "alibi":
            raise FloatingPointError("step 3: loss is nan")
        append_jsonl(workdir / "metrics.jsonl", [{"step": 1, "loss": [0.1] * len(seeds)}])
        state = type("State", (), {"params": {"weight": np.zeros((len(seeds), 3), np.float32)}})
        accuracy = np.array([0.5 + seed / 10 for seed in seeds])
        return loop.Result(state, {"accuracy": accuracy, "loss": accuracy}, 0.1, 1.0)

    monkeypatch.setattr(loop, "train", train)
    monkeypatch.setattr(loop, "check", lambda task, config, seeds: mock.create_autospec(loop.Programs, instance=True))
    monkeypatch.setattr(environment, "compilation_cache", lambda directory: None)
    monkeypatch.setattr(Ablation, "make_task", lambda self, config: Toy())
    monkeypatch.setattr(sys, "argv", ["ablate"])
    return calls


def test_a_diverging_row_costs_no_other_row(tmp_path, capsys):
    with pytest.raises(FloatingPointError, match=r"images, row 'bad': step 3: loss is nan"):
        ablate.main(config(none="none", bad="alibi", good="rope"), tmp_path)
    assert "good" in capsys.readouterr().out
    assert "| good |" in (tmp_path / "table.md").read_text()
    assert {record.label for record in read_records(tmp_path / "results.jsonl")} == {"none", "good"}


def test_what_is_only_written_or_where_does_not_make_another_row(tmp_path, trained):
    ablate.main(config(none="none"), tmp_path)
    other = config(none="none")
    other.studies.images.log_every = 7
    ablate.main(other, tmp_path)
    assert trained == [("none", (0, 1))]
    other.studies.images.steps = 5
    ablate.main(other, tmp_path)
    assert trained == [("none", (0, 1))] * 2
    assert len({row_hash(row.training) for made in (config(none="none"), other) for row in Ablation(made).rows()}) == 2


def test_only_the_seeds_that_are_missing_are_trained(tmp_path, trained):
    ablate.main(config(none="none"), tmp_path)
    more = config(none="none", rope="rope")
    more.seeds = (1, 2)
    ablate.main(more, tmp_path)
    assert trained == [("none", (0, 1)), ("none", (2,)), ("rope", (1, 2))]


def test_parts_are_the_whole(tmp_path, trained, capsys):
    """Each part trains what no other does; who asks for the whole trains nothing more, and shows all of it."""
    made = config(none="none", rope="rope", t5="t5")
    for index in (1, 0):
        study.run(Ablation(made), tmp_path, allocator=None, command="", part=(index, 2))
        assert not (tmp_path / "table.md").exists()
        assert "part" in capsys.readouterr().out
    assert trained == [("rope", (0, 1)), ("none", (0, 1)), ("t5", (0, 1))]
    ablate.main(made, tmp_path)
    assert len(trained) == 3
    assert {(r.label, r.seed) for r in read_records(tmp_path / "results.jsonl")} == {
        (label, seed) for label in ("none", "rope", "t5") for seed in (0, 1)
    }
    whole = (tmp_path / "results.jsonl").read_text()
    ablate.main(made, tmp_path)
    assert (tmp_path / "results.jsonl").read_text() == whole
    assert all(f"| {label} |" in (tmp_path / "table.md").read_text() for label in ("none", "rope", "t5"))


def test_rows_are_not_run_on_other_data_than_the_finished_ones(tmp_path, monkeypatch):
    ablate.main(config(none="none"), tmp_path)
    both = config(none="none", rope="rope")
    ablate.main(both, tmp_path)
    monkeypatch.setattr(Toy, "digest", "bb")
    ablate.main(both, tmp_path)  # nothing is left to train
    both.studies.images.encodings.more = "t5"
    with pytest.raises(ValueError, match=r"'digits' is not what the finished rows .*digest bb, theirs aa"):
        ablate.main(both, tmp_path)


def test_a_killed_append_leaves_all_records_or_none(tmp_path, monkeypatch):
    path = tmp_path / "results.jsonl"
    append_jsonl(path, [{"seed": 0}])

    def killed(self, target):
        raise KeyboardInterrupt

    monkeypatch.setattr("pathlib.Path.replace", killed)
    with pytest.raises(KeyboardInterrupt):
        append_jsonl(path, [{"seed": 1}, {"seed": 2}])
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"seed": 0}]


def test_a_record_is_read_as_it_was_written(tmp_path):
    ablate.main(config(none="none"), tmp_path)
    records = read_records(tmp_path / "results.jsonl")
    assert [(record.seed, record.metrics["accuracy"], record.more["curve"]) for record in records] == [
        (0, 0.5, [[1, 0.1]]),
        (1, 0.6, [[1, 0.1]]),
    ]
    append_records(tmp_path / "copy.jsonl", records)
    assert (tmp_path / "copy.jsonl").read_text() == (tmp_path / "results.jsonl").read_text()
    fields = records[0].fields()
    del fields["steps"]
    with pytest.raises(ValueError, match=r"the record of 'images', row 'none', lacks \['steps'\]"):
        Record.of(fields)


@pytest.mark.parametrize(
    ("seeds", "encodings", "message"),
    [
        ((), {"none": "none"}, "seeds must be given"),
        ((1, 1), {"none": "none"}, "differ"),
        ((0,), {"a": "ropee"}, "'rope'"),
        ((0,), {}, "has no rows: give encodings"),
    ],
)
def test_plans_that_cannot_be(seeds, encodings, message, tmp_path):
    bad = config(**encodings)
    bad.seeds = seeds
    with pytest.raises(ValueError, match=message):
        ablate.main(bad, tmp_path)
    assert list(tmp_path.iterdir()) == []
