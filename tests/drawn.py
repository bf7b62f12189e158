"""Parameters drawn by numpy: a model's own `init` compiles a program for nearly every shape, which takes seconds."""

import jax
import numpy as np

import posjax as pj
from posjax.encoding import Needs

FACTORS = ("scale", "L_multiplier")  # of norms, of FIRE


def drawn(init, *inputs, spread=0.3, encoding="none"):
    """Returns `init(*inputs)` with random numbers in every leaf: around 1 in factors, around 0 elsewhere.

    Initial values hide much (a head of zeros everything). They are what numbers are added to where the encoding has constants
    among its parameters.
    """
    rng = np.random.default_rng(0)
    constant = Needs.CONSTANT_PARAMS in pj.parse(encoding).needs

    def leaf_of(path, leaf):
        start = np.asarray(leaf) if constant else float(jax.tree_util.keystr(path[-1:], simple=True) in FACTORS)
        return jax.device_put(np.asarray(start + spread * rng.normal(size=leaf.shape), leaf.dtype))  # compiles nothing

    return jax.tree_util.tree_map_with_path(leaf_of, init(*inputs) if constant else jax.eval_shape(init, *inputs))
