"""Tiles of query-key pairs: how operands are cut into them, and which tiles must be computed.

The least and the greatest site of each tile decide whether a query may see a key in it. The same test is applied to groups
of tiles first, then to the tiles of the groups that pass. So no list holds all pairs of tiles, and the search takes time in
proportion to the tiles that are found.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int32

from posjax.attention.dense import Operands
from posjax.encoding import Array, Encoding, reads_rows
from posjax.mask import Bounds

_GROUP = 64  # tiles of queries, or of keys, in a group at most
_TILE = 256  # the logits of four heads then fit a CPU's second cache
_TILE_ELSEWHERE = 1024  # on a GPU every tile has a cost of its own (docs/accelerator.md); no TPU was tried
_ROWS = 64  # queries in a tile that must hold all keys
_MULTIPLE = 16  # the size of several tiles is a multiple of this


# The axis along which the tokens of each operand lie, as `laid_out` in blockwise.py arranges them: heads before tokens in
# the factors; None for unused inputs.
ON_Q = dict(q=0, rotated_q=1, q_site=0, q_order=0)
ON_K = dict(k=0, rotated_k=1, v=1, k_site=0, k_order=0)


class Plan(NamedTuple):
    """The static arguments: hashable, so that they can be a non-differentiable argument."""

    encoding: Encoding
    scale: float
    num_heads: int
    head_dim: int
    q_tile: int
    k_tile: int
    softcap: float | None = None
    on_line: bool = False  # whether all tokens are known to be one document, side by side


def tile_sizes(encoding: Encoding, queries: int, keys: int, tile: int | None, platform: str) -> tuple[int, int]:
    """The number of queries and of keys in a tile; `tile` is the largest allowed, by default what suits the encoding."""
    tile = tile or encoding.mask().tile or (_TILE if platform == "cpu" else _TILE_ELSEWHERE)
    if reads_rows(encoding):
        return min(tile, _ROWS, queries), keys
    return _even(queries, tile), _even(keys, tile)


def _even(length: int, tile: int) -> int:
    """The tile size that cuts `length` into as few tiles as `tile` does, as evenly as possible."""
    if length <= tile:
        return length
    size = -(-length // -(-length // tile))
    return min(tile, -(-size // _MULTIPLE) * _MULTIPLE)


def padded(plan: Plan, operands: Operands) -> Operands:
    """Pads to whole tiles with zeros: tokens of segment 0, which are never seen."""

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
    """x with `tile` added to its `index`-th tile."""
    return write(x, read(x, index, size, axis) + tile.astype(x.dtype), index, size, axis)


class Seen(NamedTuple):
    """The tiles in which a query may see a key."""

    plan: Plan
    groups: Int32[jax.Array, "G 2"]  # pairs of groups of tiles; those that may hold a seen pair come first
    count: Int32[jax.Array, ""]  # the number of those
    q: Bounds  # of (site, order) of every tile, in whole groups
    k: Bounds
    sides: tuple[int, int]  # tiles of queries and of keys in a group

    def tiles(self, group: Int32[Array, ""] | int, by_diagonal: bool = False):
        """The (query tile, key tile) pairs of a pair of groups, [P, 2], and how many of the first ones to compute.

        They are ordered by rows, so that a query's sums stay in the cache, or by diagonals, so that neighbours in the list
        have the same offsets of positions.
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
        sides.append(-(-count // -(-count // _GROUP)))  # groups are as even as possible
        bounds.append(tile_bounds((site, order), tokens, size, sides[-1]))
        groups.append(tile_bounds((site, order), tokens, size * sides[-1]))
    seen = may_see(plan.encoding, *groups)
    pairs, count = _seen_first(seen, np.indices(seen.shape, np.int32).reshape(2, -1).T)
    return Seen(plan, pairs, count, *bounds, tuple(sides))


def _seen_first(
    seen: Bool[Array, "N O"], pairs: Int32[np.ndarray, "P 2"]
) -> tuple[Int32[jax.Array, "P 2"], Int32[jax.Array, ""]]:
    """The pairs, with the seen ones first, and the number of these."""
    # Without the barrier XLA would sort the list of known sites at compile time, which takes seconds.
    seen = jax.lax.optimization_barrier(seen[pairs[:, 0], pairs[:, 1]])
    return jnp.asarray(pairs)[jnp.argsort(~seen, stable=True)], jnp.sum(seen, dtype=jnp.int32)


def may_see(encoding: Encoding, q: Bounds, k: Bounds) -> Bool[Array, "N O"]:
    """Marks the pairs of tiles in which a query may see a key, from the bounds of their (site, order)."""
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
    """The least and the greatest value of every leaf in each tile, padding left out.

    The tokens are padded to whole tiles, and these to a multiple of `multiple`.
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
    """Pads an axis with zeros to a multiple of `size`."""
    missing = -x.shape[axis] % size
    return jnp.pad(x, [(0, missing if a == axis else 0) for a in range(x.ndim)]) if missing else x
