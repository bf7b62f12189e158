"""Attention in O(T + S) memory: an online softmax over tiles, recomputed in the backward pass.

Milakov & Gimelshein (2018), arXiv 1805.02867; Rabe & Staats (2021), arXiv 2112.05682; Dao et al. (2022), arXiv 2205.14135.
The forward pass for one sequence, with the names of the code below:

    operands = queries, keys, values, sites and parameters, laid out in whole tiles       # laid_out
    peak, total, out = -infinity, 0, 0  for every query and head                          # _Running
    for (i, j) in the tiles of queries i and keys j in which a query may see a key:       # _over_tiles, seen_tiles
        logits = scale * q[i] @ k[j].T + bias of the sites of i and j                     # _logits, TileBias.logits
        logits = -infinity where a query does not see a key, by their sites               # visible
        new_peak = max(peak[i], max(logits))
        weights = exp(logits - new_peak)
        fade = exp(peak[i] - new_peak)
        total[i] = total[i] * fade + sum(weights)
        out[i] = out[i] * fade + weights @ v[j]
        peak[i] = new_peak
    return out / total, peak + log(total)                                                 # _forward

The backward pass goes over the same tiles: weights = exp(logits - log_total), d_logits = weights * (d_weights - inner), and
d_logits has the gradients of q, k and the bias, the last by JAX's derivative of a tile's bias (`TileBias.pull`). The bias and
the mask of a tile are computed from the sites of its tokens, so neither they nor their gradients are ever n x n. Tiles in
which no query sees a key, by causality, documents or the encoding's mask, are skipped: a window costs O(n w). Tiles with
equal offsets share one bias (`SharedBias`): they come one after the other, as a run. The sequences of a batch are computed
one after the other, each with its own tiles.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from posjax.attention.dense import WHOLE, Operands, Part, capped, visible, with_room
from posjax.attention.devices import device_of
from posjax.attention.tile_bias import TileBias, known_on_line, reads_content, tile_bias_of
from posjax.attention.tiles import Plan, add, cut, padded, read, seen_tiles, tile_sizes, write
from posjax.encoding import Array, Encoding, Params, Site, of_queries
from posjax.gradients import one_by_one, with_gradient

# A hidden logit: exp(_HIDDEN - m) is 0 for every logit m of a key that is seen, and no arithmetic here overflows to NaN.
_HIDDEN = -0.7 * float(jnp.finfo(jnp.float32).max)

# The name, in `jax.checkpoint` policies, of the residuals of attention beside its operands.
SAVED = "attention"


def blockwise(
    encoding: Encoding, x: Operands, *, scale: float, softcap: float | None = None, tile: int | None = None
) -> Float[jax.Array, "T H F"]:
    """Computes `dense` tile by tile; differentiable in q, k, v, the encoding's parameters and float leaves of the sites.

    `tile` is the largest number of tokens on a side of a tile; None takes a number that suits the encoding.
    """
    out, log_total = without_sink(encoding, x, scale=scale, softcap=softcap, tile=tile)
    return with_sink(encoding, x.params, x.q_site, out, log_total)


def without_sink(
    encoding: Encoding, x: Operands, *, scale: float, softcap: float | None = None, tile: int | None = None
) -> tuple[Float[jax.Array, "T H F"], Float[jax.Array, "H T"]]:
    """The output of `blockwise` before a sink has its share, and the log of the softmax's denominator."""
    plan, length = plan_of(encoding, x.q, x.k, scale=scale, softcap=softcap, tile=tile), x.q.shape[0]
    plan = plan._replace(on_line=known_on_line(x.q_site) and known_on_line(x.k_site))
    out, log_total = _attention(plan, laid_out(plan, x))
    return out[:length], log_total[:, :length]


def with_sink(
    encoding: Encoding,
    params: Params,
    q_site: Site,
    out: Float[Array, "T H E"],
    log_total: Float[Array, "H T"],
    part: Part = WHOLE,
):
    """The output with the encoding's sink in the softmax: out Z / (Z + exp(sink)). What `weigh` has weighed has no sink.

    log_total is log Z, the log of the softmax's denominator without the sink.
    """
    sink = encoding.sink(params, q_site, part.all_heads(out.shape[1]))
    if sink is None:
        return out
    share = jax.nn.sigmoid(log_total - of_queries(part.own_heads(sink, sink.ndim - 1)))
    return (out * share.T[..., None]).astype(out.dtype)


