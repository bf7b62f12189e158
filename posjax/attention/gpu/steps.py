"""The three kernels of attention as steps of a sweep: output, gradients of queries, gradients of keys and values.

Dao (2023), arXiv 2307.08691: an online softmax, whose tiles are recomputed for the gradients. Gradients of an encoding's
constants are summed over the keys of each query in the kernel, and over queries after it: no atomic operations, so results
are the same bit for bit.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from posjax.attention.blockwise import SAVED
from posjax.attention.gpu.sweep import Operand, Step, Sweep, sweep
from posjax.attention.gpu.terms import Pairs, Terms, add_bias, pull_bias, views
from posjax.encoding import Array

_LEAST = -1e29  # below any logit, and so far above HIDDEN that exp(HIDDEN - _LEAST) is 0


class KernelPlan(NamedTuple):
    """The static arguments."""

    terms: Terms
    scale: float
    causal: bool
    tile: int
    interpret: bool


class KernelOperands(NamedTuple):
    """The operands of attention, in whole tiles."""

    q: Array  # [T, H, C]
    k: Array  # [S, K, C]
    v: Array  # [S, K, E]
    constants: Array  # [H, P]
    q_marks: Array  # [R, T]
    k_marks: Array  # [R, S]
    q_bounds: Array  # [N, 2 terms]: the least positions of each tile of queries, then the greatest
    k_bounds: Array  # [O, 2 terms]
    k_tiles: Array  # [N, 2]: the range of key tiles that hold a key some query sees
    q_tiles: Array  # [O, 2]: the range of query tiles that see a tile of keys


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attention(plan: KernelPlan, operands: KernelOperands) -> jax.Array:
    """[T, H, E] in the dtype of q; differentiable in q, k, v and the constants."""
    return _forward(plan, operands)[0]


def _forward(plan: KernelPlan, x: KernelOperands):
    out, log_total = checkpoint_name(_outputs(plan, x), SAVED)
    return out, (x, out, log_total)


@functools.partial(jax.jit, static_argnums=0)  # a kernel takes seconds to lower: once for all layers that are alike
def _outputs(plan: KernelPlan, x: KernelOperands):
    """Returns the output [T, H, E] and the log of the softmax's denominator [H, T]."""
    (length, heads, _), width = x.q.shape, x.v.shape[2]

    def init():
        return (
            jnp.full((plan.tile,), _LEAST, jnp.float32),
            jnp.zeros((plan.tile,), jnp.float32),
            jnp.zeros((plan.tile, width), jnp.float32),
        )

    def add(here, held, swept, carry):
        (q, q_marks), (k, v, k_marks), (peak, total, out) = held, swept, carry
        s, _, _ = _logits(plan, here, q, k, q_marks, k_marks)
        new_peak = jnp.maximum(peak, jnp.max(s, axis=1))
        weights = jnp.exp(s - _spread(new_peak, s.shape, 0))
        fade = jnp.exp(peak - new_peak)
        total = total * fade + jnp.sum(weights, axis=1)
        out = here.dot(weights.astype(x.v.dtype), v, onto=out * _spread(fade, out.shape, 0))
        return new_peak, total, out

    def finish(carry):
        peak, total, out = carry
        seen = total > 0
        total = jnp.where(seen, total, 1.0)
        log_total = jnp.where(seen, peak + jnp.log(total), 0.0)
        return (out / _spread(total, out.shape, 0)).astype(x.q.dtype), log_total

    outputs = [((length, heads, width), x.q.dtype, 0, 1), ((heads, length), jnp.float32, 1, 0)]
    held = [Operand(x.q, 0, 1), Operand(x.q_marks, 1, None)]
    swept = [Operand(x.k, 0, 1), Operand(x.v, 0, 1), Operand(x.k_marks, 1, None)]
    tables = (_table(x.constants), x.q_bounds, x.k_bounds)
    return tuple(_sweep(plan, heads, x.k_tiles, outputs, Step(init, add, finish), held, swept, tables))


def _backward(plan: KernelPlan, saved, d_out):
    x, out, log_total = saved
    inner = jnp.einsum("the,the->ht", d_out, out, preferred_element_type=jnp.float32)
    d_q, d_constants, d_k, d_v = _gradients(plan, x, d_out.astype(x.v.dtype), log_total, inner)
    floats = dict(q=d_q.astype(x.q.dtype), k=_grouped(d_k, x.k), v=_grouped(d_v, x.v), constants=d_constants)
    none = {n: np.zeros(leaf.shape, jax.dtypes.float0) for n, leaf in x._asdict().items() if n not in floats}
    return (KernelOperands(**floats, **none),)


attention.defvjp(_forward, _backward)


@functools.partial(jax.jit, static_argnums=0)
def _gradients(plan: KernelPlan, x: KernelOperands, d_out, log_total, inner):
    rows = [Operand(d_out, 0, 1), Operand(log_total, 1, 0), Operand(inner, 1, 0)]
    return *_backward_queries(plan, x, rows), *_backward_keys(plan, x, rows)


