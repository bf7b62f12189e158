"""Exact angles in float32: position times frequency, reduced to one turn before anything is rounded.

A float32 product p * w errs by p * w * 2^-24: 2.5e-2 radians at position 2^20. Whole positions are multiplied with a
constant w / 2 pi in fixed point: integers of 32 bits drop whole turns as they overflow. Otherwise both factors are cut into
pieces of 12 bits, so that every partial product is exact in float32, with or without fused multiply-add, and whole turns are
dropped from each one before they are summed.
"""

import itertools
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float32, Shaped, UInt32

from posjax.encoding import Array

_PIECE_BITS = 12
_PIECES = 4  # 48 bits of w / 2 pi: below 1e-7 turns at position 2^24


def angles(position: Shaped[Array, "T A"], wave: Float[Array, "A *C"]) -> Float32[jax.Array, "T *C"]:
    """sum_a position[t, a] * wave[a, c] modulo 2 pi, in radians within [-pi, pi] up to rounding.

    Args:
      position: int32, any; or float32, which has whole numbers up to 2^24 in magnitude.
      wave: radians per unit of position: a float64 constant, or a float32 array that is learned or computed, [A, H, C]
        where heads differ. The angles are differentiable in position and wave.

    The error is below 1e-6 for each axis that a channel reads: of int32 at any position, of float32 up to 2^24. A float32
    wave is first converted to turns, which rounds it by 2^-23 of its value. Queries and keys share that rounding, so logits
    err by 2^-23 of the angle between two tokens, however large their positions are.

    >>> angle = angles(np.array([[2**20]], np.int32), np.array([[1.0]]))[0, 0]
    >>> abs(float(angle) - (2**20 - 2 * np.pi * round(2**20 / (2 * np.pi)))) < 1e-6
    True
    """
    if position.dtype not in (jnp.int32, jnp.float32):
        raise ValueError(f"positions are int32 or float32, got {position.dtype}")
    wave = wave.astype(jnp.float32) if isinstance(wave, jax.Array) else wave  # parameters may be kept in half precision
    turns = jnp.zeros((position.shape[0], *wave.shape[1:]), jnp.float32)
    for axis in range(wave.shape[0]):
        turns = turns + _turns(position[:, axis], wave[axis])
    return 2 * np.pi * (turns - jnp.round(turns))


def _turns(position: Shaped[Array, " T"], wave: Float[Array, "*C"]) -> Float32[jax.Array, "T *C"]:
    position = jnp.asarray(position).reshape(-1, *[1] * wave.ndim)
    turn, sign = wave / (2 * np.pi), jnp.sign(position).astype(jnp.float32)
    if position.dtype == jnp.float32:
        high = _leading_bits(position)
        return _summed_turns((high, position - high), _pieces(turn))
    count = jnp.abs(position).astype(jnp.uint32)
    if isinstance(turn, jax.Array):
        parts = (count & mask for mask in np.uint32([0xFFF, 0xFFF000, 0xFF000000]))
        return _summed_turns([sign * part.astype(jnp.float32) for part in parts], _pieces(turn))
    return sign * _counted_turns(count, turn)


def _summed_turns(parts: Iterable[Array], pieces: list[Array]) -> Float32[jax.Array, "T *C"]:
    """The sum of all products, whole turns aside."""
    turns = jnp.float32(0)
    for part, piece in itertools.product(parts, pieces):
        product = part * piece
        turns = turns + (product - jnp.round(product))
        turns = turns - jnp.round(turns)
    return turns


def _counted_turns(count: UInt32[jax.Array, "..."], turn: Float[np.ndarray, "*C"]) -> Float32[jax.Array, "T *C"]:
    """count * turn, whole turns aside, from the upper half of its product with 2^64 turn."""
    word = np.ldexp(np.abs(turn) % 1.0, 64).astype(np.uint64)
    word = np.where(turn < 0, -word, word)
    upper, lower = (word >> np.uint64(32)).astype(np.uint32), word.astype(np.uint32)
    count_upper, count_lower = count >> 16, count & 0xFFFF
    carried = (count_upper * (lower & np.uint32(0xFFFF)) >> 16) + (count_lower * (lower >> np.uint32(16)) >> 16)
    product = count * upper + count_upper * (lower >> np.uint32(16)) + carried
    return jax.lax.bitcast_convert_type(product, jnp.int32).astype(jnp.float32) * np.float32(2.0**-32)


def _leading_bits(x: Float32[jax.Array, "*X"]) -> Float32[jax.Array, "*X"]:
    """x with only the 12 leading bits of its 24-bit significand."""
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    return jax.lax.bitcast_convert_type(bits & np.uint32(0xFFFFF000), jnp.float32)


def _pieces(turn: Float[Array, "*C"]) -> list[Float32[Array, "*C"]]:
    """Cuts each value into float32 pieces of at most 12 significant bits that sum to it."""
    if isinstance(turn, jax.Array):
        high = _leading_bits(turn)
        return [high, turn - high]
    pieces, rest = [], np.asarray(turn, np.float64)
    for _ in range(_PIECES):
        _, exponent = np.frexp(rest)
        unit = np.ldexp(1.0, exponent - _PIECE_BITS)
        piece = np.trunc(rest / unit) * unit
        pieces.append(piece.astype(np.float32))
        rest = rest - piece
    return pieces


def geometric(base: float, count: int) -> Float[np.ndarray, " C"]:
    """base^(-c / count) for c = 0 ... count - 1: the frequencies of Vaswani et al. (2017), section 3.5."""
    if not base > 0:
        raise ValueError(f"base must be positive, got {base}")
    return float(base) ** (-np.arange(count) / count)


def axial(base: float, num_axes: int, channels: int, what: str) -> Float[np.ndarray, "A C"]:
    """A block-diagonal wave matrix: an equal share of the channels, with the same frequencies, for every axis."""
    if channels % num_axes:
        raise ValueError(
            f"{what} of {2 * channels} cannot be shared by {num_axes} position axes: it must be divisible by {2 * num_axes}"
        )
    return np.kron(np.eye(num_axes), geometric(base, channels // num_axes)[None])
