"""A mesh of any shape trains what one device trains, and holds what its rules say."""

import functools
import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

import posjax as pj
from posjax.models import BlockConfig, Decoder, ViT
from posjax.training import mesh as meshes
from posjax.training.mesh import AXES, context_of, layout, left_out, make_mesh, mesh_sizes, share_of
from posjax.training.optimizer import make_optimizer
from posjax.training.step import State

TESTS = pathlib.Path(__file__).parents[1]


def on_devices(*jobs, count=8):
    """Returns the results of checks of shared_training.py on `count` devices."""
    flags = {"JAX_NUM_CPU_DEVICES": str(count), "JAX_PLATFORMS": "cpu"}
    paths = os.pathsep.join(str(path) for path in (TESTS.parent, TESTS, TESTS / "training"))
    command = [sys.executable, str(TESTS / "training" / "shared_training.py"), json.dumps(jobs, default=str)]
    done = subprocess.run(command, env=os.environ | flags | {"PYTHONPATH": paths}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


SIZES = {
    "nothing given": ({}, 8, (1, 8, 1, 1, 1)),
    "what is left": ({"data": -1, "tensor": 2}, 8, (1, 4, 1, 2, 1)),
    "left to another": ({"data": 2, "fsdp": -1}, 8, (1, 2, 4, 1, 1)),
    "all": ({"seed": 2, "data": 1, "fsdp": 2, "context": 2}, 8, (2, 1, 2, 1, 2)),
    "one device": ({}, 1, (1, 1, 1, 1, 1)),
}


@pytest.mark.parametrize(("given", "devices", "sizes"), SIZES.values(), ids=SIZES)
def test_sizes_multiply_to_the_devices(given, devices, sizes):
    assert mesh_sizes(given, devices) == dict(zip(AXES, sizes, strict=True))


def test_sizes_that_do_not_fit_are_refused():
    for sizes, message in (
        ({"tensr": 2}, "tensr"),
        ({"fsdp": 0}, r"mesh\.fsdp=0"),
        ({"fsdp": -1}, r"mesh\.data and mesh\.fsdp"),
        ({"tensor": 3}, "does not fit 8 devices"),
    ):
        with pytest.raises(ValueError, match=message):
            mesh_sizes(sizes, 8)


def test_one_device_shares_nothing():
    mesh = make_mesh()
    assert (mesh.axis_names, set(mesh.axis_types)) == (AXES, {AxisType.Auto})
    assert context_of(mesh) is None
    assert share_of(mesh, 6) == (0, 1)


def shapes(model, *given, seeds=(0, 1)):
    optimizer, _ = make_optimizer(total_steps=3, learning_rate=1e-3, schedule="constant", warmup_steps=0)

    def one(seed):
        params = model.init(jax.random.key(seed), *given)["params"]
        return params, optimizer.init(params), jax.random.key(seed), params

    return jax.eval_shape(lambda: State(np.int32(0), *jax.vmap(one)(np.asarray(seeds))))


def specs(tree):
    names = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf.spec for path, leaf in names}


def decoder_shapes(**options):
    sizes = dict(width=16, depth=1, num_heads=4, num_kv_heads=2, length=32, encoding="learned() + t5()")
    sizes |= dict(attention_gate="channel")
    tokens = jnp.zeros((1, 4), jnp.int32)
    return shapes(
        Decoder.from_config(sizes | options, vocab_size=10, mlp="swiglu", tied_embedding=False), tokens, pj.sites(4)
    )


def abstract(**sizes):
    return AbstractMesh(tuple(sizes.get(axis, 1) for axis in AXES), AXES)


