"""`experiments.extrapolate`: what is planned, and a whole small run of it, stopped, continued and from a checkpoint."""

import json
import pathlib
import runpy
import sys
from types import SimpleNamespace

import pytest
from ml_collections import ConfigDict

import posjax as pj
from experiments import extrapolate
from experiments.studies import environment
from experiments.studies.extrapolation import (
    Extrapolation,
    Sizes,
    chosen_rows,
    fill,
    lengths_of,
    plan,
    stride_of,
    training_config,
)

CONFIGS = pathlib.Path(__file__).parents[3] / "configs"
SIZES = Sizes(trained=128, frequencies=4)


def config():
    return runpy.run_path(str(CONFIGS / "extrapolate.py"))["get_config"]()


@pytest.mark.parametrize(
    ("spec", "length", "want"),
    [
        ("rope(scaling=linear(factor={factor}))", 512, "rope(scaling=linear(factor=4))"),
        ("rope(scaling=linear(factor={factor}))", 64, "rope(scaling=linear(factor=1))"),
        ("rope(scaling=ntk(factor={factor}))", 192, "rope(scaling=ntk(factor=1.5))"),
        ("window({length})", 64, "window(64)"),
        ("dual_chunk(chunk={3*trained/4}, local={trained/4}) >> rope", 64, "dual_chunk(chunk=96, local=32) >> rope"),
        ("self_extend(group={2*factor}, window=8) >> rope", 512, "self_extend(group=8, window=8) >> rope"),
        ("{ramp} {ones}", 1024, "(1, 2, 4, 8,) (1, 1, 1, 1,)"),
    ],
)
def test_placeholders_are_filled_for_a_length(spec, length, want):
    assert fill(spec, length, SIZES) == want


def trainings(made):
    return {label: training_config(made, spec) for label, spec in made.encodings.items()}


def test_every_way_to_extend_a_rope_can_be_read_at_every_length():
    rows = plan(config(), trainings(config()))
    assert [row.kind for row in rows].count("at evaluation") == 12
    assert [row.label for row in rows][:3] == ["none", "rope", "PI"]
    tuned = next(row for row in rows if row.label == "PoSE + PI, tuned")
    assert tuned.reading == "pose(length=1024) >> rope(scaling=linear(factor=8))"
    assert {type(pj.parse(fill(row.reading, 2048, SIZES))) for row in rows}


def test_the_stride_is_a_share_of_the_length_and_some_rows_are_read_further():
    evaluation = config().evaluation
    evaluation.long_lengths, evaluation.long_rows = (65536,), ("alibi",)
    rows = plan(config(), trainings(config()))
    assert {row.label: lengths_of(row, evaluation)[-1] for row in rows}["alibi"] == 65536
    assert {row.label: lengths_of(row, evaluation)[-1] for row in rows}["rope"] == 2048
    assert [stride_of(length, evaluation) for length in (128, 2048, 65536)] == [64, 1024, 4096]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"variants": {"rop": {"x": "rope"}}}, "there is no base 'rop' for its variants; did you mean 'rope'"),
        ({"variants": {"rope": {"alibi": "rope"}}}, "two rows of 'extrapolate' are labelled 'alibi'"),
        ({"variants": {"rope": {"x": "rope(scaling=liner(factor={factor}))"}}}, "did you mean 'linear'"),
        ({"evaluation.lengths": (128, 96)}, "must be a multiple of length=96"),
        ({"evaluation.lengths": ()}, r"evaluation\.lengths=\(\) must be"),
        ({"evaluation.stride": 0.0}, r"evaluation\.stride=0\.0 is a share"),
    ],
)
def test_mistakes_are_found_before_anything_is_trained(change, message):
    wrong = config()
    for name, value in change.items():
        if isinstance(value, dict):
            wrong[name] = ConfigDict(value)
        else:
            wrong.update_from_flattened_dict({name: value})
    with pytest.raises(ValueError, match=message):
        plan(wrong, trainings(config()))


