"""NNX: the models beside Linen's, trained, captured and checkpointed; flax's own attention module as a host."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import nnx

import posjax as pj
from posjax.describe.worlds import normal
from posjax.models import Decoder, ViT, generate
from posjax.nnx import Model, Positions, self_attention

TOKENS = jax.device_put(np.random.default_rng(3).integers(0, 11, (3, 12), np.int32))
SITE = pj.sites(12)
SIZES = dict(width=16, depth=1, num_heads=2)
IMAGES = normal(4, 2, 8, 8, 3)
DECODER = Decoder.from_config(SIZES, vocab_size=11, encoding="randomized(64) >> (learned + t5)", length=12)
VIT = ViT.from_config(SIZES, num_classes=5, encoding="axial_rope + learned", image_size=(8, 8), pooling="none")
CASES = [
    pytest.param(DECODER, (TOKENS, SITE), id="decoder"),
    pytest.param(VIT, (IMAGES, VIT.sites(8, 8)), id="vit", marks=pytest.mark.slow),
]


@functools.cache
def linen():
    """The variables of the decoder."""
    return jax.jit(DECODER.init)(jax.random.key(0), TOKENS, SITE)


def state_of(model):
    return nnx.to_pure_dict(nnx.state(model, nnx.Param))


@pytest.mark.parametrize(("module", "example"), CASES)
def test_a_model_returns_what_linen_returns(module, example):
    model = Model.init(module, *example, rngs=nnx.Rngs(0))
    assert {type(leaf) for leaf in jax.tree.leaves(model, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))} == {
        nnx.Param
    }
    expected = jax.jit(module.apply)(model.variables, *example)
    assert jnp.abs(expected).max() > 0.1
    np.testing.assert_allclose(nnx.jit(lambda model: model(*example))(model), expected, atol=1e-5)
    assert jax.tree.structure(state_of(model)["params"]) == jax.tree.structure(
        nnx.to_pure_dict(nnx.state(model))["params"]
    )


@pytest.mark.slow
def test_parameters_come_from_linen_and_go_there():
    """Functions of Linen models thus take an NNX model, and call its methods by name."""
    model = Model(DECODER, linen())
    jax.tree.map(np.testing.assert_array_equal, model.variables, dict(linen()))
    module = DECODER.clone(encoding="learned + t5")
    model = Model.init(module, TOKENS, SITE, rngs=nnx.Rngs(0))
    prompt = jax.tree.map(lambda leaf: leaf[:4], SITE)
    continued = generate(model.module, model.variables, TOKENS[:, :4], prompt, steps=1)
    logits, _ = nnx.jit(lambda model: model(TOKENS[:, :4], prompt, cache_size=4, method="prefill"))(model)
    np.testing.assert_array_equal(continued[:, 0], logits[:, -1].argmax(-1))


@pytest.mark.slow
def test_intermediates_are_captured():
    model = Model(DECODER, linen())
    logits, sown = nnx.jit(lambda model: nnx.capture(model, nnx.Intermediate)(TOKENS, SITE, sow=True))(model)
    expected, state = jax.jit(functools.partial(DECODER.apply, mutable=["intermediates"]))(linen(), TOKENS, SITE)
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    assert state["intermediates"]["trunk"]["block_0"]["attention"]["weights"][0].shape == (3, 2, 12, 12)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, atol=1e-5), nnx.to_pure_dict(sown), dict(state["intermediates"])
    )
    assert list(nnx.state(model)) == ["params"]


def loss_of(logits):
    return optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], TOKENS[:, 1:]).mean()


@nnx.jit
def step(model, optimizer, key):
    def loss(model):
        return loss_of(model(TOKENS, SITE, train=True, rngs=nnx.Rngs(place=key, dropout=key)))

    value, grads = nnx.value_and_grad(loss)(model)
    optimizer.update(model, grads)
    return value


KEYS = jax.random.split(jax.random.key(5), 4)


def made(seed):
    model = Model.init(DECODER, TOKENS, SITE, rngs=nnx.Rngs(seed))
    return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)


@pytest.mark.slow
def test_training_is_that_of_linen():
    model, optimizer = made(0)
    params, adam = model.variables, optax.adam(1e-2)
    state = adam.init(params)

    @jax.jit
    def linen_step(params, state, key):
        place = nnx.Rngs(place=key).place()  # a stream folds its count into its key

        def loss(params):
            return loss_of(DECODER.apply(params, TOKENS, SITE, train=True, rngs=dict(place=place)))

        value, grads = jax.value_and_grad(loss)(params)
        updates, state_ = adam.update(grads, state)
        return optax.apply_updates(params, updates), state_, value

    expected = []
    for key in KEYS:
        params, state, value = linen_step(params, state, key)
        expected.append(float(value))
    losses = [float(step(model, optimizer, key)) for key in KEYS]
    assert losses[-1] < losses[0] - 0.05
    np.testing.assert_allclose(losses, expected, rtol=2e-5)
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-4), model.variables, params)


@pytest.mark.slow
def test_a_checkpoint_restores_every_bit(tmp_path):
    model, optimizer = made(0)
    step(model, optimizer, KEYS[0])
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", nnx.state((model, optimizer)))
    again, its_optimizer = made(1)
    with ocp.StandardCheckpointer() as checkpointer:
        state = checkpointer.restore(tmp_path / "state", nnx.state((again, its_optimizer)))
    before = again.variables
    nnx.update((again, its_optimizer), state)
    assert any(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a != b).any()), before, again.variables)))
    jax.tree.map(np.testing.assert_array_equal, again.variables, model.variables)
    assert step(again, its_optimizer, KEYS[1]) == step(model, optimizer, KEYS[1])
    jax.tree.map(np.testing.assert_array_equal, again.variables, model.variables)


X = normal(6, 2, 12, 16)


def hosted_by(spec, **options):
    """Positions and an attention module of flax with two key heads for four."""
    rngs = nnx.Rngs(0)
    positions = Positions(spec, pj.Dims(16, 4, 4, length=12), rngs=rngs)
    return positions, nnx.MultiHeadAttention(4, 16, num_kv_heads=2, rngs=rngs, **options)


@pytest.mark.slow
def test_flax_attention_hosts_an_encoding():
    positions, module = hosted_by("fox + t5", decode=False)
    own = module.attention_fn

    @nnx.jit
    def run(positions, module, x):
        x, hosted = positions.host(x, SITE, key=None)
        # the weights of attention come out where flax's own function sows them
        watched = nnx.capture(functools.partial(self_attention, causal=True, sow_weights=True), nnx.Intermediate)
        return self_attention(module, hosted, x, causal=True), *watched(module, hosted, x)

    @nnx.jit
    def by_hand(positions, module, x):
        x, hosted = positions.host(x, SITE, key=None)
        read, weights = hosted.attend(
            module.query(x), module.key(x), module.value(x), x=x, causal=True, return_weights=True
        )
        return module.out(read), weights

    expected, expected_weights = by_hand(positions, module, X)
    out, again, sown = run(positions, module, X)
    np.testing.assert_allclose(out, expected, atol=1e-5)
    np.testing.assert_allclose(again, expected, atol=1e-5)
    np.testing.assert_allclose(sown["attention_weights"].get_value()[0], expected_weights, atol=1e-5)
    assert module.attention_fn is own


@pytest.mark.slow
def test_gradients_reach_the_encoding():
    positions, module = hosted_by("t5", decode=False)

    def loss(positions):
        x, hosted = positions.host(X, SITE, key=None)
        return jnp.square(self_attention(module, hosted, x, causal=True)).mean()

    (grads,) = jax.tree.leaves(nnx.jit(nnx.grad(loss))(positions))
    assert jnp.abs(grads).max() > 1e-5


@pytest.mark.slow
def test_flax_cache_decodes_as_the_full_pass():
    positions, module = hosted_by("interpolate(factor=2) >> (rope + alibi + window(5))", decode=True)

    @functools.partial(nnx.jit, static_argnames="decode")
    def one(positions, module, x, site, decode=True):
        x, hosted = positions.host(x, site, key=None)
        return self_attention(module, hosted, x, causal=True, decode=decode, key_site=SITE if decode else None)

    expected = one(positions, module, X, SITE, decode=False)
    module.init_cache(X.shape)

    for index in range(12):
        site = jax.tree.map(lambda leaf: leaf[index : index + 1], SITE)  # noqa: B023
        np.testing.assert_allclose(
            one(positions, module, X[:, index : index + 1], site)[:, 0], expected[:, index], atol=1e-5
        )


def test_what_flax_cannot_host_is_refused_and_the_module_left_as_it_was():
    positions, module = hosted_by("fox", decode=False)
    own, (x, hosted) = module.attention_fn, positions.host(X, SITE, key=None)
    with pytest.raises(ValueError, match=r"fox\(.*the cache of a flax module"):
        self_attention(module, hosted, x, key_site=SITE, decode=True)
    assert module.attention_fn is own
    _, dropping = hosted_by("fox", decode=False, dropout_rate=0.5)
    with pytest.raises(ValueError, match=r"dropout_rate=0\.5: attention drops no weights"):
        self_attention(dropping, hosted, x, deterministic=False, rngs=nnx.Rngs(0))
    read = nnx.eval_shape(lambda module: self_attention(module, hosted, x, deterministic=True), dropping)
    assert read.shape == x.shape