def plan_of(encoding: Encoding, q, k, *, scale: float, softcap: float | None = None, tile: int | None = None) -> Plan:
    """The plan of `blockwise` for arguments of these shapes."""
    sizes = tile_sizes(encoding, q.shape[0], k.shape[0], tile, device_of(q).platform)
    return Plan(encoding, scale, q.shape[1], q.shape[2], *sizes, softcap)


def laid_out(plan: Plan, x: Operands) -> Operands:
    """The operands laid out for tiles: heads before tokens, whole tiles, None for raw q or k that no bias reads."""
    reads_q, reads_k = reads_content(plan.encoding, x.params, x.q, x.k, x.q_site, x.k_site)
    v = with_room(plan.encoding, x.v)
    heads_first = {n: jnp.moveaxis(y, 0, 1) for n, y in dict(rotated_q=x.rotated_q, rotated_k=x.rotated_k, v=v).items()}
    # XLA would fold sites that a program makes, half a minute for a million tokens; and JAX cannot loop over the rows of a
    # batch of NumPy arrays that a program closes over.
    sites = jax.lax.optimization_barrier(dict(q_site=x.q_site, k_site=x.k_site))
    return padded(plan, x._replace(q=x.q if reads_q else None, k=x.k if reads_k else None, **heads_first, **sites))


def forward(plan: Plan, operands: Operands, dtype=jnp.float32):
    """Returns the outputs [T, H, E] and the log of the softmax's denominator [H, T]: -_HIDDEN for queries that see no key."""
    return one_by_one(functools.partial(_forward, plan, dtype))(operands)


class _Running(NamedTuple):
    # [2, H, T]: the maximum of the logits so far, and the sum of exp(logit - peak). As one array, XLA reads both before it
    # writes either; of two arrays it would copy the second one whole for every tile.
    peak_and_total: Array
    out: Array  # [H, T, E]: sum of exp(logit - peak) v


@functools.partial(jax.jit, static_argnums=(0, 1))  # traced once, by vmap too, for all layers that are alike
def _forward(plan: Plan, dtype, operands: Operands):
    """Returns the outputs [T, H, E] and the log of the softmax's denominator [H, T]."""
    heads, length, value_dim = plan.num_heads, operands.rotated_q.shape[1], operands.v.shape[-1]
    bias = tile_bias_of(plan, operands)
    zeros = functools.partial(jnp.full, fill_value=_zero(operands.rotated_q), dtype=jnp.float32)
    nothing = jnp.stack([zeros((heads, length)) + _HIDDEN, zeros((heads, length))])
    running = _Running(nothing, zeros((heads, length, value_dim)))

    def add_tile(i, j, shared, running):
        tile = cut(plan, operands, i, j)
        logits = _logits(plan, bias, shared, tile)
        old_peak, old_total = read(running.peak_and_total, i, plan.q_tile, 2)
        if "weigh" in plan.encoding.hooks:
            # A row is whole and has its weights: they stay as they are, like weights of a softmax with the denominator 1.
            weights = bias.weigh(tile, logits)
            peak, fade, total = jnp.zeros_like(old_peak), jnp.zeros_like(old_peak), jnp.ones_like(old_total)
        else:
            # The result does not depend on the peak. XLA may compute a logit twice, to other bits, and then JAX's derivative
            # of a maximum finds it nowhere: 0 / 0.
            peak = jnp.maximum(old_peak, jnp.max(jax.lax.stop_gradient(logits), axis=-1))
            weights = jnp.exp(logits - peak[..., None])
            fade = jnp.exp(old_peak - peak)
            total = old_total * fade + jnp.sum(weights, axis=-1)
        out = read(running.out, i, plan.q_tile, 1) * fade[..., None] + _times(weights.astype(tile.v.dtype), tile.v)
        if "read" in plan.encoding.hooks:
            out = out + bias.read(tile, weights)
        return _Running(
            write(running.peak_and_total, jnp.stack([peak, total]), i, plan.q_tile, 2),
            write(running.out, out, i, plan.q_tile, 1),
        )

    running = _over_tiles(plan, operands, bias, add_tile, lambda i, j, running: running, running)
    peak, total = running.peak_and_total
    some = peak > 0.5 * _HIDDEN  # whether a query sees any key
    out = jnp.where(some, 1 / jnp.where(some, total, 1.0), 0.0)[..., None] * running.out
    log_total = jnp.where(some, peak + jnp.log(jnp.where(some, total, 1.0)), -_HIDDEN)
    return jnp.moveaxis(out, 0, 1).astype(dtype), log_total


