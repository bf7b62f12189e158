"""Whole small runs: lengths, resolutions, pretrained folders and the configs of papers, stopped and continued."""

import hashlib
import importlib
import re
import sys

import numpy as np
import pytest
from exported import TRAINED, write_llama
from ml_collections import ConfigDict
from PIL import Image

import posjax as pj
from experiments import ablate, cli, progress
from experiments.cli import load
from experiments.records import RESULTS, TUNING, read_records
from experiments.studies import engine, environment
from experiments.studies.engine import plan
from experiments.studies.readings import RESIZED, longrope, scaled_rope, text_place
from experiments.studies.weights import kept_weights
from posjax.spec import parse_layers


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.setattr(environment, "compilation_cache", lambda directory: None)  # it would stay on for other tests
    monkeypatch.setattr(sys, "argv", ["ablate"])


def config(name, *arguments):
    return load(":".join([f"configs/{name}.py", *arguments]))


def records_of(workdir):
    return read_records(workdir / RESULTS)


# Lengths.


@pytest.fixture
def decoders(tmp_path):
    text = "".join(f"{n} is followed by {n + 1}. " for n in range(900))
    (tmp_path / "numbers.txt").write_text(text)
    made = config("extrapolate")
    made.update_from_flattened_dict(
        {
            "data.name": "numbers",
            "data.files": str(tmp_path / "*.txt"),
            "data.length": 128,
            "data.retrieval.tasks": ("recall", "copy"),
            "model.width": 8,
            "model.depth": 1,
            "model.num_heads": 2,
            "steps": 4,
            "batch_size": 4,
            "optimizer.warmup_steps": 1,
            "eval_tokens": 257,
            "checkpoint_every": 4,
            "measures.lengths.bytes": 128,
            "measures.lengths.lengths": (64, 128),
            "measures.lengths.batch_tokens": 512,
            "measures.retrieval.tasks": ("recall",),
            "measures.retrieval.lengths": (128,),
            "measures.retrieval.depths": (0.0, 1.0),
            "measures.retrieval.examples": 2,
            "seeds": (0, 1),
        }
    )
    made.encodings = ConfigDict({"rope": "rope"})
    pose = dict(read=lambda layers, at: f"pose(length={at.size}) >> rope", target=256, size=64)
    made.finetune = ConfigDict({"rope": {"PoSE": dict(pose, steps=2, learning_rate=1e-3)}})
    return made


@pytest.mark.slow
def test_lengths_and_what_they_leave(decoders, tmp_path, monkeypatch, capsys):
    """Readings that must equal another at the lengths that are read are named first and not measured."""
    readings = {"YaRN": scaled_rope("yarn"), "far": "rope + window(128)", "near": "rope + window(127)"}
    decoders.variants = ConfigDict({"rope": readings | {"near, turned round": "window(127) + rope"}}, sort_keys=False)
    calls, measure = [], engine.MEASURES["lengths"]
    counted = measure._replace(
        function=lambda *given: calls.append(capsys.readouterr().out) or measure.function(*given)
    )
    monkeypatch.setattr(engine, "MEASURES", {**engine.MEASURES, "lengths": counted})
    workdir = tmp_path / "run"
    ablate.main(decoders, workdir)
    assert str(workdir / "README.md") in capsys.readouterr().out
    told = (
        "extrapolate: {} must equal {}: at lengths of 64 to 128, trained at 128, their encodings compute the same at every "
        "position; they are not measured"
    )
    assert told.format("YaRN, far", "rope") in calls[0]
    assert told.format("near, turned round", "near") in calls[0]
    assert re.search(r"rope took \d+ s to read; 1 more row: about \d+ s", calls[1])
    assert len(calls) == 3
    records = records_of(workdir)
    equal_to = {"rope": "", "YaRN": "rope", "far": "rope", "near": "", "near, turned round": "near", "PoSE": ""}
    assert [(r.row, r.base, r.seed, r.equal_to) for r in records] == [
        (label, "rope", seed, other) for label, other in equal_to.items() for seed in (0, 1)
    ]
    loss = {record.row: record.metrics["loss in sliding windows"] for record in records[::2]}
    assert all([*each] == [64, 128] for each in loss.values())
    assert loss["YaRN"] == loss["far"] == loss["rope"] != loss["near"] == loss["near, turned round"]
    assert loss["rope"][64] == loss["near"][64] != loss["PoSE"][64]
    rope, far, pose = records[0], records[4], records[-1]
    assert "seconds per window" not in far.metrics
    assert far.evaluation_time is None
    assert rope.metrics != records[1].metrics
    assert [*rope.metrics["recall accuracy by depth"]][:2] == [(128, 0), (128, 1)]
    assert {(each.run, each.unit, each.trained_at) for each in records} == {(rope.run, "byte", 128)}
    assert rope.documents == ("numbers.txt",)
    assert pose.learning_rate == 1e-3
    page = (workdir / "README.md").read_text()
    assert "Not measured but equal to rope at all lengths of extrapolate, by their encodings: YaRN, far." in page
    assert "{'scaling': 'yarn'}" in (workdir / "config.json").read_text()  # functions stand there as their source

    folder, own = next((workdir / "extrapolate").glob("rope-*")), "rerope(window=32) >> {own}"
    decoders.finetune = ConfigDict()
    del decoders.measures.retrieval
    decoders.measures.lengths.lengths = (128,)
    ablate.main(decoders, tmp_path / "again", checkpoint=folder, variants=[own])
    again = [(each.row, each.metrics["loss in sliding windows"][128]) for each in records_of(tmp_path / "again")]
    assert again[:2] == [(each.row, each.metrics["loss in sliding windows"][128]) for each in records[:2]]
    assert [row for row, _ in again[2:]] == [own] * 2
    with pytest.raises(ValueError, match="there is no checkpoint in"):
        ablate.main(decoders, tmp_path / "none", checkpoint=tmp_path)


