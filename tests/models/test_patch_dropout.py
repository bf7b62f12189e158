"""Patch dropout: which patches go on in training, of images alone, packed and padded."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_vit import initial, packed, vit

from posjax.models.patch_dropout import draw_kept, taken

KEY = jax.random.key(0)


def test_patch_dropout_keeps_prefix_tokens_and_the_rest_where_it_stands():
    model = vit(encoding="none", depth=0, pooling="mean", num_registers=1, patch_dropout=0.5, image_size=(8, 8))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(32, 8, 8, 3)), jnp.float32)
    variables, site, rngs = initial(model, x), model.sites(8, 8), {"dropout": KEY, "place": KEY}

    @jax.jit
    def tokens(variables):
        watch = functools.partial(model.apply, variables, x, site, mutable=["intermediates"])
        runs = watch(train=True, rngs=rngs), watch()
        return [seen["intermediates"]["trunk"]["tokens_in"][0] for _, seen in runs]

    kept, whole = jax.device_get(tokens(variables))
    assert kept.shape == (32, 1 + 8, 16)
    np.testing.assert_array_equal(kept[:, 0], whole[:, 0])
    for some, all_of in zip(kept, whole, strict=True):
        places = [np.flatnonzero((all_of == token).all(axis=1))[0] for token in some]
        assert places == sorted(set(places))
    assert np.unique(kept[:, 1], axis=0).shape[0] > 16  # each image its own draw


@pytest.mark.slow
def test_patch_dropout_leaves_positions_as_among_all_patches():
    """dinov3 reads the image's size off its tokens: those that are dropped still count. Prefix tokens of all images stay."""
    model = vit(encoding="dinov3", patch_dropout=0.75, num_registers=1)
    batch, rngs = packed([(4, 6), (2, 4)], 2, 13), {"dropout": KEY, "place": KEY}
    variables = initial(model)

    @jax.jit
    def run(variables):
        watch = functools.partial(model.apply, variables, *batch, num_images=2, mutable=["intermediates"])
        trunks = [seen["intermediates"]["trunk"] for _, seen in (watch(train=True, rngs=rngs), watch())]
        return [(trunk["tokens_in"][0][0], trunk["block_0"]["attention"]["weights"][0][0]) for trunk in trunks]

    (tokens, some), (among, every) = jax.device_get(run(variables))
    kept, live = [], (2 + 2) + (2 + 1)  # of 6 patches 4 are dropped, of 2 one; the slots behind are padding
    for token in tokens[:live]:  # in their order; the images have equal prefix tokens
        places = np.flatnonzero((among == token).all(axis=1))
        kept.append(places[np.searchsorted(places, kept[-1] if kept else -1, side="right")])
    picked = every[:, kept][:, :, kept]  # what the same pairs attend to each other, renormalised
    np.testing.assert_allclose(some[:, :live, :live], picked / picked.sum(axis=-1, keepdims=True), atol=1e-5)
    assert not np.any(some[:, :, live:])


@pytest.mark.parametrize("rate", [0.1, 0.7])
@pytest.mark.parametrize("grids", [[(1, 1)] * 6, [(4, 6), (3, 5), (1, 1)]])
def test_patch_dropout_is_of_each_images_own_patches(rate, grids):
    """Its share of them, whatever it is packed with and however much padding there is; there is room for what is kept."""
    count = sum(2 + h * w for h, w in grids)
    _, site = packed([(2 * h, 2 * w) for h, w in grids], 2, count + 24)

    @jax.jit
    def run(key):
        kept = draw_kept(key, rate, site, 1, len(grids), 2)
        return kept, taken(site, kept)

    kept, after = jax.device_get(run(KEY))
    for number, (h, w) in enumerate(grids, 1):
        own = after.segment == number
        assert (own & (after.prefix == 0)).sum() == h * w - int(rate * h * w)
        assert (own & (after.prefix > 0)).sum() == 2
    assert (np.diff(kept.index[0][kept.live[0]]) > 0).all()
    with pytest.raises(ValueError, match=r"patch_dropout=1\.0"):
        draw_kept(KEY, 1.0, site, 1, 1, 2)
