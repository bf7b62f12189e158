"""Noise of the size of the quantisation of weights: numbers that change with it are not the published model's."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from posjax.encoding import Array

BLOCK = 16  # weights that share a step of quantisation in every format: 16 in Q6_K, 32 in Q4_0, Q4_K, Q5_0 and Q8_0


def with_noise(params: Any, seed: int = 0) -> Any:
    """Returns parameters with noise of the size of their quantisation: uniform within one step of each block of weights.

    A block is 16 weights along the inputs of a matrix; see `rows_with_noise`. Vectors and tables of positions, which are kept
    in full, stay.

    Raises:
      ValueError: the weights are not quantised: fewer than a tenth of the blocks have a number twice.
    """
    rng, repeats = np.random.default_rng(seed), []

    def noisy(path: Any, leaf: Array) -> Array:
        names = [str(getattr(key, "key", key)) for key in path]
        if leaf.ndim < 2 or not {"kernel", "embedding"} & set(names):
            return leaf
        x = np.asarray(leaf, np.float32)
        is_table, outputs = names[-1] == "embedding", x.shape[-1] if "out" in names else x[0].size
        rows = x if is_table else x.reshape(-1, outputs).T  # the inputs of "out" are heads and channels
        if rows.shape[1] % BLOCK == 0:
            blocks = np.sort(rows[:100].reshape(-1, BLOCK), axis=1)
            repeats.append((np.diff(blocks, axis=1) == 0).any(axis=1).mean())
        rows = rows_with_noise(rows, rng)
        return jnp.asarray((rows if is_table else rows.T).reshape(x.shape), leaf.dtype)

    found = jax.tree_util.tree_map_with_path(noisy, params)
    if not repeats or np.mean(repeats) < 0.1:
        raise ValueError("these weights are not quantised: leave out --noise")
    return found


def rows_with_noise(rows: Float[np.ndarray, "N M"], rng: np.random.Generator) -> Float[np.ndarray, "N M"]:
    """Returns rows with noise that is uniform within one step of each block of 16 numbers.

    The step is the smallest gap between different numbers of a block, which is one step of nearly all blocks of 4 to 6 bits;
    at 8 bits it may be two. Gaps below 1e-5 of the largest number are rounding errors of one level. Rows that are no multiple
    of a block stay as they are: those formats have none.
    """
    if rows.shape[1] % BLOCK:
        return rows
    blocks = np.ascontiguousarray(rows, np.float32).reshape(-1, BLOCK)
    gaps = np.diff(np.sort(blocks, axis=1), axis=1)
    gaps = np.where(gaps > 1e-5 * np.abs(blocks).max(axis=1, keepdims=True), gaps, np.inf)
    step = gaps.min(axis=1, keepdims=True)
    noise = (rng.random(blocks.shape, np.float32) - 0.5) * np.where(np.isfinite(step), step, 0)
    return (blocks + noise).reshape(rows.shape)
