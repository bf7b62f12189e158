"""The contenders that run in jax: ours, and jax's own."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import posjax
from experiments.benchmarks.contender import Call


def start(threads: int) -> dict[str, str]:
    """Loads the compiler, so that no cell's memory has it in; the versions that are measured."""
    compiled(jnp.sin, normal(0, 1)).run()
    return {"jax": jax.__version__, "posjax": posjax.__version__}


def prepare(case: Mapping[str, Any]) -> Call:
    """What `case["kind"]` names, compiled for these sizes."""
    jax.clear_caches()
    return _KINDS[case["kind"]](case)


def compiled(function: Callable, *arguments: Any) -> Call:
    """The call of a function with these arguments, which stay on the device and are not donated."""
    arguments = jax.tree.map(jnp.asarray, arguments)
    program = jax.jit(function).lower(*arguments).compile()
    temp = program.memory_analysis().temp_size_in_bytes
    return Call(lambda: jax.block_until_ready(program(*arguments)), temp)


def normal(seed: int, *shape: int, dtype=np.float32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(dtype)


def _attend(case: Mapping[str, Any]) -> Call:
    """posjax.attend on one sequence, causal; backward: gradients of q, k, v and the encoding's parameters."""
    heads, length, dim = case["heads"], case["length"], case["head_dim"]
    encoding = posjax.parse(case["spec"])
    params = encoding.init(jax.random.key(0), posjax.Dims(heads * dim, heads, dim, length=length))
    q, k, v, d_out = (normal(seed, length, heads, dim) for seed in range(4))
    options = dict(causal=True, implementation=case.get("implementation", "blockwise"))

    def forward(params, q, k, v, site):
        return posjax.attend(encoding, params, q, k, v, site, site, **options)

    return _either(case, forward, (params, q, k, v), (posjax.sites(length),), d_out)


def _library(case: Mapping[str, Any]) -> Call:
    """jax.nn.dot_product_attention with ALiBi's bias as an array."""
    heads, length, dim = case["heads"], case["length"], case["head_dim"]
    q, k, v, d_out = (normal(seed, 1, length, heads, dim) for seed in range(4))
    site = posjax.sites(length)
    encoding = posjax.parse("alibi")
    one = np.zeros((length, heads, 1), np.float32)
    bias = jnp.broadcast_to(encoding.bias((), one, site, one, site), (heads, length, length))[None]

    def forward(q, k, v, bias):
        return jax.nn.dot_product_attention(q, k, v, bias, is_causal=True, implementation="xla")

    return _either(case, forward, (q, k, v), (bias,), d_out)


def _either(case: Mapping[str, Any], forward: Callable, learned: tuple, given: tuple, d_out) -> Call:
    """The forward pass (mode "f") or that and its gradients with respect to `learned` (mode "fb")."""
    if case["mode"] == "f":
        return compiled(forward, *learned, *given)

    def both(learned, given, d_out):
        return jax.vjp(lambda *learned: forward(*learned, *given), *learned)[1](d_out)

    return compiled(both, learned, given, d_out)


_KINDS = {"attend": _attend, "library": _library}
