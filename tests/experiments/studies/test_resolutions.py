"""`experiments.resolutions`: what is planned, what records say, and whole small runs, stopped and continued."""

import json
import pathlib
import runpy
import sys

import numpy as np
import pytest
from ml_collections import ConfigDict
from PIL import Image

import posjax as pj
from experiments import cli, resolutions
from experiments.studies import environment
from experiments.studies.resolutions import Grid, fill, finetune_config, plan, training_config
from posjax.models import ViT
from posjax.training.classification import task_class

CONFIGS = pathlib.Path(__file__).parents[3] / "configs"


def config(sets="fashion_mnist"):
    return runpy.run_path(str(CONFIGS / "resolutions.py"))["get_config"](sets)


def test_the_committed_studies_can_be_planned():
    made = config("fashion_mnist,cifar10,caltech101")
    for name, study in made.sets.items():
        rows = plan(name, study)
        assert {row.base for row in rows} == set(study.encodings)
        assert [row.kind for row in rows].count("fine-tuned") == 3
        row = training_config(study, study.encodings["learned"])
        assert set(row) == set(runpy.run_path(str(CONFIGS / "vit.py"))["get_config"]()) - {
            *("seed", "init_from", "init_head", "init_resize")
        }
        trained = 64 if row.data.mode == "native" else row.data.image_size[0]
        scales = [task_class(row).side_ratio(each, trained) for each in study.evaluation.resolutions]
        assert min(scales) <= 0.6
        assert 1.0 in scales
        assert max(scales) == 2.0
        for policy in (row.reading for row in rows if row.reading not in ("as trained", "resized")):
            pj.parse(fill(policy, 1.4, Grid(7, 7)))
    with pytest.raises(ValueError, match="there is no study 'cifar'"):
        config("cifar")


def test_whole_patches_tile_every_resolution():
    for name, study in config("fashion_mnist,cifar10").sets.items():
        model = ViT(10, image_size=tuple(study.data.image_size), patch_size=study.model.patch_size)
        for size in (*study.evaluation.resolutions, study.finetune.learned.tuned.resolution):
            assert model.patches(size, size), name


def test_placeholders_are_filled_for_a_scale():
    trained = Grid(4, 6)
    assert (
        fill("fit_grid(height={height}, width={width}) >> alibi", 2.0, trained)
        == "fit_grid(height=4, width=6) >> alibi"
    )
    assert fill("axial_rope(scaling=ntk(factor={factor}))", 0.5, trained) == "axial_rope(scaling=ntk(factor=1))"
    assert fill("interpolate(factor={scale}) >> rope", 0.5, trained) == "interpolate(factor=0.5) >> rope"
    assert fill("resized", 1.0, trained) == "resized"


@pytest.mark.parametrize(
    ("group", "value", "message"),
    [
        (
            "policies",
            {"lerned": {"": "resized"}},
            "there is no encoding 'lerned' in 'fashion_mnist'; did you mean 'learned'",
        ),
        ("policies", {"axial": {"x": "axial_rop"}}, "did you mean 'axial_rope'"),
        ("policies", {"axial": {"x": "interpolate(factor={scal}) >> rope"}}, "scal"),
        (
            "encodings",
            {"axial": "axial_rope", "axial, tuned": "alibi"},
            "two rows of 'fashion_mnist' are labelled 'axial, tuned'",
        ),
    ],
)
def test_mistakes_are_found_before_anything_is_trained(group, value, message):
    study = config().sets.fashion_mnist
    if group == "encodings":
        study.policies, study.finetune = ConfigDict(), ConfigDict({"axial": study.finetune.axial.to_dict()})
    study[group] = ConfigDict(value)
    with pytest.raises(ValueError, match=message):
        plan("fashion_mnist", study)


def test_tables_of_native_aspects_are_not_resized_for_a_fine_tune():
    """They are not made for the size of any image: it would train on tables that are not those of its evaluation."""
    study = config("caltech101").sets.caltech101
    study.finetune.learned.tuned.policy = "resized"
    with pytest.raises(ValueError, match=r"'learned, tuned' of 'caltech101' .* take policy 'as trained'"):
        plan("caltech101", study)


def test_a_fine_tune_differs_in_resolution_and_length_alone():
    study = config().sets.fashion_mnist
    base = training_config(study, "learned")
    asked = study.finetune.learned.tuned
    tuned = finetune_config(base, asked, "learned")
    assert (tuned.data.image_size, tuned.steps, tuned.optimizer.learning_rate) == ((40, 40), asked.steps, 1e-3)
    base.data.image_size = (28, 56)
    assert finetune_config(base, asked, "learned").data.image_size == (40, 80)
    study = config("caltech101").sets.caltech101
    tuned = finetune_config(training_config(study, "learned"), study.finetune.learned.tuned, "learned")
    assert (tuned.data.image_size, tuned.data.max_patches) == ((128, 128), 144)


# Whole runs.


