"""What a study does around its rows, without training any."""

import json
import pathlib
import runpy
import sys
from unittest import mock

import numpy as np
import pytest
from ml_collections import ConfigDict

from experiments import ablate
from experiments.studies import environment, study
from experiments.studies.ablation import Ablation, with_rows
from experiments.studies.records import Record, append_records, read_records, row_hash
from experiments.studies.schema import FIELDS, TRAINING, check_study, check_training
from posjax.jsonl import append_jsonl
from posjax.training import loop


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
    assert "| good |" in (tmp_path / "README.md").read_text()
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
        assert not (tmp_path / "README.md").exists()
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
    assert all(f"| {label} |" in (tmp_path / "README.md").read_text() for label in ("none", "rope", "t5"))


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


def test_a_study_needs_nothing_but_seeds_and_rows(tmp_path, trained):
    bare = config(none="none")
    del bare.title, bare.notes, bare.name
    ablate.main(bare, tmp_path)
    assert trained == [("none", (0, 1))]
    assert "| none |" in (tmp_path / "README.md").read_text()


def single(**more) -> ConfigDict:
    """The config of a single run."""
    fields = {
        "steps": 4,
        "model": {"encoding": "", "kind": "vit"},
        "data": {"name": "digits"},
        "log_every": 1,
        "seed": 7,
    }
    return ConfigDict({"task": "classification", **fields, **more}).lock()


def test_encodings_and_seeds_make_a_study_of_a_single_run(tmp_path, trained, capsys):
    specs = ["none", "rope(base=0.5)", "learned + t5"]
    ablate.main(single(), tmp_path, encodings=specs, seeds="3, 4")
    assert trained == [(spec, (3, 4)) for spec in specs]
    records = read_records(tmp_path / "results.jsonl")
    assert [record.label for record in records] == [spec for spec in specs for _ in range(2)]
    assert all("without" not in json.dumps(record.fields()) for record in records)  # nothing is held out
    assert "| rope(base=0.5) |" in (tmp_path / "README.md").read_text()
    ablate.main(single(), tmp_path / "seed", encodings=["none"])
    assert trained[3:] == [("none", (7,))]


def test_encodings_take_the_place_of_those_of_a_study(tmp_path, trained):
    ablate.main(config(none="none", rope="rope"), tmp_path, encodings=["t5"], seeds="5")
    assert trained == [("t5", (5,))]
    data = {"name": "digits", "train_split": "train", "eval_split": "test"}
    swept = Ablation(with_rows(single(data=data), ["none", "t5"]), ["config.steps=1,2"])
    assert [row.label for row in swept.rows()] == [f"{spec}, steps={n}" for spec in ("none", "t5") for n in (1, 2)]


def test_wrong_encodings_and_seeds_cost_no_training(tmp_path, trained):
    for wrong, message in (({"encodings": ["ropee"]}, "'rope'"), ({"seeds": "0,x"}, "seeds are whole numbers")):
        with pytest.raises(ValueError, match=message):
            ablate.main(single(), tmp_path, **wrong)
    assert not trained


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"notes": 3}, r"config\.notes is a text, got 3"),
        ({"seeds": None}, r"seeds"),
        ({"seeds": (0, "1")}, r"config\.seeds=\(0, '1'\) must be whole numbers"),
        ({"titel": "x"}, r"config\.titel is no field of a study: did you mean 'title'\?"),
        ({"tune": {"learning_rates": (1e-3,)}}, r"config\.tune has no 'seeds'"),
        (
            {"axis": {"title": "size", "values": {"others": 1}}},
            r"config\.axis\.values has no number for the study 'images'",
        ),
        ({"paper": {"metric": "loss"}}, r"config\.paper has no 'source'"),
        ({"studies": {"images": 3}}, r"config\.studies\.images is a group of fields, got 3"),
        (
            {"studies": {"images": {"encodings": {"a": 1}}}},
            r"config\.studies\.images\.encodings, .* 'a' is a text, got 1",
        ),
        ({"studies": {"images": {"rows": {"a": "rope"}}}}, r"rows, \{label: fields\}: 'a' is a group of fields"),
    ],
)
def test_the_config_of_a_study_is_checked_before_training(change, message, tmp_path, trained):
    made = config(none="none").to_dict()
    del made["title"]
    with pytest.raises(ValueError, match=message):
        ablate.main(ConfigDict({**made, **change}), tmp_path)
    assert not trained
    assert not list(tmp_path.iterdir())


def test_a_training_without_a_field_that_it_reads_late_is_refused():
    whole = runpy.run_path("configs/vit.py")["get_config"]()
    check_training(whole)
    for name in TRAINING:
        some = ConfigDict({field: value for field, value in whole.items() if field != name})
        with pytest.raises(ValueError, match=f"has no field '{name}'"):
            check_training(some)


def test_the_configs_of_posjax_are_studies_and_the_schema_is_documented():
    for path in sorted([*pathlib.Path("configs").glob("*.py"), *pathlib.Path("configs/papers").glob("*.py")]):
        if "seeds" in (made := runpy.run_path(str(path))["get_config"]()):
            check_study(made)
    text = " ".join(pathlib.Path("docs/experiments.md").read_text().split())
    assert all(f"| `{name}` | {field.about} |" in text for name, field in FIELDS.items())


def test_each_row_is_printed_as_it_is_done(tmp_path, trained, monkeypatch, capsys):
    named = []
    monkeypatch.setattr(study.Progress, "row", lambda self, name: named.append(name))
    ablate.main(config(none="none", rope="rope", t5="t5"), tmp_path)
    assert named == ["1/3 images none", "2/3 images rope", "3/3 images t5"]
    out = capsys.readouterr().out
    assert "2/3 images, rope: accuracy (%) ≈ 55.00 ± " in out
    ablate.main(config(none="none", rope="rope", t5="t5"), tmp_path)
    assert "2/3" not in capsys.readouterr().out  # nothing new was measured
