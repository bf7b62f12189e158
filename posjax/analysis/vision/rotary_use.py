"""Which of a rotary encoding's frequencies the heads of a trained model use."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from posjax.analysis.encoding import probes
from posjax.analysis.encoding.worlds import Part
from posjax.encoding import Array, Dims, Encoding, Params, Site


class Waves(NamedTuple):
    """The pairs of channels that turn, and by how much from patch to patch.

    `wave` are radians per patch along each axis, within a half turn: on whole patches that is all there is to see.
    """

    pairs: list[tuple[int, int]]
    wave: Float[np.ndarray, "A H P"]

    @property
    def magnitude(self) -> Float[np.ndarray, "H P"]:
        """Radians per patch along the direction in which a pair turns fastest."""
        return np.linalg.norm(self.wave, axis=0)


class Use(NamedTuple):
    """Mean 2-norms of the pairs of channels, and their product: a bound on what a pair adds to a logit."""

    query: Float[np.ndarray, "H P"]
    key: Float[np.ndarray, "H P"]
    product: Float[np.ndarray, "H P"]  # mean of |q_c| |k_c| over the pairs of tokens of an image, and over images


def waves(encoding: Encoding, params: Params, dims: Dims, site: Site) -> Waves | None:
    """The wave vectors of every head, read off `rotate`; None where pairs of channels are not what is turned.

    Args:
      dims: the sizes of the model. site: its tokens as the model gives them; (0, 0) and its neighbours must be among them.
    """
    placed = encoding.place(params, site)
    found = probes.transform(Part(encoding, params, placed), dims)
    turns = None if found is None else probes.turns(found.query)
    if turns is None or not turns.pairs:
        return None
    rates = probes.frequencies(turns, site, placed)
    if rates is None:
        return None
    return Waves(turns.pairs, rates * _units(site, placed)[:, None, None])


def frequency_use(
    q: Float[Array, "B T H D"], k: Float[Array, "B T K D"], pairs: list[tuple[int, int]], site: Site | None = None
) -> Use:
    """How much of queries and keys lies in each pair of channels that turns together.

    Barbero et al. (2024), arXiv 2410.06205, section 4: the mean 2-norm of each 2-D chunk of queries and of keys; as
    |q_c . k_c| <= |q_c| |k_c|, a pair that is small in either does little. A rotation leaves the norms as they are: q and k
    may come before or after it.

    Args:
      pairs: channels (a, b), as in `Waves`.
      site: of the tokens; those that stand nowhere, which are not turned, are then left out.

    Raises:
      ValueError: heads of keys that do not divide those of queries.
    """
    heads, key_heads = np.shape(q)[2], np.shape(k)[2]
    if heads % key_heads:
        raise ValueError(f"{key_heads} key heads cannot be shared evenly by {heads} query heads")
    if site is not None:
        stand = np.flatnonzero((np.asarray(site.prefix) == 0) & (np.asarray(site.segment) > 0))
        q, k = np.asarray(q)[:, stand], np.asarray(k)[:, stand]
    query, key = _mean_norms(q, pairs), np.repeat(_mean_norms(k, pairs), heads // key_heads, axis=1)
    return Use(query.mean(axis=0), key.mean(axis=0), (query * key).mean(axis=0))


def _mean_norms(x: Float[Array, "B T H D"], pairs: list[tuple[int, int]]) -> Float[np.ndarray, "B H P"]:
    x = np.asarray(x, np.float64)
    first, second = (x[..., [pair[side] for pair in pairs]] for side in (0, 1))
    return np.hypot(first, second).mean(axis=1)


def _units(site: Site, placed: Site) -> Float[np.ndarray, " A"]:
    """How far the encoding sees a patch from its neighbour, along each axis; it sees as many axes as there are, or one."""
    before, after = (np.asarray(each.position, np.float64) for each in (site, placed))
    if before.shape != after.shape:
        return np.ones(1 if after.ndim == 1 else after.shape[1])
    stand = np.asarray(site.prefix) == 0
    found = []
    for axis in range(before.shape[1]):
        first, last = (np.flatnonzero(stand & (before[:, axis] == pick(before[stand, axis]))) for pick in (min, max))
        span = before[last[0], axis] - before[first[0], axis]
        found.append((after[last[0], axis] - after[first[0], axis]) / span if span else 1.0)
    return np.array(found)
