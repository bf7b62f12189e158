"""Each training at the learning rate that suits it best, chosen by what is neither trained on nor reported."""

import numpy as np
import pytest
from ml_collections import ConfigDict

from experiments.records import TUNING, read_study
from experiments.records import read_records as tuning_points
from experiments.studies import environment
from experiments.studies.ablation import Ablation
from experiments.studies.records import read_records, row_hash
from experiments.studies.study import run
from experiments.studies.tuning import Tune
from posjax.training import loop

RATES = (1e-3, 3e-3, 1e-2)
BEST = {"none": 3e-3, "rope": 1e-2}


class Toy:
    """A task that is not trained."""

    model, mesh, digest = None, None, "aa"
    headline, headline_mode = "loss", "min"
    batches = loss = score = evaluation = len

    def __init__(self, config):
        self.config = config


def toy_config(**tune):
    study = {"encodings": {"a": "none", "b": "rope"}, "log_every": 1, "task": "language_model", "steps": 4}
    study |= {"model": {"kind": "decoder", "encoding": ""}, "optimizer": {"learning_rate": 0.5}, "eval_every": 2}
    study |= {"data": {"name": "plays", "train_split": "train", "eval_split": "test", "length": 8}}
    study |= {"eval_lengths": (8, 16), "eval_tokens": 64}
    tune = {"learning_rates": RATES, "seeds": (100, 101), "share": 0.1} | tune
    return ConfigDict(
        {"name": "toy", "title": "Toy", "notes": "", "seeds": (0, 1), "tune": tune, "studies": {"text": study}}
    )


@pytest.fixture
def trained(monkeypatch):
    """What was trained: (spec, rates, seeds, split). The loss is the distance to the encoding's best rate, in octaves."""
    calls = []

    def train(task, config, seeds, workdir, **told):
        data, spec, rates = config.data, config.model.encoding, config.optimizer.learning_rate
        calls.append((spec, rates, seeds, data.train_split, data.eval_split))
        workdir.mkdir(parents=True, exist_ok=True)
        (workdir / "metrics.jsonl").touch()
        loss = np.abs(np.log2(np.broadcast_to(rates, len(seeds)) / BEST[spec]))
        loss = np.where(np.broadcast_to(rates, len(seeds)) > 0.5, np.nan, loss)
        lengths = config.eval_lengths
        assert lengths == ((8,) if data.eval_split == "10% of train" else (8, 16))
        state = type("State", (), {"params": {"weight": np.zeros((len(seeds), 3), np.float32)}})
        return loop.Result(state, {"loss": {str(length): loss for length in lengths}}, 0.1, 1.0)

    shapes = type("Programs", (), {"shapes": lambda self: type("State", (), {"params": {}})})
    monkeypatch.setattr(loop, "train", train)
    monkeypatch.setattr(loop, "check", lambda task, config, seeds: shapes())
    monkeypatch.setattr(environment, "compilation_cache", lambda directory: None)
    monkeypatch.setattr(Ablation, "make_task", lambda self, config: Toy(config))
    return calls


def study(workdir, config=None, **options):
    run(Ablation(config or toy_config()), workdir, allocator=None, command="x", **options)
    return read_records(workdir / "results.jsonl")


def test_a_row_is_trained_at_the_rate_that_its_held_out_share_chose(tmp_path, trained):
    records = study(tmp_path)
    points = (tuple(np.repeat(RATES, 2)), (100, 101) * 3, "train without 10%", "10% of train")
    final = ((0, 1), "train", "test")
    assert trained == [("none", *points), ("none", 3e-3, *final), ("rope", *points), ("rope", 1e-2, *final)]
    assert [(each.label, each.seed) for each in records] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    tuned = records[0].more["tuned"]
    assert (tuned["learning_rate"], tuned["by"], tuned["on"], tuned["seeds"]) == (
        3e-3,
        "loss",
        "10% of train",
        [100, 101],
    )
    assert tuned["from"] == pytest.approx({"0.001": np.log2(3), "0.003": 0, "0.01": np.log2(10 / 3)})
    chosen = read_records(tmp_path / "tuning.jsonl")
    assert [(each.label, each.seed) for each in chosen[:3]] == [
        ("a, learning_rate=0.001", 100),
        ("a, learning_rate=0.001", 101),
        ("a, learning_rate=0.003", 100),
    ]
    assert {each.more["kind"] for each in chosen} == {"point"}
    told = (tmp_path / "README.md").read_text()
    assert "at the edge of those tried, and might be better beyond: b (0.01)." in told
    study(tmp_path)
    assert len(trained) == 4  # nothing is left to do
    study(tmp_path, toy_config(learning_rates=(*RATES, 2e-3)))
    assert trained[4:] == [(spec, (2e-3, 2e-3), (100, 101), *points[2:]) for spec in BEST]  # the new points alone


def test_without_rates_nothing_is_tuned_and_records_are_found_again(tmp_path, trained):
    untuned, off = toy_config(), toy_config(learning_rates=())
    del untuned.tune
    records = study(tmp_path, untuned)
    assert records == study(tmp_path, off)
    assert [call[1] for call in trained] == [0.5, 0.5]
    assert not (tmp_path / "tuning.jsonl").exists()
    assert "tuned" not in records[0].more
    (row, _) = Ablation(untuned).rows()
    assert records[0].config_hash == row_hash(row.training)


def test_parts_choose_for_their_own_rows(tmp_path, trained):
    for part in ((0, 2), (1, 2)):
        run(Ablation(toy_config()), tmp_path, allocator=None, command="x", part=part)
    assert [call[0] for call in trained] == ["none", "none", "rope", "rope"]
    assert len(study(tmp_path)) == 4
    assert len(read_records(tmp_path / "tuning.jsonl")) == 12
    assert len(trained) == 4


def test_a_rate_that_diverges_is_not_chosen(tmp_path, trained):
    records = study(tmp_path, toy_config(learning_rates=(1e-3, 0.9)))
    assert {each.more["tuned"]["learning_rate"] for each in records} == {1e-3}
    assert records[0].more["tuned"]["from"]["0.9"] is None
    with pytest.raises(FloatingPointError, match=r"tune.learning_rates=\(0.8, 0.9\) diverges"):
        study(tmp_path / "none", toy_config(learning_rates=(0.8, 0.9)))


@pytest.mark.parametrize(
    ("tune", "message"),
    [
        ({"learning_rates": (1e-3, 1e-3)}, "must be positive and differ"),
        ({"learning_rates": (0.0,)}, "must be positive and differ"),
        ({"seeds": ()}, "must be given and differ"),
        ({"seeds": (1, 100)}, "but 1 is one"),
    ],
)
def test_tuning_that_cannot_be(tune, message):
    with pytest.raises(ValueError, match=message):
        Tune.of(toy_config(**tune), seeds=(0, 1))


def test_a_sweep_and_tuning_exclude_each_other():
    with pytest.raises(ValueError, match="lets --sweep choose instead"):
        Ablation(toy_config(), ["config.steps=1,2"])


def test_records_tell_of_points_that_were_added_later(tmp_path, trained):
    """Of a row whose best rate stayed the best, too, which does not run again."""
    study(tmp_path, toy_config(learning_rates=RATES[1:]))
    study(tmp_path, toy_config(learning_rates=RATES))
    assert len([call for call in trained if call[2] == (0, 1)]) == 2
    records, points = read_study(tmp_path), tuning_points(tmp_path / TUNING)
    assert len(points) == 2 * 2 * len(RATES)
    assert {tuple(each.tuned["scores"]) for each in records} == {("0.001", "0.003", "0.01")}
