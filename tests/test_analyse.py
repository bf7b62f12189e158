"""`experiments.analyse` on models that were never trained, but whose answers vary."""

import pathlib

import jax
import numpy as np
import pytest

from experiments import analyse, generate
from experiments.analysis.measured import array_of
from experiments.analysis.subject import Subject, choose_pictures
from experiments.cli import load
from experiments.records import read_study
from posjax import pretrained
from posjax.models import BlockConfig, ViT
from posjax.training.checkpoints import Checkpoints
from posjax.training.identity import describe_run, write_run
from posjax.training.step import starter
from posjax.training.tasks import make_task

REPO = pathlib.Path(__file__).parents[1]
SIZES = {"model.width": 16, "model.depth": 2, "model.num_heads": 2, "eval_batch_size": 364}


def config_of(name, data_dir, **overrides):
    config = load(f"configs/{name}.py")
    overrides = {key.replace("__", "."): value for key, value in overrides.items()}
    config.update_from_flattened_dict({**SIZES, "data.data_dir": str(data_dir), **overrides})
    return config


def save(config, workdir, seeds):
    """A checkpoint of random parameters, as training would have left it."""
    task = make_task(config)
    rng = np.random.default_rng(0)

    def filled(leaf):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.split(jax.random.key(0), leaf.shape[0])
        return np.asarray(0.3 * rng.standard_normal(leaf.shape), leaf.dtype)

    state = jax.tree.map(filled, jax.eval_shape(starter(task, config, seeds)))
    write_run(workdir, describe_run(task, config, seeds))
    with Checkpoints(workdir / "checkpoints") as checkpoints:
        checkpoints.save(
            1, {"state": state._replace(step=np.int32(1)), "times": {"elapsed": 0.0, "step_time": 0.0, "in_steps": 0.0}}
        )
    return workdir


def run(checkpoint, out, *more):
    """Returns the records of the one study, the text of the page, and the arrays."""
    sizes = ("--num_images=40", "--num_looked_into=12", "--num_shown=3")
    assert analyse.main([f"--checkpoint={checkpoint}", f"--out={out}", *sizes, *more]) == 0
    (study,) = read_study(out).studies.values()
    with np.load(out / "arrays.npz", allow_pickle=False) as arrays:
        return study, (out / "README.md").read_text(), dict(arrays)


@pytest.mark.slow
def test_a_page_of_an_ensemble(data_dir, tmp_path, capsys):
    options = {"model__encoding": "learned + rope_mixed", "model__injection": "every_layer", "model__num_registers": 1}
    options["model__pooling"] = "cls"
    workdir = save(config_of("vit", data_dir, **options), tmp_path / "run", (3, 5))
    study, page, arrays = run(workdir, tmp_path / "out", "--padding=wrap")
    files = {path.name for path in (tmp_path / "out").iterdir()}
    pictures = ["similarity", "filters", "attention_distance", "rollout", "position_probe", "robustness", "other_sizes"]
    pictures += ["attention_by_distance", "attention_of_class_token", "attention_of_register_1", "similarity_by_layer"]
    pictures += ["rotation", "frequency_use", "wave_vectors"]
    assert files == {"README.md", "arrays.npz", "results.jsonl", *(f"{name}.png" for name in pictures)}
    shown = capsys.readouterr().out
    assert all(str(tmp_path / "out" / name) in shown for name in files)
    assert array_of(study, "as loaded", "attention distance (pixels)").shape == (2, 2, 2)
    assert array_of(study, "as loaded", "register 1: entropy of its patches (nats)").shape == (2, 2, 2)
    assert array_of(study, "as loaded", "R² of the row").shape == (2, 3)
    shares, pixels = "accuracy by share of shuffled patches", "accuracy by pixels of translation"
    assert study.metrics[shares] == [0, 0.1, 0.2, 0.4, 0.6, 0.8, 1]
    assert study.metrics[pixels] == [0, 1, 2, 4]
    assert study.values("patches shuffled", shares, 0) == study.values("images translated", pixels, 0)
    assert len(study.values("patches shuffled", shares, 0)) == 2
    assert "injection every_layer" in page
    assert "| seeds | 3, 5 |" in page
    assert "Mean and 95 % interval over 2 seeds" in page
    assert arrays["codes_0"].shape == (4, 4, 16)
    assert arrays["use"].shape == (2, 2, 2, 4)
    assert arrays["waves_1"].shape == (2, 2, 4)
    np.testing.assert_allclose(arrays["attention_of_prefix"].sum(axis=(3, 4)), np.ones((2, 2, 2)), rtol=1e-5)
    np.testing.assert_allclose(arrays["rollout"].sum(axis=(1, 2)), 1, rtol=1e-5)


@pytest.mark.slow
def test_a_file_of_weights_and_images_of_another_set(data_dir, tmp_path):
    block = BlockConfig(width=16, num_heads=2)
    model = ViT(num_classes=7, encoding="learned", image_size=(8, 12), patch_size=4, block=block, depth=1)
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), *model.example(1)))
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: np.asarray(0.3 * rng.standard_normal(leaf.shape), leaf.dtype), shapes)
    pretrained.save(tmp_path / "mine.safetensors", model, params)
    study, page, _ = run(tmp_path / "mine.safetensors", tmp_path / "out", "--data=digits", f"--data_dir={data_dir}")
    assert "2x3 patches" in page
    assert "patches shuffled" not in study.rows  # ten classes of digits are not seven others
    assert not (tmp_path / "out" / "robustness.png").exists()
    assert study.rows["other images"][0].each == "image"


