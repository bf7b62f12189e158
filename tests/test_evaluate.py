"""`python -m experiments.evaluate`: weights and runs, on sets and on pictures."""

import re

import jax
import numpy as np
import pytest
from goldens.pretrained_cases import made
from PIL import Image

from experiments import evaluate
from experiments.analysis import accuracy
from experiments.cli import load
from posjax import data, pretrained
from posjax.models import BlockConfig, ViT
from posjax.pretrained.parameters import expected_params, paths_of


@pytest.fixture
def file(tmp_path):
    """A ViT for the digits' ten classes that sees nothing but how bright the whole image is."""
    model = ViT(10, image_size=(8, 8), patch_size=4, block=BlockConfig(width=8, num_heads=2), depth=1, pooling="mean")
    expected = expected_params(model, channels=1)
    leaves = [made(path, leaf.shape) for path, leaf in paths_of(expected).items()]
    params = jax.tree.unflatten(jax.tree.structure(expected), leaves)
    pretrained.save(tmp_path / "vit.safetensors", model, params)
    return tmp_path / "vit.safetensors", model, params


def logits_of(model, params, pixels):
    return jax.jit(model.apply)(params, data.normalise(pixels, 0.5, 0.5), model.sites(*pixels.shape[1:3]))


def digits(tmp_path):
    data.prepare("digits", tmp_path / "data")
    return data.load_native_images("digits", "test", tmp_path / "data", channels=1)


@pytest.mark.slow
def test_accuracy_is_the_share_of_images_whose_class_is_likeliest(file, tmp_path, capsys):
    path, model, params = file
    images = digits(tmp_path)
    where = [f"--checkpoint={path}", "--data=digits", f"--data_dir={tmp_path / 'data'}", "--batch_size=50"]
    assert evaluate.main([*where, "--limit=120"]) == 0
    out = capsys.readouterr().out
    chosen = data.spread(images, 120)
    pixels = np.stack([data.preprocess(chosen[i], 8, channels=1) for i in range(120)])
    order = np.argsort(-logits_of(model, params, pixels), axis=1)
    top_1, top_5 = ((order[:, :k] == chosen.label[:, None]).any(axis=1).mean() for k in (1, 5))
    assert 0 < top_1 < top_5
    row = next(line for line in out.splitlines() if line.startswith("| 8x8"))
    assert f"| {100 * top_1:.2f} (" in row
    assert f"| {100 * top_5:.2f} (" in row
    assert "120 images of digits" in out


@pytest.mark.slow
def test_a_run_is_evaluated_on_its_own_data(tmp_path, capsys, monkeypatch):
    from experiments import train
    from experiments.studies import environment

    monkeypatch.setattr(environment, "compilation_cache", lambda directory: None)  # it would stay on for other tests
    data.prepare("digits", tmp_path / "data")
    config = load("configs/vit.py")
    small = {"steps": 30, "batch_size": 32, "eval_every": 0, "data.data_dir": str(tmp_path / "data")}
    small |= {"model.width": 16, "model.depth": 1, "model.num_heads": 2, "optimizer.warmup_steps": 2}
    config.update_from_flattened_dict(small)
    train.main(config.lock(), tmp_path / "run")
    told = float(re.search(r"'accuracy': ([\d.]+)", capsys.readouterr().out)[1])
    assert evaluate.main([f"--checkpoint={tmp_path / 'run'}", "--resolutions=1,2"]) == 0
    out = capsys.readouterr().out
    Image.new("L", (8, 8), 9).save(tmp_path / "a.png")
    assert evaluate.main([f"--checkpoint={tmp_path / 'run'}", f"--images={tmp_path}", "--top=10"]) == 0
    assert re.search(r"\na\.png: \d [\d.]+ %, \d ", capsys.readouterr().out)  # by the names that the set has
    assert f"| 8x8 | {100 * told:.2f} (" in out
    assert "| 16x16 |" in out
    assert "step 30 of 1 seeds, learned" in out


@pytest.mark.slow
def test_pictures_are_told_their_likeliest_classes_and_those_in_folders_of_classes_are_hits_or_not(
    file, tmp_path, capsys
):
    path, model, params = file
    folder = tmp_path / "pictures"
    wide, dark, light = (
        np.random.RandomState(0).randint(0, top, (20, 31, 3)).astype(np.uint8) for top in (256, 60, 256)
    )
    larger, resized = pretrained.load(path, image_size=16, method="torch_bilinear")
    best = [
        f"digit {np.argmax(logits_of(larger, resized, data.preprocess(each, 16, channels=1)[None]))}"
        for each in (wide, dark, light)
    ]
    wrong = next(f"digit {i}" for i in range(10) if f"digit {i}" != best[2])
    for name, pixels in {"b.png": wide, f"{best[1]}/a.png": dark, f"{wrong}/c.png": light}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / name)
    Image.fromarray(wide[:, :20]).convert("L").save(folder / "a.JPG")
    (folder / "._b.png").write_bytes(b"what a desktop leaves behind")
    (tmp_path / "names.txt").write_text("\n".join(f"digit {i}" for i in range(10)))
    line = [f"--checkpoint={path}", f"--images={folder}", f"--classes={tmp_path / 'names.txt'}", "--image_size=16"]
    assert evaluate.main([*line, "--top=2", "--method=torch_bilinear"]) == 0
    out = capsys.readouterr().out
    shown = dict(line.split(": ", 1) for line in out.splitlines() if ".png: " in line or ".JPG: " in line)
    assert shown.keys() == {"a.JPG", "b.png", f"{best[1]}/a.png", f"{wrong}/c.png"}
    assert shown["b.png"].startswith(f"{best[0]} ")
    assert shown["b.png"].count("digit") == 2
    assert shown[f"{wrong}/c.png"].startswith(f"{best[2]} ")
    assert "\n1 of 2 pictures in folders of classes" in out


def test_what_cannot_be_evaluated_is_one_line(file, tmp_path, capsys):
    path, _, _ = file
    (tmp_path / "run").mkdir()
    (tmp_path / "few.txt").write_text("one\ntwo\n")
    wrong = {
        "names 2 classes": [f"--checkpoint={path}", f"--images={tmp_path}", f"--classes={tmp_path / 'few.txt'}"],
        "--resolutions=1,big": [f"--checkpoint={path}", "--resolutions=1,big"],
        "--split": [f"--checkpoint={path}", "--images=x", "--split=test"],
        "--num_heads": [f"--checkpoint={tmp_path / 'run'}", "--num_heads=2", "--encoding=rope"],
    }
    for message, line in wrong.items():
        assert evaluate.main(line) == 2, message
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


def test_equal_logits_and_nan_are_no_hits():
    """A head of zeros knows one class, the first; a model that has diverged none."""
    logits = np.array([[0, 0, 0], [0, 0, 0], [np.nan] * 3, [1, np.nan, 2]], np.float32)
    assert accuracy.rank_of(logits, np.array([0, 2, 1, 0])).tolist() == [0, 2, np.inf, 1]
