"""Pretrained folders are read at many lengths, under any encoding made of their own, and recalibrated."""

import hashlib
import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from exported import TRAINED, write_llama
from ml_collections import ConfigDict

from experiments import extrapolate
from experiments.studies import environment
from experiments.studies.extrapolation import Extrapolation, finetune_config, plan, training_config

CONFIGS = Path(__file__).parents[3] / "configs"
LOADED = CONFIGS / "extrapolate_pretrained.py"


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return write_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture
def small(llama, monkeypatch):
    monkeypatch.setattr(environment, "compilation_cache", lambda directory: None)
    monkeypatch.setattr(sys, "argv", ["extrapolate"])
    config = runpy.run_path(str(LOADED))["get_config"]("drope")
    sizes = {"evaluation.bytes": 128, "evaluation.lengths": (64, 128), "retrieval.lengths": (64,)}
    sizes |= {"retrieval.examples": 1, "retrieval.depths": (0.5,), "data.name": "words", "data.files": f"{llama}/*.txt"}
    config.update_from_flattened_dict(sizes)
    return config


@pytest.mark.slow
def test_rows_are_the_model_as_loaded_and_what_is_made_of_its_encoding(small, llama):
    small.encoding = "{own}, none"
    rows = Extrapolation(small, llama).rows()
    assert {row.label: row.reading for row in rows} == {
        "loaded": "rope()",
        "no positions": "none",
        "NoPE every 4th": "rope(), rope(), rope(), none",
        "window": "rope() + window({trained/2})",
        "sinks": "rope() + sinks(num_sinks=4, window={trained/2})",
        "ReRoPE": "rerope(window={trained/2}) >> rope()",
        "{own}, none": "rope(), none",
        "DroPE": "none",
        "DroPE(log_n)": f"log_n(original_length={TRAINED})",
    }
    assert {row.training.data.length for row in rows} == {TRAINED}
    assert [row.tuning.length for row in rows if row.tuning] == [TRAINED] * 2
    assert rows[0].training.model.mlp == "swiglu"


def test_what_is_for_any_checkpoint_is_for_a_run_too(small):
    small.encodings = ConfigDict({"mine": "alibi"})
    small.variants.mine = ConfigDict({"farther": "interpolate(factor=2) >> alibi"})
    trained = {"mine": training_config(small, "alibi")}
    labels = [row.label for row in plan(small, trained, loaded=True)]
    assert labels[:3] == ["mine", "farther", "no positions"]
    assert "DroPE" in labels
    assert [row.label for row in plan(small, trained)] == ["mine", "farther"]


def test_what_is_searched_for_is_the_rope_that_is_there(small):
    own = runpy.run_path(str(LOADED))["get_config"]("longrope2")
    small.variants, small.search, small.data.length, small.finetune = own.variants, own.search, 256, ConfigDict()
    trained = {"loaded": training_config(small, "rope(base=500000, fraction=0.5)")}
    factors = "short_factor={ones}, long_factor={searched}, factor=16, original_length=256"
    found = f"rope(base=500000, layout='half', fraction=0.5, scaling=longrope({factors}))"
    assert plan(small, trained, loaded=True)[-1].reading == plan(small, trained)[1].reading == found
    for change, message in (
        ({"method": "longrop"}, "no search.method is named 'longrop'; did you mean 'longrope'"),
        ({"task": "needel"}, "no search.task is named 'needel'; did you mean 'needle'"),
        ({"length": 256}, "a length above the trained 256, not for .* and search.length=256"),
    ):
        small.search = ConfigDict({**own.search.to_dict(), **change})
        with pytest.raises(ValueError, match=message):
            plan(small, trained)
    small.search = own.search
    with pytest.raises(ValueError, match=r"a plain rope .*, not for 'rope\(\), none\(\)'"):
        plan(small, {"loaded": training_config(small, "rope, none")})


def test_a_fine_tune_sees_whole_windows(small):
    small.data.ladder.steps = 5
    tuning = ConfigDict(dict(steps=2, length=64, learning_rate=1e-3))
    assert finetune_config(training_config(small, "rope"), tuning, "rope").data.ladder.steps == 0


def test_the_tokens_are_those_of_the_folder(small, llama):
    study = Extrapolation(small, llama)
    assert study.documents.texts[0].dtype == np.int32
    digest = hashlib.sha256((llama / "tokenizer.json").read_bytes()).hexdigest()
    assert study.documents.tokenizer.digest == digest
    small.trained_length = 32
    assert {row.training.data.length for row in Extrapolation(small, llama).rows()} == {32}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"encoding": "rop"}, "did you mean 'rope'"),
        pytest.param({"encoding": "t5"}, r"row 't5' of .*cannot take over", marks=pytest.mark.slow),
        ({"variants": {"lode": {"x": "none"}}}, "there is no base 'lode' for its variants"),
        ({"data.tokenizer": "bytes", "evaluation.bytes": 2**20}, "has [0-9,]+ bytes, .* are needed"),
        ({"init_from": "x"}, "config.init_from is for trainings: give --checkpoint"),
    ],
)
def test_what_cannot_be_read_is_told_before_anything_is_measured(small, llama, tmp_path, change, message):
    if "variants" in change:
        small.variants = ConfigDict(change["variants"])
    else:
        small.update_from_flattened_dict(change)
    with pytest.raises(ValueError, match=message):
        extrapolate.main(small, tmp_path / "run", llama)
    assert not (tmp_path / "run").exists()


def test_an_encoding_without_a_checkpoint_is_refused(small):
    small.encoding = "none"
    with pytest.raises(ValueError, match=r"config\.encoding is how a checkpoint is read"):
        Extrapolation(small)


@pytest.mark.slow
def test_a_folder_is_read_and_recalibrated(small, llama, tmp_path):
    small.variants.loaded = ConfigDict({"no positions": "none"})
    small.encoding = "rope(scaling=yarn(factor={factor}, original_length={trained}))"
    for each in small.finetune.loaded.values():
        each.steps = 2
    extrapolate.main(small, tmp_path, llama)
    records = {
        record["row"]: record for record in map(json.loads, (tmp_path / "results.jsonl").read_text().splitlines())
    }
    loss = {label: record["metrics"]["loss in sliding windows"] for label, record in records.items()}
    assert all(np.isfinite([*each.values()]).all() for each in loss.values())
    assert loss[small.encoding]["64"] == loss["loaded"]["64"]  # nothing is scaled within the trained length
    assert loss[small.encoding]["128"] != loss["loaded"]["128"]
    assert loss["DroPE"]["64"] != loss["no positions"]["64"]
    assert loss["DroPE(log_n)"]["64"] == pytest.approx(loss["DroPE"]["64"], abs=1e-5)
    assert loss["DroPE(log_n)"]["128"] != loss["DroPE"]["128"]
    assert {record["unit"] for record in records.values()} == {"token"}
    assert {record["trained_at"] for record in records.values()} == {TRAINED}
    assert "perplexity in sliding windows" in (tmp_path / "README.md").read_text()
    before = (tmp_path / "results.jsonl").read_text()
    extrapolate.main(small, tmp_path, llama)  # nothing is left to do
    assert (tmp_path / "results.jsonl").read_text() == before
