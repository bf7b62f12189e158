"""What an encoding tells of two patches: how alike their codes are, how alike they are turned, how logits are biased.

Together the three maps cover all ways to act on attention: an additive encoding has codes, a rotary one agreement, a bias a
bias; of what does nothing they show nothing (codes of 0, an agreement of 1, a bias of 0).
"""

import numpy as np
from jaxtyping import Float

from posjax.analysis.encoding import probes
from posjax.analysis.encoding.worlds import Part
from posjax.analysis.vision.grids import patch_index
from posjax.encoding import Array, Dims, Encoding, Params, Site


def similarity_map(table: Float[Array, "h w M"]) -> Float[np.ndarray, "h w h w"]:
    """Cosine similarity of the code at (row, column) to that at every other place; nan for a code of zeros.

    Dosovitskiy et al. (2020), arXiv 2010.11929, figure 7 centre and figure 10: result[row, column] is one of its tiles.

    Raises:
      ValueError: a table that is not [h, w, M].
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
    """What `embed` adds to each patch: to tokens of zeros or, where that depends on the tokens, to random ones.

    Args:
      dims: the sizes of the model. site: its tokens as the model gives them, not yet placed.

    Raises:
      ValueError: patches that do not fill a grid.
    """
    codes, _ = probes.codes(_placed(encoding, params, site), dims)
    return np.asarray(codes)[patch_index(site)]


def rotation_agreement(
    encoding: Encoding, params: Params, dims: Dims, site: Site
) -> Float[np.ndarray, "H h w h w"] | None:
    """What `rotate` leaves of the logit of a word with itself, for a query at (row, column) and a key anywhere.

    The mean of q' . k' over q = k of all directions, relative to that of q . k: trace(R_q^T R_k) / D, which for a rotary
    encoding is the mean of the cosines of its angles between the two places, 1 where both are one. No content enters; what
    heads make of it is their choice (`frequency_use`). None where `rotate` is not linear in q and k.

    Raises:
      ValueError: patches that do not fill a grid.
    """
    found = probes.transform(_placed(encoding, params, site), dims)
    if found is None:
        return None
    index = patch_index(site)
    query, key = (np.moveaxis(each[index.ravel()], 1, 0).reshape(dims.num_heads, index.size, -1) for each in found)
    return (query @ np.swapaxes(key, 1, 2) / dims.head_dim).reshape(-1, *index.shape, *index.shape)


def bias_map(encoding: Encoding, params: Params, dims: Dims, site: Site) -> Float[np.ndarray, "H h w h w"]:
    """What `bias` adds to the logit of a query at (row, column) and a key anywhere; of random content where it reads that.

    Raises:
      ValueError: patches that do not fill a grid.
    """
    found, _ = probes.bias(_placed(encoding, params, site), dims)
    index = patch_index(site)
    among = np.asarray(found)[:, index.ravel()][..., index.ravel()]
    return among.reshape(-1, *index.shape, *index.shape)


def _placed(encoding: Encoding, params: Params, site: Site) -> Part:
    return Part(encoding, params, encoding.place(params, site))