@pytest.fixture
def small(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "compilation_cache", lambda directory: None)  # it would stay on for other tests
    monkeypatch.setattr(sys, "argv", ["resolutions"])
    made = config()
    study = made.sets.fashion_mnist
    study.update_from_flattened_dict(
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
            "evaluation.images": 30,
            "evaluation.resolutions": (4, 8, 12),
        }
    )
    made.seeds = (0, 1)
    study.encodings = ConfigDict({"learned": "learned", "axial": "axial_rope"}, sort_keys=False)
    rescaled = {"": "as trained", "rescaled": "fit_grid(height={height}, width={width}) >> axial_rope"}
    study.policies = ConfigDict({"learned": {"resized": "resized"}, "axial": rescaled}, sort_keys=False)
    tuned = dict(policy="resized", resolution=12, steps=2, learning_rate=1e-3)
    study.finetune = ConfigDict({"learned": {"tuned": tuned}})
    made.sets = ConfigDict({"digits": study})
    return made


@pytest.mark.slow
def test_a_whole_run_and_what_it_leaves(small, tmp_path, capsys):
    workdir = tmp_path / "run"
    resolutions.main(small, workdir)
    text = (workdir / "results.jsonl").read_text()
    found = [json.loads(line) for line in text.splitlines()]
    labels = ["learned, resized", "learned, tuned", "axial", "axial, rescaled"]
    assert [(r["row"], r["seed"]) for r in found] == [(label, seed) for label in labels for seed in (0, 1)]
    assert all(list(r["metrics"]["accuracy"]) == ["4", "8", "12"] for r in found)
    plain, fitted = found[4]["metrics"]["loss"], found[6]["metrics"]["loss"]
    assert plain["8"] == fitted["8"]
    assert plain["12"] != fitted["12"]
    assert {"device", "versions", "wall_time", "config_hash", "data_digest", "run"} <= set(found[0])
    assert "(1.5×)" in (workdir / "README.md").read_text()
    assert str(workdir / "README.md") in capsys.readouterr().out

    lines = text.splitlines(keepends=True)
    # As if killed in the middle of a fine-tune: what comes behind it is rescaled from the grid of training all the same.
    (workdir / "results.jsonl").write_text("".join(lines[:3]))
    resolutions.main(small, workdir)
    again = [json.loads(line) for line in (workdir / "results.jsonl").read_text().splitlines()]
    assert [(r["row"], r["seed"], r["metrics"]) for r in again] == [(r["row"], r["seed"], r["metrics"]) for r in found]


@pytest.mark.thorough
def test_a_stopped_run_goes_on_to_the_same_numbers(small, tmp_path, monkeypatch):
    small.sets.digits.encodings = ConfigDict({"axial": "axial_rope"})
    small.sets.digits.policies, small.sets.digits.finetune = ConfigDict(), ConfigDict()
    resolutions.main(small, tmp_path / "whole")
    asked = iter([False, False, True])
    from experiments.studies import running

    with monkeypatch.context() as patched:
        patched.setattr(running.StopRequest, "__call__", lambda self: next(asked))
        with pytest.raises(cli.StoppedRun, match="stopped at step 3 in 'digits'"):
            resolutions.main(small, tmp_path / "stopped")
    assert not (tmp_path / "stopped" / "results.jsonl").exists()
    resolutions.main(small, tmp_path / "stopped")
    one, other = (
        [json.loads(line)["metrics"] for line in (tmp_path / name / "results.jsonl").read_text().splitlines()]
        for name in ("whole", "stopped")
    )
    assert one == other


@pytest.mark.thorough
def test_native_aspects(small, tmp_path):
    """Pictures of many aspects, tables resized at run time or by policy, budgets below and above that of training."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 10), ("test", 4)):
        for label in ("dark", "light"):
            (tmp_path / "pictures" / split / label).mkdir(parents=True)
            for i in range(count):
                shape = (*rng.integers(10, 30, 2), 3)
                picture = rng.integers(0, 120, shape, np.uint8) + np.uint8(100 * (label == "light"))
                Image.fromarray(picture).save(tmp_path / "pictures" / split / label / f"{i}.png")
    study = small.sets.digits
    study.data.update(name="folder", data_dir=str(tmp_path / "pictures"), mode="native", max_patches=16, least_area=1.0)
    study.data.image_size = (16, 16)
    study.batch_size = 4
    study.encodings = ConfigDict({"learned": "learned(resize='jax_linear')", "swin": "swin"}, sort_keys=False)
    study.policies = ConfigDict({"swin": {"resized": "resized"}})
    tuned = dict(policy="as trained", resolution=36, steps=2, learning_rate=1e-3)
    study.finetune = ConfigDict({"learned": {"tuned": tuned}})
    study.evaluation.resolutions = (4, 16, 36)
    resolutions.main(small, tmp_path / "run")
    found = [json.loads(line) for line in (tmp_path / "run" / "results.jsonl").read_text().splitlines()]
    assert [r["row"] for r in found[::2]] == ["learned", "learned, tuned", "swin, resized"]
    assert all(r["unit"] == "patch" and None not in r["metrics"]["loss"].values() for r in found)
    assert found[0]["metrics"] != found[2]["metrics"]
    assert "36 patches (1.5×)" in (tmp_path / "run" / "README.md").read_text()
