"""The engine around rows, with trainings that are not run: seeds, parts, data, tuning, records and pages."""

import sys
from unittest import mock

import numpy as np
import pytest
from ml_collections import ConfigDict

from experiments import ablate
from experiments.records import RESULTS, TUNING, Record, append_records, read_records, read_study
from experiments.report import page
from experiments.studies import engine, environment
from experiments.studies.engine import plan, run
from experiments.studies.plan import TRAINING
from experiments.studies.tuner import Tuner
from experiments.studies.weights import row_hash
from posjax.jsonl import append_jsonl
from posjax.training import loop

RATES = (1e-3, 3e-3, 1e-2)
BEST = {"none": 3e-3, "rope": 1e-2}


class Toy:
    """A task with one parameter."""

    model, mesh, digest = None, None, "aa"
    headline, headline_mode = "loss", "min"
    batches = loss = score = evaluation = len  # none of them is called

    def __init__(self, config):
        self.config = config


@pytest.fixture(autouse=True)
def trained(monkeypatch):
    """The trainings: (spec, rates, seeds, split). The loss is the distance to the encoding's best rate, in
    octaves, and a hundredth of the seed; an encoding of alibi diverges."""
    calls = []

    def train(task, config, seeds, workdir, **rest):
        data, spec, rates = config.data, config.model.encoding, config.optimizer.learning_rate
        calls.append((spec, rates, seeds, data.train_split, data.eval_split))
        if spec == "alibi":
            raise FloatingPointError("step 3: loss is nan")
        append_jsonl(workdir / "metrics.jsonl", [{"step": 1, "loss": [0.1] * len(seeds)}])
        rates = np.broadcast_to(rates, len(seeds))
        loss = np.abs(np.log2(rates / BEST.get(spec, 1))) + np.array(seeds) / 100
        loss = np.where(rates > 0.7, np.nan, loss)
        state = type("State", (), {"scored": {"weight": np.zeros((len(seeds), 3), np.float32)}})
        return loop.Result(state, {"loss": {str(length): loss for length in config.eval_lengths}}, 0.1, 1.0)

    monkeypatch.setattr(loop, "train", train)
    programs = mock.create_autospec(loop.Programs, instance=True)
    monkeypatch.setattr(loop, "Programs", lambda task, config, seeds: programs)
    monkeypatch.setattr(environment, "compilation_cache", lambda directory: None)
    monkeypatch.setattr(engine, "decoding_task", lambda config, splits: Toy(config))
    monkeypatch.setattr(sys, "argv", ["ablate"])
    monkeypatch.setattr(page, "save", lambda figure, path, *_: path)  # drawing takes most of the time
    return calls


def config(tune=None, **encodings) -> ConfigDict:
    table = dict.fromkeys(TRAINING, 1) | {"encodings": encodings or {"a": "none", "b": "rope"}, "steps": 4}
    table |= {"model": {"kind": "decoder", "encoding": ""}, "optimizer": {"learning_rate": 0.5}, "eval_every": 2}
    table |= {"data": {"name": "plays", "train_split": "train", "eval_split": "test", "length": 8}}
    table |= {"eval_lengths": (8, 16), "eval_tokens": 64, "task": "language_model"}
    tune = {"tune": {"learning_rates": RATES, "seeds": (100, 101), "share": 0.1} | tune} if tune is not None else {}
    return ConfigDict({"name": "toy", "title": "Toy", "notes": "", "seeds": (0, 1), "studies": {"text": table}, **tune})


def study(workdir, made=None, part=None, **flags):
    run(plan(made or config(), **flags), workdir, command="x", part=part)
    return read_records(workdir / RESULTS)


def test_a_diverging_row_costs_no_other_row(tmp_path, capsys):
    with pytest.raises(FloatingPointError, match=r"text, row 'bad': step 3: loss is nan"):
        ablate.main(config(none="none", bad="alibi", good="rope"), tmp_path)
    assert "good" in capsys.readouterr().out
    assert "| good |" in (tmp_path / "README.md").read_text()
    assert {record.row for record in read_records(tmp_path / RESULTS)} == {"none", "good"}


def test_what_is_only_written_or_where_does_not_make_another_row(tmp_path, trained):
    made = config(none="none")
    study(tmp_path, made)
    made.studies.text.log_every = 7
    study(tmp_path, made)
    assert len(trained) == 1
    made.studies.text.steps = 5
    study(tmp_path, made)
    assert len(trained) == 2


