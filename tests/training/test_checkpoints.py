"""A saved tree comes back bit for bit, or is refused with the reason; the best and the newest steps are kept."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from posjax.training.checkpoints import CheckpointError, Checkpoints

REPO = pathlib.Path(__file__).parents[2]


class Pair(NamedTuple):
    first: object
    second: object


@jax.tree_util.register_pytree_with_keys_class
class Gated:
    """A node type of our own, with static data."""

    def __init__(self, value, name):
        self.value, self.name = value, name

    def tree_flatten_with_keys(self):
        return [(jax.tree_util.GetAttrKey("value"), self.value)], self.name

    @classmethod
    def tree_unflatten(cls, name, children):
        return cls(children[0], name)


def nasty():
    """One of every kind of leaf and node a state may hold."""
    params = {"encoding": {}, "a/b": {"w": jnp.linspace(0, 1, 1000).reshape(50, 20)}, "a": {"b.c": jnp.ones(3)}}
    return {
        "params": params,
        "optimizer": optax.adamw(1e-3).init(params),
        "pair": Pair(jnp.arange(4, dtype=jnp.int8), None),
        "gated": Gated(jnp.array([np.nan, np.inf, -0.0]), "g"),
        "key": jax.random.key(7),
        "keys": jax.random.split(jax.random.key(1, impl="rbg"), 3),
        "bfloat16": jnp.array([1.5, jnp.nan], jnp.bfloat16),
        "small": jnp.array([1, -2], jnp.int4),
        "complex": jnp.array([1 + 2j]),
        "bool": jnp.array([True, False]),
        "position": 2**40,
        "negative": -3,
        "flag": True,
        "rate": 0.1,
        "numpy": np.arange(5),
        "long": np.array(2**50),
        "scalar": np.float64(0.1),
        "count": np.int32(3),
        "list": [jnp.zeros(()), (jnp.ones((1, 1)), {})],
    }


def small(step=0):
    return {"w": jax.random.normal(jax.random.key(step), (40,)), "step": step}


def data(leaf):
    return jax.random.key_data(leaf) if isinstance(leaf, jax.Array) and leaf.dtype.name.startswith("key") else leaf


def assert_same(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (type(a), getattr(a, "dtype", None)) == (type(b), getattr(b, "dtype", None))
        assert np.asarray(data(a)).tobytes() == np.asarray(data(b)).tobytes()


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory):
    directory = tmp_path_factory.mktemp("two")
    with Checkpoints(directory) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, small(step))
    return directory


def test_every_kind_of_leaf_comes_back_bit_for_bit(tmp_path):
    tree = nasty()
    with Checkpoints(tmp_path / "c") as checkpoints:
        assert checkpoints.restore(tree) is None
        assert not (tmp_path / "c").exists()  # reading makes nothing
        checkpoints.save(5, tree, {"loss": 1.5, "accuracy": float("nan")})
        step, found = checkpoints.restore(tree)
    assert step == 5
    assert_same(found, tree)
    assert found["gated"].name == "g"
    record = json.loads((tmp_path / "c" / "5" / "record" / "record.json").read_text())
    assert record["metrics"] == {"loss": 1.5, "accuracy": "NaN"}


def test_abstract_leaves_restore_too_and_64_bit_ones_are_not_cut(tmp_path):
    tree = {"w": jnp.ones((2, 3), jnp.bfloat16), "key": jax.random.key(3), "long": np.array([2**50])}
    abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(0, tree)
        assert_same(checkpoints.restore(abstract)[1], tree)


NAMES = [
    "x[1]",
    "[!a]",
    "a\\b",
    "x\\",
    "a**b",
    "*",
    "a?b",
    "{a,b}",
    "p%20q",
    "h#q",
    "new\nline",
    "s3:",
    "~",
    "\u65e5\u672c",
]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_any_path_that_a_file_system_takes_holds_checkpoints(name, tmp_path, monkeypatch):
    """Written, read again, gone on with, and moved, under a TMPDIR of that name; nothing of it lies elsewhere."""
    temporary = tmp_path / "temporary" / name
    temporary.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    directory = tmp_path / name / "checkpoints"
    for step in (1, 2):
        with Checkpoints(directory) as checkpoints:
            checkpoints.save(step, small(step))
    with Checkpoints(directory) as checkpoints:
        assert checkpoints.steps() == [1, 2]
        assert_same(checkpoints.restore(small())[1], small(2))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "temporary"])
    assert [*temporary.iterdir()] == []
    (tmp_path / name).rename(tmp_path / "plain")
    assert_same(Checkpoints(tmp_path / "plain" / "checkpoints").restore(small(), step=1)[1], small(1))


def test_buffers_may_be_donated_and_overwritten_during_the_save(tmp_path):
    add = jax.jit(lambda x: x + 1, donate_argnums=0)
    tree = {"jax": jnp.zeros((512, 512)), "numpy": np.zeros((512, 512))}
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(0, tree)
        tree["jax"] = add(tree["jax"])
        tree["numpy"] += 1
        _, found = checkpoints.restore(tree)
    assert float(found["jax"].max()) == 0.0
    assert float(found["numpy"].max()) == 0.0


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"w": jnp.zeros(41), "step": 0}, r"\['w'\] has shape \[40\] in the checkpoint .*, but \[41\] in this run"),
        ({"w": jnp.zeros(40, jnp.bfloat16), "step": 0}, r"\['w'\] has dtype float32 in .*, but bfloat16 in this run"),
        ({"w": jnp.zeros(40), "step": jnp.zeros((), int)}, r"\['step'\] has dtype int in .*, but int32 in this run"),
        ({"w": jnp.zeros(40), "step": 0, "x": 1}, r"\['x'\] is not in the checkpoint"),
        ({"w": jnp.zeros(40)}, r"the checkpoint .*/2 has \['step'\], but this run has not"),
        (Pair(jnp.zeros(40), 0), r"\.first is not in the checkpoint"),
    ],
)
def test_a_changed_config_is_an_error_and_touches_nothing(two_steps, tree, message):
    before = sorted(two_steps.rglob("*"))
    with pytest.raises(CheckpointError, match=message + r".*; use the config it was saved with"):
        Checkpoints(two_steps).restore(tree)
    assert sorted(two_steps.rglob("*")) == before


@pytest.mark.parametrize(
    ("leaf", "error", "message"),
    [
        ("text", TypeError, r"\['x'\]\[0\] is 'text' of type str"),
        (object(), TypeError, r"\['x'\]\[0\] is <object"),
        (np.array(["a"]), TypeError, r"\['x'\]\[0\] is array"),
        (jax.ShapeDtypeStruct((2,), jnp.float32), TypeError, r"\['x'\]\[0\] is abstract"),
        (jnp.zeros((0, 3)), ValueError, r"\['x'\]\[0\] has no elements \(shape \(0, 3\)\)"),
        (2**70, ValueError, r"\['x'\]\[0\] is 1180591620717411303424"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_path_before_anything_is_written(tmp_path, leaf, error, message):
    with Checkpoints(tmp_path) as checkpoints, pytest.raises(error, match=message):
        checkpoints.save(0, {"x": [leaf], "y": 1})
    assert not list(tmp_path.iterdir())


def test_wrong_use_is_named(tmp_path):
    for arguments, message in [({"keep_last": 0}, "keep_last=0"), ({"best_mode": "low"}, "best_mode='low'")]:
        with pytest.raises(ValueError, match=message):
            Checkpoints(tmp_path, **arguments)
    with Checkpoints(tmp_path, best="loss") as checkpoints:
        with pytest.raises(ValueError, match=r"metrics hold \['los'\], but not best='loss'"):
            checkpoints.save(1, small(), {"los": 1.0})
        with pytest.raises(ValueError, match="no leaves"):
            checkpoints.save(1, {"a": {}})
        checkpoints.save(1, small())
        with pytest.raises(CheckpointError, match=r"cannot save step 1: .* already holds step 1"):
            checkpoints.save(1, small())
        with pytest.raises(CheckpointError, match=r"no checkpoint of step 3 in .*the steps there are \[1\]"):
            checkpoints.restore(small(), step=3)
        with pytest.raises(CheckpointError, match=r"no checkpoint in .* has a readable metric 'loss'"):
            checkpoints.restore_best(small())
    with pytest.raises(ValueError, match="restore_best needs"):
        Checkpoints(tmp_path).restore_best(small())


@pytest.mark.parametrize(("mode", "sign"), [("min", 1.0), ("max", -1.0)])
def test_best_and_newest_are_kept_also_across_reopening(tmp_path, mode, sign):
    values = {1: 3.0, 2: 1.0, 3: 2.0, 4: float("nan"), 5: 4.0, 6: 5.0}
    for part in ((1, 2, 3), (4, 5, 6)):
        with Checkpoints(tmp_path, keep_last=2, best="loss", best_mode=mode) as checkpoints:
            for step in part:
                checkpoints.save(step, small(step), {"loss": sign * values[step]})
    with Checkpoints(tmp_path, best="loss", best_mode=mode) as checkpoints:
        assert checkpoints.steps() == [2, 5, 6]
        assert checkpoints.restore(small())[0] == 6
        assert checkpoints.restore(small(), step=5)[0] == 5
        step, tree = checkpoints.restore_best(small())
    assert step == 2
    assert_same(tree, small(2))


SHARDED = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from absl import logging
from posjax.training.checkpoints import Checkpoints
logging.set_verbosity(logging.INFO)
mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
split = NamedSharding(mesh, PartitionSpec("x"))
value = np.arange(32.0, dtype=np.float32).reshape(8, 4)
with Checkpoints(sys.argv[1]) as checkpoints:
    checkpoints.save(1, {"w": jax.device_put(value, split)})
    for sharding in (split, NamedSharding(mesh, PartitionSpec(None, "x")), None):
        w = checkpoints.restore({"w": jax.ShapeDtypeStruct((8, 4), jnp.float32, sharding=sharding)})[1]["w"]
        np.testing.assert_array_equal(w, value)
        assert len(w.sharding.device_set) == (4 if sharding else 1)
        assert sharding is None or w.sharding == sharding
"""


@pytest.mark.slow
def test_shardings_change_freely_and_nothing_is_said(tmp_path):
    flags = {"JAX_NUM_CPU_DEVICES": "4", "JAX_PLATFORMS": "cpu"}
    result = subprocess.run(
        [sys.executable, "-c", SHARDED, str(tmp_path)], cwd=REPO, env=os.environ | flags, capture_output=True, text=True
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    tree = {"w": jax.ShapeDtypeStruct((8, 4), jnp.float32)}
    assert Checkpoints(tmp_path).restore(tree)[0] == 1