@pytest.mark.slow
def test_a_row_of_its_own_length_at_its_best_rate_and_under_searched_factors(decoders, tmp_path):
    decoders.encodings, decoders.finetune = ConfigDict(), ConfigDict()
    shorter = {"model": {"encoding": "rope"}, "data": {"length": 64}, "eval_lengths": (64,)}
    decoders.rows = ConfigDict({"shorter": shorter})
    decoders.variants = ConfigDict({"shorter": {"shorter": None, "LongRoPE": longrope}})
    decoders.tune = ConfigDict(dict(learning_rates=(1e-9, 1e-2), seeds=(9,), share=0.2))
    budget = dict(population=4, rounds=1, mutations=2, crossovers=2, parents=2)
    decoders.search = ConfigDict(dict(length=128, split="train", windows=2, seed=0, **budget))
    decoders.data.retrieval.first_steps, decoders.data.retrieval.tasks = 2, ("recall",)
    decoders.seeds = (0,)
    decoders.measures.lengths.lengths = (128,)
    del decoders.measures.retrieval
    ablate.main(decoders, tmp_path)
    (searched,) = records_of(tmp_path)
    assert (searched.row, searched.trained_at, searched.learning_rate) == ("LongRoPE", 64, 1e-2)
    assert len(read_records(tmp_path / TUNING)) == 2
    scaling = pj.parse(searched.encoding).scaling
    factors = list(scaling.long_factor)
    assert 1 <= factors[0] <= factors[-1] <= 3  # one beyond the factor, as the authors search
    assert factors == sorted(factors)
    assert (scaling.factor, scaling.original_length) == (2, 64)
    with pytest.raises(ValueError, match=r"a plain rope .*, not for 'rope\(\), none\(\)'"):
        longrope(parse_layers("rope, none"), text_place(decoders, 128, 128))


# A pretrained folder.


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return write_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture
def pretrained(llama):
    made = config("extrapolate_pretrained", "drope")
    sizes = {"lengths.bytes": 128, "lengths.lengths": (64, 128)}
    del made.measures.retrieval
    own = {"data.name": "words", "data.files": f"{llama}/*.txt"}
    made.update_from_flattened_dict({f"measures.{name}": value for name, value in sizes.items()} | own)
    return made


@pytest.mark.slow
def test_a_folder_is_read_and_recalibrated(pretrained, llama, tmp_path):
    study = plan(pretrained, checkpoint=llama)
    documents = engine.load_documents(study.tables["extrapolate_pretrained"], study.loaded.run.task.tokenizer)
    assert documents.texts[0].dtype == np.int32
    assert documents.tokenizer.digest == hashlib.sha256((llama / "tokenizer.json").read_bytes()).hexdigest()
    rows = study.rows
    assert [row.label for row in rows][:4] == ["loaded", "no positions", "NoPE every 4th", "window"]
    assert {row.training.data.length for row in rows} == {TRAINED}
    assert [row.finetune.size for row in rows if row.finetune] == [TRAINED] * 2
    assert rows[0].training.model.mlp == "swiglu"
    for each in pretrained.finetune.loaded.values():
        each.steps = 2
    ablate.main(pretrained, tmp_path, checkpoint=llama, variants=["YaRN", "DroPE", "DroPE(log_n)"])
    records = {record.row: record for record in records_of(tmp_path)}
    loss = {label: record.metrics["loss in sliding windows"] for label, record in records.items()}
    assert all(np.isfinite([*each.values()]).all() for each in loss.values())
    assert loss["YaRN"][64] == loss["loaded"][64]  # nothing is scaled within the trained length
    assert loss["YaRN"][128] != loss["loaded"][128]
    assert loss["DroPE"][64] != loss["loaded"][64]
    assert "scaling=yarn(factor=2" in records["YaRN"].encoding
    assert loss["DroPE(log_n)"][64] == pytest.approx(loss["DroPE"][64], abs=1e-5)
    assert loss["DroPE(log_n)"][128] != loss["DroPE"][128]
    assert {(record.unit, record.trained_at) for record in records.values()} == {("token", TRAINED)}
    assert "perplexity in sliding windows" in (tmp_path / "README.md").read_text()