def test_a_training_run_has_the_fields_of_the_decoder():
    decoder = runpy.run_path(str(CONFIGS / "decoder.py"))["get_config"]()
    own = training_config(config(), "rope")
    assert set(own) == set(decoder) - {"seed"}
    assert set(own.data) == set(decoder.data) | {"files", "retrieval"}


@pytest.fixture
def small(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "compilation_cache", lambda directory: None)  # it would stay on for other tests
    monkeypatch.setattr(sys, "argv", ["extrapolate"])
    text = "".join(f"{n} is followed by {n + 1}. " for n in range(900))
    (tmp_path / "numbers.txt").write_text(text)
    made = config()
    made.update_from_flattened_dict(
        {
            "data.name": "numbers",
            "data.files": str(tmp_path / "*.txt"),
            "data.length": 128,
            "data.retrieval.tasks": ("recall", "copy"),
            "model.width": 8,
            "model.depth": 1,
            "model.num_heads": 2,
            "steps": 6,
            "batch_size": 4,
            "optimizer.warmup_steps": 1,
            "eval_tokens": 257,
            "checkpoint_every": 3,
            "evaluation.bytes": 256,
            "evaluation.lengths": (128, 256),
            "evaluation.long_lengths": (512,),
            "evaluation.long_rows": ("rope",),
            "evaluation.batch_tokens": 512,
            "retrieval.tasks": ("recall",),
            "retrieval.lengths": (128,),
            "retrieval.depths": (0.0, 1.0),
            "retrieval.examples": 2,
            "seeds": (0, 1),
        }
    )
    made.encodings = ConfigDict({"rope": "rope"})
    made.variants = ConfigDict({"rope": {"YaRN": "rope(scaling=yarn(factor={factor}, original_length={trained}))"}})
    tuned = dict(spec="pose(length={length}) >> rope", target=256, length=64, steps=2, learning_rate=1e-3)
    made.finetune = ConfigDict({"rope": {"PoSE": tuned}})
    return made


def test_what_was_measured_on_other_documents_is_measured_again(small, tmp_path):
    """A checkpoint says nothing of the documents that it is read on."""
    study = Extrapolation(small)
    row, *_ = study.rows()
    assert study.is_current(row, SimpleNamespace(more={"documents": ["numbers.txt"]}))
    assert not study.is_current(row, SimpleNamespace(more={"documents": ["other.txt"]}))


def chosen(made, *arguments):
    """Labels of the rows that are chosen of a study's."""
    return [row.label for row in chosen_rows(plan(made, trainings(made)), *arguments)]


def test_variants_are_chosen_and_fine_tunes_left_out(small):
    assert chosen(small, None, True) == ["rope", "YaRN", "PoSE"]
    assert chosen(small, None, False) == ["rope", "YaRN"]
    assert chosen(small, ["PoSE"], True) == ["rope", "PoSE"]
    assert chosen(small, [], True) == ["rope"]
    with pytest.raises(
        ValueError, match=r"--variants YARN: there is no such variant of 'rope\(\)'; did you mean 'YaRN'"
    ):
        chosen(small, ["YARN"], True)
    with pytest.raises(ValueError, match="--variants PoSE: there is no such variant"):
        chosen(small, ["PoSE"], False)


def measured(record):
    """The metrics of a record that no clock tells, and no training of this workdir."""
    return {
        name: value for name, value in record["metrics"].items() if name not in ("seconds per window", "training loss")
    }


