"""A ResNet with weight standardisation and group norm: the stem of hybrid ViTs, and a baseline without attention."""

from collections.abc import Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Float

_GROUPS = 32


class StdConv(nn.Module):
    """A convolution without bias whose kernel [p, p, C, M] is standardised: (w - mean) / (std + 1e-5), for each output.

    Qiao et al. (2019), arXiv 1903.10520, as in Google's hybrid ViTs and BiT. Padding is TensorFlow's "SAME": of an odd number
    of pixels, the last row and column get one more. (timm divides by sqrt(var + 1e-8) and agrees
    to 1e-5.) 1 x 1 kernels are matrix products, so that an ensemble of them is one batched product.
    """

    features: int
    kernel_size: int = 1
    stride: int = 1
    dtype: Any = jnp.float32
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Float[jax.Array, "B h w C"]) -> Float[jax.Array, "B g v M"]:
        size = self.kernel_size
        init = nn.initializers.variance_scaling(2.0, "fan_in", "truncated_normal")
        kernel = self.param("kernel", init, (size, size, x.shape[-1], self.features), self.param_dtype)
        kernel = kernel.astype(jnp.float32)
        kernel = (kernel - kernel.mean(axis=(0, 1, 2))) / (kernel.std(axis=(0, 1, 2)) + 1e-5)
        x, kernel = x.astype(self.dtype), kernel.astype(self.dtype)
        if size == 1:
            return jnp.einsum("bhwc,cm->bhwm", x[:, :: self.stride, :: self.stride], kernel[0, 0])
        strides, layout = (self.stride, self.stride), ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, kernel, strides, "SAME", dimension_numbers=layout)


class ResNetStem(nn.Module):
    """Images [B, h, w, C] to a map of features: a root that shrinks four times, then stages of bottleneck units.

    The root is a 7 x 7 convolution of stride 2, group norm, ReLU and a 3 x 3 max pooling of stride 2. Stage s has layers[s]
    units (He et al. 2015, arXiv 1512.03385; the stride in the 3 x 3 convolution) of width * 2^s channels inside and four
    times as many outside, and from the second one on halves the map. The last norm of a unit starts at 0 (Goyal et al. 2017,
    arXiv 1706.02677). Norms have 32 groups, or as many as the channels allow where those are fewer.
    """

    layers: tuple[int, ...] = (3, 4, 9)
    width: int = 64
    dtype: Any = jnp.float32
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Float[jax.Array, "B h w C"]) -> Float[jax.Array, "B g v M"]:
        types = dict(dtype=self.dtype, param_dtype=self.param_dtype)
        x = StdConv(self.width, 7, 2, name="conv_root", **types)(x)
        x = nn.relu(_norm(self.width, name="gn_root", **types)(x))
        x = nn.max_pool(x, (3, 3), (2, 2), padding="SAME")
        for stage, units in enumerate(self.layers):
            for unit in range(units):
                stride = 2 if stage and not unit else 1
                x = _Unit(self.width * 2**stage, stride, name=f"block{stage + 1}_unit{unit + 1}", **types)(x)
        return x

    @staticmethod
    def shrunk(size: int, layers: tuple[int, ...]) -> int:
        """Returns the side of the map of an image with this side, in cells."""
        return -(-size // ResNetStem.shrinks(layers))

    @staticmethod
    def shrinks(layers: tuple[int, ...]) -> int:
        """Returns the width of a cell of the map, in pixels."""
        return 2 ** (2 + max(len(layers) - 1, 0))


class _Unit(nn.Module):
    features: int
    stride: int
    dtype: Any
    param_dtype: Any

    @nn.compact
    def __call__(self, x):
        types = dict(dtype=self.dtype, param_dtype=self.param_dtype)
        outer = 4 * self.features
        residual = x
        if x.shape[-1] != outer or self.stride != 1:
            residual = _norm(outer, name="gn_proj", **types)(
                StdConv(outer, 1, self.stride, name="conv_proj", **types)(x)
            )
        y = nn.relu(_norm(self.features, name="gn1", **types)(StdConv(self.features, name="conv1", **types)(x)))
        y = StdConv(self.features, 3, self.stride, name="conv2", **types)(y)
        y = nn.relu(_norm(self.features, name="gn2", **types)(y))
        y = StdConv(outer, name="conv3", **types)(y)
        y = _norm(outer, name="gn3", scale_init=nn.initializers.zeros, **types)(y)
        return nn.relu(residual + y)


def _norm(channels: int, **options) -> nn.GroupNorm:
    groups = min(_GROUPS, channels)
    if channels % groups:
        raise ValueError(
            f"{channels} channels do not divide into {groups} groups: take a width that is a multiple of 32"
        )
    return nn.GroupNorm(groups, **options)


class ResNet(nn.Module):
    """Images [B, h, w, C] to logits [B, num_classes] in float32: `ResNetStem`, the mean over its map, and a linear head.

    layers (3, 4, 6, 3) with width 64 is BiT's ResNet-50, but with the post-activation units of the hybrid ViTs' stem.
    Only padding and strides tell it positions.
    """

    reads: ClassVar[str] = "images"
    one_size: ClassVar[bool] = True  # all images must have one size
    num_classes: int
    layers: tuple[int, ...] = (3, 4, 6, 3)
    width: int = 64
    dtype: Any = jnp.float32
    param_dtype: Any = jnp.float32

    @classmethod
    def from_config(cls, fields: Mapping[str, Any], *, num_classes: int, context: Any = None) -> "ResNet":
        """Returns the ResNet in the fields of a ViT's config, with layers (1, 1, 1) for resnet=None."""
        layers = (1, 1, 1) if fields["resnet"] is None else fields["resnet"]
        return cls(num_classes, layers, fields["resnet_width"], fields["dtype"], fields["param_dtype"])

    def sized(self, image_size: tuple[int, int]) -> "ResNet":
        """Returns the model itself, which has no tables."""
        return self

    def sites(self, height: int, width: int) -> None:
        """Returns None: the model has no encoding."""

    @nn.compact
    def __call__(self, images: Float[jax.Array, "B h w C"], site: Any = None, *, train: bool = False):
        x = ResNetStem(self.layers, self.width, self.dtype, self.param_dtype, name="resnet")(images)
        x = x.astype(jnp.float32).mean(axis=(1, 2))
        return nn.Dense(self.num_classes, kernel_init=nn.initializers.zeros, param_dtype=self.param_dtype, name="head")(
            x
        )
