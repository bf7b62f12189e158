"""What the contenders in jax share."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.contender import Call


def compiled(function: Callable, *arguments: Any) -> Call:
    """The call of a function with these arguments, which stay on the device and are not donated."""
    arguments = jax.tree.map(jnp.asarray, arguments)
    program = jax.jit(function).lower(*arguments).compile()
    temp = program.memory_analysis().temp_size_in_bytes
    return Call(lambda: jax.block_until_ready(program(*arguments)), temp, lambda: program(*arguments))


def normal(seed: int, *shape: int, dtype=np.float32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(dtype)
