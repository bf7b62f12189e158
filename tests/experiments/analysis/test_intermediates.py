"""The captured values are the ones that the model computed with."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax as pj
from experiments.analysis.frequencies import frequency_use, waves
from experiments.analysis.vision.intermediates import dims_of, intermediates_of, layer_encodings, turning
from posjax.attention.dense import tile_logits
from posjax.models import ViT

SIZES = dict(image_size=(6, 8), patch_size=2, width=16, depth=2, num_heads=2, num_registers=1)
IMAGES = jnp.asarray(np.random.default_rng(0).standard_normal((3, 6, 8, 1)), jnp.float32)


def made(encoding, **more):
    model = ViT.from_config(SIZES | more, num_classes=5, encoding=encoding)
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), IMAGES, model.sites(6, 8)))["params"]
    rng = np.random.default_rng(1)
    return model, jax.tree.map(lambda leaf: jnp.asarray(0.3 * rng.standard_normal(leaf.shape), leaf.dtype), shapes)


@pytest.mark.slow
def test_weights_are_the_softmax_of_what_queries_keys_and_encoding_give():
    model, params = made("rope_mixed + alibi", injection="every_layer")
    site = model.sites(6, 8)
    seen = intermediates_of(model, site)(params, IMAGES)
    expected = jax.jit(lambda params: model.apply({"params": params}, IMAGES, site))(params)
    np.testing.assert_allclose(seen.output, expected, atol=1e-5)
    assert [tokens.shape for tokens in seen.tokens] == [(3, 14, 16)] * 3
    layer = layer_encodings(model, params)[1]
    q, k = seen.query[1][2], seen.key[1][2]
    rotated = layer.encoding.rotate(layer.params, q, site, k, site)
    logits = tile_logits(layer.encoding, 8**-0.5, layer.params, q, k, *rotated, site, site)
    np.testing.assert_allclose(seen.weights[1][2], jax.nn.softmax(logits), atol=1e-5)


@pytest.mark.parametrize(
    ("injection", "encoding", "names"),
    [
        ("stem", "learned", ["encoding", "encoding"]),
        ("every_layer", "learned", ["encoding_0", "encoding_1"]),
        ("stem", ("none", "alibi"), ["encoding_0", "encoding_1"]),
    ],
)
def test_every_layer_has_the_encoding_that_it_hosts(injection, encoding, names):
    model, params = made(encoding, injection=injection)
    found = layer_encodings(model, params)
    assert [layer.name for layer in found] == names
    if encoding == "learned":
        leaves = [jax.tree.leaves(layer.params)[0] for layer in found]
        np.testing.assert_array_equal(leaves[1], jax.tree.leaves(params["trunk"][names[1]])[0])
    else:
        assert [str(layer.encoding) for layer in found] == ["none()", "alibi()"]
    assert dims_of(model) == (16, 2, 8, None, (3, 4), 2)


@pytest.mark.parametrize(
    "more",
    [
        {},
        dict(head_dim=12),
        dict(latent="latent(kv_lora_rank=6, qk_nope_head_dim=3, qk_rope_head_dim=4, v_head_dim=5)"),
    ],
)
def test_pairs_are_those_of_the_channels_that_turn(more):
    """Each channel holds its own number; RoPE has the same pair of its two halves in every head, on both axes."""
    model = ViT.from_config(SIZES | more, num_classes=5, encoding="rope")
    site = model.sites(6, 8)
    x = np.broadcast_to(np.arange(1.0, model.block.channels + 1), (1, len(site.segment), 2, model.block.channels))
    first = model.block.latent.qk_nope_head_dim if "latent" in more else 0
    found = waves(pj.parse("rope"), (), dims_of(model), site)
    assert 2 * len(found.pairs) == model.block.channels - first
    used = frequency_use(turning(model, x), turning(model, x), found.pairs, site)
    expected = [np.hypot(first + 1 + a, first + 1 + b) for a, b in found.pairs]
    np.testing.assert_allclose(used.query, [expected] * 2)
