"""Tiles of the pairs of queries and keys: how operands are cut into them, and which of them have to be computed.

The least and the greatest site of each tile tell whether it may hold a pair that is seen. Groups of tiles are compared first,
by the same test, and then the tiles of those pairs of groups that may see each other: no list holds all pairs of tiles, and
the time to find those that are seen grows with their number.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int32

from posjax.attention.dense import Operands
from posjax.encoding import Array, Encoding, Needs
from posjax.mask import Bounds

_GROUP = 64  # tiles of queries, or of keys, in a group at most
_TILE = 256  # the logits of four heads then fit a CPU's second cache
_ROWS = 64  # queries at a time where a tile must hold all the keys
_MULTIPLE = 16  # where there are several tiles, their size is a multiple of this


# The axis along which the tokens of each operand lie, as `laid_out` in blockwise.py arranges them: heads before tokens in
# what is multiplied, None for unused inputs.
ON_Q = dict(q=0, rotated_q=1, q_site=0, q_order=0)
ON_K = dict(k=0, rotated_k=1, v=1, k_site=0, k_order=0)


class Plan(NamedTuple):
    """All that is static: hashable, so that it can be a non-differentiable argument."""

    encoding: Encoding
    scale: float
    num_heads: int
    head_dim: int
    q_tile: int
    k_tile: int
    softcap: float | None = None


def tile_sizes(encoding: Encoding, queries: int, keys: int, tile: int | None) -> tuple[int, int]:
    """How many queries and keys a tile holds; `tile` is the most, by default what suits the encoding."""
    tile = tile or encoding.mask().tile or _TILE
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
        return jax.tree.map(lambda x: _filled_up(x, size, axis), tree)

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


class Seen(NamedTuple):
    """Which tiles may hold a pair of tokens that is seen."""

    plan: Plan
    groups: Int32[jax.Array, "G 2"]  # pairs of groups of tiles, those in which something may be seen first
    count: Int32[jax.Array, ""]  # how many these are
    q: Bounds  # of (site, order) of every tile, in whole groups
    k: Bounds
    sides: tuple[int, int]  # tiles of queries and of keys in a group

    def tiles(self, group: Int32[Array, ""] | int, by_diagonal: bool = False):
        """(query tile, key tile) pairs of a pair of groups, [P, 2], and how many of them, the first ones, may be seen.

        They come by rows, so that what is summed up for a query stays in the cache, or by diagonals, so that neighbours
        in the list show the same offsets of positions.
        """
        starts = self.groups[group]
        q, k = (read(bounds, n, side) for bounds, n, side in zip((self.q, self.k), starts, self.sides, strict=True))
        pairs = np.indices(self.sides, np.int32).reshape(2, -1).T
        if by_diagonal:
            pairs = pairs[np.lexsort((pairs[:, 0], pairs @ (self.plan.q_tile, -self.plan.k_tile)))]
        pairs, count = _seen_first(may_see(self.plan.encoding, q, k), pairs)
        return pairs + starts * np.array(self.sides, np.int32), count


def seen_tiles(plan: Plan, operands: Operands) -> Seen:
    """The tiles that attention has to compute."""
    bounds, groups, sides = [], [], []
    for site, order, size in (
        (operands.q_site, operands.q_order, plan.q_tile),
        (operands.k_site, operands.k_order, plan.k_tile),
    ):
        tokens, count = site.segment > 0, -(-len(site.segment) // size)
        sides.append(-(-count // -(-count // _GROUP)))  # groups are as even as may be
        bounds.append(tile_bounds((site, order), tokens, size, sides[-1]))
        groups.append(tile_bounds((site, order), tokens, size * sides[-1]))
    seen = may_see(plan.encoding, *groups)
    pairs, count = _seen_first(seen, np.indices(seen.shape, np.int32).reshape(2, -1).T)
    return Seen(plan, pairs, count, *bounds, tuple(sides))


def _seen_first(
    seen: Bool[Array, "N O"], pairs: Int32[np.ndarray, "P 2"]
) -> tuple[Int32[jax.Array, "P 2"], Int32[jax.Array, ""]]:
    """The pairs, those that are seen before all others, and how many of them these are."""
    # Of sites that are known, XLA would else sort the list while it compiles, which takes it seconds.
    seen = jax.lax.optimization_barrier(seen[pairs[:, 0], pairs[:, 1]])
    return jnp.asarray(pairs)[jnp.argsort(~seen, stable=True)], jnp.sum(seen, dtype=jnp.int32)


def may_see(encoding: Encoding, q: Bounds, k: Bounds) -> Bool[Array, "N O"]:
    """Which pairs of tiles may hold a pair of tokens that is seen, from the bounds of their (site, order)."""
    (q_low, _), (q_high, q_last), (k_low, k_first), (k_high, _) = *q, *k
    nowhere = (q_high.prefix > 0)[:, None] | (k_high.prefix > 0)[None]
    same_document = (q_low.segment[:, None] <= k_high.segment[None]) & (k_low.segment[None] <= q_high.segment[:, None])
    mask, shown = encoding.mask(), True
    for low, high in zip(mask.terms(q_low, k_low), mask.terms(q_high, k_high), strict=True):
        rows = Bounds(*(tuple(x[:, None] for x in corner.q) for corner in (low, high)))
        columns = Bounds(*(tuple(x[None] for x in corner.k) for corner in (low, high)))
        shown = shown & low.mask.may_show(rows, columns)
    seen = same_document & (shown | nowhere)
    return seen if q_last is None else seen & (k_first[None] <= q_last[:, None])


def tile_bounds(tree: Any, tokens: Bool[Array, " T"], size: int, multiple: int = 1) -> Bounds:
    """Of each tile the least and greatest value of every leaf; padding does not count.

    Behind the tokens there is padding until the tiles are full, and a multiple of so many.
    """
    tokens = _filled_up(jnp.asarray(tokens), size * multiple)

    def leaf(x, reduce, sign: int):
        x = _filled_up(jnp.asarray(x, jnp.int32) if x.dtype == bool else jnp.asarray(x), size * multiple)
        limits = jnp.iinfo(x.dtype) if jnp.issubdtype(x.dtype, jnp.integer) else jnp.finfo(x.dtype)
        x = jnp.where(tokens.reshape(-1, *[1] * (x.ndim - 1)), x, limits.max if sign > 0 else limits.min)
        return reduce(x.reshape(-1, size, *x.shape[1:]), axis=1)

    return Bounds(
        jax.tree.map(lambda x: leaf(x, jnp.min, 1), tree),
        jax.tree.map(lambda x: leaf(x, jnp.max, -1), tree),
    )


def _filled_up(x: Array, size: int, axis: int = 0) -> Array:
    """With zeros behind the others until the tokens along an axis are a multiple of `size`."""
    missing = -x.shape[axis] % size
    return jnp.pad(x, [(0, missing if a == axis else 0) for a in range(x.ndim)]) if missing else x
