"""Exact angles in float32: position times frequency, reduced to one turn before anything is rounded.

A float32 product p * w errs by p * w * 2^-24: 2.5e-2 radians at position 2^20. Here w / 2 pi is cut into pieces of 12 bits
and p into two of 12, so that every partial product is exact in float32, with or without fused multiply-add, and whole
turns are dropped from each one before they are summed.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float32, Shaped

Array = jax.Array | np.ndarray
_PIECE_BITS = 12
_PIECES = 4  # 48 bits of w / 2 pi: below 1e-8 turns at position 2^24


def angles(position: Shaped[Array, "T A"], wave: Float[Array, "A *C"]) -> Float32[jax.Array, "T *C"]:
    """sum_a position[t, a] * wave[a, c] modulo 2 pi, in radians within [-pi, pi] up to rounding.

    Args:
      position: int32 or float32, exact up to 2^24 in magnitude.
      wave: radians per unit of position: a float64 constant, or a float32 array that is learned or computed, [A, H, C]
        where heads differ. The angles are differentiable in position and wave.

    The error is below 1e-6 for positions up to 2^24, for each axis that a channel reads. A float32 wave is first converted
    to turns, which rounds it by 2^-23 of its value. Queries and keys share that rounding, so logits err by 2^-23 of the
    angle between two tokens, however large their positions are.
    """
    if position.dtype not in (jnp.int32, jnp.float32):
        raise ValueError(f"positions are int32 or float32, got {position.dtype}")
    turns = jnp.zeros((position.shape[0], *wave.shape[1:]), jnp.float32)
    for axis in range(wave.shape[0]):
        turns = turns + _turns(position[:, axis], wave[axis])
    return 2 * np.pi * (turns - jnp.round(turns))


def _turns(position: Shaped[Array, " T"], wave: Float[Array, "*C"]) -> Float32[jax.Array, "T *C"]:
    position = jnp.asarray(position, jnp.float32).reshape(-1, *[1] * wave.ndim)
    high = _leading_bits(position)
    turns = jnp.float32(0)
    for piece in _pieces(wave / (2 * np.pi)):
        for part in (high, position - high):
            product = part * piece
            turns = turns + (product - jnp.round(product))
            turns = turns - jnp.round(turns)
    return turns


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
