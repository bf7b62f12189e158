"""Noise of the size of the quantisation of weights: numbers that change with it are not the published model's."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

BLOCK = 32  # weights that share a step of quantisation in Q4_0, Q5_0 and Q8_0


def with_noise(params: Any, seed: int = 0) -> Any:
    """Returns parameters with noise of the size of their quantisation: uniform within one step of each block of weights.

    The step is the smallest gap between different weights of a block of 32 along the inputs of a matrix: that of weights
    dequantised from Q4_0 and Q5_0, and of nearly all blocks from Q8_0. Vectors, which are kept in full, stay.
    """
    rng = np.random.default_rng(seed)

    def noisy(path: Any, leaf: jax.Array) -> jax.Array:
        names = [str(getattr(key, "key", key)) for key in path]
        if leaf.ndim < 2 or not {"kernel", "embedding"} & set(names):
            return leaf
        x = np.asarray(leaf, np.float32)
        if names[-1] == "embedding":
            rows = x.reshape(-1, x.shape[-1])
        elif "out" in names:
            rows = x.reshape(-1, x.shape[-1]).T
        else:
            rows = x.reshape(x.shape[0], -1).T
        if rows.shape[1] % BLOCK:
            return leaf
        blocks = np.ascontiguousarray(rows).reshape(-1, BLOCK)
        noise = rng.random(blocks.shape, np.float32) - 0.5
        changed = (blocks + noise * _steps(blocks)[:, None]).reshape(rows.shape)
        changed = changed if names[-1] == "embedding" else changed.T
        return jnp.asarray(changed.reshape(x.shape), leaf.dtype)

    return jax.tree_util.tree_map_with_path(noisy, params)


def _steps(blocks: Float[np.ndarray, "N W"]) -> Float[np.ndarray, " N"]:
    """Returns the smallest gap between different weights of each block; 0 where all are equal.

    Gaps below 1e-5 of the largest weight are rounding errors of one level.
    """
    gaps = np.diff(np.sort(blocks, axis=1), axis=1)
    gaps = np.where(gaps > 1e-5 * np.abs(blocks).max(axis=1, keepdims=True), gaps, np.inf)
    least = gaps.min(axis=1)
    return np.where(np.isfinite(least), least, 0.0).astype(np.float32)
