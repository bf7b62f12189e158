"""Tiles of the pairs of queries and keys: what is cut into them, and which of them hold a pair that is seen."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int32

from posjax.encoding import Array, Bounds, Encoding, Needs, Params, Site

_TILE = 256  # the logits of four heads then fit a CPU's second cache
_ROWS = 64  # queries at a time where a tile must hold all the keys
_MULTIPLE = 16  # of which a tile's size is one, where there are several


class Operands(NamedTuple):
    """What attention reads, heads first where heads are multiplied; None for what nobody reads."""

    params: Params
    q: Array | None  # [T, H, D]
    k: Array | None  # [S, K, D]
    rotated_q: Array  # [H, T, C]
    rotated_k: Array  # [K, S, C]
    v: Array  # [K, S, E]
    q_site: Site
    k_site: Site
    q_order: Array | None
    k_order: Array | None


# The axis along which the tokens of each operand lie.
ON_Q = dict(q=0, rotated_q=1, q_site=0, q_order=0)
ON_K = dict(k=0, rotated_k=1, v=1, k_site=0, k_order=0)


class Plan(NamedTuple):
    """All that is static: hashable, so that it can be a non-differentiable argument."""

    encoding: Encoding
    scale: float
    num_heads: int
    head_dim: int
    in_order: bool  # causal in the order of the arrays
    q_tile: int
    k_tile: int


def tile_sizes(encoding: Encoding, queries: int, keys: int, tile: int | None) -> tuple[int, int]:
    """How many queries and keys a tile holds; `tile` is the most, by default what suits the encoding."""
    tile = tile or encoding.tile or _TILE
    if Needs.WHOLE_ROWS in encoding.needs:
        return min(tile, _ROWS, queries), keys
    return _even(queries, tile), _even(keys, tile)


def _even(length: int, tile: int) -> int:
    """The size that cuts `length` into as few tiles as `tile` does, and as even ones as may be."""
    if length <= tile:
        return length
    size = -(-length // -(-length // tile))
    return min(tile, -(-size // _MULTIPLE) * _MULTIPLE)


def padded(plan: Plan, operands: Operands) -> Operands:
    """Zeros behind the tokens until the tiles are full: tokens of segment 0, which nobody sees."""

    def pad(tree, axis: int, size: int):
        def leaf(x):
            missing = -x.shape[axis] % size
            return jnp.pad(x, [(0, missing if a == axis else 0) for a in range(x.ndim)]) if missing else x

        return jax.tree.map(leaf, tree)

    on_q = {name: pad(getattr(operands, name), axis, plan.q_tile) for name, axis in ON_Q.items()}
    on_k = {name: pad(getattr(operands, name), axis, plan.k_tile) for name, axis in ON_K.items()}
    return operands._replace(**on_q, **on_k)


def cut(plan: Plan, operands: Operands, i, j) -> Operands:
    """The i-th tile of queries and the j-th of keys."""
    on_q = {n: read(getattr(operands, n), i, plan.q_tile, axis) for n, axis in ON_Q.items()}
    on_k = {n: read(getattr(operands, n), j, plan.k_tile, axis) for n, axis in ON_K.items()}
    return operands._replace(**on_q, **on_k)


def read(tree: Any, index, size: int, axis: int = 0):
    """The `index`-th tile of every leaf."""
    return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, index * size, size, axis), tree)


def write(x, tile, index, size: int, axis: int = 0):
    return jax.lax.dynamic_update_slice_in_dim(x, tile.astype(x.dtype), index * size, axis)


def add(x, tile, index, size: int, axis: int = 0):
    """x with its `index`-th tile increased."""
    return write(x, read(x, index, size, axis) + tile.astype(x.dtype), index, size, axis)


def visited(
    plan: Plan, operands: Operands, by_diagonal: bool = False
) -> tuple[Int32[jax.Array, "P 2"], Int32[jax.Array, ""]]:
    """(query tile, key tile) pairs, and how many of them, the first ones, can hold a pair that is seen.

    They come by rows, so that what is summed up for a query stays in the cache, or by diagonals, so that neighbours in the
    list show the same offsets of positions.
    """
    pairs = _candidates(plan, operands, by_diagonal)
    # Of sites that are known, XLA would else sort the list while it compiles, which takes it seconds.
    seen = jax.lax.optimization_barrier(_seen(plan, operands)[pairs[:, 0], pairs[:, 1]])
    return jnp.asarray(pairs)[jnp.argsort(~seen, stable=True)], jnp.sum(seen, dtype=jnp.int32)


def _candidates(plan: Plan, operands: Operands, by_diagonal: bool) -> Int32[np.ndarray, "P 2"]:
    rows = operands.q_site.segment.shape[0] // plan.q_tile
    columns = operands.k_site.segment.shape[0] // plan.k_tile
    i, j = np.divmod(np.arange(rows * columns, dtype=np.int32), columns)
    if plan.in_order:
        below = j * plan.k_tile < (i + 1) * plan.q_tile
        i, j = i[below], j[below]
    pairs = np.stack([i, j], axis=1)
    return pairs[np.lexsort((i, i * plan.q_tile - j * plan.k_tile))] if by_diagonal else pairs


def _seen(plan: Plan, operands: Operands) -> Bool[Array, "N O"]:
    """Which pairs of tiles may hold a pair of tokens that is seen, from the least and greatest values of each tile."""
    q_tokens, k_tokens = (site.segment > 0 for site in (operands.q_site, operands.k_site))
    q, k = tile_bounds(operands.q_site, q_tokens, plan.q_tile), tile_bounds(operands.k_site, k_tokens, plan.k_tile)
    nowhere = (q.high.prefix > 0)[:, None] | (k.high.prefix > 0)[None]
    same_document = (q.low.segment[:, None] <= k.high.segment[None]) & (k.low.segment[None] <= q.high.segment[:, None])
    seen = same_document & (plan.encoding.sees(q, k) | nowhere)
    if operands.q_order is None or plan.in_order:
        return seen
    last = tile_bounds(operands.q_order, q_tokens, plan.q_tile).high
    first = tile_bounds(operands.k_order, k_tokens, plan.k_tile).low
    return seen & (first[None] <= last[:, None])


def tile_bounds(tree: Any, tokens: Bool[Array, " T"], size: int) -> Bounds:
    """Of each tile the least and greatest value of every leaf; padding does not count."""

    def leaf(x, reduce, sign: int):
        x = jnp.asarray(x, jnp.int32) if x.dtype == bool else jnp.asarray(x)
        limit = jnp.iinfo(x.dtype) if jnp.issubdtype(x.dtype, jnp.integer) else jnp.finfo(x.dtype)
        rest = limit.max if sign > 0 else limit.min
        x = jnp.where(tokens.reshape(-1, *[1] * (x.ndim - 1)), x, rest)
        return reduce(x.reshape(-1, size, *x.shape[1:]), axis=1)

    return Bounds(
        jax.tree.map(lambda x: leaf(x, jnp.min, 1), tree),
        jax.tree.map(lambda x: leaf(x, jnp.max, -1), tree),
    )
