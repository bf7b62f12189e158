"""Floating-point operations of a function, counted in its trace: loops as often as they turn, on all devices together.

XLA's own count takes a loop's body once, whatever the number of turns, so a program that scans its layers or attends in tiles
looks cheap.
"""

import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

# One operation for each number of the result. Transcendental functions are none, as in XLA's count.
_ELEMENTWISE = frozenset(
    (
        *(
            "abs",
            "add",
            "add_any",
            "and",
            "ceil",
            "clamp",
            "div",
            "eq",
            "floor",
            "ge",
            "gt",
            "integer_pow",
            "le",
            "lt",
            "max",
        ),
        *("min", "mul", "ne", "neg", "not", "or", "rem", "round", "select_n", "sign", "square", "sub", "xor"),
    )
)
_REDUCTIONS = frozenset(
    ("argmax", "argmin", "cumsum", "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_prod", "reduce_sum")
)


def count(jaxpr: Any) -> float:
    """The operations of a jaxpr: products, sums, and what is done to each number.

    Of a conditional the costliest branch counts. A loop without a known number of turns, as in blockwise attention, counts
    once: trace with implementation="dense" to have all of attention.
    """
    return sum(_of(equation) for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns)


def _of(equation: Any) -> float:
    name, params = equation.primitive.name, equation.params
    if name == "dot_general":
        return _product(equation)
    if name == "conv_general_dilated":
        kernel, outputs = equation.invars[1].aval.shape, equation.outvars[0].aval.shape
        channels = kernel[params["dimension_numbers"].rhs_spec[0]]
        return 2.0 * math.prod(outputs) * math.prod(kernel) / channels
    if name in _ELEMENTWISE:
        return float(_size(equation.outvars[0]))
    if name in _REDUCTIONS:
        return float(_size(equation.invars[0]))
    within = [count(inner) for inner in _inner(params)]
    if name == "cond":
        return max(within, default=0.0)
    times = params["length"] if name == "scan" else 1
    if name == "shard_map":  # its body is what one device does
        times = math.prod(params["mesh"].shape[axis] for axis in params["newly_manual_axes"])
    return times * sum(within)


def _product(equation: Any) -> float:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left = equation.invars[0].aval.shape
    return 2.0 * _size(equation.outvars[0]) * math.prod(left[axis] for axis in contracted)


def _inner(params: Any) -> Iterator[Any]:
    """The jaxprs among an equation's parameters. Rules for its derivatives are functions, and so not among them."""
    for value in jax.tree.leaves(list(params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
        if hasattr(value, "eqns"):
            yield value


def _size(variable: Any) -> int:
    return int(np.prod(variable.aval.shape, dtype=np.int64))