@pytest.mark.slow
def test_a_whole_run_and_what_it_leaves(small, tmp_path, capsys):
    workdir = tmp_path / "run"
    extrapolate.main(small, workdir)
    records = [json.loads(line) for line in (workdir / "results.jsonl").read_text().splitlines()]
    assert [(r["row"], r["base"], r["seed"]) for r in records] == [
        (label, "rope", seed) for label in ("rope", "YaRN", "PoSE") for seed in (0, 1)
    ]
    rope, yarn, pose = records[::2]
    assert list(rope["metrics"]["loss in sliding windows"]) == ["128", "256", "512"]
    assert list(yarn["metrics"]["loss in sliding windows"]) == ["128", "256"]
    assert (
        rope["metrics"]["loss in sliding windows"]["128"]
        == yarn["metrics"]["loss in sliding windows"]["128"]
        != pose["metrics"]["loss in sliding windows"]["128"]
    )
    assert rope["metrics"]["loss in sliding windows"]["256"] != yarn["metrics"]["loss in sliding windows"]["256"]
    assert rope["metrics"] != records[1]["metrics"]
    assert [*rope["metrics"]["recall accuracy by depth"]][:2] == ["128/0", "128/1"]
    assert {"device", "versions", "wall_time", "config_hash", "data_digest"} <= set(rope)
    assert "YaRN" in (workdir / "README.md").read_text()
    assert "numbers.txt" in records[0]["documents"]

    extrapolate.main(small, workdir)  # nothing is left to do
    assert len((workdir / "results.jsonl").read_text().splitlines()) == 6
    folder = next((workdir / "models").iterdir())
    small.finetune = ConfigDict()
    extrapolate.main(small, tmp_path / "again", folder)
    again = [json.loads(line) for line in (tmp_path / "again" / "results.jsonl").read_text().splitlines()]
    assert [measured(each) for each in again] == [measured(each) for each in records[:4]]
    extrapolate.main(small, tmp_path / "own", folder, ["rerope(window=32) >> rope"])
    own = [json.loads(line) for line in (tmp_path / "own" / "results.jsonl").read_text().splitlines()]
    assert [each["row"] for each in own] == ["rope"] * 2 + ["rerope(window=32) >> rope"] * 2
    with pytest.raises(ValueError, match="there is no checkpoint in"):
        extrapolate.main(small, tmp_path / "none", tmp_path)
    assert str(workdir / "README.md") in capsys.readouterr().out


@pytest.mark.slow
def test_a_row_of_its_own_length_at_its_best_rate_and_under_searched_factors(small, tmp_path):
    small.encodings, small.finetune = ConfigDict(), ConfigDict()
    small.rows = ConfigDict({"shorter": {"model": {"encoding": "rope"}, "data": {"length": 64}, "eval_lengths": (64,)}})
    small.variants = ConfigDict({"shorter": {"LongRoPE": "{longrope}"}})
    small.tune = ConfigDict(dict(learning_rates=(1e-9, 1e-2), seeds=(9,), share=0.2))
    budget = dict(population=4, rounds=1, mutations=2, crossovers=2, parents=2)
    small.search = ConfigDict(dict(length=128, split="train", windows=2, seed=0, **budget))
    small.data.retrieval.first_steps, small.data.retrieval.tasks, small.retrieval.lengths = 2, ("recall",), ()
    small.seeds, small.evaluation.lengths, small.evaluation.long_lengths = (0,), (128,), ()
    small.evaluation.bytes = 128
    extrapolate.main(small, tmp_path / "run")
    lines = (tmp_path / "run" / "results.jsonl").read_text().splitlines()
    shorter, longrope = map(json.loads, lines)
    assert shorter["trained_at"] == 64
    assert shorter["learning_rate"] == longrope["learning_rate"] == 1e-2
    assert len((tmp_path / "run" / "tuning.jsonl").read_text().splitlines()) == 2
    scaling = pj.parse(longrope["encoding"]).scaling
    factors = list(scaling.long_factor)
    assert 1 <= factors[0] <= factors[-1] <= 3  # one beyond the factor, as the authors search
    assert factors == sorted(factors)
    assert (scaling.factor, scaling.original_length) == (2, 64)
    assert longrope["metrics"]["loss in sliding windows"]["128"] != shorter["metrics"]["loss in sliding windows"]["128"]
    extrapolate.main(small, tmp_path / "run")  # nothing is left to do
    assert (tmp_path / "run" / "results.jsonl").read_text().splitlines() == lines
