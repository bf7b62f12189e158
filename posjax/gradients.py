"""Gradients by hand beside forward mode, which `jax.custom_vjp` does not have.

    norm = with_gradient(function, backward)
    y = norm(static, x)          # grad by `backward`; jvp, linearize, jacfwd and hessian by JAX's own rules

A primitive holds the tangent of such a function. JAX transposes it by the gradient that is written by hand.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import PartitionSpec


def with_gradient(function: Callable, backward: Callable, *, saved: str | None = None) -> Callable:
    """`function`, whose gradient is `backward`.

    Args:
      function: (static, x) -> out, of a hashable value and pytrees of arrays. Forward mode differentiates it.
      backward: (static, x, out, cotangents of out) -> cotangents of x; for integers any value. Forward mode over it gives
        Hessians.
      saved: the name of out in the policies of `jax.checkpoint`.
    """

    @functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
    def run(static, x):
        return function(static, x)

    @run.defjvp
    def rule(static, primals, tangents):
        (x,), (d_x,) = primals, tangents
        out = run(static, x)
        out = out if saved is None else checkpoint_name(out, saved)

        def gradient(known, d_out):
            return _floats_of(known[0], backward(static, *known, d_out))

        return out, _tangent(lambda x: function(static, x), gradient, x, d_x, out)

    return run


def with_transpose(function: Callable[..., jax.Array], transpose: Callable[..., jax.Array]) -> Callable:
    """`function` (x, *others), linear in x, whose gradient in x is `transpose` (cotangent, *others)."""

    def run(x: jax.Array, *others: jax.Array) -> jax.Array:
        avals = jax.make_jaxpr(function)(x, *others).out_avals
        forms = [lambda *args, form=form: [form(args[-1], *args[:-1])] for form in (function, transpose)]
        return _call(others, [x], *forms, avals, False)[0]

    return run


def einsum(axes: str, x: jax.Array, y: jax.Array) -> jax.Array:
    """Returns `jnp.einsum(axes, x, y)` in float32; `axes` are as "btm,vm->btv".

    Of bfloat16 operands the cotangent is rounded to bfloat16, too: half of the memory holds it, and GPUs multiply it faster.
    TPUs round as they multiply, and compute it anew for each product in place of keeping it. float16 has no room for small
    gradients.
    """
    product = _product_of_bfloat16 if jnp.result_type(x, y) == jnp.bfloat16 else _product
    return product(axes, (x, y))


def _product(axes, operands):
    return jnp.einsum(axes, *operands, preferred_element_type=jnp.float32)


def _product_backward(axes, operands, out, d_out):
    def pull(d_out):
        return jax.vjp(functools.partial(jnp.einsum, axes, preferred_element_type=d_out.dtype), *operands)[1](d_out)

    return jax.lax.platform_dependent(d_out, tpu=pull, default=lambda d_out: pull(d_out.astype(jnp.bfloat16)))


_product_of_bfloat16 = with_gradient(_product, _product_backward)


def one_by_one(function: Callable) -> Callable:
    """Makes `function` of a pytree of arrays compute the items of a batch one by one, in forward mode too.

    It has no reverse mode, which raises a ValueError: give it one by `with_gradient`.
    `jax.custom_batching.sequential_vmap` alone fails where tangents have a batch and their primals have none.
    """

    @jax.custom_jvp
    def run(x):
        return jax.custom_batching.sequential_vmap(function)(x)

    @run.defjvp
    def rule(primals, tangents):
        out = run(*primals)
        return out, _tangent(function, None, *primals, *tangents, out, sequential=True)

    return run


def is_float(x) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def split_leaves(tree: Any, wanted: Callable[[Any], bool]) -> tuple[list[Any], Callable]:
    """The leaves that are wanted, and a function that rebuilds the tree from others in their places."""
    leaves, structure = jax.tree.flatten(tree)
    is_wanted = [wanted(x) for x in leaves]

    def joined(others):
        others = iter(others)
        return structure.unflatten([next(others) if own else x for own, x in zip(is_wanted, leaves, strict=True)])

    return [x for own, x in zip(is_wanted, leaves, strict=True) if own], joined


def split_floats(tree: Any) -> tuple[list[jax.Array], Callable]:
    """The float leaves, and a function that rebuilds the tree from other floats."""
    return split_leaves(tree, is_float)


def split_known(tree: Any) -> tuple[list[jax.Array], Callable]:
    """The leaves but numpy arrays, which stay known when JAX traces a function of the others."""
    return split_leaves(tree, lambda x: not isinstance(x, np.ndarray))


def _floats_of(tree: Any, other: Any) -> list[jax.Array]:
    """The leaves of `other` where `tree` has floats."""
    return [y for x, y in zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True) if is_float(x)]


def _tangent(function: Callable, gradient: Callable | None, x, d_x, out, sequential: bool = False):
    """The tangent of `out`, function(x), by JAX; `gradient` transposes it, given (x, out) and cotangents."""
    known, structure = jax.tree.flatten((x, out))
    where = [n for n, leaf in enumerate(jax.tree.leaves(x)) if is_float(leaf)]
    results, out_structure = jax.tree.flatten(out)

    def tangent(*args):
        def of_floats(*floats):
            x, _ = structure.unflatten(_replaced(args[: len(known)], where, floats))
            return jax.tree.leaves(function(x))

        return jax.jvp(of_floats, tuple(args[n] for n in where), tuple(args[len(known) :]))[1]

    def transposed(*args):
        return gradient(structure.unflatten(args[: len(known)]), out_structure.unflatten(args[len(known) :]))

    linear = _floats_of(x, d_x)
    found = _call(known, linear, tangent, gradient and transposed, _avals(results), sequential)
    return out_structure.unflatten(found)


# The operands are `num_known` residuals, then those in which `function` is linear; `transpose` takes the same residuals and
# the cotangents of the results. It is None where reverse mode has to be refused.
_linear = Primitive("posjax_linear")
_linear.multiple_results = True


def _call(known, linear, function, transpose, out_avals, sequential):
    options = dict(function=function, transpose=transpose, out_avals=tuple(out_avals), sequential=sequential)
    return _linear.bind(*known, *linear, num_known=len(known), **options)


def _avals(arrays):
    return [jax.typeof(x).update(weak_type=False) for x in arrays]


def _run(*args, function, **_):
    return function(*args)


def _jvp(primals, tangents, *, num_known, function, transpose, out_avals, sequential):
    known, linear = primals[:num_known], primals[num_known:]
    zero = [ad.instantiate_zeros(d) is not d for d in tangents]
    out = _call(known, linear, function, transpose, out_avals, sequential)
    found = [jnp.zeros(aval.shape, aval.dtype) for aval in out_avals]
    if not all(zero[num_known:]):
        d_linear = map(ad.instantiate_zeros, tangents[num_known:])
        found = _call(known, list(d_linear), function, transpose, out_avals, sequential)
    moved = [n for n in range(num_known) if not zero[n] and is_float(known[n])]
    if moved:

        def beside(*args):
            own = lambda *some: function(*_replaced(args[: len(primals)], moved, some))  # noqa: E731
            return jax.jvp(own, tuple(args[n] for n in moved), tuple(args[len(primals) :]))[1]

        d_known = [tangents[n] for n in moved]
        more = _call(primals, d_known, beside, None, out_avals, True) if sequential else beside(*primals, *d_known)
        found = list(map(jnp.add, found, more))
    return out, found


def _replaced(args, where, some):
    args = list(args)
    for n, x in zip(where, some, strict=True):
        args[n] = x
    return args


def _transpose(cotangents, *args, num_known, function, transpose, out_avals, sequential):
    if transpose is None:
        raise ValueError("attention in tiles has no reverse mode over a derivative: take implementation='dense'")
    known, linear = args[:num_known], args[num_known:]
    asked = [ad.is_undefined_primal(x) for x in linear]
    avals = [x.aval if a else jax.typeof(x) for a, x in zip(asked, linear, strict=True)]
    found = _call(known, list(map(ad.instantiate_zeros, cotangents)), transpose, function, avals, sequential)
    return [None] * num_known + [g if a else None for a, g in zip(asked, found, strict=True)]


def _batch(args, dims, *, num_known, function, transpose, out_avals, sequential):
    size = next(x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None)
    args = [x if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(args, dims, strict=True)]
    known, linear = args[:num_known], args[num_known:]
    axes = [None if d is None else 0 for d in dims[:num_known]]
    linear = [
        jnp.broadcast_to(x, (size, *x.shape)) if d is None else x for x, d in zip(linear, dims[num_known:], strict=True)
    ]

    def of_batch(function, count):
        return function and _batched(function, (*axes, *[0] * count), sequential)

    splits = [aval.sharding.update(spec=PartitionSpec(None, *aval.sharding.spec)) for aval in out_avals]
    avals = [aval.update(shape=(size, *aval.shape), sharding=s) for aval, s in zip(out_avals, splits, strict=True)]
    found = _call(known, linear, of_batch(function, len(linear)), of_batch(transpose, len(avals)), avals, sequential)
    return found, [0] * len(found)


def _batched(function: Callable, axes: tuple[int | None, ...], sequential: bool) -> Callable:
    if not sequential:
        return jax.vmap(function, in_axes=axes)
    batched = [n for n, axis in enumerate(axes) if axis == 0]

    def run(*args):
        return jax.lax.map(lambda some: function(*_replaced(args, batched, some)), [args[n] for n in batched])

    return run


_linear.def_impl(_run)
_linear.def_abstract_eval(lambda *args, out_avals, **_: out_avals)
ad.primitive_jvps[_linear] = _jvp
ad.primitive_transposes[_linear] = _transpose
batching.primitive_batchers[_linear] = _batch
mlir.register_lowering(_linear, mlir.lower_fun(_run, multiple_results=True))
