"""Features at other sizes and of shuffled tokens, and attention by offset, on models whose answer is known."""

import jax
import numpy as np
import pytest

from experiments.analysis.vision.attention import attention_by_distance
from experiments.analysis.vision.resizing import (
    DISTINCT_METHODS,
    NOT_RESIZED,
    OTHER_IMAGES,
    resized_features,
    shuffled_tokens,
    with_all_tokens,
)
from experiments.analysis.vision.subject import TrainedViT
from posjax import grid
from posjax.encodings.resize import METHODS
from posjax.models import BlockConfig, ViT

IMAGES = np.random.default_rng(0).integers(0, 256, (3, 12, 16, 3), np.uint8)


def subject_of(encoding, **fields):
    fields = dict(num_classes=0, image_size=(12, 16), patch_size=4, depth=1) | fields
    model = ViT(encoding=encoding, block=BlockConfig(width=8, num_heads=2), **fields)
    params = jax.jit(model.init)(jax.random.key(0), *model.example(3))["params"]
    params = jax.tree.map(lambda leaf: leaf + 0.3 * jax.random.normal(jax.random.key(leaf.size), leaf.shape), params)
    return TrainedViT(model, [params], (0,), (0.5,), (0.5,), None, None, "torch_bicubic", "a test")


def test_all_tokens_are_those_that_the_model_pools():
    subject = subject_of("learned", num_registers=2)
    model, params = with_all_tokens(subject.model, subject.params[0])
    site, images = subject.model.sites(12, 16), subject.normalised(IMAGES)
    pooled = jax.jit(subject.model.apply)({"params": subject.params[0]}, images, site)
    tokens = jax.jit(model.apply)({"params": params}, images, model.sites(12, 16))
    assert tokens.shape == (3, 3 + 12, 8)
    np.testing.assert_allclose(tokens[:, 0], pooled, atol=1e-5)
    with pytest.raises(ValueError, match="norm behind the pooling"):
        with_all_tokens(subject.model.clone(norm_after_pooling=True), params)


def test_tokens_may_change_places_with_their_positions_and_not_without():
    found = shuffled_tokens(subject_of("learned(stddev=1)"), IMAGES)
    np.testing.assert_allclose(found.along.cls, np.ones(3), atol=1e-5)
    np.testing.assert_allclose(found.along.mean, np.ones(3), atol=1e-5)
    assert found.in_place.cls.max() < 0.9999
    assert found.in_place.mean.max() < 0.9999


def test_without_positions_the_order_is_nothing():
    found = shuffled_tokens(subject_of("none", pooling="mean"), IMAGES)
    np.testing.assert_allclose(found.in_place.mean, np.ones(3), atol=1e-5)
    assert found.in_place.cls is None


def test_features_at_the_own_size_are_the_same_and_other_images_are_not():
    first, *cells = resized_features(subject_of("learned"), list(IMAGES), [(12, 16)], ["torch_bicubic", None])
    assert first[:2] == ((12, 16), OTHER_IMAGES)
    assert first[2].cls.shape == (3,)
    assert first[2].mean.max() < 0.9999
    for _, _, cosines in cells:
        np.testing.assert_allclose((cosines.cls, cosines.mean), np.ones((2, 3)), atol=1e-6)


def test_a_table_of_equal_rows_is_the_same_however_it_is_resized():
    subject = subject_of("learned")
    table = subject.params[0]["trunk"]["encoding"]
    subject.params[0]["trunk"]["encoding"] = type(table)(np.ones_like(table.rows), table.extent)
    flat = [each for *_, each in resized_features(subject, list(IMAGES), [(8, 12)], ["dinov2", "google_npz", None])]
    for cosines in flat[2:]:
        np.testing.assert_allclose(cosines.cls, flat[1].cls, atol=1e-6)
    assert flat[1].cls.max() < 1


def test_the_corner_of_the_table_is_read_without_resizing():
    """A table that says the row twice as fast as an image of half the height: cut, it says another thing than resized."""
    cells = list(resized_features(subject_of("learned(stddev=1)"), list(IMAGES), [(8, 8)], ["torch_bilinear", None]))
    assert [cell[:2] for cell in cells[1:]] == [((8, 8), "torch_bilinear"), ((8, 8), NOT_RESIZED)]
    assert np.abs(cells[1][2].cls - cells[2][2].cls).min() > 1e-4
    with pytest.raises(ValueError, match="none for position"):
        list(resized_features(subject_of("learned"), list(IMAGES), [(16, 16)], [None]))


def test_methods_are_listed_once():
    assert len({METHODS[name] for name in DISTINCT_METHODS}) == len(DISTINCT_METHODS) == len(set(METHODS.values()))


def test_uniform_attention_is_the_same_at_every_distance():
    site = grid(2, 3, prefix=1)
    weights = np.full((2, 4, 7, 7), 1 / 7)
    found = attention_by_distance(weights, site)
    assert found.shape == (2, 4, 3)
    np.testing.assert_allclose(found, 1 / 6)


def test_a_head_that_looks_one_patch_to_the_right():
    site, weights = grid(2, 3), np.zeros((1, 1, 6, 6))
    for token in range(6):
        weights[0, 0, token, token + (token % 3 < 2)] = 1
    found = attention_by_distance(weights, site)[0, 0]
    np.testing.assert_allclose(found, [2 / 6, 4 / 22, 0])  # of the 6, 22 and 8 pairs so far apart
