"""Augmentation of batches on the device, in pure JAX: the operations of a recipe (posjax/data/recipe.py) after the host's.

The draws of an example depend only on the key and on its index in the global batch, so neither the number of processes
nor the sharding of the batch changes a run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32, PRNGKeyArray, Shaped, UInt8

from posjax.encoding import check_ranges, spec_text

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
            raise ValueError(f"{name}={value.tolist()} is not one for all {np.shape(images)[-1]} channels or for each")
    if (std <= 0).any():
        raise ValueError(f"std={std.tolist()} must be positive")
    scale, shift = (255 * std).astype(np.float32), (mean / std).astype(np.float32)
    return jnp.asarray(images, jnp.float32) / scale - shift


def _keys(key: PRNGKeyArray, count: int, first: int) -> Shaped[Array, " b ..."]:
    return jax.vmap(lambda index: jax.random.fold_in(key, index))(first + jnp.arange(count))


@dataclass(frozen=True)
class Operation:
    """An operation of a recipe. `str` writes the text that `posjax.data.parse_augment` reads."""

    spec_name: ClassVar[str] = ""
    ranges: ClassVar[tuple[str, ...]] = ()  # bounds of arguments: "alpha > 0"

    def __post_init__(self):
        check_ranges(self)

    def __str__(self) -> str:
        return spec_text(self)


class DeviceOperation(Operation):
    """An operation on a batch of images: operation(key, images [b, h, w, c], first=0) returns images of the same shape.

    The same key gives the same draws. `first` is the index of images[0] in the global batch, where a process holds only a
    slice of it.
    """

    def __call__(self, key: PRNGKeyArray, images: Float[Array, "b h w c"], first: int = 0) -> Float[Array, "b h w c"]:
        return jax.vmap(self.one)(_keys(key, len(images), first), images)

    def one(self, key: PRNGKeyArray, image: Float[Array, "h w c"]) -> Float[Array, "h w c"]:
        """Returns one image, changed."""
        raise NotImplementedError


@dataclass(frozen=True)
class Shift(DeviceOperation):
    """Pads each image on all sides and cuts a window of its own size out at random.

    Args:
      padding: pixels on every side, the most by which an image moves.
      fill: of the border: "black" (-1 after `normalise`), as usual for dark backgrounds, or "reflect".

    Raises:
      ValueError: the fill is unknown, or padding is below 1; when called, as large as an image that is reflected.
    """

    spec_name: ClassVar[str] = "shift"
    ranges: ClassVar[tuple[str, ...]] = ("padding >= 1",)

    padding: int
    fill: str = "black"

    def __post_init__(self):
        super().__post_init__()
        if self.fill not in _PADDING:
            raise ValueError(f"shift(fill={self.fill!r}) must be one of {', '.join(map(repr, _PADDING))}")

    def one(self, key, image):
        h, w, c = image.shape
        if self.fill == "reflect" and self.padding >= min(h, w):
            raise ValueError(f"{self} must pad by less than {min(h, w)} to reflect images of {h}x{w}")
        corner_key, _ = jax.random.split(key)  # a flip with the same key draws from the other half
        edges = ((self.padding, self.padding), (self.padding, self.padding), (0, 0))
        corner = jax.random.randint(corner_key, (2,), 0, 2 * self.padding + 1, jnp.int32)
        return jax.lax.dynamic_slice(jnp.pad(image, edges, **_PADDING[self.fill]), (*corner, 0), (h, w, c))


@dataclass(frozen=True)
class Flip(DeviceOperation):
    """Mirrors each image left to right with probability 1/2."""

    spec_name: ClassVar[str] = "flip"

    def one(self, key, image):
        _, flip_key = jax.random.split(key)
        return jnp.where(jax.random.bernoulli(flip_key, np.float32(0.5)), image[:, ::-1], image)


@dataclass(frozen=True)
class ResizedCrop(DeviceOperation):
    """Stretches a random part of each image to the size of the whole, so objects come in other sizes and aspects.

    Szegedy et al. (2014), arXiv 1409.4842: the part's share of the area is uniform in [least_area, 1], the ratio of its
    aspect to the image's log-uniform in 3/4 to 4/3, its place uniform. A side longer than the image's is cut to it
    (torchvision and `inception_crop` draw again). Resizing is linear and antialiased.

    Args:
      least_area: in (0, 1]; 0.08 in Inception's recipe, 0.35 is gentle.

    Raises:
      ValueError: least_area is outside (0, 1].
    """

    spec_name: ClassVar[str] = "resized_crop"
    ranges: ClassVar[tuple[str, ...]] = ("least_area > 0", "least_area <= 1")

    least_area: float

    def one(self, key, image):
        area_key, aspect_key, corner_key = jax.random.split(key, 3)
        area = jax.random.uniform(area_key, (), jnp.float32, minval=self.least_area, maxval=1.0)
        ratio = jnp.exp(jax.random.uniform(aspect_key, (), jnp.float32, minval=np.log(3 / 4), maxval=np.log(4 / 3)))
        part = jnp.minimum(jnp.sqrt(area * jnp.stack([1 / ratio, ratio])), 1.0)  # of height and width
        corner = jax.random.uniform(corner_key, (2,), jnp.float32) * (1 - part) * np.array(image.shape[:2], np.float32)
        moved = jax.image.scale_and_translate(
            image.astype(jnp.float32), image.shape, (0, 1), 1 / part, -corner / part, "linear", antialias=True
        )
        return moved.astype(image.dtype)


Mixed = tuple[Float[Array, "b h w c"], Float[Array, "b k"]]


class MixOperation(Operation):
    """An operation that mixes each example with its predecessor in the global batch: images and labels.

    operation(key, images [b, h, w, c], labels [b, k], one-hot or already soft) returns both, mixed.
    """

    def __call__(self, key: PRNGKeyArray, images: Float[Array, "b h w c"], labels: Float[Array, "b k"]) -> Mixed:
        raise NotImplementedError


@dataclass(frozen=True)
class Mixup(MixOperation):
    """Adds the predecessor's image and label to each example's own (Zhang et al., 2017, arXiv 1710.09412).

    x_i <- l_i x_i + (1 - l_i) x_{i-1}, and the same for the labels, with l_i ~ Beta(alpha, alpha) drawn per example and
    replaced by max(l_i, 1 - l_i), so that x_i keeps the larger part.

    Args:
      alpha: > 0; small values mix little.

    Raises:
      ValueError: alpha is not positive.
    """

    spec_name: ClassVar[str] = "mixup"
    ranges: ClassVar[tuple[str, ...]] = ("alpha > 0",)

    alpha: float

    def __call__(self, key, images, labels):
        beta = lambda key: jax.random.beta(key, self.alpha, self.alpha, dtype=jnp.float32)  # noqa: E731
        part = jax.vmap(beta)(_keys(key, len(images), 0))
        part = jnp.maximum(part, 1 - part)

        def mix(x: Array) -> Array:
            weight = _beside(part, x).astype(x.dtype)
            return weight * x + (1 - weight) * jnp.roll(x, 1, axis=0)

        return mix(images), mix(labels)


@dataclass(frozen=True)
class Cutmix(MixOperation):
    """Pastes a box of the predecessor's image into each example's own (Yun et al., 2019, arXiv 1905.04899).

    As timm's Mixup with mode="elem": a box of sqrt(1 - l_i) of either side, l_i ~ Beta(alpha, alpha) per example, its centre
    uniform in the image, what lies outside cut off. The label takes as much of the predecessor's as the box has of the area.

    Args:
      alpha: > 0; at 1 the share of the box is uniform, before it is cut off.

    Raises:
      ValueError: alpha is not positive.
    """

    spec_name: ClassVar[str] = "cutmix"
    ranges: ClassVar[tuple[str, ...]] = ("alpha > 0",)

    alpha: float

    def __call__(self, key, images, labels):
        size = np.array(images.shape[1:3], np.int32)

        def box(key: PRNGKeyArray) -> Bool[Array, "h w"]:
            part_key, centre_key = jax.random.split(key)
            part = jax.random.beta(part_key, self.alpha, self.alpha, dtype=jnp.float32)
            sides = (size * jnp.sqrt(1 - part)).astype(jnp.int32)
            low = jax.random.randint(centre_key, (2,), 0, size, jnp.int32) - sides // 2
            rows, columns = (
                (jnp.arange(side) >= low[axis]) & (jnp.arange(side) < low[axis] + sides[axis])
                for axis, side in enumerate(size)
            )
            return rows[:, None] & columns

        boxes = jax.vmap(box)(_keys(key, len(images), 0))
        share = boxes.mean(axis=(1, 2), dtype=jnp.float32)[:, None].astype(labels.dtype)
        mixed = (1 - share) * labels + share * jnp.roll(labels, 1, axis=0)
        return jnp.where(boxes[..., None], jnp.roll(images, 1, axis=0), images), mixed


def mix(key: PRNGKeyArray, images: Float[Array, "b h w c"], labels: Float[Array, "b k"], operations: Sequence) -> Mixed:
    """Returns images and labels, mixed by one of the operations; of two, each example takes one with probability 1/2.

    timm switches for whole batches by default, and for each example with mode="elem", as here.
    """
    if len(operations) < 2:
        return operations[0](key, images, labels) if operations else (images, labels)
    switch_key, *keys = jax.random.split(key, 3)
    first, second = (operation(key, images, labels) for operation, key in zip(operations, keys, strict=True))
    draw = jax.vmap(lambda key: jax.random.bernoulli(key, np.float32(0.5)))(_keys(switch_key, len(images), 0))
    return tuple(jnp.where(_beside(draw, x), x, y) for x, y in zip(first, second, strict=True))


def _beside(values: Shaped[Array, " b"], x: Shaped[Array, "b ..."]) -> Shaped[Array, "b ..."]:
    """Returns one value for each example, with the axes of x."""
    return values.reshape(-1, *[1] * (x.ndim - 1))


def flip_native(
    key: PRNGKeyArray, batch: Mapping[str, Array | np.ndarray], *, first: int = 0
) -> dict[str, Array | np.ndarray]:
    """Mirrors images of a native-aspect batch with probability 1/2, each image of a row by itself.

    The result equals flipping the picture before it was cut: patches change places within their row of the grid and are
    mirrored themselves; positions and all other fields stay.

    Args:
      key: this step's key; the same key gives the same draws.
      batch: a batch of `native_batches`; its patches may be floats already.
      first: index of the batch's first row in the global batch, where a process holds only a slice of it.
    """
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
