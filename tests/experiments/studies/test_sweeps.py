"""Every point of a sweep is a row, and what chooses the best one is neither trained on nor reported."""

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from ml_collections import ConfigDict

from experiments import ablate
from experiments.studies import ablation, environment
from experiments.studies.ablation import Ablation
from experiments.studies.records import read_records
from experiments.studies.sweeps import Sweep, parse_sweep
from posjax.training import loop

CONFIGS = Path(__file__).parents[3] / "configs"
RATE = "config.optimizer.learning_rate=1e-3,3e-3"


def decoder():
    return runpy.run_path(str(CONFIGS / "decoder.py"))["get_config"]()


def quickstart():
    return runpy.run_path(str(CONFIGS / "quickstart.py"))["get_config"]()


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("config.steps=1", ("1",)),
        ("config.eval_lengths=(16,32),(16,)", ("(16,32)", "(16,)")),
        ("config.model.encoding=rope(base=1), alibi", ("rope(base=1)", "alibi")),
        ("config.model.encoding='rope, none',alibi", ("'rope, none'", "alibi")),
    ],
)
def test_commas_within_brackets_and_quotes_part_nothing(text, values):
    assert parse_sweep(text) == Sweep(text.removeprefix("config.").partition("=")[0], values)


def test_every_combination_is_a_row_with_a_label_of_its_own():
    rows = Ablation(decoder(), [RATE, "config.model.encoding='rope, none',rope(base=0.5)"]).rows()
    assert [row.label for row in rows] == [
        "learning_rate=1e-3, encoding='rope, none'",
        "learning_rate=1e-3, encoding=rope(base=0.5)",
        "learning_rate=3e-3, encoding='rope, none'",
        "learning_rate=3e-3, encoding=rope(base=0.5)",
    ]
    assert [row.encoding for row in rows[:2]] == ["rope(), none()", "rope(base=0.5)"]
    assert [row.training.optimizer.learning_rate for row in rows] == [1e-3, 1e-3, 3e-3, 3e-3]
    assert {row.study for row in rows} == {"pydoc_topics_decoder"}


def test_what_depends_on_a_field_follows_it_and_the_config_stays():
    config = decoder()
    rows = Ablation(config, ["config.steps=100,2000"]).rows()
    assert [row.training.optimizer.warmup_steps for row in rows] == [10, 200]
    assert (config.steps, config.data.train_split) == (1000, "train")


def test_a_field_is_swept_in_the_studies_that_have_it_or_in_one():
    plain = [row.label for row in Ablation(quickstart()).rows()]
    both = Ablation(quickstart(), [RATE]).rows()
    assert len(both) == 2 * len(plain)
    assert [row.label for row in both[:2]] == ["none, learning_rate=1e-3", "none, learning_rate=3e-3"]
    one = Ablation(quickstart(), ["config.studies.digits_vit.optimizer.learning_rate=1e-3,3e-3"]).rows()
    of_text = [row for row in one if row.study == "pydoc_decoder"]
    assert len(one) == len(plain) + len(of_text)
    assert all("choose_split" not in row.training.data for row in of_text)
    images = Ablation(quickstart(), ["config.label_smoothing=0,0.1"]).rows()
    assert {row.study for row in images if "choose_split" in row.training.data} == {"digits_vit"}


def test_seeds_are_those_of_every_row():
    study = Ablation(decoder(), ["config.seed=3,5"])
    assert study.seeds == (3, 5)
    (row,) = study.rows()
    assert "choose_split" not in row.training.data
    assert Ablation(quickstart(), ["config.seeds=7", RATE]).seeds == (7,)


def test_what_chooses_is_held_out_of_training_or_a_split_of_its_own():
    data = [row.training.data for row in Ablation(decoder(), [RATE]).rows()]
    assert {(each.train_split, each.choose_split) for each in data} == {("train without 10%", "10% of train")}
    data = [row.training.data for row in Ablation(decoder(), [RATE], "test").rows()]
    assert {(each.train_split, each.choose_split) for each in data} == {("train", "test")}


@pytest.mark.parametrize(
    ("sweeps", "choose_by", "message"),
    [
        (["optimizer.learning_rate=1"], "0.1", "expected a field and its values, each once, as in config.optimizer"),
        (["config.steps=1,,2"], "0.1", "expected a field and its values"),
        (["config.steps=1,1"], "0.1", "expected a field and its values, each once"),
        (["config.optimizer.learning_rat=1"], "0.1", "no such field; did you mean 'optimizer.learning_rate'"),
        (["config.optimizer=1"], "0.1", "no such field"),
        (["config.steps=1,x"], "0.1", "--sweep config.steps: expected int, got 'x'"),
        (["config.steps=1", "config.steps=2"], "0.1", "--sweep config.steps is given twice"),
        (["config.seeds=a"], "0.1", "seeds are whole numbers"),
        (["config.model.encoding=rop"], "0.1", "did you mean 'rope'"),
        ([RATE], "train", "--choose_by=train: this split is trained on"),
        ([RATE], "validation", "--choose_by=validation: this split is reported"),
        ([RATE], "1", "a share of 1.0 of 'train' cannot be held out"),
    ],
)
def test_sweeps_that_cannot_be(sweeps, choose_by, message):
    with pytest.raises(ValueError, match=message):
        Ablation(decoder(), sweeps, choose_by).rows()