WHERE = {
    "params/trunk/block_0/attention/qkv/kernel": ("seed", "fsdp", "tensor", None, None),
    "params/trunk/block_0/attention/qkv/bias": ("seed", "tensor", None, None),
    "params/trunk/block_0/attention/out/kernel": ("seed", "tensor", None, "fsdp"),
    "params/trunk/block_0/attention/output_gate/kernel": ("seed", "fsdp", "tensor", None),
    "params/trunk/block_0/attention/output_gate/bias": ("seed", "tensor", None),
    "params/trunk/block_0/mlp/up/kernel": ("seed", "fsdp", "tensor"),
    "params/trunk/block_0/mlp/gate/kernel": ("seed", "fsdp", "tensor"),
    "params/trunk/block_0/mlp/down/kernel": ("seed", "tensor", "fsdp"),
    "params/trunk/block_0/attention_norm/scale": ("seed",),
    "params/token_embedding/embedding": ("seed", "tensor", None),
    "params/head/kernel": ("seed", "fsdp", "tensor"),
    "step": (),
    "key": ("seed",),
}


def test_rules_lay_out_parameters_and_their_moments():
    state = decoder_shapes()
    found = specs(layout(abstract(seed=2, fsdp=2, tensor=2), state))
    assert {name: tuple(found[name]) for name in WHERE} == WHERE
    moments = [name for name in found if name.startswith("opt_state/") and name.endswith("qkv/kernel")]
    assert len(moments) == 2
    assert {found[name] for name in moments} == {PartitionSpec("seed", "fsdp", "tensor", None, None)}
    assert all(found[f"ema/{name[7:]}"] == spec for name, spec in found.items() if name.startswith("params/"))
    tables = {name: spec for name, spec in found.items() if name.startswith("params/trunk/encoding")}
    assert set(tables.values()) == {PartitionSpec("seed", "fsdp", None)}


def test_latent_attention_is_shared_by_heads():
    latent = "latent(kv_lora_rank=6, qk_nope_head_dim=4, qk_rope_head_dim=2, v_head_dim=3, q_lora_rank=8)"
    sizes = dict(num_kv_heads=None, latent=latent, encoding="rope()", attention_bias=())
    found = specs(layout(abstract(seed=2, fsdp=2, tensor=2), decoder_shapes(**sizes).params))
    attention = {name.split("attention/")[1]: tuple(spec) for name, spec in found.items() if "attention/" in name}
    by_head = ("seed", "fsdp", "tensor", None)
    assert attention == {
        **dict.fromkeys(("query_up/kernel", "key_up_kernel", "value_up_kernel", "output_gate/kernel"), by_head),
        **dict.fromkeys(("query_down/kernel", "kv_down/kernel"), ("seed", "fsdp", None)),
        **dict.fromkeys(("query_norm/scale", "kv_norm/scale"), ("seed",)),
        "out/kernel": ("seed", "tensor", None, "fsdp"),
    }


def test_an_axis_that_does_not_divide_is_left_out_and_said():
    state, mesh = decoder_shapes(), abstract(seed=3, fsdp=2, tensor=4)
    found = specs(layout(mesh, state.params))
    assert found["trunk/block_0/attention/qkv/kernel"] == PartitionSpec(None, "fsdp", None, None, None)
    assert found["head/kernel"] == PartitionSpec(None, "fsdp", None)
    lines = left_out(mesh, state.params)
    assert "head/kernel [2, 16, 10]: tensor=4 does not divide 10" in lines
    assert "head/kernel [2, 16, 10]: seed=3 does not divide 2" in lines
    assert left_out(abstract(seed=2, fsdp=2, tensor=2), state.params) == []


def test_batches_are_shared_by_data_and_fsdp_and_tokens_by_context():
    mesh = abstract(seed=2, data=2, fsdp=2, context=2)
    of = lambda *shape, runs=True: tuple(meshes.batch_sharding(mesh, shape, runs=runs).spec)  # noqa: E731
    assert of(2, 8, 6) == ("seed", ("data", "fsdp"), "context")
    assert of(3, 8, 7) == (None, ("data", "fsdp"), None)
    assert of(2, 8) == ("seed", ("data", "fsdp"))
    assert of(2, 8, 4, 4, 1) == ("seed", ("data", "fsdp"))
    assert of(8, 6, runs=False) == (("data", "fsdp"), "context")
    padded = meshes.filled_up(mesh, {"weight": np.ones(5), "tokens": np.ones((5, 3))})
    assert {name: x.shape for name, x in padded.items()} == {"weight": (8,), "tokens": (8, 3)}
    assert padded["weight"].sum() == 5


