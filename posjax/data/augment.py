"""Standard image augmentation on the device, in pure JAX.

What an example gets depends on the key and on its index in the global batch only, so neither the number of processes
nor the way the batch is sharded changes a run.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, Shaped, UInt8

_PADDING = {"black": {"mode": "constant", "constant_values": -1.0}, "reflect": {"mode": "reflect"}}


def normalise(images: UInt8[Array | np.ndarray, "*shape"]) -> Float[Array, "*shape"]:
    """Maps 0..255 to [-1, 1], float32."""
    return jnp.asarray(images, jnp.float32) / 127.5 - 1.0


def _keys(key: PRNGKeyArray, count: int, first: int) -> Shaped[Array, " b ..."]:
    return jax.vmap(lambda index: jax.random.fold_in(key, index))(first + jnp.arange(count))


def augment(
    key: PRNGKeyArray,
    images: Float[Array, "b h w c"],
    *,
    crop_padding: int = 0,
    flip: bool = False,
    padding: str = "reflect",
    first: int = 0,
) -> Float[Array, "b h w c"]:
    """Random crop of the padded image, back to its size, and horizontal flip with probability 1/2.

    Args:
      key: of this step; the same key gives the same draws.
      images: the batch, any float type.
      crop_padding: pixels added on every side before cropping; 0 crops nothing.
      flip: whether to flip.
      padding: "reflect", or "black" (-1 after `normalise`), as usual for dark backgrounds.
      first: index of images[0] in the global batch, where a process holds only a slice of it.

    Raises:
      ValueError: a negative padding, one that reflection cannot fill, or an unknown kind of padding.
    """
    _, h, w, c = images.shape
    if padding not in _PADDING:
        raise ValueError(f"padding={padding!r} must be one of {', '.join(map(repr, _PADDING))}")
    if crop_padding < 0 or (padding == "reflect" and crop_padding >= min(h, w)):
        raise ValueError(f"crop_padding={crop_padding} must lie in 0..{min(h, w) - 1} for images of {h}x{w}")

    def one(key: PRNGKeyArray, image: Float[Array, "h w c"]) -> Float[Array, "h w c"]:
        crop_key, flip_key = jax.random.split(key)
        if crop_padding:
            edges = ((crop_padding, crop_padding), (crop_padding, crop_padding), (0, 0))
            corner = jax.random.randint(crop_key, (2,), 0, 2 * crop_padding + 1)
            image = jnp.pad(image, edges, **_PADDING[padding])
            image = jax.lax.dynamic_slice(image, (*corner, 0), (h, w, c))
        if flip:
            image = jnp.where(jax.random.bernoulli(flip_key), image[:, ::-1], image)
        return image

    return jax.vmap(one)(_keys(key, len(images), first), images)


def mixup(
    key: PRNGKeyArray,
    images: Float[Array, "b h w c"],
    labels: Float[Array, "b k"],
    alpha: float,
) -> tuple[Float[Array, "b h w c"], Float[Array, "b k"]]:
    """Mixes each example with its predecessor in the batch (https://arxiv.org/abs/1710.09412).

    x_i <- l_i x_i + (1 - l_i) x_{i-1}, and the same for the labels, with l_i ~ Beta(alpha, alpha) drawn per example and
    replaced by max(l_i, 1 - l_i), so that x_i keeps the larger part. Takes the global batch.

    Args:
      key: of this step.
      images: the batch.
      labels: one-hot or already soft labels.
      alpha: > 0; small values mix little.

    Raises:
      ValueError: alpha is not positive.
    """
    if alpha <= 0:
        raise ValueError(f"alpha={alpha} must be positive; leave mixup out to mix nothing")
    part = jax.vmap(lambda key: jax.random.beta(key, alpha, alpha))(_keys(key, len(images), 0))
    part = jnp.maximum(part, 1 - part)

    def mix(x: Array) -> Array:
        weight = part.reshape(-1, *[1] * (x.ndim - 1)).astype(x.dtype)
        return weight * x + (1 - weight) * jnp.roll(x, 1, axis=0)

    return mix(images), mix(labels)
