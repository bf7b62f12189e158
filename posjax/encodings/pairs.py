"""What a logit bias may know of a pair of tokens, and how a function of it is evaluated on a tile."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Shaped

from posjax.encoding import Array, Encoding, Params, Site

# The bias of a key that one head does not see, as `mask` knows no heads; finite, so that -inf meets no arithmetic.
HIDDEN = -1e9
_HELD = 2**20  # activations of a hidden layer that are held at a time


class OffsetBias(Encoding):
    """A bias that is a function of the offset k - q, and 0 where one of the two stands nowhere."""

    @property
    def offset_bias(self):
        return type(self).bias is OffsetBias.bias  # a bias that a derived class makes of this one may know more

    def bias(self, params, q, q_site, k, k_site):
        offset = self.coordinates(k_site)[None] - self.coordinates(q_site)[:, None]
        return jnp.where(related(q_site, k_site), self.of_offset(params, offset, q.shape[1]), 0.0)

    def of_offset(self, params: Params, offset: Shaped[Array, "T S A"], num_heads: int) -> Float[jax.Array, "#H T S"]:
        """The bias of each head at each offset, in float32."""
        raise NotImplementedError


def related(q_site: Site, k_site: Site) -> Bool[Array, "T S"]:
    """Which pairs both stand somewhere, in the same document; the positions of any other pair mean nothing."""
    standing = (q_site.prefix == 0)[:, None] & (k_site.prefix == 0)[None]
    return standing & same_document(q_site, k_site)


def same_document(q_site: Site, k_site: Site) -> Bool[Array, "T S"]:
    return (q_site.segment[:, None] == k_site.segment[None]) & (k_site.segment > 0)[None]


def length(offset: Shaped[Array, "*N A"]) -> Float[jax.Array, "*N"]:
    """The Euclidean length of offsets, with a finite gradient at 0."""
    offset = jnp.asarray(offset, jnp.float32)
    if offset.shape[-1] == 1:
        return jnp.abs(offset[..., 0])
    squared = jnp.sum(jnp.square(offset), axis=-1)
    return jnp.where(squared > 0, jnp.sqrt(jnp.where(squared > 0, squared, 1.0)), 0.0)


def log_offset(offset: Float[jax.Array, "*N A"]) -> Float[jax.Array, "*N A"]:
    """sign(x) ln(1 + |x|) of each coordinate."""
    return jnp.sign(offset) * jnp.log1p(jnp.abs(offset))


def per_head(values: np.ndarray) -> Array:
    """[H, 1, 1], so that a value meets the tile of its head; floats in float32."""
    values = np.asarray(values)
    return (values.astype(np.float32) if values.dtype == np.float64 else values)[:, None, None]


def pairwise(
    function: Callable[[jax.Array], jax.Array], features: Float[jax.Array, "T S F"], hidden: int
) -> Float[jax.Array, "H T S"]:
    """function([..., F]) -> [..., H] of every pair, where it has hidden layers `hidden` wide.

    A tile's hidden layer would dwarf its logits, so only some queries are computed at a time, and again in the
    backward pass.
    """
    queries = max(1, _HELD // (features.shape[1] * hidden))
    if features.shape[0] <= queries:
        return jnp.moveaxis(function(features), -1, 0)
    return jnp.moveaxis(jax.lax.map(jax.checkpoint(function), features, batch_size=queries), -1, 0)


def linear_init(key: jax.Array, inputs: int, outputs: int, *, bias: bool = True) -> dict[str, Any]:
    """A kernel [inputs, outputs] and a bias [outputs], uniform within inputs^(-1/2) of 0 as torch.nn.Linear's are."""
    keys, bound = jax.random.split(key), inputs**-0.5
    layer = {"kernel": jax.random.uniform(keys[0], (inputs, outputs), minval=-bound, maxval=bound)}
    return layer | ({"bias": jax.random.uniform(keys[1], (outputs,), minval=-bound, maxval=bound)} if bias else {})


def linear(layer: dict[str, Any], x: Float[jax.Array, "*N F"]) -> Float[jax.Array, "*N G"]:
    """x times the kernel plus the bias, if there is one, in full float32 on every device."""
    return jnp.matmul(x, layer["kernel"], precision="highest") + layer.get("bias", 0.0)
