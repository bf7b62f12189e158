"""The optimiser decays the right weights, follows its schedule, clips per seed, and refuses values that cannot be."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from posjax.models import BlockConfig, Decoder, Encoder, EncoderDecoder, Latent, ViT
from posjax.pretrained.parameters import expected_params
from posjax.training.optimizer import decays, layer_factors, make_optimizer, make_schedule, matrix_axes

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


@pytest.fixture(
    scope="module",
    params=[
        Decoder(5, block=BlockConfig(num_experts=3, mlp="swiglu", **SMALL), depth=1),
        Decoder(5, block=BlockConfig(latent=LATENT, qk_norm=False, **SMALL), depth=1, tied_embedding=False),
        Encoder(5, block=BlockConfig(qk_norm="all_heads", attention_gate="channel", **SMALL), depth=1),
        EncoderDecoder(5, block=BlockConfig(**SMALL), depth=1),
        ViT(3, block=BlockConfig(**SMALL), depth=1, patch_size=4, image_size=(8, 8), pooling="map", num_registers=2),
    ],
    ids=["experts", "latent", "encoder", "two stacks", "vit"],
)
def model_params(request):
    """The shapes of a model's parameters."""
    return expected_params(request.param, *[3] * isinstance(request.param, ViT))["params"]


def test_matrices_and_embeddings_decay_in_every_model_and_nothing_else(model_params):
    params = model_params
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


def run(optimizer, params, gradients):
    """Returns the parameters after steps by these gradients, as float64."""
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    for gradient in gradients:
        updates, state = update(gradient, state, params)
        params = optax.apply_updates(params, updates)
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)


def test_lamb_by_hand():
    """The norms of a matrix set its step; a bias, which does not decay, moves as by Adam, and a head leaves 0."""
    rng = np.random.default_rng(0)
    start = {"kernel": rng.normal(size=(3, 2)), "bias": rng.normal(size=2), "head": np.zeros((2, 2))}
    gradients = [jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), start) for _ in range(2)]
    given = dict(learning_rate=0.1, total_steps=10, schedule="constant", clip_norm=None, b1=0.8, b2=0.9)
    optimizer, _ = make_optimizer(name="lamb", weight_decay=0.5, **given)
    found = run(optimizer, *jax.tree.map(np.float32, (start, gradients)))
    for name, decay, least in (("kernel", 0.5, 0.0), ("bias", 0.0, 0.0), ("head", 0.5, 0.02 * 2)):
        w, m, v = start[name], 0.0, 0.0
        for t, g in enumerate(each[name] for each in gradients):
            m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g * g
            step = (m / (1 - 0.8 ** (t + 1))) / (np.sqrt(v / (1 - 0.9 ** (t + 1))) + 1e-6) + decay * w
            w = w - 0.1 * step * (max(np.linalg.norm(w), least) / np.linalg.norm(step) if decay else 1.0)
        np.testing.assert_allclose(found[name], w, rtol=1e-5)


def orthogonal(matrix):
    """Returns the matrix after five of Jordan's Newton-Schulz iterations."""
    x = matrix / np.linalg.norm(matrix)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x


def test_muon_by_hand():
    """Queries, keys and values of all heads are a matrix each; the output of attention reads heads and channels."""
    rng = np.random.default_rng(0)
    shapes = {"qkv": (5, 2, 3, 4), "out": (2, 4, 5)}
    start = {"block_0": {"attention": {name: {"kernel": rng.normal(size=shape)} for name, shape in shapes.items()}}}
    start["head"] = {"kernel": rng.normal(size=(5, 3))}
    (gradient,) = gradients = [jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), start)]
    given = dict(learning_rate=0.1, total_steps=10, schedule="constant", clip_norm=None, weight_decay=0.5)
    as_given = jax.tree.map(np.float32, (start, gradients))
    found, by_adam = (run(make_optimizer(name=name, **given)[0], *as_given) for name in ("muon", "adamw"))
    np.testing.assert_allclose(found["head"]["kernel"], by_adam["head"]["kernel"], rtol=1e-6)
    for name in shapes:
        w, g = (tree["block_0"]["attention"][name]["kernel"] for tree in (start, gradient))
        if name == "qkv":
            parts = [orthogonal(g[:, :, i].reshape(5, 8)).reshape(5, 2, 4) for i in range(3)]
            update = np.stack(parts, axis=2)
        else:
            update = orthogonal(g.reshape(8, 5).T).T.reshape(2, 4, 5)
        expected = w - 0.1 * (0.2 * np.sqrt(8) * update + 0.5 * w)
        np.testing.assert_allclose(found["block_0"]["attention"][name]["kernel"], expected, rtol=1e-4, atol=1e-5)


