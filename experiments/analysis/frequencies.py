"""The frequencies of a rotary encoding that the heads of a trained model use."""

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from experiments.analysis.subject import Subject
from posjax.describe import probes
from posjax.describe.worlds import Part
from posjax.encoding import Array, Dims, Encoding, Params, Site, axes


class Waves(NamedTuple):
    """The pairs of channels that turn, and their angles from token to token.

    `wave` is in radians per token or patch along each axis, within a half turn: whole patches cannot show more.
    """

    pairs: list[tuple[int, int]]
    wave: Float[np.ndarray, "A H P"]

    @property
    def magnitude(self) -> Float[np.ndarray, "H P"]:
        """Returns radians per patch along the direction in which a pair turns fastest."""
        return np.linalg.norm(self.wave, axis=0)


def layer_waves(subject: Subject, site: Site) -> list[Waves | None]:
    """Returns the frequencies of each layer; layers with one encoding and its parameters share them."""
    known, by_layer = {}, []
    for name, encoding, params in subject.layers:
        key = encoding, name if jax.tree.leaves(params) else ""
        if key not in known:
            known[key] = waves(encoding, params, subject.dims, site)
        by_layer.append(known[key])
    return by_layer


def waves(encoding: Encoding, params: Params, dims: Dims, site: Site) -> Waves | None:
    """The wave vectors of every head, read off `rotate`; None if it does not turn pairs of channels.

    Args:
      dims: the sizes of the model.
      site: the model's tokens; (0, 0) and its neighbours must be among them.
    """
    placed = encoding.place(params, site)
    rotation = probes.linear_rotation(Part(encoding, params, placed), dims)
    turns = None if rotation is None else probes.turns(rotation.query)
    if turns is None or not turns.pairs:
        return None
    rates = probes.frequencies(turns, site, placed)
    return None if rates is None else Waves(turns.pairs, rates * _units(site, placed)[:, None, None])


def frequency_use(
    q: Float[Array, "B T H D"], k: Float[Array, "B T K D"], pairs: list[tuple[int, int]], site: Site | None = None
) -> Float[np.ndarray, "H P"]:
    """Returns the use of each pair of channels that turns together: the mean of |q_c| |k_c| over tokens, and over sequences.

    Barbero et al. (2024), arXiv 2410.06205, section 4: the mean 2-norm of each 2-D chunk of queries and of keys. As
    |q_c . k_c| <= |q_c| |k_c|, a pair that is small in either does little. A rotation keeps norms: q and k may be rotated or
    not.

    Args:
      k: keys; they may have fewer heads than queries.
      pairs: channels (a, b), as in `Waves`.
      site: of the tokens; tokens without position, which do not turn, are then left out.
    """
    if site is not None:
        stand = np.flatnonzero((np.asarray(site.prefix) == 0) & (np.asarray(site.segment) > 0))
        q, k = np.asarray(q)[:, stand], np.asarray(k)[:, stand]
    chunks = (np.asarray(x, np.float64)[..., np.asarray(pairs)] for x in (q, k))
    query, key = (np.hypot(x[..., 0], x[..., 1]).mean(axis=1) for x in chunks)
    return (query * np.repeat(key, query.shape[1] // key.shape[1], axis=1)).mean(axis=0)


def _units(site: Site, placed: Site) -> Float[np.ndarray, " A"]:
    """The distance of a patch from its neighbour in the encoding's positions, along each axis that it sees."""
    before, after = (np.asarray(axes(each), np.float64) for each in (site, placed))
    if before.shape != after.shape:
        return np.ones(after.shape[1])
    stand, units = np.flatnonzero(np.asarray(site.prefix) == 0), []
    for axis in range(before.shape[1]):
        first, last = (stand[pick(before[stand, axis])] for pick in (np.argmin, np.argmax))
        span = before[last, axis] - before[first, axis]
        units.append((after[last, axis] - after[first, axis]) / span if span else 1.0)
    return np.array(units)


def share_of_pairs(use: Float[np.ndarray, "H P"], magnitude: Float[np.ndarray, "H P"], part: float) -> np.ndarray:
    """Returns the share of each head's use in its slowest pairs (`part` > 0) or its fastest (`part` < 0), [H].

    Args:
      part: the share of the pairs: 0.25 for the slowest quarter, -0.25 for the fastest.
    """
    count = round(abs(part) * use.shape[1])
    order = np.argsort(magnitude, axis=1, kind="stable")
    chosen = order[:, :count] if part > 0 else order[:, -count:]
    return np.take_along_axis(use, chosen, axis=1).sum(axis=1) / use.sum(axis=1)
