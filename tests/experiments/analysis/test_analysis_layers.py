"""The captured values are the ones that the model computed with."""

import jax
import numpy as np
import pytest
from subjects import IMAGES, LENGTH, decoder, vit

import posjax as pj
from experiments.analysis.layers import look
from posjax.attention.dense import tile_logits
from posjax.models import BlockConfig, Latent


def test_weights_of_a_vit_are_the_softmax_of_what_queries_keys_and_encoding_give():
    subject = vit("rope_mixed + alibi", injection="every_layer", num_registers=1, num_classes=5)
    site = subject.model.sites(12, 16)
    layers = look(subject.model, subject.params[0], subject.normalised(IMAGES), site)
    assert layers.output.shape == (3, 5)
    assert [tokens.shape for tokens in layers.tokens] == [(3, 14, 8)] * 2
    ((name, encoding, params),) = subject.layers
    assert name == "encoding_0"
    q, k = (np.asarray(x[0])[2] for x in (layers.query, layers.key))

    @jax.jit
    def weights(params, q, k):
        rotated = encoding.rotate(params, q, site, k, site)
        return jax.nn.softmax(tile_logits(encoding, 4**-0.5, params, q, k, *rotated, site, site))

    np.testing.assert_allclose(np.asarray(layers.weights[0])[2], weights(params, q, k), atol=1e-5)


def test_layers_of_a_decoder():
    """A layer with a window sees no further, and scores stand in place of weights."""
    subject, text = decoder(), np.arange(LENGTH, dtype=np.int32)[None]
    layers = look(subject.model, subject.params[0], text, pj.sites(LENGTH), _kept)
    assert [weights[0].shape for weights in layers.weights] == 2 * [(1, 4, LENGTH, LENGTH)]
    assert [index for _, index in layers.weights] == [0, 1]
    assert layers.key[0].shape == layers.value[0].shape == (1, LENGTH, 2, 16)
    weights = np.asarray(layers.weights[0][0])
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    assert not weights[:, :, 20, :12].any()  # behind the window
    assert np.asarray(layers.weights[1][0])[:, :, 20, :12].all()


def _kept(layer, weights):
    return weights, layer


@pytest.mark.parametrize(
    ("injection", "encoding", "names"),
    [
        ("stem", "learned", ["encoding", "encoding"]),
        ("every_layer", "learned", ["encoding_0", "encoding_1"]),
        ("stem", ("none", "alibi"), ["encoding_0", "encoding_1"]),
    ],
)
def test_every_layer_has_the_encoding_that_it_hosts(injection, encoding, names):
    subject = vit(encoding, injection=injection, depth=2, num_registers=1)
    assert [name for name, _, _ in subject.layers] == names
    if encoding == "learned":
        assert subject.layers[1][2] is subject.params[0]["trunk"][names[1]]
    else:
        assert [str(each) for _, each, _ in subject.layers] == ["none()", "alibi()"]
    assert subject.dims == (8, 2, 4, None, (3, 4), 2)


def test_the_channels_of_latent_heads_that_turn_are_the_last_ones():
    latent = Latent(kv_lora_rank=6, qk_nope_head_dim=3, qk_rope_head_dim=4, v_head_dim=5)
    assert vit("rope", block=BlockConfig(width=8, num_heads=2, latent=latent)).dims.head_dim == 4
