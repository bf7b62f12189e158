"""Patch dropout: which patches go on in training, of images alone, packed and padded."""

import functools

import jax
import numpy as np
import pytest
from test_vit_parts import images, made, row, vit

from posjax.models.patch_dropout import draw_kept, taken

KEY = jax.random.key(0)


def test_patch_dropout_keeps_prefix_tokens_and_the_rest_where_it_stands():
    model = vit(encoding="none", depth=0, pooling="mean", num_registers=1, patch_dropout=0.5, image_size=(8, 8))
    x = images(32, 8, 8)
    variables, _, site = made(model, x)
    rngs = {"dropout": jax.random.key(0), "place": jax.random.key(1)}
    watched = dict(mutable=["intermediates"])
    _, seen = jax.jit(lambda v: model.apply(v, x, site, train=True, rngs=rngs, **watched))(variables)
    kept = seen["intermediates"]["trunk"]["tokens_in"][0]
    assert kept.shape == (32, 1 + 8, 16)
    _, whole = jax.jit(lambda v: model.apply(v, x, site, **watched))(variables)
    whole = whole["intermediates"]["trunk"]["tokens_in"][0]
    np.testing.assert_array_equal(kept[:, 0], whole[:, 0])
    for some, all_of in zip(np.asarray(kept), np.asarray(whole), strict=True):
        places = [np.flatnonzero((all_of == token).all(axis=1))[0] for token in some]
        assert places == sorted(set(places))
    assert np.unique(np.asarray(kept[:, 1]), axis=0).shape[0] > 16  # each image its own draw


@pytest.mark.slow
def test_patch_dropout_leaves_positions_as_among_all_patches():
    """dinov3 reads the image's size off its tokens: those that are dropped still count."""
    model = vit(encoding="dinov3", pooling="mean", patch_dropout=0.75, image_size=(8, 8), depth=1)
    x = images(4, 8, 8)
    variables, _, site = made(model, x)
    rngs = {"dropout": jax.random.key(0), "place": jax.random.key(1)}
    watched = dict(mutable=["intermediates"])
    _, seen = jax.jit(lambda v: model.apply(v, x, site, train=True, rngs=rngs, **watched))(variables)
    some = seen["intermediates"]["trunk"]["block_0"]["attention"]["weights"][0]
    tokens = seen["intermediates"]["trunk"]["tokens_in"][0]
    _, whole = jax.jit(lambda v: model.apply(v, x, site, **watched))(variables)
    every = whole["intermediates"]["trunk"]["block_0"]["attention"]["weights"][0]
    among = whole["intermediates"]["trunk"]["tokens_in"][0]
    for image in range(4):
        kept = [np.flatnonzero((among[image] == token).all(axis=1))[0] for token in tokens[image]]
        picked = every[image][:, kept][:, :, kept]  # what the same pairs attend to each other, renormalised
        np.testing.assert_allclose(some[image], picked / picked.sum(axis=-1, keepdims=True), atol=1e-5)


@pytest.mark.slow
def test_patch_dropout_keeps_the_prefix_tokens_of_every_packed_image():
    model = vit(encoding="rope(base=100)", patch_dropout=0.9, num_registers=1)
    variables, _, _ = made(model)
    patches, site, _ = row([(2, 4)] * 3, 2, 12)  # 6 patches of 12 tokens
    batch, rngs = jax.tree.map(lambda leaf: leaf[None], (patches, site)), {"dropout": jax.random.key(0)}
    rngs["place"] = rngs["dropout"]
    options = dict(train=True, num_images=3, mutable=["intermediates"])
    logits, seen = jax.jit(lambda *batch: model.apply(variables, *batch, rngs=rngs, **options))(*batch)
    assert seen["intermediates"]["trunk"]["tokens_in"][0].shape[1] == 12 - 3  # of two patches one, of each image
    assert np.isfinite(logits).all()


@pytest.mark.slow
def test_patch_dropout_is_of_each_images_own_patches():
    """Its share of them, whatever it is packed with and however much padding there is."""
    grids, rate = [(4, 6), (3, 5), (1, 1)], 0.7
    model = vit(encoding="rope(base=100)", patch_dropout=rate, num_registers=1)
    _, site, _ = row([(2 * h, 2 * w) for h, w in grids], 2, 70)
    kept = draw_kept(jax.random.key(0), rate, jax.tree.map(lambda leaf: leaf[None], site), 1, 3, model.num_prefix)
    after = taken(jax.tree.map(lambda leaf: leaf[None], site), kept)
    patches = [int(((after.segment == n) & (after.prefix == 0)).sum()) for n in (1, 2, 3)]
    assert patches == [24 - 16, 15 - 10, 1]
    assert [int(((after.segment == n) & (after.prefix > 0)).sum()) for n in (1, 2, 3)] == [2, 2, 2]
    assert after.segment.shape == (1, 70 - 44 + 2)  # of 64 patches 44 are left out, at most
    assert (np.diff(kept.index[0][kept.live[0]]) > 0).all()


@pytest.mark.slow
def test_patch_dropout_of_packed_images_has_room_for_what_is_kept():
    for rate in (0.1, 0.5, 0.7, 0.95):
        for grids in ([(1, 1)] * 6, [(1, 3), (2, 2), (1, 1), (1, 5)], [(4, 8)]):
            _, site, _ = row([(2 * h, 2 * w) for h, w in grids], 1, 1 * len(grids) + sum(h * w for h, w in grids))
            site = jax.tree.map(lambda leaf: leaf[None], site)
            kept = jax.jit(functools.partial(draw_kept, KEY, rate, site, 1, len(grids), 1))()
            counts = [h * w + 1 - int(rate * h * w) for h, w in grids]
            assert int(kept.live.sum()) == sum(counts) <= kept.live.shape[1]