def test_the_page_shows_the_rows_of_its_config(tmp_path):
    """Rows of another number of steps stay in the records alone, whichever was run last."""
    made, longer = config(none="none", rope="rope"), config(none="none", good="rope")
    longer.studies.text.steps = 5
    pages = []
    for each in (made, longer, made):
        study(tmp_path, each)
        pages.append((tmp_path / "README.md").read_text())
    assert len(read_records(tmp_path / RESULTS)) == 8
    assert pages[0] == pages[2] != pages[1]
    assert "| good |" in pages[1]
    assert "| rope |" not in pages[1]


def test_the_page_shows_the_rates_of_its_config(tmp_path, monkeypatch):
    """The longer training has another best rate."""
    made, longer, found = config(tune={}, rope="rope"), config(tune={}, rope="rope"), []
    longer.studies.text.steps = 5
    for each, best in ((made, 1e-2), (longer, 3e-3), (made, 1e-2)):
        monkeypatch.setitem(BEST, "rope", best)
        found.append([record.tuned["scores"] for record in run(plan(each), tmp_path, command="x")])
    assert found[0] == found[2] != found[1]


def test_another_study_leaves_a_folder_as_it_was(tmp_path):
    study(tmp_path)
    before, other = (tmp_path / "config.json").read_text(), config()
    other.name = "other"
    with pytest.raises(ValueError, match="holds the study 'toy', and this one is 'other': use another --workdir"):
        study(tmp_path, other)
    assert (tmp_path / "config.json").read_text() == before


def test_only_the_seeds_that_are_missing_are_trained(tmp_path, trained):
    study(tmp_path, config(none="none"))
    study(tmp_path, config(none="none", rope="rope"), seeds="1,2")
    assert [(spec, seeds) for spec, _, seeds, *_ in trained] == [("none", (0, 1)), ("none", (2,)), ("rope", (1, 2))]


def test_parts_are_the_whole(tmp_path, trained, capsys):
    """Each part trains what no other does; who asks for the whole trains nothing more, and shows all of it."""
    made = config(none="none", rope="rope", t5="t5")
    for index in (1, 0):
        study(tmp_path, made, part=(index, 2))
        assert not (tmp_path / "README.md").exists()
        assert "part" in capsys.readouterr().out
    assert [spec for spec, *_ in trained] == ["rope", "none", "t5"]
    found = study(tmp_path, made)
    assert len(trained) == 3
    assert {(r.row, r.seed) for r in found} == {(label, seed) for label in ("none", "rope", "t5") for seed in (0, 1)}
    assert study(tmp_path, made) == found
    assert all(f"| {label} |" in (tmp_path / "README.md").read_text() for label in ("none", "rope", "t5"))


def test_rows_are_not_run_on_other_data_than_the_finished_ones(tmp_path, monkeypatch):
    both = config(none="none", rope="rope")
    study(tmp_path, both)
    monkeypatch.setattr(Toy, "digest", "bb")
    study(tmp_path, both)  # nothing is left to train
    both.studies.text.encodings.more = "t5"
    with pytest.raises(ValueError, match=r"'plays' is not what the finished rows .*digest bb, theirs aa"):
        study(tmp_path, both)


def test_a_record_is_read_as_it_was_written(tmp_path):
    records = study(tmp_path, config(none="none"))
    assert [record.metrics["training loss"] for record in records] == [{1: 0.1}, {1: 0.1}]
    assert [record.metrics["loss"][8] for record in records] == pytest.approx([7.3808, 7.3908], abs=1e-4)
    assert (records[0].unit, records[0].trained_at, records[0].learning_rate) == ("", 8, 0.5)
    append_records(tmp_path / "copy.jsonl", records)
    assert (tmp_path / "copy.jsonl").read_text() == (tmp_path / RESULTS).read_text()
    fields = records[0].fields()
    del fields["steps"]
    with pytest.raises(ValueError, match=r"the record of 'text', row 'none', lacks \['steps'\]"):
        Record.of(fields)


def test_a_study_needs_nothing_but_seeds_and_rows(tmp_path):
    bare = config(none="none")
    del bare.title, bare.notes, bare.name
    study(tmp_path, bare)
    assert "| none |" in (tmp_path / "README.md").read_text()


def test_wrong_plans_write_nothing(tmp_path, trained):
    with pytest.raises(ValueError, match="ropee"):
        ablate.main(config(none="none"), tmp_path, encodings=["ropee"])
    assert not trained
    assert not list(tmp_path.iterdir())


def test_each_row_is_printed_as_it_is_done(tmp_path, monkeypatch, capsys):
    named = []
    monkeypatch.setattr(engine.Progress, "row", lambda self, name: named.append(name))
    ablate.main(config(none="none", rope="rope", t5="t5"), tmp_path)
    assert named == ["1/3 text none", "2/3 text rope", "3/3 text t5"]
    assert "2/3 text, rope: 8" in capsys.readouterr().out
    ablate.main(config(none="none", rope="rope", t5="t5"), tmp_path)
    assert "2/3" not in capsys.readouterr().out  # nothing new was measured