def _backward_queries(plan: KernelPlan, x: KernelOperands, rows: list[Operand]):
    """Gradients of the queries [T, H, C] and of the constants [H, P]."""
    length, heads, width = x.q.shape
    learned = [c for bias in plan.terms.biases if bias.learned for c in range(bias.start, bias.stop)]

    def init():
        return jnp.zeros((plan.tile, width), jnp.float32), tuple(jnp.zeros((plan.tile,), jnp.float32) for _ in learned)

    def add(here, held, swept, carry):
        (q, q_marks, d_out, log_total, inner), (k, v, k_marks), (d_q, d_rows) = held, swept, carry
        s, found, pairs = _logits(plan, here, q, k, q_marks, k_marks)
        weights = jnp.exp(s - _spread(log_total[...], s.shape, 0))
        d_s = weights * (here.dot(d_out, v, True) - _spread(inner[...], s.shape, 0))
        pulled = pull_bias(found, d_s, pairs)
        return here.dot(d_s.astype(x.k.dtype), k, onto=d_q), tuple(map(jnp.add, d_rows, pulled))

    def finish(carry):
        d_q, d_rows = carry
        return ((plan.scale * d_q).astype(x.q.dtype), *([d_rows] if d_rows else []))

    outputs = [(x.q.shape, x.q.dtype, 0, 1)]
    outputs += [((heads, len(learned), length), jnp.float32, 2, 0)] if learned else []
    held = [Operand(x.q, 0, 1), Operand(x.q_marks, 1, None), *rows]
    swept = [Operand(x.k, 0, 1), Operand(x.v, 0, 1), Operand(x.k_marks, 1, None)]
    tables = (_table(x.constants), x.q_bounds, x.k_bounds)
    d_q, *d_rows = _sweep(plan, heads, x.k_tiles, outputs, Step(init, add, finish), held, swept, tables)
    d_constants = jnp.zeros(x.constants.shape, jnp.float32)
    if learned:
        d_constants = d_constants.at[:, np.array(learned)].set(d_rows[0].sum(axis=2))
    return d_q, d_constants


def _backward_keys(plan: KernelPlan, x: KernelOperands, rows: list[Operand]):
    """Gradients of the keys [S, H, C] and values [S, H, E], by query head."""
    heads, width, value_width = x.q.shape[1], x.k.shape[2], x.v.shape[2]
    # Gradients of grouped queries are summed after the kernel, so they are not rounded before.
    dtype = x.k.dtype if heads == x.k.shape[1] else jnp.float32

    def init():
        return jnp.zeros((plan.tile, width), jnp.float32), jnp.zeros((plan.tile, value_width), jnp.float32)

    def add(here, held, swept, carry):
        (k, v, k_marks), (q, q_marks, d_out, log_total, inner), (d_k, d_v) = held, swept, carry
        s, _, _ = _logits(plan, here, q, k, q_marks, k_marks, transposed=True)
        weights = jnp.exp(s - _spread(log_total[...], s.shape, 1))
        d_v = here.dot(weights.astype(x.v.dtype), d_out, onto=d_v)
        d_s = weights * (here.dot(v, d_out, True) - _spread(inner[...], s.shape, 1))
        return here.dot(d_s.astype(x.q.dtype), q, onto=d_k), d_v

    def finish(carry):
        d_k, d_v = carry
        return (plan.scale * d_k).astype(dtype), d_v.astype(dtype)

    length = x.k.shape[0]
    outputs = [((length, heads, width), dtype, 0, 1), ((length, heads, value_width), dtype, 0, 1)]
    held = [Operand(x.k, 0, 1), Operand(x.v, 0, 1), Operand(x.k_marks, 1, None)]
    swept = [Operand(x.q, 0, 1), Operand(x.q_marks, 1, None), *rows]
    tables = (_table(x.constants), x.k_bounds, x.q_bounds)
    return _sweep(plan, heads, x.q_tiles, outputs, Step(init, add, finish), held, swept, tables)


def _sweep(plan: KernelPlan, heads: int, ranges, outputs, step: Step, held, swept, tables):
    outputs = [(jax.ShapeDtypeStruct(shape, dtype), *axes) for shape, dtype, *axes in outputs]
    return sweep(Sweep(heads, plan.tile, plan.tile, ranges, outputs), step, held, swept, tables, plan.interpret)


def _logits(plan: KernelPlan, here, q, k, q_marks, k_marks, transposed: bool = False):
    """The logits of a tile, [T, S], or [S, T] if transposed; its `View`s; its `Pairs`."""
    s = plan.scale * (here.dot(k, q, True) if transposed else here.dot(q, k, True))
    constants, held_bounds, swept_bounds = here.tables
    biases, count = plan.terms.biases, plan.terms.count
    values = [constants[here.head, c] for c in range(biases[-1].stop if biases else 0)]
    held, swept = (_term_bounds(*x, count) for x in ((held_bounds, here.held), (swept_bounds, here.swept)))
    pairs = Pairs(
        lambda row: _spread(q_marks[row], s.shape, int(transposed)),
        lambda row: _spread(k_marks[row], s.shape, int(not transposed)),
        swept if transposed else held,
        held if transposed else swept,
    )
    found = views(plan.terms, values, pairs)
    return add_bias(plan.terms, found, plan.causal, s, pairs), found, pairs


def _term_bounds(table, tile, count: int):
    return lambda term: (table[tile, term], table[tile, count + term])


def _spread(row, shape: tuple[int, int], axis: int):
    """Broadcasts a row of values along one axis of a tile."""
    return jax.lax.broadcast_in_dim(row, shape, (axis,))


def _table(constants):
    """The constants as a table: a kernel takes no empty arrays."""
    return constants if constants.shape[1] else jnp.zeros((constants.shape[0], 1), jnp.float32)


def _grouped(by_query_head, like):
    """Sums the gradients of keys over the query heads that they serve."""
    length, heads, width = like.shape
    return by_query_head.reshape(length, heads, -1, width).sum(axis=2).astype(like.dtype)
