"""Patch dropout: Liu et al. (2022), "PatchDropout: Economizing Vision Transformers Using Patch Dropout", arXiv 2208.07220."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int32, Shaped

from posjax.encoding import Array, Site
from posjax.encodings.placement import standing
from posjax.hosting import batch_axis


class Kept(NamedTuple):
    """The tokens of each sequence that stay, in their order."""

    index: Int32[Array, "B K"]
    live: Bool[Array, "B K"]  # False: padding, in a row that keeps fewer than K


def draw_kept(key: jax.Array, rate: float, site: Site, batch: int, num_images: int, num_prefix: int) -> Kept:
    """Draws the tokens to keep: all prefix tokens, and all but `floor(rate * n)` of the n patches of each image.

    K is the largest number that a row of `num_images` images may keep, whatever the batch holds.

    Raises:
      ValueError: for a rate outside [0, 1).
    """
    if not 0 <= rate < 1:
        raise ValueError(f"patch_dropout={rate} must lie in [0, 1)")
    total = site.segment.shape[-1]
    dropped = np.floor(rate * np.arange(total + 1) + 1e-9).astype(np.int32)  # by the number of patches
    # Each image rounds down by itself, so all images but the last may add one kept patch.
    room = min(total, total - int(dropped[max(total - num_images * num_prefix, 0)]) + num_images - 1)

    def draw_row(site: Site, chance) -> Kept:
        image = jnp.where(standing(site), site.segment, 0)
        order = jnp.lexsort((chance, image))
        inside = image[order]
        first, behind = (jnp.searchsorted(inside, image, side=side) for side in ("left", "right"))
        rank = jnp.zeros_like(order).at[order].set(np.arange(total, dtype=np.int32)) - first
        stays = jnp.where(image > 0, rank >= jnp.asarray(dropped)[behind - first], site.segment > 0)
        index = jnp.argsort(~stays, stable=True)[:room]
        return Kept(index, stays[index])

    return jax.vmap(draw_row, in_axes=(batch_axis(site), 0))(site, jax.random.uniform(key, (batch, total), jnp.float32))


def take(x: Shaped[Array, "B T *M"], kept: Kept) -> Shaped[jax.Array, "B K *M"]:
    """Returns the kept tokens of each sequence."""
    return jax.vmap(lambda row, index: row[index])(jnp.asarray(x), kept.index)


def taken(site: Site, kept: Kept) -> Site:
    """Returns the site of the kept tokens, with leaves [B, K, ...]."""
    shared = batch_axis(site) is None
    site = jax.tree.map(lambda leaf: jnp.asarray(leaf)[kept.index] if shared else take(leaf, kept), site)
    return site._replace(segment=jnp.where(kept.live, site.segment, 0))
