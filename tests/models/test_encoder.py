"""Encoders of text: types of tokens, heads, tables that all layers project; goldens are in tests/pretrained."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax as pj
from posjax.models import Encoder

SIZES = dict(width=16, num_heads=2, depth=2, mlp_dim=20)
TOKENS = jnp.asarray(np.arange(14).reshape(2, 7) % 11, jnp.int32)
SITE = pj.sites(7)


def encoder(**fields):
    return Encoder.from_config(SIZES, vocab_size=11, **fields)


def shapes(model):
    return jax.eval_shape(lambda: model.init(jax.random.key(0), *model.example()))


def test_types_of_tokens_are_added():
    model = encoder(num_types=2, depth=0)
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes(model))
    run = jax.jit(model.apply)
    types = np.zeros(TOKENS.shape, np.int32)
    whole = run(params, TOKENS, SITE, types)
    np.testing.assert_array_equal(jax.jit(lambda params: model.apply(params, TOKENS, SITE))(params), whole)
    types[:, 5] = 1
    moved = np.abs(np.asarray(run(params, TOKENS, SITE, types)) - whole).max(axis=(0, 2)) > 1e-6
    assert moved.tolist() == [position == 5 for position in range(7)]
    with pytest.raises(ValueError, match="no types of tokens"):
        model.clone(num_types=0).apply(params, TOKENS, SITE, types)


def test_heads_are_those_that_are_asked_for():
    model = encoder(encoding="learned", length=7, head=None, pooler=True, num_pair_classes=3)
    params = shapes(model)

    def shape(method=None):
        return jax.eval_shape(lambda params: model.apply(params, TOKENS, SITE, method=method), params).shape

    assert [shape(), shape("pooled"), shape("pair_logits")] == [(2, 7, 16), (2, 16), (2, 3)]
    assert not {"head_dense", "decoder_bias"} & set(params["params"])
    untied = shapes(model.clone(head="relu", tied_embedding=False, head_bias=False, head_dense_bias=False))["params"]
    assert set(untied["head_dense"]) == {"kernel"}
    assert untied["decoder"]["kernel"].shape == (16, 11)
    for fields, message in ((dict(pooler=False), "pooler=True"), (dict(head="tanh"), "no activation is named 'tanh'")):
        with pytest.raises(ValueError, match=message):
            shapes(model.clone(**fields))


def test_a_first_block_may_lack_its_norm():
    trunk = shapes(encoder(encoding="rope", first_norm=False, norm_bias=False))["params"]["trunk"]
    assert "attention_norm" not in trunk["block_0"]
    assert set(trunk["block_1"]["attention_norm"]) == set(trunk["norm"]) == {"scale"}


@pytest.mark.parametrize("behind", ["{}", "interpolate(2) >> (rope + {})"])
def test_a_shared_table_needs_the_projection_of_its_layer(behind):
    """Whatever it stands beside or behind."""
    shared = "deberta(position_buckets=4, max_relative_positions=9, shared=True)"
    encoding, x, q = pj.parse(behind.format(shared)), np.zeros((7, 16), np.float32), np.zeros((7, 2, 8), np.float32)

    def run(project):
        _, hosted = pj.host(encoding, encoding.init(jax.random.key(0), pj.Dims(16, 2, 8)), x, SITE, key=None)
        hosted = hosted.in_layer(lambda rows: (rows.reshape(-1, 2, 8),) * 2) if project else hosted
        return hosted.attend(q, q, q, x=x)

    assert jax.eval_shape(lambda: run(True)).shape == (7, 2, 8)
    with pytest.raises(ValueError, match=r"hosted.in_layer\(project\).attend"):
        jax.eval_shape(lambda: run(False))