# Resolutions.


@pytest.fixture
def vits(tmp_path):
    made = config("resolutions", "fashion_mnist")
    table = made.studies.fashion_mnist
    table.update_from_flattened_dict(
        {
            "data.name": "digits",
            "data.data_dir": str(tmp_path / "data"),
            "data.image_size": (8, 8),
            "model.patch_size": 2,
            "model.width": 8,
            "model.depth": 1,
            "model.num_heads": 1,
            "steps": 4,
            "batch_size": 16,
            "checkpoint_every": 2,
            "optimizer.warmup_steps": 1,
            "measures.resolutions.images": 30,
            "measures.resolutions.resolutions": (8, 12),
        }
    )
    made.seeds, made.tune.learning_rates = (0, 1), ()
    table.encodings = ConfigDict({"learned": "learned", "axial": "axial_rope(base=100)"}, sort_keys=False)
    variants = {
        "learned": {"learned": None},
        "axial": {"axial": None, "axial, rescaled": table.variants.axial["axial, rescaled"]},
    }
    table.variants = ConfigDict(variants, sort_keys=False)
    tuned = dict(read=RESIZED, size=12, steps=2, learning_rate=1e-3)
    table.finetune = ConfigDict({"learned": {"learned, tuned": tuned}})
    made.studies = ConfigDict({"digits": table})
    return made


@pytest.mark.slow
def test_resolutions_and_what_they_leave(vits, tmp_path, capsys):
    ablate.main(vits, tmp_path)
    found = records_of(tmp_path)
    labels = ["learned, tuned", "axial, rescaled"]
    assert [(r.row, r.seed) for r in found] == [(label, seed) for label in labels for seed in (0, 1)]
    assert all(list(r.metrics["accuracy"]) == [8, 12] for r in found)
    assert {(r.unit, r.trained_at) for r in found} == {("pixel", 8)}
    assert "(1.5×)" in (tmp_path / "README.md").read_text()
    assert str(tmp_path / "README.md") in capsys.readouterr().out
    lines = (tmp_path / RESULTS).read_text().splitlines(keepends=True)
    # As if killed in the middle of a fine-tune: what comes behind it is rescaled from the grid of training all the same.
    (tmp_path / RESULTS).write_text("".join(lines[:1]))
    ablate.main(vits, tmp_path)
    assert [(r.row, r.seed, r.metrics) for r in records_of(tmp_path)] == [(r.row, r.seed, r.metrics) for r in found]


@pytest.mark.thorough
def test_a_stopped_run_goes_on_to_the_same_numbers(vits, tmp_path, monkeypatch):
    table = vits.studies.digits
    table.encodings = ConfigDict({"axial": "axial_rope"})
    table.variants, table.finetune = ConfigDict(), ConfigDict()
    ablate.main(vits, tmp_path / "whole")
    asked = iter([False, False, True])
    with monkeypatch.context() as patched:
        patched.setattr(progress.StopRequest, "__call__", lambda self: next(asked))
        with pytest.raises(cli.StoppedRun, match="stopped at step 3 in 'digits'"):
            ablate.main(vits, tmp_path / "stopped")
    assert not (tmp_path / "stopped" / RESULTS).exists()
    ablate.main(vits, tmp_path / "stopped")
    one, other = ([each.metrics for each in records_of(tmp_path / name)] for name in ("whole", "stopped"))
    assert one == other


