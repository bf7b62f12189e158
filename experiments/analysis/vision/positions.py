"""An encoding's effect on two patches: likeness of their codes, likeness of their rotations, bias of logits.

The three maps cover all ways to act on attention: an additive encoding has codes, a rotary one agreement, a bias a bias. An
encoding without such an action shows codes of 0, an agreement of 1, a bias of 0. `frequency_use` shows the frequencies of a
rotary encoding that a trained model's heads use.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from experiments.analysis.vision.attention import patch_index
from posjax.describe import probes
from posjax.describe.worlds import Part
from posjax.encoding import Array, Dims, Encoding, Params, Site


def similarity_map(table: Float[Array, "h w M"]) -> Float[np.ndarray, "h w h w"]:
    """Returns the cosine similarity of the code at (row, column) to the code at every other place; nan for zero codes.

    Dosovitskiy et al. (2020), arXiv 2010.11929, figure 7 centre and figure 10: result[row, column] is a tile there.

    Raises:
      ValueError: the table is not [h, w, M].
    """
    if np.ndim(table) != 3:
        raise ValueError(
            f"a table of codes is [h, w, M], got {np.shape(table)}: leave out the rows of class token and registers, and "
            "reshape the others to their grid"
        )
    table = np.asarray(table, np.float64)
    length = np.linalg.norm(table, axis=-1, keepdims=True)
    unit = table / np.where(length > 0, length, np.nan)
    return np.einsum("ijm,klm->ijkl", unit, unit)


def code_table(encoding: Encoding, params: Params, dims: Dims, site: Site) -> Float[np.ndarray, "h w M"]:
    """The codes that `embed` adds to each patch: to tokens of zeros or, where that depends on the tokens, to random ones.

    Args:
      dims: the sizes of the model.
      site: the model's tokens, not yet placed.

    Raises:
      ValueError: the patches do not fill a grid.
    """
    codes, _ = probes.codes(_placed(encoding, params, site), dims)
    return np.asarray(codes)[patch_index(site)]


def rotation_agreement(
    encoding: Encoding, params: Params, dims: Dims, site: Site
) -> Float[np.ndarray, "H h w h w"] | None:
    """The logit of a word with itself under `rotate`, for a query at (row, column) and a key anywhere.

    This is the mean of q' . k' over q = k of all directions, relative to the mean of q . k: trace(R_q^T R_k) / D. For a
    rotary encoding it is the mean cosine of the angles between the two places, 1 at the same place. It does not depend on
    content (`frequency_use` does). None if `rotate` is not linear in q and k.

    Raises:
      ValueError: the patches do not fill a grid.
    """
    found = probes.linear_rotation(_placed(encoding, params, site), dims)
    if found is None:
        return None
    index = patch_index(site)
    query, key = (np.moveaxis(each[index.ravel()], 1, 0).reshape(dims.num_heads, index.size, -1) for each in found)
    return (query @ np.swapaxes(key, 1, 2) / dims.head_dim).reshape(-1, *index.shape, *index.shape)


def bias_map(encoding: Encoding, params: Params, dims: Dims, site: Site) -> Float[np.ndarray, "H h w h w"]:
    """The `bias` of a query at (row, column) and a key anywhere; random content if it reads content.

    Raises:
      ValueError: the patches do not fill a grid.
    """
    found, _ = probes.bias(_placed(encoding, params, site), dims)
    index = patch_index(site)
    among = np.asarray(found)[:, index.ravel()][..., index.ravel()]
    return among.reshape(-1, *index.shape, *index.shape)


def _placed(encoding: Encoding, params: Params, site: Site) -> Part:
    return Part(encoding, params, encoding.place(params, site))


class Waves(NamedTuple):
    """The pairs of channels that turn, and their angles from patch to patch.

    `wave` is in radians per patch along each axis, within a half turn: whole patches cannot show more.
    """

    pairs: list[tuple[int, int]]
    wave: Float[np.ndarray, "A H P"]

    @property
    def magnitude(self) -> Float[np.ndarray, "H P"]:
        """Returns radians per patch along the direction in which a pair turns fastest."""
        return np.linalg.norm(self.wave, axis=0)


class FrequencyUse(NamedTuple):
    """Mean 2-norms of the pairs of channels, and their product: a bound on a pair's part of a logit."""

    query: Float[np.ndarray, "H P"]
    key: Float[np.ndarray, "H P"]
    product: Float[np.ndarray, "H P"]  # mean of |q_c| |k_c| over the pairs of tokens of an image, and over images


def waves(encoding: Encoding, params: Params, dims: Dims, site: Site) -> Waves | None:
    """The wave vectors of every head, read off `rotate`; None if it does not turn pairs of channels.

    Args:
      dims: the sizes of the model.
      site: the model's tokens; (0, 0) and its neighbours must be among them.
    """
    placed = encoding.place(params, site)
    found = probes.linear_rotation(Part(encoding, params, placed), dims)
    turns = None if found is None else probes.turns(found.query)
    if turns is None or not turns.pairs:
        return None
    rates = probes.frequencies(turns, site, placed)
    if rates is None:
        return None
    return Waves(turns.pairs, rates * _units(site, placed)[:, None, None])


def frequency_use(
    q: Float[Array, "B T H D"], k: Float[Array, "B T K D"], pairs: list[tuple[int, int]], site: Site | None = None
) -> FrequencyUse:
    """The share of queries and keys in each pair of channels that turns together.

    Barbero et al. (2024), arXiv 2410.06205, section 4: the mean 2-norm of each 2-D chunk of queries and of keys. As
    |q_c . k_c| <= |q_c| |k_c|, a pair that is small in either does little. A rotation keeps norms: q and k may be rotated or
    not.

    Args:
      q: queries.
      k: keys.
      pairs: channels (a, b), as in `Waves`.
      site: site of the tokens; tokens without position, which do not turn, are then left out.

    Raises:
      ValueError: heads of keys that do not divide the heads of queries.
    """
    heads, key_heads = np.shape(q)[2], np.shape(k)[2]
    if heads % key_heads:
        raise ValueError(f"{key_heads} key heads cannot be shared evenly by {heads} query heads")
    if site is not None:
        stand = np.flatnonzero((np.asarray(site.prefix) == 0) & (np.asarray(site.segment) > 0))
        q, k = np.asarray(q)[:, stand], np.asarray(k)[:, stand]
    query, key = _mean_norms(q, pairs), np.repeat(_mean_norms(k, pairs), heads // key_heads, axis=1)
    return FrequencyUse(query.mean(axis=0), key.mean(axis=0), (query * key).mean(axis=0))


def _mean_norms(x: Float[Array, "B T H D"], pairs: list[tuple[int, int]]) -> Float[np.ndarray, "B H P"]:
    x = np.asarray(x, np.float64)
    first, second = (x[..., [pair[side] for pair in pairs]] for side in (0, 1))
    return np.hypot(first, second).mean(axis=1)


def _units(site: Site, placed: Site) -> Float[np.ndarray, " A"]:
    """The distance of a patch from its neighbour in the encoding's positions, along each axis that it sees."""
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