@pytest.mark.slow
def test_native_aspects_are_looked_at_as_they_were_trained(data_dir):
    """model.image_size is the size of the tables, which no image need have."""
    options = {"data__mode": "native", "data__max_patches": 9, "data__image_size": (8, 8), "model__patch_size": 2}
    config = config_of("vit", data_dir, **options, model__encoding="dinov3")
    task = make_task(config)
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape), jax.eval_shape(task.init, jax.random.key(0)))
    subject = Subject(name="run", model=task.model, params=[params], data=config.data)
    images = choose_pictures(subject, None, None, None, 5)
    assert (images.grid, images.patch, images.pixels.shape) == ((3, 3), 2, (5, 6, 6, 1))
    assert "squares of as many patches as it was trained on (9 at most)" in images.about


@pytest.mark.slow
def test_a_stem_whose_map_is_rounded_up_and_layers_that_turn_other_pairs(data_dir, tmp_path):
    """Images of 8x12 pixels whose cells are of 8: two columns, of which the second one sticks out."""
    options = {"model__patch_size": 1, "model__resnet": (1, 1), "model__resnet_width": 8, "data__image_size": (8, 12)}
    options |= {"model__encoding": "axial_rope, raster(width=2) >> rope", "model__injection": "every_layer"}
    workdir = save(config_of("vit", data_dir, **options), tmp_path / "run", (0,))
    study, page, arrays = run(workdir, tmp_path / "out", "--num_looked_into=1")
    assert "1x2 patches of 8x8 pixels" in page
    assert study.values("as loaded", "attention distance (pixels), uniform") == {0: 4.0}
    assert "R² of the row" not in study.metrics
    assert "patches shuffled" not in study.rows
    assert "use" not in arrays
    assert "cells of 8 pixels stick out of the images; the linear probe: it is fitted to one image" in page


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("missing", "there is no checkpoint"),
        ("empty", "there is no checkpoint in"),
        ("mine.safetensors", "does not say which images it is for: give --data=NAME"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(name, part, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    if name.endswith("safetensors"):
        (tmp_path / name).write_bytes(b"not read")
    assert analyse.main([f"--checkpoint={tmp_path / name}", f"--out={tmp_path / 'out'}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert part in line
    assert not (tmp_path / "out").exists()


WORDS = ["the", "cat", "chases", "a", "mouse", "that", "sees", "owls"]


def words(tmp_path, count=6000):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text(" ".join(np.random.default_rng(0).choice(WORDS, count)))
    return tmp_path / "texts"


@pytest.mark.slow
def test_a_page_of_a_decoder(data_dir, tmp_path, capsys):
    options = dict(data__length=16, eval_lengths=(16,), eval_batch_size=512, model__encoding="rope + window(64), rope")
    workdir = save(config_of("decoder", data_dir, **options), tmp_path / "run", (0,))
    rows = ["no rope, global layers", "positions + 1000", "no window and YaRN, windowed layers"]
    texts = [f"--files={words(tmp_path)}", "--num_texts=3", "--length=130"]
    assert analyse.main([f"--checkpoint={workdir}", f"--out={tmp_path / 'out'}", *texts, "--rows", *rows]) == 0
    study = read_study(tmp_path / "out").studies["run"]
    assert set(study.rows) == {"as loaded", *rows}
    assert study.records[0].each == "text"
    before = study.values("as loaded", "loss")
    cost = {row: [study.values(row, "loss")[i] - before[i] for i in range(3)] for row in rows}
    np.testing.assert_allclose(cost["positions + 1000"], 0, atol=1e-5)
    assert np.abs(cost["no rope, global layers"]).min() > 1e-4
    page = (tmp_path / "out" / "README.md").read_text()
    assert "## What may be changed for free" in page
    assert "| positions + 1000 |" in page
    assert {"removal.png", "heads.png", "frequencies.png"} <= {path.name for path in (tmp_path / "out").iterdir()}
    assert str(tmp_path / "out" / "results.jsonl") in capsys.readouterr().out


def test_more_tokens_than_a_table_holds_are_refused(data_dir, tmp_path, capsys):
    """Before anything is read or generated."""
    options = dict(data__length=16, eval_lengths=(16,), eval_batch_size=512, model__encoding="learned")
    options["data__positions"] = "window"
    workdir = save(config_of("decoder", data_dir, **options), tmp_path / "run", (0,))
    out = f"--out={tmp_path / 'out'}"
    assert analyse.main([f"--checkpoint={workdir}", out]) == 2
    assert "give the text to read: --files=FOLDER" in capsys.readouterr().err
    assert analyse.main([f"--checkpoint={workdir}", f"--files={words(tmp_path)}", "--length=256", out]) == 2
    assert "error: --length=256: learned has rows for positions below 16" in capsys.readouterr().err
    assert generate.main([f"--checkpoint={workdir}", "--prompt=The", "--steps=15"]) == 2
    assert "error: a prompt of 3 and --steps=15: learned has rows for positions below 16" in capsys.readouterr().err