def test_encodings_are_not_swept_where_they_are_the_rows():
    with pytest.raises(ValueError, match="the rows of 'digits_vit' are encodings already"):
        Ablation(quickstart(), ["config.model.encoding=rope,alibi"]).rows()


class Toy:
    """A task that is not trained."""

    model, mesh, digest = None, None, "aa"
    headline, headline_mode = "accuracy", "max"
    batches = loss = score = evaluation = len

    def __init__(self, config):
        self.config = config

    def init(self, key):
        return {"weight": np.zeros(3, np.float32)}


@pytest.fixture
def untrained(monkeypatch):
    """Nothing is trained. The best point is another one on what chooses than on what is reported."""

    def train(task, config, seeds, workdir, **told):
        (workdir / "metrics.jsonl").parent.mkdir(parents=True, exist_ok=True)
        (workdir / "metrics.jsonl").touch()
        state = type("State", (), {"params": {"weight": np.zeros((len(seeds), 3), np.float32)}})
        accuracy = np.array([config.rate + seed / 100 for seed in seeds])
        return loop.Result(state, {"accuracy": accuracy, "loss": accuracy}, 0.1, 1.0)

    def evaluate(task, score, params, mesh):
        assert task.config.data.eval_split == "10% of train"
        best = 1 - abs(task.config.rate - 0.28)  # but for a seed of 0.3 that diverged
        return {"accuracy": np.array([best, np.nan if task.config.rate == 0.3 else best])}

    monkeypatch.setattr(loop, "train", train)
    monkeypatch.setattr(loop, "check", lambda task, config, seeds: _Programs())
    monkeypatch.setattr(environment, "compilation_cache", lambda directory: None)
    monkeypatch.setattr(Ablation, "make_task", lambda self, config: Toy(config))
    monkeypatch.setattr(ablation, "evaluate", evaluate)
    monkeypatch.setattr(sys, "argv", ["ablate"])


class _Programs:
    def shapes(self):
        return type("State", (), {"params": {}})


def toy_config():
    study = {"encodings": {"a": "none", "b": "rope"}, "rate": 0.1, "log_every": 1, "task": "classification"}
    study |= {"model": {"encoding": ""}, "data": {"name": "digits", "train_split": "train", "eval_split": "test"}}
    study["steps"] = 4
    return ConfigDict({"name": "toy", "title": "Toy", "notes": "", "seeds": (0, 1), "studies": {"images": study}})


def test_the_table_says_what_chose_and_what_is_reported(tmp_path, untrained, capsys):
    ablate.main(toy_config(), tmp_path, ["config.rate=0.1,0.2,0.3"])
    records = [record.fields() for record in read_records(tmp_path / "results.jsonl")]
    assert len(records) == 12
    page = " ".join((tmp_path / "README.md").read_text().split())
    assert (
        "Of the points of a, a, rate=0.2 is best by choosing accuracy on 10% of train, which no point is trained on"
        in page
    )
    ablate.main(toy_config(), tmp_path, ["config.rate=0.1,0.2,0.3"])  # nothing is left to do
    assert len(read_records(tmp_path / "results.jsonl")) == 12


def test_without_a_sweep_there_is_no_such_table(tmp_path, untrained):
    ablate.main(toy_config(), tmp_path)
    records = [record.fields() for record in read_records(tmp_path / "results.jsonl")]
    assert "point_of" not in records[0]


def test_rows_of_a_config_may_have_dots_in_their_labels():
    config = toy_config()
    config.studies.images.rows = ConfigDict(
        {"rate=0.5": {"rate": 0.5, "model": {"encoding": "rope"}}}, allow_dotted_keys=True
    )
    row = Ablation(config).rows()[-1]
    assert (row.label, row.training.rate) == ("rate=0.5", 0.5)


@pytest.mark.slow
def test_a_sweep_that_is_trained_holds_back_what_it_is_chosen_by(tmp_path, monkeypatch):
    """Digests tell the data: points share theirs, and a run without a sweep sees more."""
    monkeypatch.setattr(environment, "compilation_cache", lambda directory: None)
    monkeypatch.setattr(sys, "argv", ["ablate"])
    config = decoder()
    small = {"model.width": 8, "model.depth": 1, "model.num_heads": 2, "steps": 3, "optimizer.warmup_steps": 1}
    small |= {"data.length": 32, "data.positions": "window", "eval_lengths": (32,), "eval_tokens": 257}
    config.update_from_flattened_dict(small | {"data.data_dir": str(tmp_path / "data")})
    ablate.main(config, tmp_path / "plain")
    ablate.main(config, tmp_path / "swept", ["config.optimizer.learning_rate=1e-4,1e-1", "config.seeds=0,1"], "0.01")
    (plain,), swept = (read_records(tmp_path / name / "results.jsonl") for name in ("plain", "swept"))
    assert len(swept) == 4
    (digest,) = {record.data_digest for record in swept}
    assert digest != plain.data_digest
    assert all(np.isfinite(record.metrics["choosing loss"]) for record in swept)
