"""Data sets of a user's own: registered in a file, known wherever a set's name is."""

import jax
import numpy as np
import pytest
from small import small_decoder, small_vit

from posjax import data
from posjax.attention import backends
from posjax.data import sets
from posjax.training.tasks import make_task
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
SIZES = {"batch_size": 4, "eval_batch_size": 16}


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
def test_a_training_on_data_and_by_attention_of_ones_own(code):
    """Traces `train --config.data.name=rings --config.model.implementation=mine --import=mine.py`, for poems too."""
    import_user_code([str(code)])
    calls = backends.backend("mine").run.__globals__["CALLS"]
    for small, name in ((small_vit, "rings"), (small_decoder, "poems")):
        calls.clear()
        config = small(None, data__name=name, model__implementation="mine", **SIZES)
        task = make_task(config)
        compute = lambda key, batch, task=task: task.loss(task.init(key), batch, key)  # noqa: E731
        loss = jax.eval_shape(compute, jax.random.key(0), task.batches(0)[0])
        assert [leaf.shape for leaf in loss] == [(), ()]
        assert calls


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
    with pytest.raises(ValueError, match=r"'sizes' mixes sizes of images: give data.image_size"):
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
    for load, name, split, message in (
        (data.load_images, "rigns", "train", "did you mean 'rings'"),
        (data.load_text, "poems", "test", "only train, validation"),
        (data.load_text, "rings", "test", "a set of images, not of text"),
    ):
        with pytest.raises(ValueError, match=message):
            load(name, split)
    for taken in ("rings", "digits", "folder", "synthetic_tokens"):
        with pytest.raises(ValueError, match=taken):
            data.register(taken)
    image = np.zeros((2, 4, 4), np.uint8)
    wrong = [image, (image, [0]), (image[:0], []), (image, [0, 2]), (image.astype(np.float32), [0, 1])]
    for number, value in enumerate(wrong):
        data.register(f"wrong{number}", classes=2)(lambda split, data_dir, value=value: value)
        with pytest.raises(ValueError, match=f"wrong{number}"):
            data.load_images(f"wrong{number}", "train")
    data.register("line")(lambda split, data_dir: "one text")
    data.register("nothing")(lambda split, data_dir: ["", ""])
    for name in ("line", "nothing"):
        with pytest.raises(ValueError, match=name):
            data.load_text(name, "train")
