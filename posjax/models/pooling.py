"""Pooling of tokens to one vector for each image."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from posjax.encoding import Site
from posjax.models.block import BlockConfig, Mlp
from posjax.models.layers import Norm

POOLINGS = ["cls", "cls_mean", "map", "mean", "none"]


def readers(site: Site, num_images: int | None, prefix: int = 0) -> Bool[jax.Array, "*B I T"]:
    """Returns a mask of the tokens of image 1 ... I of a row (None: its only image) with this number of `site.prefix`.

    Args:
      prefix: 0 for patches.
    """
    segment = jnp.asarray(site.segment)[..., None, :]
    own = segment > 0 if num_images is None else segment == jnp.arange(1, num_images + 1, dtype=jnp.int32)[:, None]
    return own & (jnp.asarray(site.prefix)[..., None, :] == prefix)


def mean(x: Float[jax.Array, "B T M"], read: Bool[jax.Array, "*B I T"]) -> Float[jax.Array, "B I M"]:
    """Returns the mean over the tokens of each image's mask; zeros for an empty mask."""
    weight = read.astype(x.dtype)
    weight = weight / jnp.maximum(weight.sum(axis=-1, keepdims=True), 1)
    return jnp.einsum("...it,...tm->...im", weight, x)


class MapPooling(nn.Module):
    """Multi-head attention pooling: a learned query reads the tokens, then y + MLP(norm(y)).

    Zhai et al. (2021), arXiv 2106.04560, as `MAPHead` of big_vision.
    """

    config: BlockConfig

    @nn.compact
    def __call__(self, x: Float[jax.Array, "B T M"], read: Bool[jax.Array, "*B I T"]) -> Float[jax.Array, "B I M"]:
        c, (batch, _, width) = self.config, x.shape
        query = self.param("probe", nn.initializers.xavier_uniform(), (1, width), c.param_dtype)
        wide = jnp.promote_types(c.dtype, jnp.float32)  # flax sums softmax and gradients of biases in its dtype
        query = jnp.broadcast_to(query.astype(wide), (batch, read.shape[-2], width))
        mask = jnp.broadcast_to(read, (batch, *read.shape[-2:]))[:, None]
        types = c.types | dict(dtype=wide)
        y = nn.MultiHeadDotProductAttention(c.num_heads, name="attention", **types)(query, x, mask=mask).astype(x.dtype)
        return y + Mlp(c, name="mlp")(Norm(c, name="norm")(y))