def test_muon_takes_the_matrices_of_blocks(model_params):
    """Each of them in full: as many rows and columns as its shape has, but for experts and parts that share a kernel."""
    leaves = jax.tree.leaves_with_path(model_params)
    found = {jax.tree_util.keystr(path, simple=True, separator="/"): matrix_axes(path) for path, _ in leaves}
    kernels = [name for name in found if "block_" in name and name.endswith("kernel") and "router" not in name]
    assert [name for name, axes in found.items() if axes] == kernels
    for path, leaf in leaves:
        if axes := matrix_axes(path):
            *_, name, kind = jax.tree_util.keystr(path, simple=True, separator="/").split("/")
            alone = (name == "qkv") + (name == "experts")
            used = {axis % leaf.ndim for own in axes for axis in own}
            assert len(used) == sum(map(len, axes)) == leaf.ndim - alone, (name, kind)


def test_layers_decay_from_the_head_down(model_params):
    """By the names of a model of one block, or two."""
    factors = jax.tree.leaves_with_path(layer_factors(model_params, 0.5))
    depth = len(set(re.findall(r"block_\d", jax.tree_util.keystr(tuple(path for path, _ in factors)))))
    for path, factor in factors:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if block := re.search(r"block_(\d+)/", name):
            assert factor == 0.5 ** (depth - int(block[1])), name
        else:
            above = re.match("head|map|decoder_bias|(trunk|encoder|decoder)/norm/", name)
            assert factor == (1.0 if above else 0.5 ** (depth + 1)), name


def test_updates_are_multiplied_by_the_factors_of_their_layers():
    params = {"trunk": {"block_0": {"w": jnp.ones(2)}, "encoding_1": {"w": jnp.ones(2)}}, "head": {"w": jnp.ones(2)}}
    given = dict(learning_rate=0.1, total_steps=10, schedule="constant")
    plain, layered = (run(make_optimizer(layer_decay=d, **given)[0], params, [params]) for d in (None, 0.5))
    moved = jax.tree.map(lambda one, other: (1 - one) / (1 - other), layered, plain)
    expected = {"trunk": {"block_0": {"w": 0.25}, "encoding_1": {"w": 0.5}}, "head": {"w": 1.0}}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), moved, expected)
    with pytest.raises(ValueError, match=r"layer_decay=0\.5 needs a model of blocks"):
        layer_factors({"head": {"kernel": jnp.ones(2)}}, 0.5)


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
    floored = make_schedule(name, learning_rate=2.0, total_steps=100, final_share=None if name == "constant" else 0.25)
    np.testing.assert_allclose([floored(50), floored(200)], {"constant": 2.0}.get(name, [1.25, 0.5]), atol=1e-6)
    # Cosine and linear agree at the middle but not at a quarter.
    if name != "constant":
        quarter = {"cosine": 1 + np.sqrt(0.5), "linear": 1.5}[name]
        np.testing.assert_allclose(without(25), quarter, rtol=1e-6)


def test_values_that_cannot_be_are_named():
    for name, value, message in (
        ("schedule", "cosin", "did you mean 'cosine'"),
        ("warmup_steps", 10, "leaves nothing"),
        ("learning_rate", float("nan"), "negative"),
        ("b1", 1.0, "must be in"),
        ("name", "lion", "known: adamw, lamb, muon"),
        ("layer_decay", 1.5, "must be in"),
        ("final_share", -0.1, "must lie in"),
    ):
        with pytest.raises(ValueError, match=f"{name}=.*{message}"):
            make_optimizer(**{"learning_rate": 0.1, "total_steps": 10, name: value})
