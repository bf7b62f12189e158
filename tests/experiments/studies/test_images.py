"""A trained ensemble at other resolutions: policies have their effect, and none at the resolution of training."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import drawn
from small import small_vit

from experiments.studies.images import Originals
from experiments.studies.readings import RESIZED, read_as, resized
from posjax import data
from posjax.encodings.resize import resize
from posjax.models import BlockConfig, ViT
from posjax.models.vit import image_channels
from posjax.training.classification import scaled_size
from posjax.training.evaluate import evaluate, make_score
from posjax.training.tasks import make_task

SEEDS, AS_TRAINED = 2, None


def under(model, params, reading, size, method="torch_bicubic"):
    """The model and the parameters that read images of a size under a reading."""
    if reading == RESIZED:
        return resized(model, params, size, method)
    return (model, params) if reading is AS_TRAINED else read_as(model, params, reading)


def ensemble(encoding, size=(8, 8), channels=1):
    """A small ViT, and parameters that all differ from their initial values, with a leading axis of seeds."""
    model = ViT(
        10, encoding, image_size=size, patch_size=2, block=BlockConfig(width=8, num_heads=1), depth=1, pooling="mean"
    )
    image, site = jnp.zeros((1, *size, channels)), model.sites(*size)
    keys = jax.random.split(jax.random.key(0), SEEDS)
    return model, drawn(jax.vmap(lambda key: model.init(key, image, site)["params"]), keys)


@functools.partial(jax.jit, static_argnums=0)
def _logits(model, params, image):
    return model.apply({"params": params}, image, model.sites(*image.shape[1:3]))


def logits(model, params, image):
    """The logits of the first seed."""
    return _logits(model, jax.tree.map(lambda leaf: np.asarray(leaf)[0], params), image)


def noise(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("encoding", "policies"),
    [
        ("learned", [AS_TRAINED, RESIZED, "learned(resize='torch_bicubic')"]),
        ("axial_rope(base=100)", ["fit_grid(height=4, width=4) >> axial_rope(base=100, scaling=ntk(factor=1))"]),
    ],
)
def test_every_policy_is_the_trained_model_at_the_resolution_of_training(encoding, policies):
    model, params = ensemble(encoding)
    image = noise(2, 8, 8, 1)
    wanted = logits(model, params, image)
    for policy in policies:
        np.testing.assert_array_equal(logits(*under(model, params, policy, (8, 8)), image), wanted, err_msg=str(policy))


@pytest.mark.slow
def test_measured_at_the_resolution_of_training_it_is_the_plain_evaluation(data_dir):
    config = small_vit(data_dir, eval_batch_size=64)
    task = make_task(config)
    params = drawn(jax.vmap(task.init), jax.random.split(jax.random.key(0), SEEDS))
    assert image_channels(params) == 1
    images = Originals(config.data, None, 1).at_size((8, 8))(task.model, 64)
    found, wanted = (evaluate(each, make_score(each), params) for each in (images, task))
    np.testing.assert_array_equal(found["accuracy"], wanted["accuracy"])
    np.testing.assert_array_equal(found["loss"], wanted["loss"])


def test_grids_of_equal_count_are_not_taken_for_each_other():
    """A 2 x 8 and a 4 x 4 grid have as many patches, and different tables."""
    model, params = ensemble("learned")
    changed, wide = under(model, params, RESIZED, (4, 16))
    assert changed.image_size == (4, 16)
    table, other = params["trunk"]["encoding"].rows[0], wide["trunk"]["encoding"].rows[0]
    wanted = resize(table.reshape(4, 4, 8), (2, 8), method="torch_bicubic").reshape(16, 8)
    np.testing.assert_allclose(other, wanted, atol=1e-6)
    assert np.abs(other - table).max() > 1e-2
    image = noise(2, 4, 16, 1)
    with pytest.raises(ValueError, match="none for position"):
        logits(model, params, image)
    assert np.isfinite(logits(changed, wide, image)).all()


def test_a_resolution_has_whole_patches():
    assert scaled_size((128, 96), 0.75, 8) == (96, 72)
    assert scaled_size((128, 96), 1.125, 8) == (144, 112)
    assert scaled_size((128, 128), 1.0, 8) == (128, 128)


def test_images_that_stream_are_those_in_memory_cropped_as_in_training(data_dir):
    config = small_vit(data_dir)
    config.data.update(image_size=(8, 8), crop_fraction=0.8)
    assert isinstance(
        Originals(config.data, 3, 1).images, data.StreamedImages
    )  # nothing is decoded before a resolution
    batches = []
    for stream in (False, True):
        config.data.stream = stream
        images = Originals(config.data, 20, 1).at_size((4, 8))(make_task(config).model, 8)
        batches.append([*images.evaluation()[None]])
    assert len(batches[0]) == 3
    jax.tree.map(np.testing.assert_array_equal, *batches)
    first = Originals(config.data, 20, 1).images[0]
    wanted = data.preprocess(first, (4, 8), channels=1, crop_fraction=0.8)
    np.testing.assert_array_equal(batches[1][0]["image"][0], wanted)


def test_some_of_the_images_are_spread_over_the_split(data_dir):
    config = small_vit(data_dir)
    whole, some = (Originals(config.data, limit, 1).images for limit in (None, 7))
    assert len(some) == 7
    np.testing.assert_array_equal(some[6], whole[6 * len(whole) // 7])
