"""Standard image augmentation on the device, in pure JAX.

The draws of an example depend only on the key and on its index in the global batch, so neither the number of processes
nor the sharding of the batch changes a run.
"""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32, PRNGKeyArray, Shaped, UInt8

IMAGENET_MEAN = (0.485, 0.456, 0.406)  # of RGB in 0..1, as torchvision and most pretrained weights have them
IMAGENET_STD = (0.229, 0.224, 0.225)

_PADDING = {"black": {"mode": "constant", "constant_values": -1.0}, "reflect": {"mode": "reflect"}}


def normalise(
    images: UInt8[Array | np.ndarray, "*shape"],
    mean: float | Sequence[float] = 0.5,
    std: float | Sequence[float] = 0.5,
) -> Float[Array, "*shape"]:
    """Returns (images / 255 - mean) / std in float32; the defaults map 0..255 to [-1, 1].

    Args:
      images: pixels, the channels last.
      mean: of all channels (a number, or a tuple of one), or of each; pretrained weights want the mean of their training.
      std: likewise.

    Raises:
      ValueError: the number of means or deviations is not the number of channels, or a std is not positive.

    >>> print(np.asarray(normalise(np.uint8([0, 51, 255]))).round(3))
    [-1.  -0.6  1. ]
    """
    mean, std = np.asarray(mean, np.float64), np.asarray(std, np.float64)
    for name, value in (("mean", mean), ("std", std)):
        if value.shape not in ((), (1,), np.shape(images)[-1:]):
            raise ValueError(
                f"{name}={value.tolist()} is not one for all or for each of {np.shape(images)[-1]} channels"
            )
    if (std <= 0).any():
        raise ValueError(f"std={std.tolist()} must be positive")
    scale, shift = (255 * std).astype(np.float32), (mean / std).astype(np.float32)
    return jnp.asarray(images, jnp.float32) / scale - shift


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
    """Crops the padded image at random, to its own size, and flips it horizontally with probability 1/2.

    Args:
      key: this step's key; the same key gives the same draws.
      images: the batch, any float type.
      crop_padding: pixels added on every side before cropping; 0 crops nothing.
      flip: whether to flip.
      padding: "reflect", or "black" (-1 after `normalise`), as usual for dark backgrounds.
      first: index of images[0] in the global batch, where a process holds only a slice of it.

    Raises:
      ValueError: crop_padding is negative or too large for the image, or the kind of padding is unknown.
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
            corner = jax.random.randint(crop_key, (2,), 0, 2 * crop_padding + 1, jnp.int32)
            image = jnp.pad(image, edges, **_PADDING[padding])
            image = jax.lax.dynamic_slice(image, (*corner, 0), (h, w, c))
        if flip:
            image = jnp.where(jax.random.bernoulli(flip_key, np.float32(0.5)), image[:, ::-1], image)
        return image

    return jax.vmap(one)(_keys(key, len(images), first), images)


def random_resized_crop(
    key: PRNGKeyArray,
    images: Float[Array, "b h w c"],
    *,
    least_area: float,
    aspect: tuple[float, float] = (3 / 4, 4 / 3),
    first: int = 0,
) -> Float[Array, "b h w c"]:
    """Stretches a random part of each image to the size of the whole, so objects come in other sizes and aspects.

    Szegedy et al. (2014), arXiv 1409.4842, as in torchvision's RandomResizedCrop: the part's share of the area is uniform in
    [least_area, 1], the ratio of its aspect to the image's log-uniform, its place uniform. A side longer than the image's is
    cut to it (torchvision draws again). Resizing is linear and antialiased.

    Args:
      key: this step's key; the same key gives the same draws.
      images: the batch, any float type.
      least_area: in (0, 1]; 0.08 in Inception's recipe, 0.35 is gentle.
      aspect: bounds of the part's width / height over that of the image.
      first: index of images[0] in the global batch, where a process holds only a slice of it.

    Raises:
      ValueError: least_area is outside (0, 1], or the bounds of aspect are not positive and rising.
    """
    if not 0 < least_area <= 1:
        raise ValueError(f"least_area={least_area} is a share of the image: it must lie in (0, 1]")
    if not 0 < aspect[0] <= aspect[1]:
        raise ValueError(f"aspect={aspect} must be two positive bounds, the smaller one first")
    size = np.array(images.shape[1:3], np.float32)

    def one(key: PRNGKeyArray, image: Float[Array, "h w c"]) -> Float[Array, "h w c"]:
        area_key, aspect_key, corner_key = jax.random.split(key, 3)
        area = jax.random.uniform(area_key, (), jnp.float32, minval=least_area, maxval=1.0)
        ratio = jnp.exp(
            jax.random.uniform(aspect_key, (), jnp.float32, minval=np.log(aspect[0]), maxval=np.log(aspect[1]))
        )
        part = jnp.minimum(jnp.sqrt(area * jnp.stack([1 / ratio, ratio])), 1.0)  # of height and width
        corner = jax.random.uniform(corner_key, (2,), jnp.float32) * (1 - part) * size
        moved = jax.image.scale_and_translate(
            image.astype(jnp.float32), image.shape, (0, 1), 1 / part, -corner / part, "linear", antialias=True
        )
        return moved.astype(image.dtype)

    return jax.vmap(one)(_keys(key, len(images), first), images)


def augment_native(
    key: PRNGKeyArray, batch: Mapping[str, Array | np.ndarray], *, flip: bool = False, first: int = 0
) -> dict[str, Array | np.ndarray]:
    """Mirrors images of a native-aspect batch with probability 1/2, each image of a row by itself.

    The result equals flipping the picture before it was cut: patches change places within their row of the grid and are
    mirrored themselves; positions and all other fields stay.

    Args:
      key: this step's key; the same key gives the same draws.
      batch: a batch of `native_batches`; its patches may be floats already.
      flip: whether to flip.
      first: index of the batch's first row in the global batch, where a process holds only a slice of it.
    """
    if not flip:
        return dict(batch)
    images = batch["label"].shape[1]
    position, segment, prefix = (jnp.asarray(batch[name]) for name in ("position", "segment", "prefix"))

    def one(key, patches: Shaped[Array, "N p p c"], column: Int32[Array, " N"], segment, prefix):
        draws = jax.random.bernoulli(key, np.float32(0.5), (images + 1,)).at[0].set(False)
        mirrored = draws[segment] & (prefix == 0)
        last = jax.ops.segment_max(column, segment, num_segments=images + 1)[segment]
        slots = jnp.arange(len(column))
        partner = jnp.where(mirrored, slots + last - 2 * column, slots)
        return jnp.where(mirrored[:, None, None, None], patches[partner][:, :, ::-1], patches)

    keys = _keys(key, len(segment), first)
    patches = jax.vmap(one)(keys, jnp.asarray(batch["patches"]), position[..., 1], segment, prefix)
    return {**batch, "patches": patches}


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
      key: this step's key.
      images: the batch.
      labels: one-hot or already soft labels.
      alpha: > 0; small values mix little.

    Raises:
      ValueError: alpha is not positive.
    """
    if alpha <= 0:
        raise ValueError(f"alpha={alpha} must be positive; leave mixup out to mix nothing")
    part = jax.vmap(lambda key: jax.random.beta(key, alpha, alpha, dtype=jnp.float32))(_keys(key, len(images), 0))
    part = jnp.maximum(part, 1 - part)

    def mix(x: Array) -> Array:
        weight = part.reshape(-1, *[1] * (x.ndim - 1)).astype(x.dtype)
        return weight * x + (1 - weight) * jnp.roll(x, 1, axis=0)

    return mix(images), mix(labels)
