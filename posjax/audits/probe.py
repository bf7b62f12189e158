"""Measures a rotation: which channels turn together, by which angles, and how far the norm changes."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from posjax.audits.arrays import Rotation

_SEEN = 1e-6  # the least entry of a rotation's matrix that is no rounding
_ALIKE = 1e-3  # radians, and shares of a norm
_EXPECTED = 0.05  # radians by which rounded angles may differ from a frequency measured at half the position


class Turning(NamedTuple):
    """A measured rotation of pairs of channels.

    Attributes:
      head_dim: D.
      pairs: the channels that turn together, the lower one first; pairs that nowhere turn are not seen and left out.
      position: where it was measured.
      angle: in radians modulo 2 pi, positive from the first channel of a pair to the second one.
      norm: the factor by which a pair grows.
      faults: what keeps it from being a rotation of pairs, in words.
      unknown: the channels that are mixed in another way than in pairs, in words.
    """

    head_dim: int
    pairs: Int[np.ndarray, "C 2"]
    position: Int[np.ndarray, "P A"]
    angle: Float[np.ndarray, "P C"]
    norm: Float[np.ndarray, "P C"]
    faults: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def length(self) -> int:
        return int(self.position.max()) + 1

    @property
    def factor(self) -> float:
        """The median of all norms: the attention factor."""
        return float(np.median(self.norm)) if self.norm.size else 1.0


def probe_positions(length: int, num_axes: int = 1) -> Int[np.ndarray, "P A"]:
    """Powers of two, by which a frequency is unwrapped, and others that half precision cannot hold; on each axis alone.

    Raises:
      ValueError: for a length below 8.
    """
    if length < 8:
        raise ValueError(f"length={length}: an audit needs 8 positions or more to measure a frequency")
    powers = 2 ** np.arange(np.log2(length - 1).astype(int) + 1)
    line = np.unique([0, 3, 5, 7, length - 1, *powers - 1, *powers, *powers + 1, *(powers * 1.37).astype(int)])
    line = line[line < length]
    place = np.concatenate([line[:, None] * unit for unit in np.eye(num_axes, dtype=int)])
    if num_axes > 1:  # and on all axes together
        place = np.concatenate([place, (line[:, None] * np.arange(1, num_axes + 1)) % length])
    return place.astype(np.int32)


def matrices(
    rotation: Rotation, head_dim: int, position: Int[np.ndarray, "P A"], num_heads: int | None = None
) -> Float[np.ndarray, "2 H P D D"]:
    """The matrices by which queries and keys are multiplied at each position, by unit vectors.

    Args:
      num_heads: None gives each unit vector a head of its own, H = 1; a number probes the heads one by one.
    """
    if num_heads is None:
        x = np.tile(np.eye(head_dim), (len(position), 1, 1))
        return np.stack([out.transpose(0, 2, 1)[None] for out in rotation(x, position)])
    columns = [np.broadcast_to(unit, (len(position), num_heads, head_dim)) for unit in np.eye(head_dim)]
    outputs = [np.stack(rotation(x, position)) for x in columns]
    return np.stack(outputs, axis=-1).transpose(0, 2, 1, 3, 4)


def turning(matrix: Float[np.ndarray, "P D D"], position: Int[np.ndarray, "P A"]) -> Turning:
    """Reads pairs and angles off the matrices at each position."""
    head_dim = matrix.shape[1]
    reach = np.abs(matrix).max(axis=0)
    seen = (reach > _SEEN * reach.max()) & ~np.eye(head_dim, dtype=bool)
    seen |= seen.T
    empty = Turning(head_dim, np.zeros((0, 2), int), position, *np.zeros((2, len(position), 0)))
    if (most := seen.sum(axis=1).max()) > 1:
        channel = int(seen.sum(axis=1).argmax())
        others = ", ".join(map(str, np.flatnonzero(seen[channel])[:4]))
        return empty._replace(
            unknown=(f"channel {channel} is mixed with {most} others ({others}): no rotation of pairs",)
        )
    first, second = np.nonzero(np.triu(seen))
    by_row = (
        np.arctan2(-matrix[:, first, second], matrix[:, first, first]),
        np.arctan2(matrix[:, second, first], matrix[:, second, second]),
    )
    norm = np.hypot(matrix[:, second, first], matrix[:, second, second])
    still = matrix[:, [c for c in range(head_dim) if not seen[c].any()]][..., :]
    moving = Turning(head_dim, np.stack([first, second], axis=1), position, by_row[1], norm)
    return moving._replace(faults=(*_faults(moving, by_row), *_passing(still, seen)))


def _faults(found: Turning, by_row: tuple[np.ndarray, np.ndarray]) -> tuple[str, ...]:
    """The two channels of a pair must turn by one angle; tells how they differ."""
    apart = np.abs(wrapped(by_row[0] - by_row[1]))
    if not apart.size or apart.max() < _ALIKE + 0.01:
        return ()
    if np.abs(wrapped(by_row[0] + by_row[1])).max() < _ALIKE + 0.01:
        return ("both sines of a pair have one sign: rotate_half lacks its minus, and this is no rotation",)
    worst = int(apart.max(axis=0).argmax())
    a, b = found.pairs[worst]
    table = "repeated one half after the other" if b == a + 1 else "each angle twice in turn, as neighbours need it"
    return (f"channels {a} and {b} are paired but turn by different angles: cos and sin hold {table}",)


def _passing(still: np.ndarray, seen: np.ndarray) -> tuple[str, ...]:
    """Channels that do not turn must pass, but for a factor that is the same at all positions."""
    if still.size and np.ptp(still, axis=0).max() > _ALIKE:
        return ("channels that do not turn change with the position",)
    return ()


def wrapped(angle: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """An angle modulo 2 pi, within [-pi, pi]."""
    return angle - 2 * np.pi * np.round(angle / (2 * np.pi))


def unwrapped_waves(found: Turning) -> tuple[Float[np.ndarray, "A C"], Float[np.ndarray, " C"], int]:
    """The frequency of each pair along each axis, its angle at position 0, and the last position that went in.

    The frequency at position 1 is known within half a turn; at 2, 4, 8, ... it gets more exact, as long as each angle is
    near to the one expected. Frequencies are in radians per position.
    """
    num_axes = found.position.shape[1]
    start = found.angle[int(np.flatnonzero((found.position == 0).all(axis=1))[0])]
    waves, reach = [], found.length
    for unit in np.eye(num_axes, dtype=int):
        wave = None
        for power in 2 ** np.arange(32):
            at = np.flatnonzero((found.position == power * unit).all(axis=1))
            if not len(at):
                break
            angle = wrapped(found.angle[at[0]] - start)
            expected = angle if wave is None else wave * power
            correction = wrapped(angle - expected)
            if (np.abs(correction) > np.maximum(_EXPECTED, 1e-6 * np.abs(expected))).any():
                reach = min(reach, int(power) // 2)
                break
            wave = (expected + correction) / power
        waves.append(wave)
    return np.stack(waves), start, reach