def _zero(x: Array) -> Float[jax.Array, ""]:
    """A zero that XLA cannot constant-fold.

    Otherwise it folds equal arrays of zeros into one and copies that at the start of the program for the loop of each
    layer: one array of the size of a layer's output per layer, all alive at once.
    """
    return jnp.minimum(jnp.abs(jnp.nan_to_num(x.ravel()[0].astype(jnp.float32))), 0.0)


def _in_tiles(plan: Plan, operands: Operands):
    return forward(plan, operands, operands.rotated_q.dtype)


def _backward_rule(plan: Plan, operands: Operands, found, gradients):
    return backward(plan, operands, *found, *gradients)


def backward(plan: Plan, operands: Operands, out, log_total, d_out, d_log_total) -> Operands:
    """The gradients of the operands. These may hold a part of the keys while `out` and `log_total` are over all keys."""
    run = one_by_one(lambda x: _backward(plan, *x))
    return _with_zeros(operands, run((operands, out, log_total, d_out, d_log_total)))


class _Gradients(NamedTuple):
    """Gradients of q, k and v; the gradients of k and v keep tokens last, as the product that makes them leaves them."""

    rotated_q: Array  # [H, T, C]
    rotated_k: Array  # [K, C, S]
    v: Array  # [K, E, S]


@functools.partial(jax.jit, static_argnums=0)
def _backward(plan: Plan, operands: Operands, out, log_total, d_out, d_log_total):
    bias = tile_bias_of(plan, operands)
    d_out = jnp.moveaxis(d_out, 1, 0)
    # d logit = weight (d weight - sum over keys of weight d weight + d log total), and that sum is d_out . out
    inner = jnp.sum(d_out.astype(jnp.float32) * jnp.moveaxis(out, 1, 0).astype(jnp.float32), axis=-1) - d_log_total
    d_out = d_out.astype(operands.v.dtype)
    shapes = (operands.rotated_q.shape, _swapped(operands.rotated_k.shape), _swapped(operands.v.shape))

    def add_tile(i, j, shared, carry):
        total, sums = carry
        tile = cut(plan, operands, i, j)
        logits = _logits(plan, bias, shared, tile)
        tile_out, tile_log, tile_inner = (read(x, i, plan.q_tile, 1) for x in (d_out, log_total, inner))
        weighs = "weigh" in plan.encoding.hooks
        weights = bias.weigh(tile, logits) if weighs else jnp.exp(logits - tile_log[..., None])
        d_weights = _against(tile_out, tile.v)
        if "read" in plan.encoding.hooks:
            beside, sums = bias.pull_read(sums, tile, weights, tile_out, i, j)
            d_weights = d_weights + beside
        if weighs:
            d_logits, sums = bias.pull_weigh(sums, tile, logits, d_weights, i, j)
        else:
            d_logits = weights * (d_weights - tile_inner[..., None])
        sums = bias.pull(sums, tile, d_logits, i, j)
        d_v = _from_rows(weights.astype(tile.v.dtype), tile_out, len(tile.v))
        total = total._replace(v=add(total.v, d_v, j, plan.k_tile, 2))
        if "product" not in plan.encoding.hooks:
            if plan.softcap is not None:
                d_logits = d_logits * (1 - jnp.square(_product(plan, tile) / plan.softcap))
            d_product = d_logits.astype(tile.rotated_k.dtype)
            d_k = _from_rows(d_product, tile.rotated_q, len(tile.rotated_k))
            total = total._replace(
                rotated_q=add(total.rotated_q, _times(d_product, tile.rotated_k), i, plan.q_tile, 1),
                rotated_k=add(total.rotated_k, d_k, j, plan.k_tile, 2),
            )
        return total, sums

    def end_run(i, j, carry):
        return carry[0], bias.pull_shared(carry[1], i, j)

    start = _Gradients(*(jnp.zeros(shape, jnp.float32) for shape in shapes))
    carry = (start, bias.no_gradients())
    total, sums = _over_tiles(plan, operands, bias, add_tile, end_run, carry)
    found = bias.gradients(sums)
    if "product" not in plan.encoding.hooks:
        found = found._replace(
            rotated_q=plan.scale * total.rotated_q, rotated_k=plan.scale * jnp.swapaxes(total.rotated_k, 1, 2)
        )
    found = found._replace(v=jnp.swapaxes(total.v, 1, 2))
    is_none = lambda x: x is None  # noqa: E731
    return jax.tree.map(lambda g, x: None if g is None else g.astype(x.dtype), found, operands, is_leaf=is_none)