# The tuner.


def test_a_row_is_trained_at_the_rate_that_its_held_out_share_chose(tmp_path, trained):
    records = study(tmp_path, config(tune={}))
    points = (tuple(np.repeat(RATES, 2)), (100, 101) * 3, "train without 10%", "10% of train")
    final = ((0, 1), "train", "test")
    assert trained == [("none", *points), ("none", 3e-3, *final), ("rope", *points), ("rope", 1e-2, *final)]
    assert [(each.row, each.seed) for each in records] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    tuned = records[0].tuned
    assert tuned["chosen"] == {"optimizer.learning_rate": 3e-3}
    assert (tuned["metric"], tuned["on"], tuned["seeds"]) == ("loss", "10% of train", [100, 101])
    assert records[0].learning_rate == 3e-3
    wanted = {"0.001": np.log2(3) + 1.005, "0.003": 1.005, "0.01": np.log2(10 / 3) + 1.005}
    assert tuned["scores"] == pytest.approx(wanted)
    chosen = read_records(tmp_path / TUNING)
    rates = [("0.001", 100), ("0.001", 101), ("0.003", 100)]
    assert [(each.row, each.seed) for each in chosen[:3]] == [
        (f"a, learning_rate={rate}", seed) for rate, seed in rates
    ]
    text = (tmp_path / "README.md").read_text()
    assert "at the edge of those tried, and might be better beyond: b (0.01)." in text
    study(tmp_path, config(tune={}))
    assert len(trained) == 4  # nothing is left to do
    study(tmp_path, config(tune={"learning_rates": (*RATES, 2e-3)}))
    assert trained[4:] == [(spec, (2e-3, 2e-3), (100, 101), *points[2:]) for spec in BEST]  # the new points alone
    assert {tuple(each.tuned["scores"]) for each in read_study(tmp_path)} == {("0.001", "0.002", "0.003", "0.01")}


def test_without_rates_nothing_is_tuned_and_records_are_found_again(tmp_path, trained):
    records = study(tmp_path)
    assert records == study(tmp_path, config(tune={"learning_rates": ()}))
    assert [call[1] for call in trained] == [0.5, 0.5]
    assert not (tmp_path / TUNING).exists()
    assert records[0].tuned is None
    row, _ = plan(config()).rows
    assert records[0].config_hash == row_hash(row.training)


def test_parts_choose_for_their_own_rows(tmp_path, trained):
    for part in ((0, 2), (1, 2)):
        study(tmp_path, config(tune={}), part=part)
    assert [call[0] for call in trained] == ["none", "none", "rope", "rope"]
    assert len(study(tmp_path, config(tune={}))) == 4
    assert len(read_records(tmp_path / TUNING)) == 12


def test_a_row_that_diverges_at_every_rate_is_said_to(tmp_path):
    with pytest.raises(FloatingPointError, match=r"row 'a': each of the values .* diverges: give lower learning rates"):
        study(tmp_path, config(tune={"learning_rates": (0.8, 0.9)}))


def test_any_field_is_tuned_from_the_command_line(tmp_path, trained):
    """Points that differ in their rate alone are one ensemble; another split may choose in place of a share."""
    texts = ["optimizer.learning_rate=3e-3,1e-2", "steps=4,6"]
    records = study(tmp_path, config(none="none"), tune=texts, choose_by="valid")
    assert trained[:2] == [("none", (3e-3, 1e-2), (10**6,) * 2, "train", "valid")] * 2
    assert records[0].tuned["chosen"] == {"optimizer.learning_rate": 3e-3, "steps": 4}
    assert [*records[0].tuned["scores"]] == ["0.003, 4", "0.003, 6", "0.01, 4", "0.01, 6"]
    assert (records[0].steps, trained[2][1]) == (4, 3e-3)


@pytest.mark.parametrize(
    "flags", [{"tune": ["optimizer.learning_rat=1"]}, {"tune": ["steps"]}, {"tune": ["steps=4"], "choose_by": "test"}]
)
def test_tuning_that_cannot_be_is_refused(flags, tmp_path):
    with pytest.raises(ValueError, match="tune"):
        study(tmp_path, **flags)


def test_a_seed_of_the_study_chooses_nothing(tmp_path):
    with pytest.raises(ValueError, match=r"tune\.seeds"):
        Tuner(config(tune={"seeds": (1, 100)}).tune, (0, 1), [], tmp_path)
