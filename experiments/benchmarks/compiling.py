"""Compiled programs: the call of one, and the memory that it holds."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.contender import Call


def compiled_call(function: Callable, *arguments: Any) -> Call:
    """The call of a function with these arguments, which stay on the device and are not donated."""
    arguments = jax.tree.map(jnp.asarray, arguments)
    program = jax.jit(function).lower(*arguments).compile()
    temp = program.memory_analysis().temp_size_in_bytes
    return Call(lambda: jax.block_until_ready(program(*arguments)), temp, lambda: program(*arguments))


def held_bytes(program: jax.stages.Compiled) -> int:
    """Arguments, results and temporaries of a program on each of its devices, by XLA's analysis."""
    memory = program.memory_analysis()
    held = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    return held - memory.alias_size_in_bytes


def random_array(seed: int, *shape: int, dtype=np.float32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(dtype)
