"""Gradients of stacked seeds as users compile them; the other tests leave most of XLA's optimisations out."""

import os
import pathlib
import subprocess
import sys

import pytest

from posjax.describe.scorecard.specs import every_name

REPO = pathlib.Path(__file__).parents[2]
CODE = """
import sys, jax, jax.numpy as jnp, numpy as np
from posjax.models import BlockConfig, ViT

for spec in sys.argv[1:]:
    block = BlockConfig(width=64, num_heads=4)
    model = ViT(num_classes=10, image_size=(8, 8), patch_size=2, encoding=spec, pooling="mean", block=block, depth=1)
    site, images = model.sites(8, 8), jnp.ones((2, 8, 8, 1))
    try:
        params = jax.jit(jax.vmap(lambda key: model.init(key, images, site)))(jax.random.split(jax.random.key(0), 1))
    except ValueError as error:
        print(f"{spec} is for no grid: {error}")
        continue
    loss = lambda params: model.apply(params, images, site, rngs={"positions": jax.random.key(1)}).var()
    grads = jax.jit(jax.vmap(jax.grad(loss)))(params)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(grads)), spec
    print(f"{spec} trains")
"""


def trained(*specs):
    """Asserts that each spec trains or says why not: in a process of its own, since a fault of XLA ends it."""
    environment = {name: value for name, value in os.environ.items() if name != "JAX_DISABLE_MOST_OPTIMIZATIONS"}
    done = subprocess.run(
        [sys.executable, "-c", CODE, *specs], cwd=REPO, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{done.returncode} behind {done.stdout.splitlines()[-1:]}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.mark.slow
def test_rotations_by_exponentials_of_matrices_train():
    """Their gradient ended the process on an AMD EPYC where blocks were turned by a sum of products."""
    assert trained("liere").count("trains") == 1


@pytest.mark.thorough
@pytest.mark.parametrize("part", range(8))
def test_every_encoding_trains_on_a_grid(part):
    trained(*sorted(every_name())[part::8])
