"""The optimiser decays the right weights, follows its schedule, clips per seed, and refuses values that cannot be."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from posjax.models import BlockConfig, Decoder, Encoder, EncoderDecoder, Latent, ViT
from posjax.pretrained.parameters import expected_params
from posjax.training.optimizer import decays, make_optimizer, make_schedule

PARAMS = {
    "block_0": {
        "attention": {"query": {"kernel": np.ones((4, 2, 2)), "bias": np.ones((2, 2))}},
        "encoding": {"table": np.ones((8, 4))},
        "norm": {"scale": np.ones(4), "bias": np.ones(4)},
    },
    "stacked": {"norm": {"scale": np.ones((3, 4))}},
    "encoding": [np.ones((8, 4)), {"deep": np.ones((2, 2))}],
    "embedding": np.ones((9, 4)),
    "encoding_free": np.ones((2, 2)),
    "gain": np.ones(4),
    "cls": np.ones((1, 4)),
    "registers": np.ones((3, 4)),
}
DECAYED = {
    "['block_0']['attention']['query']['kernel']",
    "['embedding']",
    "['encoding_free']",
}
ENCODING = {"['block_0']['encoding']['table']", "['encoding'][0]", "['encoding'][1]['deep']"}


def paths(tree):
    return {jax.tree_util.keystr(path) for path, chosen in jax.tree_util.tree_leaves_with_path(tree) if chosen}


@pytest.mark.parametrize(("decay_encoding", "expected"), [(False, DECAYED), (True, DECAYED | ENCODING)])
def test_decay_goes_by_name_and_rank(decay_encoding, expected):
    def chosen(path, leaf):
        return decays(path, leaf, decay_encoding=decay_encoding)

    assert paths(jax.tree_util.tree_map_with_path(chosen, PARAMS)) == expected
    abstract = jax.eval_shape(lambda: PARAMS)
    assert paths(jax.tree_util.tree_map_with_path(chosen, abstract)) == expected


SMALL = dict(width=8, num_heads=2, layer_scale=0.1, mlp_bias=True)
LATENT = Latent(kv_lora_rank=4, qk_nope_head_dim=2, qk_rope_head_dim=2, v_head_dim=2, q_lora_rank=4)


@pytest.mark.parametrize(
    "model",
    [
        Decoder(5, block=BlockConfig(num_experts=3, mlp="swiglu", **SMALL), depth=1),
        Decoder(5, block=BlockConfig(latent=LATENT, qk_norm=False, **SMALL), depth=1, tied_embedding=False),
        Encoder(5, block=BlockConfig(qk_norm="all_heads", **SMALL), depth=1),
        EncoderDecoder(5, block=BlockConfig(**SMALL), depth=1),
        ViT(3, block=BlockConfig(**SMALL), depth=1, patch_size=4, image_size=(8, 8), pooling="map", num_registers=2),
    ],
    ids=["experts", "latent", "encoder", "two stacks", "vit"],
)
def test_matrices_and_embeddings_decay_in_every_model_and_nothing_else(model):
    params = expected_params(model, *[3] * isinstance(model, ViT))["params"]
    found = paths(jax.tree_util.tree_map_with_path(decays, params))
    everything = {jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)}
    assert found == {path for path in everything if path.endswith(("kernel']", "['embedding']"))}


def test_only_decayed_weights_shrink_also_under_a_seed_axis():
    optimizer, _ = make_optimizer(
        learning_rate=0.1, total_steps=10, schedule="constant", weight_decay=0.5, decay_encoding=True
    )

    def step(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        updates, _ = optimizer.update(zeros, optimizer.init(params), params)
        return optax.apply_updates(params, updates)

    seeds = jax.tree.map(lambda leaf: np.stack([leaf, 2 * leaf]), PARAMS)
    found = jax.jit(jax.vmap(step))(seeds)
    shrunk = DECAYED | ENCODING
    for path, leaf in jax.tree_util.tree_leaves_with_path(jax.tree.map(np.asarray, found)):
        factor = 0.95 if jax.tree_util.keystr(path) in shrunk else 1.0
        np.testing.assert_allclose(leaf[0], factor, rtol=1e-6)
        np.testing.assert_allclose(leaf[1], 2 * factor, rtol=1e-6)


def test_one_step_is_adamw_by_hand():
    optimizer, rate = make_optimizer(
        learning_rate=0.1, total_steps=10, schedule="linear", weight_decay=0.5, clip_norm=None, b1=0.8, b2=0.9
    )
    w, update = {"w": np.full((2, 2), 2.0, np.float32)}, jax.jit(optimizer.update)
    m = v = 0.0
    expected, state = 2.0, jax.jit(optimizer.init)(w)
    for t, g in enumerate((3.0, -1.0)):
        updates, state = update({"w": np.full((2, 2), g, np.float32)}, state, w)
        w = {"w": w["w"] + np.asarray(updates["w"])}
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g * g
        adam = (m / (1 - 0.8 ** (t + 1))) / (np.sqrt(v / (1 - 0.9 ** (t + 1))) + 1e-8)
        expected -= 0.1 * (1 - t / 10) * (adam + 0.5 * expected)
        np.testing.assert_allclose(w["w"], expected, rtol=1e-6)
        np.testing.assert_allclose(rate(t), 0.1 * (1 - t / 10), rtol=1e-6)


def test_clipping_is_by_the_norm_of_each_seed_and_a_norm_of_0_does_not_clip():
    """The command line cannot say None of a number."""

    def first_moments(clip_norm):
        optimizer, _ = make_optimizer(learning_rate=1.0, total_steps=10, clip_norm=clip_norm)

        def first_moment(gradient):
            _, state = optimizer.update(gradient, optimizer.init(gradient), gradient)
            return optax.tree.get(state, "mu")

        # Norms of 5 and 0.5.
        gradients = {"a": np.array([[3.0], [0.3]], np.float32), "b": np.array([[4.0], [0.4]], np.float32)}
        moments = jax.jit(jax.vmap(first_moment))(gradients)
        return np.stack([moments["a"][:, 0], moments["b"][:, 0]])

    np.testing.assert_allclose(first_moments(1.0), [[0.06, 0.03], [0.08, 0.04]], rtol=1e-5)
    for clip_norm in (0, None):
        np.testing.assert_allclose(first_moments(clip_norm), [[0.3, 0.03], [0.4, 0.04]], rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("constant", [0.0, 1.0, 2.0, 2.0, 2.0]),
        ("cosine", [0.0, 1.0, 2.0, 1.0, 0.0]),
        ("linear", [0.0, 1.0, 2.0, 1.0, 0.0]),
    ],
)
def test_schedules_at_known_steps(name, expected):
    schedule = make_schedule(name, learning_rate=2.0, total_steps=100, warmup_steps=20)
    np.testing.assert_allclose([schedule(step) for step in (0, 10, 20, 60, 100)], expected, atol=1e-6)
    without = make_schedule(name, learning_rate=2.0, total_steps=100)
    np.testing.assert_allclose([without(0), without(200)], [2.0, expected[-1]], atol=1e-6)
    # Cosine and linear agree at the middle but not at a quarter.
    if name != "constant":
        quarter = {"cosine": 1 + np.sqrt(0.5), "linear": 1.5}[name]
        np.testing.assert_allclose(without(25), quarter, rtol=1e-6)


def test_values_that_cannot_be_are_named():
    for name, value in (("schedule", "cosin"), ("warmup_steps", 10), ("learning_rate", float("nan")), ("b1", 1.0)):
        with pytest.raises(ValueError, match=f"{name}="):
            make_optimizer(**{"learning_rate": 0.1, "total_steps": 10, name: value})