def test_images_have_rules_too():
    model = ViT(10, "learned()", image_size=(8, 8), patch_size=4, block=BlockConfig(width=16, num_heads=2), depth=1)
    state = shapes(model, jnp.zeros((1, 8, 8, 1)), model.sites(8, 8))
    found = specs(layout(abstract(fsdp=2, tensor=2), state.params))
    sharded = {name for name, spec in found.items() if any(spec[1:])}
    assert {name.split("/")[-1] for name in found.keys() - sharded} <= {"bias", "scale", "kernel", "cls", "rows"}
    assert any(name.startswith("head") for name in sharded)


MESHES = [{"data": 2, "fsdp": 2, "tensor": 2}, {"seed": 2, "data": 1, "fsdp": 2, "context": 2}]
FAMILIES = [
    "(randomized(128) >> alibi()) + fox() + t5() + learned() + rope()",
    ["cope() + window(6)", "sinusoidal() + fire() + kerple() + value_rotary()"],
]


SHARING = [{"data": 2, "fsdp": 4}, {"data": 2, "context": 4}]
each_family = pytest.mark.parametrize("family", [0, pytest.param(1, marks=pytest.mark.thorough)])


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """What shared_training.py returns, by the number of a family."""

    def run(family):
        path = str(tmp_path_factory.mktemp("runs"))
        (found,) = on_devices(["training", [path, FAMILIES[family], [{}, *MESHES], SHARING]])
        return found

    return functools.cache(run)


@pytest.mark.slow
@each_family
def test_eight_devices_train_what_one_trains(family, checked):
    """Also a run that one device began; they share evaluation, too."""
    (one, *others), (of_one, *of_each), _ = checked(family)
    for other in others:
        for a, b in zip(other, one, strict=True):
            np.testing.assert_allclose(a, b, rtol=5e-5)
    assert max(of_each) < of_one / 6


@pytest.mark.slow
@each_family
def test_devices_send_each_other_gradients_parameters_and_keys_alone(family, checked):
    """No activation leaves its device in a step, but sums of branches, and keys and values where devices share sequences."""
    layers = family + 1
    for (sent, parameters), mesh in zip(checked(family)[2], (MESHES[0], *SHARING), strict=True):
        gathered = [shape for kind, shapes in sent if kind == "all-gather" for shape in shapes]
        if "context" in mesh:
            keys = [2, 4, 24, 2, 4]  # [seeds, sequences, tokens, key heads, channels], as values
            assert 0 < gathered.count(keys) <= 2 * layers, mesh
            state = [shape for shape in gathered if shape != keys]  # that an encoding keeps of keys, as forget gates
            assert all(np.prod(shape) <= 2 * 4 * 24 * 4 for shape in state), mesh
            continue
        if "tensor" in mesh:  # a branch is summed over the devices that share its heads; these stay where they are
            of_tokens = [shape for shape in gathered if np.prod(shape) not in parameters]
            keys = [2, 1, 24, 2, 4]  # of all key heads, in one of two parts of a batch
            assert keys not in gathered, mesh
            assert all(np.prod(shape) < np.prod(keys) for shape in of_tokens), mesh
            continue
        assert {kind for kind, _ in sent} <= {"all-gather", "all-reduce"}, mesh
        assert all(24 not in shape for shape in gathered), mesh  # tokens; keys and values are parts of a parameter
        assert gathered
        summed = [shape for kind, shapes in sent if kind == "all-reduce" for shape in shapes]
        assert all(24 not in shape for shape in summed), mesh
