"""An encoding's effect on two patches: likeness of their codes, likeness of their rotations, bias of logits.

The three maps cover all ways to act on attention: an additive encoding has codes, a rotary one agreement, a bias a bias. An
encoding without such an action shows codes of 0, an agreement of 1, a bias of 0.
"""

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


def code_table(encoding: Encoding, params: Params, dims: Dims, site: Site) -> Float[np.ndarray, "h w M"]:
    """The codes that `embed` adds to each patch: to tokens of zeros or, where that depends on the tokens, to random ones.

    Args:
      dims: the sizes of the model.
      site: the model's tokens, not yet placed.
    """
    codes, _ = probes.codes(Part(encoding, params, encoding.place(params, site)), dims)
    return np.asarray(codes)[patch_index(site)]


def rotation_agreement(
    encoding: Encoding, params: Params, dims: Dims, site: Site
) -> Float[np.ndarray, "H h w h w"] | None:
    """The logit of a word with itself under `rotate`, for a query at (row, column) and a key anywhere.

    This is the mean of q' . k' over q = k of all directions, relative to the mean of q . k: trace(R_q^T R_k) / D. For a
    rotary encoding it is the mean cosine of the angles between the two places, 1 at the same place. It does not depend on
    content (`frequencies.frequency_use` does). None if `rotate` is not linear in q and k.
    """
    rotation = probes.linear_rotation(Part(encoding, params, encoding.place(params, site)), dims)
    if rotation is None:
        return None
    index = patch_index(site)
    query, key = (np.moveaxis(x[index.ravel()], 1, 0).reshape(dims.num_heads, index.size, -1) for x in rotation)
    return (query @ np.swapaxes(key, 1, 2) / dims.head_dim).reshape(-1, *index.shape, *index.shape)


def bias_map(encoding: Encoding, params: Params, dims: Dims, site: Site) -> Float[np.ndarray, "H h w h w"]:
    """The `bias` of a query at (row, column) and a key anywhere; random content if it reads content."""
    bias, _ = probes.bias(Part(encoding, params, encoding.place(params, site)), dims)
    index = patch_index(site)
    among = np.asarray(bias)[:, index.ravel()][..., index.ravel()]
    return among.reshape(-1, *index.shape, *index.shape)
