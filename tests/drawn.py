"""Parameters drawn by numpy: a model's own `init` compiles a program for nearly every shape, which takes seconds."""

import jax
import jax.numpy as jnp
import numpy as np


def drawn(init, *inputs, spread=0.3):
    """What `init(*inputs)` would return, with random numbers in every leaf: around 1 in scales of norms, around 0 elsewhere.

    Initial values hide much (a head of zeros everything). Not for encodings whose parameters cannot be any numbers.
    """
    rng = np.random.default_rng(0)

    def leaf_of(path, shape):
        centre = 1.0 if jax.tree_util.keystr(path[-1:], simple=True) == "scale" else 0.0
        return jnp.asarray(centre + spread * rng.normal(size=shape.shape), shape.dtype)

    return jax.tree_util.tree_map_with_path(leaf_of, jax.eval_shape(init, *inputs))