_attention = with_gradient(_in_tiles, _backward_rule, saved=SAVED)


def _over_tiles(plan: Plan, operands: Operands, bias: TileBias, add_tile: Callable, end_run: Callable, carry):
    """Folds `carry` over all tiles in which a query may see a key, one run of tiles at a time."""
    seen = seen_tiles(plan, operands)

    def each_group(group, carry):
        pairs, count = seen.tiles(group, bias.by_diagonal)
        begins = bias.runs(pairs, count)
        starts = jnp.pad(jnp.flatnonzero(begins, size=len(pairs), fill_value=0).astype(jnp.int32), (0, 1))
        num_runs = jnp.sum(begins, dtype=jnp.int32)

        def each_run(run, carry):
            start = starts[run]
            end = jnp.where(run + 1 < num_runs, starts[run + 1], count)
            shared = bias.shared(*pairs[start])
            carry = jax.lax.fori_loop(start, end, lambda n, carry: add_tile(*pairs[n], shared, carry), carry)
            return end_run(*pairs[start], carry)

        return jax.lax.fori_loop(0, num_runs, each_run, carry)

    if len(seen.groups) == 1:
        return each_group(0, carry)
    return jax.lax.fori_loop(0, seen.count, each_group, carry)


def _logits(plan: Plan, bias: TileBias, shared, tile: Operands):
    """The logits of a tile, [H, T, S], with _HIDDEN where a query does not see a key."""
    logits = bias.logits(shared, tile)
    if "product" not in plan.encoding.hooks:
        logits = _product(plan, tile) + logits
    seen = visible(plan.encoding, tile.q_site, tile.k_site, tile.q_order, tile.k_order)
    return jnp.where(seen, logits, _HIDDEN)


def _product(plan: Plan, tile: Operands):
    """The scaled and capped products of a tile."""
    return capped(plan.scale * _against(tile.rotated_q, tile.rotated_k), plan.softcap)


def _against(q: Float[Array, "H T C"], k: Float[Array, "K S C"]) -> Float[jax.Array, "H T S"]:
    """The products of each head's queries with its keys."""
    return _grouped(q, k, (2, 2))


def _times(weights: Float[Array, "H T S"], v: Float[Array, "K S E"]) -> Float[jax.Array, "H T E"]:
    return _grouped(weights, v, (2, 1))


def _grouped(a: Float[Array, "H T X"], b: Array, contracted: tuple[int, int]) -> Float[jax.Array, "H T Y"]:
    rows = a.reshape(len(b), -1, a.shape[2])
    return _dot(rows, b, contracted).reshape(*a.shape[:2], -1)


def _from_rows(a: Float[Array, "H T S"], b: Float[Array, "H T E"], groups: int) -> Float[jax.Array, "K E S"]:
    """Sums a[t] outer b[t] over the queries and the heads of a group. XLA's CPU product is fast in this order only."""
    a, b = (x.reshape(groups, -1, x.shape[-1]) for x in (a, b))
    return _dot(b, a, (1, 1))


def _dot(a, b, contracted: tuple[int, int]):
    dimensions = (((contracted[0],), (contracted[1],)), ((0,), (0,)))
    return jax.lax.dot_general(a, b, dimensions, preferred_element_type=jnp.float32)


def _swapped(shape: tuple[int, int, int]) -> tuple[int, int, int]:
    return shape[0], shape[2], shape[1]


def _with_zeros(operands: Operands, gradients: Operands) -> Operands:
    """Fills in JAX's zero gradients for integers, and zeros for operands that no tile reads."""

    def leaf(x, gradient):
        if gradient is not None:
            return gradient
        if jnp.issubdtype(x.dtype, jnp.inexact):
            return jnp.zeros_like(x)
        return np.zeros(x.shape, jax.dtypes.float0)

    return jax.tree.map(leaf, operands, gradients)
