"""Explains angles that no encoding has: positions, frequencies or angles that were rounded, cut off or ignored."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from posjax.audits.probe import wrapped

_HALF = {"bfloat16": jnp.bfloat16, "float16": jnp.float16}
_MARGIN = 1e-3  # radians by which a later explanation must be better
_LARGE = 0.1  # radians, from which on an error is told


class Defect(NamedTuple):
    """A way to compute angles wrongly, and how far its angles are from the measured ones.

    Attributes:
      what: in words.
      candidate: the number of the frequencies that it was computed of.
      error: the mean difference from the measured angles, in radians.
    """

    what: str
    candidate: int
    error: float


def explain(
    angle: Float[np.ndarray, "P C"],
    position: Int[np.ndarray, "P A"],
    waves: Iterable[Float[np.ndarray, "A C"]],
    *,
    share: float = 0.2,
) -> Defect | None:
    """The defect whose angles are nearest to the measured ones; None if it leaves more than a share of the error."""
    best, exact = None, np.inf
    for candidate, wave in enumerate(waves):
        exact = min(exact, _mean(angle, position @ wave))
        for what, computed in _defects(angle, position, wave):
            error = _mean(angle, computed)
            if best is None or error < best.error - _MARGIN:
                best = Defect(what, candidate, error)
    return best if best is not None and best.error < min(share * exact, 0.02) else None


def _mean(angle: np.ndarray, computed: np.ndarray) -> float:
    """Infinite for angles beyond the largest number of float16."""
    return float(np.abs(wrapped(angle - computed)).mean()) if np.isfinite(computed).all() else np.inf


def _defects(angle: np.ndarray, position: np.ndarray, wave: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    for name, kind in _HALF.items():
        with np.errstate(over="ignore"):
            half = lambda x, kind=kind: np.asarray(x, np.float32).astype(kind).astype(np.float64)  # noqa: E731
            yield f"positions in {name}", half(position) @ wave
            yield f"inv_freq in {name}", position @ half(wave)
            if len(wave) == 1:
                yield f"angles in {name}", half(position @ wave)
                yield f"angles in {name}", half(half(position) @ half(wave))
    index = np.arange(len(position))[:, None]
    if position.shape[1] == 1 and (index != position).any():
        yield "positions are ignored: the tokens of each call are numbered from 0", index @ wave
        if (last := _cut_off(angle, position, wave)) is not None:
            yield f"positions beyond {last} get its angles", np.minimum(position, last) @ wave


def _cut_off(angle: np.ndarray, position: np.ndarray, wave: np.ndarray) -> int | None:
    """The position at which angles end, if they are the same from somewhere on."""
    same = np.abs(wrapped(angle - angle[-1])).max(axis=1, initial=0.0) < 1e-4
    if same.all() or same.sum() < 2:
        return None
    last = np.flatnonzero(~same)[-1]
    places = np.arange(position[last, 0] + 1, position[last + 1, 0] + 1)
    return int(places[np.abs(wrapped(angle[-1] - places[:, None] * wave)).mean(axis=1).argmin()])


def grown(error: Float[np.ndarray, " P"], position: Int[np.ndarray, "P A"]) -> str:
    """The words for an error: how large it gets, and from which position on it is large."""
    place = position.max(axis=1)
    largest = f"wrong by {error.max():.2g} rad at position {place[error.argmax()]:,}"
    if error.max() < _LARGE:
        return largest
    return f"{largest}, by more than {_LARGE} from position {place[error > _LARGE].min():,} on"
