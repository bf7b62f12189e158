"""Draws in training, sampling and initialisation: rates, sizes and independence."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax as pj
from posjax.models import Decoder, ResNet, ViT, generate
from posjax.models.block import Block, drop_path
from posjax.models.generate import Sampling, choose_tokens

TOKENS, SITE = jnp.zeros((2, 4), jnp.int32), pj.sites(4)
IMAGES = jnp.asarray(np.random.default_rng(0).normal(size=(2, 4, 6, 3)), jnp.float32)


def vit(**options):
    sizes = dict(encoding="none", image_size=(4, 6), patch_size=2, width=16, depth=1, num_heads=2, pooling="mean")
    return ViT.from_config(sizes | options, num_classes=3)


def initial(model):
    site = model.sites(4, 6)
    return jax.jit(lambda key: model.init(key, IMAGES, site))(jax.random.key(0))["params"]


def decoder(vocab_size, **options):
    """A small decoder, and its initial parameters."""
    model = Decoder.from_config(dict(encoding="rope", width=8, depth=1, num_heads=1) | options, vocab_size=vocab_size)
    return model, jax.jit(lambda key: model.init(key, TOKENS, SITE))(jax.random.key(0))


def made(model):
    """Away from their initial values: a head of zeros would hide everything."""
    params = initial(model)
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda x: x + jnp.asarray(0.3 * rng.normal(size=x.shape), x.dtype), params)


def zeroed(params, *parts):
    """Parameters with 0 in those whose path has all of these parts."""
    inside = lambda path: all(part in jax.tree_util.keystr(path) for part in parts)  # noqa: E731
    return jax.tree_util.tree_map_with_path(lambda path, x: 0 * x if inside(path) else x, params)


def test_branches_that_stay_make_up_for_those_that_are_dropped():
    """A quarter is dropped, the rest is 4/3 of itself, so that the mean stays."""
    x = jnp.ones((4000, 1, 1))
    out = drop_path(jax.random.key(0), x, 0.25).ravel()
    np.testing.assert_allclose(np.unique(out), [0, 4 / 3], rtol=1e-6)
    assert abs(out.mean() - 1) < 0.03


def test_stochastic_depth_grows_to_its_rate():
    rates = []

    def note(call, args, kwargs, context):
        if isinstance(context.module, Block) and context.method_name == "__call__":
            _, _, _, rate, _ = args  # tokens, the hosted encoding, its code, the rate, the key
            rates.append(rate)
        return call(*args, **kwargs)

    model = vit(depth=4, drop_path=0.3)
    with nn.intercept_methods(note):
        jax.eval_shape(lambda: model.init(jax.random.key(0), IMAGES, model.sites(4, 6)))
    np.testing.assert_allclose(rates, [0, 0.1, 0.2, 0.3])


@pytest.mark.parametrize("branch", ["attention", "mlp"])
def test_each_branch_is_dropped_at_its_rate_and_in_training_only(branch):
    """The other branch writes nothing. Of 400 copies of an image in a model of two blocks, whose second drops half."""
    model = vit(depth=2, drop_path=0.5)
    params, site = made(model), model.sites(4, 6)
    for block in ("block_0", "block_1"):
        params = zeroed(params, block, *(("mlp", "'down'") if branch == "attention" else ("attention", "'out'")))
    x = jnp.repeat(IMAGES[:1], 400, axis=0)
    rngs = {"dropout": jax.random.key(0), "place": jax.random.key(0)}
    logits = jax.jit(lambda params: model.apply({"params": params}, x, site, train=True, rngs=rngs))(params)
    found, count = np.unique(np.asarray(logits).round(4), axis=0, return_counts=True)
    assert len(found) == 2
    assert abs(count[0] / 400 - 0.5) < 0.08
    still = jax.jit(lambda params: model.apply({"params": params}, x, site))(params)
    assert len(np.unique(np.asarray(still).round(4), axis=0)) == 1


@pytest.mark.parametrize("other", [("attention", "'out'"), ("mlp", "'down'")], ids=["mlp", "attention"])
def test_dropout_is_behind_each_branch(other):
    """The other branch writes nothing."""
    model = vit(dropout=0.5)
    variables, site = {"params": zeroed(made(model), *other)}, model.sites(4, 6)
    run = jax.jit(lambda key: model.apply(variables, IMAGES, site, train=True, rngs={"dropout": key, "place": key}))
    assert jnp.abs(run(jax.random.key(0)) - run(jax.random.key(1))).max() > 1e-3


def test_layer_scales_start_where_they_are_told():
    model = vit(layer_scale=1e-4)
    block = initial(model)["trunk"]["block_0"]
    for name in ("attention_scale", "mlp_scale"):
        np.testing.assert_array_equal(block[name], np.full(16, 1e-4, np.float32))


def test_lape_norms_what_a_convolution_makes_of_the_tokens():
    model = vit(encoding="peg", injection="lape")
    params, site = made(model), model.sites(4, 6)
    without = zeroed(params, "encoding", "kernel")
    run = jax.jit(lambda params: model.apply({"params": params}, IMAGES, site))
    outs = [run(each) for each in (params, without)]
    assert jnp.abs(outs[0] - outs[1]).max() > 1e-3


def test_token_embeddings_start_at_unit_size_behind_their_factor():
    """N(0, 1/M), times sqrt(M)."""
    _, variables = decoder(400, width=64)
    table = variables["params"]["token_embedding"]["embedding"]
    np.testing.assert_allclose(table.std() * 64**0.5, 1, rtol=0.03)


@pytest.mark.slow
def test_units_of_a_resnet_start_as_their_shortcut():
    model = ResNet(3, (1, 1), 4)
    params = jax.jit(model.init)(jax.random.key(0), jnp.ones((1, 8, 8, 3)))["params"]["resnet"]
    for unit in ("block1_unit1", "block2_unit1"):
        assert not np.any(params[unit]["gn3"]["scale"])
        assert np.all(params[unit]["gn1"]["scale"] == 1)


def test_every_step_draws_anew():
    """The draws of a model that finds all tokens equally likely."""
    model, variables = decoder(50)
    variables = jax.tree.map(jnp.zeros_like, variables)
    drawn = generate(model, variables, TOKENS, SITE, steps=12, temperature=1.0, key=jax.random.key(0))
    assert all(len(set(row)) > 6 for row in drawn.tolist())


@pytest.mark.parametrize(("temperature", "share"), [(1.0, 9 / 10), (2.0, 3 / 4), (0.5, 81 / 82)])
def test_temperature_divides_logits(temperature, share):
    """9 to 1 at temperature 1 is 3 to 1 at 2, and 81 to 1 at 1/2."""
    logits = jnp.log(jnp.array([[9.0, 1.0]])).repeat(20_000, axis=0)
    sampling = Sampling(temperature, None, None, None)
    drawn = choose_tokens(logits, jax.random.key(0), sampling, jnp.zeros(20_000, bool))
    np.testing.assert_allclose((drawn == 0).mean(), share, atol=0.012)


@pytest.mark.slow
def test_a_row_that_has_stopped_may_run_beyond_its_table():
    model, variables = decoder(7, encoding="learned", length=6)
    with pytest.raises(FloatingPointError, match="behind the end of a learned table"):
        generate(model, variables, TOKENS, SITE, steps=5)
    stop = int(jnp.argmax(model.apply(variables, TOKENS, SITE)[0, -1]))
    np.testing.assert_array_equal(generate(model, variables, TOKENS, SITE, steps=5, stop=stop), np.full((2, 5), stop))
