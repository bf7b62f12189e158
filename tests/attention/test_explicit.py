"""Meshes with explicit axes, the default of `jax.make_mesh`: everything gives the numbers that it gives without a mesh."""

import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import posjax as pj

TESTS = pathlib.Path(__file__).parents[1]
SITE = pj.sites(9)


@pytest.mark.slow
def test_tiles_of_a_batch():
    """One device, eager and compiled; a vmapped batch that is split in the types of its arrays."""
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Explicit,))
    qkv = jnp.asarray(np.random.default_rng(0).normal(size=(3, 2, 9, 2, 4)), jnp.float32)
    split = jax.device_put(qkv, NamedSharding(mesh, PartitionSpec(None, "data")))

    def read(qkv, implementation):
        one = lambda *qkv: pj.attend(pj.parse("alibi"), (), *qkv, SITE, SITE, implementation=implementation)  # noqa: E731
        return jax.vmap(one)(*qkv)

    run = jax.jit(read, static_argnums=1)
    expected = run(qkv, "dense")
    for out in (read(split, "blockwise"), run(split, "blockwise")):
        assert jax.typeof(out).sharding.spec[0] == "data"
        np.testing.assert_allclose(out, expected, atol=1e-5)


def test_weights_of_split_heads():
    mesh = jax.make_mesh((1,), ("model",), axis_types=(AxisType.Explicit,))
    q = jax.device_put(jnp.ones((9, 2, 4)), NamedSharding(mesh, PartitionSpec(None, "model")))
    encoding = pj.parse("alibi")
    out, weights = pj.attend(encoding, (), q, q, q, SITE, SITE, return_weights=True)
    assert jax.typeof(out).sharding.spec[1] == jax.typeof(weights).sharding.spec[0] == "model"
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)


@pytest.mark.slow
def test_devices_compute_what_one_does():
    """Batches, heads and tokens that devices share, in attention and in models, which generate too."""
    jobs = [
        ["attention", "alibi + rope", "blockwise", "tokens"],
        ["attention", "t5 + window(40) + token_sink", "blockwise", "heads"],
        ["attention", "fire", "dense", "heads"],
        ["vit", "randomized(512) >> rope"],
        ["decoder", "learned + t5 + rope + fox"],
    ]
    flags = {"JAX_NUM_CPU_DEVICES": "4", "JAX_PLATFORMS": "cpu", "PYTHONPATH": f"{TESTS.parent}{os.pathsep}{TESTS}"}
    command = [sys.executable, str(TESTS / "attention" / "explicit_meshes.py"), json.dumps(jobs)]
    done = subprocess.run(command, env=os.environ | flags, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert {str(job): gap for job, gap in zip(jobs, json.loads(done.stdout), strict=True) if not gap < 1e-4} == {}
