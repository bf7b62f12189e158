"""Draws in training and initialisation: rates, sizes and independence."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from test_vit import IMAGES, initial, scaled, vit

import posjax as pj
from posjax.models import Decoder
from posjax.models.block import Block, drop_path

RNGS = {"dropout": jax.random.key(0), "place": jax.random.key(0)}


def plain_vit(**options):
    model = vit(**dict(encoding="none", pooling="mean") | options)
    return model, initial(model), model.sites(4, 6)


def test_branches_that_stay_make_up_for_those_that_are_dropped():
    """A quarter is dropped, the rest is 4/3 of itself, so that the mean stays."""
    out = np.asarray(drop_path(jax.random.key(0), jnp.ones((4000, 1, 1)), 0.25)).ravel()
    np.testing.assert_allclose(np.unique(out), [0, 4 / 3], rtol=1e-6)
    assert abs(out.mean() - 1) < 0.03


def test_stochastic_depth_grows_to_its_rate():
    rates = []

    def note(call, args, kwargs, context):
        if isinstance(context.module, Block) and context.method_name == "__call__":
            _, _, _, rate, _ = args  # tokens, the hosted encoding, its code, the rate, the key
            rates.append(rate)
        return call(*args, **kwargs)

    for constant in (None, True):
        model = vit(depth=4, drop_path=0.3, drop_path_constant=constant)
        with nn.intercept_methods(note):
            jax.eval_shape(lambda model=model: model.init(jax.random.key(0), *model.example(channels=3)))
    np.testing.assert_allclose(rates, [0, 0.1, 0.2, 0.3, *[0.3] * 4])


def test_drop_path_drops_whole_branches_of_whole_images():
    model, variables, site = plain_vit(drop_path=0.5, depth=2)
    x, options = jnp.repeat(IMAGES[:1], 64, axis=0), dict(train=True, rngs=RNGS, mutable=["intermediates"])
    _, seen = jax.jit(lambda variables: model.apply(variables, x, site, **options))(variables)
    tokens = seen["intermediates"]["trunk"]
    assert np.ptp(np.asarray(tokens["tokens_0"][0]), axis=0).max() == 0  # the first block's rate is 0
    kinds = np.unique(np.asarray(tokens["tokens_1"][0]).round(4).reshape(64, -1), axis=0)
    assert len(kinds) == 4  # either branch there or not


def test_dropout_is_behind_each_branch_in_training_only():
    """The other branch writes nothing."""
    model, variables, site = plain_vit(dropout=0.5)
    run = jax.jit(
        lambda variables, key: model.apply(variables, IMAGES, site, train=True, rngs=dict.fromkeys(RNGS, key))
    )
    first, second = jax.random.key(0), jax.random.key(1)
    for other in (("attention", "'out'"), ("mlp", "'down'")):
        one = scaled(variables, 0, *other)
        assert jnp.abs(run(one, first) - run(one, second)).max() > 1e-3
    np.testing.assert_array_equal(run(variables, first), run(variables, first))
    still = jax.jit(lambda variables: [each.apply(variables, IMAGES, site) for each in (model, plain_vit()[0])])
    np.testing.assert_array_equal(*still(variables))


def test_layer_scales_start_where_they_are_told():
    model = vit(layer_scale=1e-4)
    block = jax.jit(lambda: model.init(jax.random.key(0), *model.example(channels=3)))()["params"]["trunk"]["block_0"]
    for name in ("attention_scale", "mlp_scale"):
        np.testing.assert_array_equal(block[name], np.full(16, 1e-4, np.float32))


def test_lape_norms_what_a_convolution_makes_of_the_tokens():
    model, variables, site = plain_vit(encoding="peg", injection="lape")
    run = jax.jit(lambda variables: model.apply(variables, IMAGES, site))
    assert jnp.abs(run(variables) - run(scaled(variables, 0, "encoding", "kernel"))).max() > 1e-3


def test_token_embeddings_start_at_unit_size_behind_their_factor():
    """N(0, 1/M), times sqrt(M)."""
    model = Decoder.from_config(dict(width=64, depth=0, num_heads=1), vocab_size=400)
    table = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 1), jnp.int32), pj.sites(1))
    np.testing.assert_allclose(table["params"]["token_embedding"]["embedding"].std() * 64**0.5, 1, rtol=0.03)