@pytest.mark.thorough
def test_native_aspects(vits, tmp_path):
    """Pictures of many aspects, tables resized at run time or as a reading, budgets below and above that of training."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 10), ("test", 4)):
        for label in ("dark", "light"):
            (tmp_path / "pictures" / split / label).mkdir(parents=True)
            for i in range(count):
                shape = (*rng.integers(10, 30, 2), 3)
                picture = rng.integers(0, 120, shape, np.uint8) + np.uint8(100 * (label == "light"))
                Image.fromarray(picture).save(tmp_path / "pictures" / split / label / f"{i}.png")
    table = vits.studies.digits
    table.data.update(name="folder", data_dir=str(tmp_path / "pictures"), mode="native", max_patches=16, augment="flip")
    table.data.image_size, table.batch_size = (16, 16), 4
    table.encodings = ConfigDict({"learned": "learned(resize='jax_linear')", "swin": "swin"}, sort_keys=False)
    table.variants = ConfigDict({"swin": {"swin": None, "swin, resized": RESIZED}})
    tuned = dict(read=None, size=36, steps=2, learning_rate=1e-3)
    table.finetune = ConfigDict({"learned": {"learned, tuned": tuned}})
    table.measures.resolutions.resolutions = (4, 16, 36)
    ablate.main(vits, tmp_path / "run")
    found = records_of(tmp_path / "run")
    assert [r.row for r in found[::2]] == ["learned", "learned, tuned", "swin, resized"]
    assert all(r.unit == "patch" and None not in r.metrics["loss"].values() for r in found)
    assert found[0].metrics != found[2].metrics
    assert "36 patches (1.5×)" in (tmp_path / "run" / "README.md").read_text()
    with table.unlocked(), table.finetune.ignore_type():
        table.finetune.learned["learned, tuned"].read = RESIZED
    with pytest.raises(ValueError, match="would resize tables, which in native aspects"):
        ablate.main(vits, tmp_path / "refused")


# The configs of papers.

SMALL = {"model.width": 8, "model.depth": 1, "model.num_heads": 2, "steps": 2, "optimizer.warmup_steps": 1}
SMALL |= {"batch_size": 4, "checkpoint_every": 2}
OF_TEXT = {"data.name": "pydoc_topics", "data.eval_split": "validation", "data.length": 16, "eval_lengths": (16,)}
OF_TEXT |= {"eval_tokens": 65, "eval_batch_size": 4, "model.dtype": "float32"}
OF_PROBLEMS = {"data.length": 4, "data.shortest": 4, "eval_lengths": (4,), "eval_examples": 4, "eval_batch_size": 4}
OF_PROBES = {"measures.positions.windows": 4, **OF_TEXT, "eval_tokens": 129}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "small"), [("contextual_counting", OF_PROBLEMS), ("no_positions", OF_PROBES)])
def test_they_train_at_other_sizes(name, small, tmp_path):
    made = importlib.import_module(f"configs.papers.{name}").get_config()
    table = next(iter(made.studies.values()))
    made.studies = ConfigDict({next(iter(made.studies)): table})
    with table.ignore_type():
        table.update_from_flattened_dict(SMALL | small)
    for rows in ("encodings", "rows"):
        if rows in table:
            table[rows] = ConfigDict({"none": table[rows]["none"]})
    table.variants, made.seeds = ConfigDict(), (0, 1)
    ablate.main(made, tmp_path)
    records = records_of(tmp_path)
    assert {record.seed for record in records} == {0, 1}
    assert {record.steps for record in records} == {2}
    if name == "contextual_counting":
        assert (records[0].tuned["metric"], records[0].tuned["on"]) == ("accuracy", "length 4")
        assert [*records[0].metrics["accuracy by length, flip_flop_sparse"]] == [4]
    if name == "no_positions":
        assert [*records[0].metrics["position error, random tokens"]] == [0, 1]
        assert records[0].metrics["training loss"]
        with made.studies.causal.unlocked(), made.studies.causal.ignore_type():
            made.studies.causal.checkpoints = str(tmp_path)
        ablate.main(made, tmp_path / "probed")
        again = records_of(tmp_path / "probed")
        assert [r.metrics["position error"] for r in again] == [r.metrics["position error"] for r in records]
        assert [r.learning_rate for r in again] == [r.learning_rate for r in records]
        (row,) = plan(made).rows
        with pytest.raises(ValueError, match="has 0 models of a row 'none'"):
            kept_weights(row, tmp_path / "nowhere", (0,))
        with pytest.raises(ValueError, match="has no seed 7"):
            kept_weights(row, tmp_path, (7,))


ALGORITHMIC = ("randomized_positions", "contextual_counting", "length_generalization", "state_tracking")


@pytest.mark.parametrize("name", ALGORITHMIC)
def test_rows_are_trained_short_and_judged_by_longer_or_other_problems(name):
    made = importlib.import_module(f"configs.papers.{name}").get_config()
    assert len(made.seeds) >= 5
    assert not {*made.seeds} & {*made.tune.seeds}
    for row in plan(made).rows:
        data = row.training.data
        assert min(row.training.eval_lengths) == data.length  # trained rows are evaluated, too
        assert max(row.training.eval_lengths) >= 2 * data.length or data.others
        assert row.training.model.kind == ("encoder" if name == "randomized_positions" else "decoder")
