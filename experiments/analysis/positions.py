"""An encoding's effect on two patches: likeness of their codes, likeness of their rotations, bias of logits.

The three maps cover all ways to act on attention: an additive encoding has codes, a rotary one agreement, a bias a bias. An
encoding without such an action shows codes of 0, an agreement of 1, a bias of 0.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from experiments.analysis.patches import patch_index
from posjax.describe import probes
from posjax.describe.worlds import Part
from posjax.encoding import Array, Dims, Encoding, Params, Site


def similarity_map(table: Float[Array, "h w M"]) -> Float[np.ndarray, "h w h w"]:
    """Returns the cosine similarity of the code at (row, column) to the code at every other place; nan for zero codes.

    Dosovitskiy et al. (2020), arXiv 2010.11929, figure 7 centre and figure 10: result[row, column] is a tile there.
    """
    table = np.asarray(table, np.float64)
    length = np.linalg.norm(table, axis=-1, keepdims=True)
    unit = table / np.where(length > 0, length, np.nan)
    return np.einsum("ijm,klm->ijkl", unit, unit)


class Effects(NamedTuple):
    """What an encoding does to patches: to the one at (row, column), or to a query there and a key anywhere.

    Attributes:
      codes: what `embed` adds to tokens of zeros or, where that depends on the tokens, to random ones.
      agreement: trace(R_q^T R_k) / D of the turns by `rotate`, the mean of q' . k' over q = k of all directions, relative to
        q . k. It does not depend on content (`frequencies.frequency_use` does). None if `rotate` is not linear in q and k.
      bias: of logits; for random content if it reads content.
    """

    codes: Float[np.ndarray, "h w M"]
    agreement: Float[np.ndarray, "H h w h w"] | None
    bias: Float[np.ndarray, "H h w h w"]


def effects(encoding: Encoding, params: Params, dims: Dims, site: Site) -> Effects:
    """Returns what an encoding does to the patches of a model of these sizes, whose tokens are not yet placed."""
    part, index = Part(encoding, params, encoding.place(params, site)), patch_index(site)
    patches, pairs = index.ravel(), (-1, *index.shape, *index.shape)
    agreement, rotation = None, probes.linear_rotation(part, dims)
    if rotation is not None:
        query, key = (np.moveaxis(x[patches], 1, 0).reshape(dims.num_heads, len(patches), -1) for x in rotation)
        agreement = (query @ np.swapaxes(key, 1, 2) / dims.head_dim).reshape(pairs)
    codes, bias = (np.asarray(probe(part, dims)[0]) for probe in (probes.codes, probes.bias))
    return Effects(codes[index], agreement, bias[:, patches][..., patches].reshape(pairs))
