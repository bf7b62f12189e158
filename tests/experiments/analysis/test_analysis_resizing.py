"""Features of a ViT at other sizes and of shuffled tokens, on a model whose answer is known."""

import jax
import numpy as np
import pytest
from subjects import IMAGES, vit

from experiments.analysis.resizing import (
    ALONG,
    CLS,
    DISTINCT_METHODS,
    IN_PLACE,
    MEAN,
    OTHER_IMAGES,
    resized_features,
    shuffled_tokens,
    with_all_tokens,
)
from posjax.encodings.resize import METHODS


@pytest.fixture
def subject():
    """A class token, two registers, and a table that matters."""
    return with_table(vit(num_registers=2, pooling="cls"), lambda rows: 10 * rows)


def with_table(subject, change):
    table = subject.params[0]["trunk"]["encoding"]
    subject.params[0]["trunk"]["encoding"] = type(table)(change(table.rows), table.extent)
    return subject


def test_all_tokens_are_those_that_the_model_pools(subject):
    model, params = with_all_tokens(subject.model, subject.params[0])
    site, images = subject.model.sites(12, 16), subject.normalised(IMAGES)
    pooled = jax.jit(subject.model.apply)({"params": subject.params[0]}, images, site)
    tokens = jax.jit(model.apply)({"params": params}, images, model.sites(12, 16))
    assert tokens.shape == (3, 3 + 12, 8)
    np.testing.assert_allclose(tokens[:, 0], pooled, atol=1e-5)


def test_tokens_may_change_places_with_their_positions_and_not_without(subject):
    rows = shuffled_tokens(subject, IMAGES)
    for name in (CLS, MEAN):
        np.testing.assert_allclose(rows[ALONG][name], np.ones(3), atol=1e-5)
        assert rows[IN_PLACE][name].max() < 0.9999
    rows = shuffled_tokens(with_table(subject, np.zeros_like), IMAGES)  # no positions
    np.testing.assert_allclose(rows[IN_PLACE][MEAN], np.ones(3), atol=1e-5)


@pytest.mark.slow
def test_features_at_other_sizes(subject):
    sizes, methods = [(12, 16), (8, 8)], ["torch_bilinear", None]
    rows = dict(resized_features(subject, [*IMAGES], sizes, methods))
    names = [f"{size}, {method}" for size in ("12x16", "8x8") for method in ("torch_bilinear", "not resized")]
    assert [*rows] == [OTHER_IMAGES, *names]
    assert max(rows[OTHER_IMAGES][MEAN]) < 0.9999
    for name in names[:2]:  # the model's own size
        np.testing.assert_allclose((rows[name][CLS], rows[name][MEAN]), np.ones((2, 3)), atol=1e-6)
    # The upper left corner of the table says another thing than the table at half the size.
    assert np.abs(rows[names[2]][CLS] - rows[names[3]][CLS]).min() > 1e-4
    flat = dict(resized_features(with_table(subject, np.ones_like), [*IMAGES], sizes[1:], methods))
    np.testing.assert_allclose(flat[names[2]][CLS], flat[names[3]][CLS], atol=1e-6)
    assert flat[names[2]][CLS].max() < 1


def test_methods_are_listed_once():
    assert len({METHODS[name] for name in DISTINCT_METHODS}) == len(DISTINCT_METHODS) == len(set(METHODS.values()))
