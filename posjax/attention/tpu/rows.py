"""A bias of the offset on a tile, made from a row of one number for each offset, and the sums of its gradient by offset.

A tile [S, T] of keys and queries has row[t - s + S - 1], in which each key's line is the one before moved by one lane.
Vectors of a TPU move as a whole, so the eight lines of a vector are made once, outside of the kernel (`in_eights`). The
lines of 128 keys are 16 rotations of these, and all other keys of the tile read the same lines, 128 lanes apart: no number
is gathered.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from posjax.encoding import Array

EIGHT, LANES = 8, 128  # the sides of a vector


def side_of_block(length: int, sides: tuple[int, ...]) -> int:
    """The side of the blocks for so many tokens: the largest of those to whose multiple the fewest are added."""
    if length <= sides[0]:
        return -(-length // LANES) * LANES
    return min(sides, key=lambda side: -length % side)


def in_eights(row: Float[Array, "H L"]) -> Float[jax.Array, "H 8 L"]:
    """Returns row[h, l - n + 7] for n = 0 ... 7, zeros beyond its end."""
    longer = jnp.pad(row, ((0, 0), (0, EIGHT - 1)))
    return jnp.stack([longer[:, EIGHT - 1 - n :][:, : row.shape[1]] for n in range(EIGHT)], axis=1)


def spread(eights: Float[Array, "8 W"], keys: int, queries: int) -> Float[jax.Array, "S T"]:
    """The tile of a part of `in_eights`, of W = S + T numbers, the first for the last key and the first query."""
    lines = [_rotated(eights, at - LANES + EIGHT) for at in range(0, LANES, EIGHT)]
    lines = jnp.concatenate(lines, axis=0)
    starts = [keys - LANES - at for at in range(0, keys, LANES)]
    return jnp.concatenate([lines[:, start : start + queries] for start in starts], axis=0)


def gathered(tile: Float[Array, "S T"]) -> Float[jax.Array, "8 W"]:
    """The transpose of `spread`."""
    keys, queries = tile.shape
    columns = []
    for column in range(0, keys + queries, LANES):
        starts = [(at, column - (keys - LANES - at)) for at in range(0, keys, LANES)]
        parts = [tile[at : at + LANES, x : x + LANES] for at, x in starts if 0 <= x < queries]
        columns.append(sum(parts[1:], parts[0]) if parts else jnp.zeros((LANES, LANES), tile.dtype))
    lines = jnp.concatenate(columns, axis=1)
    parts = [_rotated(lines[at : at + EIGHT], LANES - EIGHT - at) for at in range(0, LANES, EIGHT)]
    return sum(parts[1:], parts[0])


def skewed(x: Float[Array, "S2 128"]) -> Float[jax.Array, "S 128"]:
    """Returns x[s + 127 - t, t]; S2 is S + 128. Mosaic has no rotation of columns by numbers that differ."""
    for step in (64, 32, 16, 8):  # a vector's lines as a whole
        x = jnp.where(_moves(step), x[step:], x[:-step])
    for step in (4, 2, 1):
        x = jnp.where(_moves(step), _rotated(x, -step, 0), x)
    return x[:-EIGHT]


def unskewed(x: Float[Array, "S 128"]) -> Float[jax.Array, "S2 128"]:
    """The transpose of `skewed`."""
    x = jnp.concatenate([x, _zeros(EIGHT, x)])
    for step in (1, 2, 4):
        x = jnp.where(_moves(step), _rotated(x, step, 0), x)
    for step in (8, 16, 32, 64):
        x = jnp.where(_moves(step), jnp.concatenate([_zeros(step, x), x]), jnp.concatenate([x, _zeros(step, x)]))
    return x


def _moves(step: int) -> Bool[jax.Array, "1 128"]:
    """Marks the columns t that move by `step` lines among others, which together are 127 - t."""
    return jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1) & step == 0


def _zeros(lines: int, like: Float[Array, "S 128"]) -> Float[jax.Array, "N 128"]:
    return jnp.zeros((lines, LANES), like.dtype)


def _rotated(x: Float[Array, "N W"], by: int, axis: int = 1) -> Float[jax.Array, "N W"]:
    from jax.experimental.pallas import tpu as pltpu

    return pltpu.roll(x, by % x.shape[axis], axis) if by else x
