"""Data sets of a user's own: registered in a file, known wherever a set's name is."""

import json

import numpy as np
import pytest

from experiments import train
from experiments.cli import load
from experiments.studies import environment
from posjax import data
from posjax.attention import backends
from posjax.data import sets
from posjax.user_code import import_user_code

CODE = '''
"""Rings and poems, and an attention, of one's own."""

import jax
import jax.numpy as jnp
import numpy as np

from posjax import data
from posjax.attention import Backend, register
from posjax.attention.dense import dense

CALLS = []


@data.register("rings", classes=("thin", "thick"))
def rings(split, data_dir):
    random = np.random.default_rng(len(split))
    label = np.arange(24) % 2
    distance = np.hypot(*np.mgrid[-4:4, -4:4])
    images = [random.integers(100, 255) * (np.abs(distance - 3) < 0.5 + kind) for kind in label]
    return np.stack(images).astype(np.uint8), label


@data.register("poems", splits=("train", "validation"))
def poems(split, data_dir):
    return [f"{split}: roses are red, " * 9, b"violets are blue. " * 9, ""]


def run(encoding, operands, *, scale):
    CALLS.append(operands.q.shape)
    return dense(encoding, operands, scale=scale)[0]


register("mine", Backend(run))
'''
SMALL = {"steps": 2, "batch_size": 4, "model.width": 8, "model.depth": 1, "model.num_heads": 2, "eval_every": 0}
SMALL |= {"optimizer.warmup_steps": 1, "checkpoint_every": 2, "model.implementation": "mine"}
SMALL_TEXT = {"data.length": 16, "eval_lengths": (16,), "eval_batch_size": 4, "data.name": "poems"}


@pytest.fixture
def own_sources(monkeypatch):
    """Forgets the sets that a test registers."""
    monkeypatch.setattr(sets, "SOURCES", {})
    monkeypatch.setattr(backends, "BACKENDS", dict(backends.BACKENDS))


@pytest.fixture
def code(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    return path


@pytest.mark.usefixtures("own_sources")
@pytest.mark.parametrize(
    ("config", "sizes", "metric"),
    [
        ("vit", {"model.patch_size": 4, "data.name": "rings"}, "accuracy"),
        pytest.param("decoder", SMALL_TEXT, "loss", marks=pytest.mark.slow),
    ],
)
def test_a_run_on_data_and_by_attention_of_ones_own(config, sizes, metric, code, tmp_path, monkeypatch):
    """Runs `train --config.data.name=rings --config.model.implementation=mine --import=mine.py`."""
    monkeypatch.setattr(environment, "compilation_cache", lambda directory: None)  # it would stay on for other tests
    import_user_code([str(code)])
    config = load(f"configs/{config}.py")
    config.update_from_flattened_dict(SMALL | sizes)
    train.main(config.lock(), tmp_path / "run")
    record = json.loads((tmp_path / "run" / "result.jsonl").read_text())
    assert record["data"] == sizes["data.name"]
    assert metric in str(record["metrics"])
    assert backends.backend("mine").run.__globals__["CALLS"]


@pytest.mark.usefixtures("own_sources")
def test_images_come_in_one_size_or_as_they_are(code):
    import_user_code([str(code)])
    images = data.load_images("rings", "test")
    assert (images.image.shape, images.image.dtype, images.num_classes) == ((24, 8, 8, 1), np.uint8, 2)
    assert images.digest == data.load_images("rings", "test").digest != data.load_images("rings", "train").digest
    native = data.load_native_images("rings", "test")
    assert native.classes == ("thin", "thick")
    np.testing.assert_array_equal(native[5], images.image[5].repeat(3, axis=2))
    assert data.load_native_images("rings", "test", channels=None).channels == 1
    assert data.load_native_images("rings", "test", short_side=4)[0].shape == (4, 4, 3)
    assert {"rings", "poems"} <= {*data.registered()}

    @data.register("sizes", classes=3)
    def sizes(split, data_dir):
        return [np.zeros((4, 5, 3), np.uint8), np.ones((6, 3), np.uint8)], [2, 0]

    assert data.load_native_images("sizes", "train")[1].shape == (6, 3, 3)
    with pytest.raises(ValueError, match=r"'sizes' mixes images of \(4, 5, 3\) and \(6, 3, 1\): give data.image_size"):
        data.load_images("sizes", "train")


@pytest.mark.usefixtures("own_sources")
def test_text_is_a_stream_of_documents(code):
    import_user_code([str(code)])
    text = data.load_text("poems", "validation")
    first = b"validation: roses are red, " * 9
    assert text.tokens.tobytes() == first + b"violets are blue. " * 9
    assert text.starts.tolist() == [0, len(first)]
    assert data.load_documents("poems", "train").titles == ("poems 0", "poems 1")


@pytest.mark.usefixtures("own_sources", "unchecked_shapes")
def test_mistakes_are_named(code):
    import_user_code([str(code)])
    with pytest.raises(
        ValueError, match=r"unknown data set 'rigns'; did you mean 'rings'\? posjax knows digits, .*rings, po"
    ):
        data.load_images("rigns", "train")
    with pytest.raises(ValueError, match="'poems' has no split 'test', only train, validation"):
        data.load_text("poems", "test")
    with pytest.raises(ValueError, match="'rings' is registered as a set of images, not of text"):
        data.load_text("rings", "test")
    with pytest.raises(ValueError, match="nothing to prepare"):
        data.prepare("rings")
    for taken in ("rings", "digits", "folder"):
        with pytest.raises(ValueError, match=f"a data set named '{taken}' exists already"):
            data.register(taken)
    image = np.zeros((2, 4, 4), np.uint8)
    wrong = {
        r"returns \(images, labels\)": image,
        "an integer label for each": (image, [0]),
        "labels .0,. of float": (image[:0], []),
        r"must lie in 0..1.*got 0..2": (image, [0, 2]),
        "images of 'wrong4': an image is .* of uint8, got .* of float32": (image.astype(np.float32), [0, 1]),
    }
    for number, (message, value) in enumerate(wrong.items()):
        data.register(f"wrong{number}", classes=2)(lambda split, data_dir, value=value: value)
        with pytest.raises(ValueError, match=message):
            data.load_images(f"wrong{number}", "train")
    data.register("line")(lambda split, data_dir: "one text")
    data.register("nothing")(lambda split, data_dir: ["", ""])
    for name, message in {"line": "a list of documents", "nothing": "has no text"}.items():
        with pytest.raises(ValueError, match=message):
            data.load_text(name, "train")
