"""What kernels know of a composition: the members that have a bias, its masks, and marks of where tokens stand.

A member declares its bias once, and every kernel takes the forms that it can compute: a function of the offset
(`OffsetBias`), the same element by element from a few constants of the head (`ElementwiseBias`), a product of vectors of a
token and of the offset (`ProductBias`), or a difference of numbers of key and query (`Encoding.is_difference`).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int32

from posjax.encoding import Acting, Array, Encoding, Params, Site, acting
from posjax.encodings.offsets import ProductBias
from posjax.encodings.pairs import OffsetBias
from posjax.mask import Coordinates, Mask

HIDDEN = -1e30  # the logit of a hidden key
DOCUMENT, ORDER, STANDS, POSITIONS = 0, 1, 2, 3  # rows of the marks, followed by one for each term


Masks = tuple[tuple[Mask, int], ...]  # each with the number of rows of the marks that it compares


class Pairs(NamedTuple):
    """Accessors to the marks of a tile's queries and keys, which broadcast over the tile."""

    q: Callable[[int], jax.Array]  # a row of the marks
    k: Callable[[int], jax.Array]
    q_bounds: Callable[[int], tuple] | None = (
        None  # the least and the greatest position of a term, for kernels that ask
    )
    k_bounds: Callable[[int], tuple] | None = None


def has_no_bias(member: Encoding) -> bool:
    return type(member).bias is Encoding.bias


def is_of_offset(member: Encoding) -> bool:
    """Whether the bias of two tokens of a document depends only on how far apart they stand."""
    return type(member).bias is OffsetBias.bias


def is_product(member: Encoding) -> bool:
    """Whether the bias of two tokens of a document is a product of a vector of one of them and a vector of the offset."""
    return type(member).bias is ProductBias.bias


def biased(encoding: Encoding, params: Params, q_site: Site, k_site: Site) -> list[Acting]:
    """The members that have a bias."""
    return [one for one in acting(encoding, params, q_site, k_site) if not has_no_bias(one.encoding)]


def lines_refusal(named: list[tuple[str, Coordinates]], most: int | None = 1) -> str | None:
    """Why a kernel that takes so many axes cannot mark the positions of terms, (name, coordinates) each; None if it can."""
    for name, position in named:
        if most and len(position) > most:
            return f"{name} is computed on a line in the kernel, positions have {len(position)} axes"
        if strange := [axis.dtype for axis in position if not jnp.issubdtype(axis.dtype, np.integer)]:
            return f"{name} has positions of {strange[0]}, to which the kernel gives no gradient"
    return None


def marks(
    site: Site, order: Array | None, positions: list[Array], padding: int, length: int
) -> Int32[jax.Array, "R N"]:
    """The marks of tokens, by which the kernel knows where they stand: rows of document, order, whether a token stands
    somewhere, and positions by term.

    Padding, and the tokens added to fill `length`, have document `padding`.
    """
    document = jnp.where(site.segment > 0, site.segment, padding)
    order = jnp.zeros_like(document) if order is None else order
    rows = [document, order, jnp.where(site.prefix == 0, 1, 0), *positions]
    stacked = jnp.stack([jnp.asarray(row, jnp.int32) for row in rows])
    added = [(0, 0), (0, length - stacked.shape[1])]
    return jnp.concatenate(
        [jnp.pad(stacked[:1], added, constant_values=padding), jnp.pad(stacked[1:], added, mode="edge")]
    )


def seen(masks: Masks, causal: bool, pairs: Pairs) -> jax.Array:
    """Marks the pairs of a tile in which the query sees the key. The positions of masks are the first behind the marks."""
    found = pairs.q(DOCUMENT) == pairs.k(DOCUMENT)
    if causal:
        found = found & (pairs.k(ORDER) <= pairs.q(ORDER))
    if not masks:
        return found
    shown, start = True, POSITIONS
    for mask, count in masks:
        rows, start = range(start, start + count), start + count
        shown = shown & mask.shows(*(tuple(map(side, rows)) for side in (pairs.q, pairs.k)))
    return found & (shown | apart(pairs))


def apart(pairs: Pairs) -> jax.Array:
    """Pairs in which a token stands nowhere: they have no bias and no mask hides them."""
    return pairs.q(STANDS) + pairs.k(STANDS) < 2
