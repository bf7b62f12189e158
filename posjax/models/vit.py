"""Vision transformer: Dosovitskiy et al. (2020), arXiv 2010.11929, with any encoding."""

import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from posjax.attention.explicit import split_as
from posjax.encoding import Array, Encoding, Site, grid
from posjax.encodings.placement import standing
from posjax.models.layers import Linear, Norm
from posjax.models.patch_dropout import draw_kept, taken
from posjax.models.pooling import POOLINGS, MapPooling, mean, readers
from posjax.models.resnet import ResNetStem
from posjax.models.sizes import flat_sizes
from posjax.models.transformer import BlockModel
from posjax.spec import nearest


class ViT(BlockModel):
    """Images [B, height, width, channels] to class logits [B, num_classes] in float32.

    Images of one size share a site. Images of several sizes come as patches [B, N, p, p, C] with sites [B, N]: N slots for
    prefix tokens and patches in any order, told apart by `site.prefix`; the content of a prefix slot is not read.
    `site.segment` numbers the images of a row from 1; 0 is padding. With `num_images=I` a row holds up to I images and logits
    are [B, I, num_classes] (Dehghani et al. 2023, NaViT, arXiv 2307.06304); without, it holds one image.

    Prefix tokens have no position: the class token if `pooling` reads it, the distillation token, then `num_registers`
    registers (Darcet et al. 2023, arXiv 2309.16588). `vit_sizes("S/16")` gives the published sizes.

    Args:
      num_classes: 0: no head; the model returns the pooled features.
      encoding: one encoding or a pattern over the layers.
      image_size: (height, width) for which tables are made; many encodings take other grids at run time.
      patch_size: p, the side of a patch, in pixels or in cells of the ResNet's map.
      resnet: units in each stage of a ResNet whose map is cut into patches (the hybrid of the paper), () for its root alone,
        with `resnet_width` channels; None cuts the image itself.
      pooling: "cls", "mean" over the patches, "cls_mean", both side by side (as DINOv2's linear heads read them), "map",
        attention with a learned query (Zhai et al. 2021, arXiv 2106.04560), or "none": all tokens [B, T, M].
      distillation_token: a second class token with a head of its own, which at inference is averaged with the first
        (Touvron et al. 2020, arXiv 2012.12877). Both heads are trained on the same labels: there is no teacher here.
      pre_logits: width of a tanh layer before the head, which the paper has in pre-training.
      patch_dropout: share of the patches left out in training, drawn for each image (Liu et al. 2022, arXiv 2208.07220).
      norm_after_pooling: pools tokens before the final norm, as timm's `fc_norm` does.

    Raises (on call):
      ValueError: for an image size that the patches do not tile, an unknown pooling or injection, sites that do not fit.
        Where sites are not known at tracing time, a prefix token that the model lacks, an image without a class token, or
        one numbered above `num_images`, gives NaN.

    >>> import jax
    >>> from posjax.models import BlockConfig
    >>> block = BlockConfig(width=16, num_heads=2)
    >>> model = ViT(num_classes=10, encoding="rope(base=100)", image_size=(8, 8), block=block, depth=1)
    >>> params = jax.jit(model.init)(jax.random.key(0), *model.example(channels=1))
    >>> jax.jit(model.apply)(params, jnp.zeros((3, 16, 8, 1)), model.sites(16, 8)).shape    # of another size
    (3, 10)
    """

    reads: ClassVar[str] = "images"
    num_classes: int
    encoding: str | Encoding | tuple[str | Encoding, ...] = "learned"
    image_size: tuple[int, int] = (32, 32)
    patch_size: int = 4
    pooling: str = "cls"
    num_registers: int = 0
    distillation_token: bool = False
    pre_logits: int | None = None
    norm_after_pooling: bool = False
    patch_dropout: float = 0.0
    resnet: tuple[int, ...] | None = None
    resnet_width: int = 64

    def __post_init__(self):
        check_size("image_size", self.image_size)
        super().__post_init__()

    @classmethod
    def from_config(cls, fields: Mapping[str, Any], **given: Any) -> "ViT":
        """Returns the model as `BlockModel.from_config`; a field "variant" gives the sizes of that name, see `vit_sizes`."""
        fields = {**fields, **given}
        variant = fields.pop("variant", None)
        return super().from_config(fields | ({} if variant is None else flat_sizes(variant)))

    def sized(self, image_size: tuple[int, int]) -> "ViT":
        """Returns the model with tables for images of this (height, width)."""
        return self.clone(image_size=tuple(image_size))

    def example(self, channels: int) -> tuple[Float[Array, "1 h w C"], Site]:
        """Returns arguments of `init`: a black image and its site."""
        return jnp.zeros((1, *self.image_size, channels), jnp.float32), self.sites(*self.image_size)

    @property
    def one_size(self) -> bool:
        """Whether all images must have one size."""
        return self.resnet is not None

    @property
    def has_cls(self) -> bool:
        return self.pooling in ("cls", "cls_mean")

    @property
    def num_prefix(self) -> int:
        return self.has_cls + self.distillation_token + self.num_registers

    @property
    def cell(self) -> int:
        """The side of the part of an image that becomes a token, in pixels."""
        return self.patch_size * (1 if self.resnet is None else ResNetStem.shrinks(self.resnet))

    def patches(self, height: int, width: int) -> tuple[int, int]:
        """Returns the number of patches down and across in an image of this size, or in the stem's map of it.

        Raises:
          ValueError: the patches do not tile it.
        """
        size, tiled, sides = self.patch_size, "an image", (height, width)
        if self.resnet is not None:
            height, width = (ResNetStem.shrunk(side, self.resnet) for side in (height, width))
            tiled = "a stem's map"
        if size < 1 or height % size or width % size:
            fits = [s for s in range(1, min(height, width, 32) + 1) if height % s == 0 and width % s == 0]
            near = " x ".join(str(max(side // self.cell, 1) * self.cell) for side in sides) if size > 0 else ""
            crop = f"crop or resize images to {near}, or to other multiples of {self.cell}; " if near else ""
            raise ValueError(
                f"patches of {size}x{size} do not tile {tiled} of {height}x{width}: {crop}patch_size of a model that is yet "
                f"to be trained may be {fits}"
            )
        return height // size, width // size

    def sites(self, height: int, width: int) -> Site:
        """Returns the site of the tokens of images of this size."""
        return grid(*self.patches(height, width), prefix=self.num_prefix)

    @nn.compact
    def __call__(
        self,
        images: Float[Array, "B h w C"] | Float[Array, "B N p p C"],
        site: Site,
        *,
        train: bool = False,
        num_images: int | None = None,
    ):
        if self.pooling not in POOLINGS:
            raise ValueError(f"no pooling is named {self.pooling!r}; {nearest(self.pooling, POOLINGS)}")
        if self.distillation_token and self.norm_after_pooling:
            raise ValueError(
                "norm_after_pooling norms one pooled vector: a model with a distillation token takes the final norm"
            )
        x = self._tokens(images, site, num_images)
        kept = None
        if train and self.patch_dropout:
            key = self.make_rng("dropout")
            kept = draw_kept(key, self.patch_dropout, site, len(x), num_images or 1, self.num_prefix)
        own = dict(grid=self.patches(*self.image_size), prefix=self.num_prefix, final_norm=not self.norm_after_pooling)
        trunk = self.transformer(self.encoding, name="trunk", **own)
        x, _ = trunk(x, site, train=train, kept=kept)
        if self.pooling == "none":
            return x
        logits = self._read(x, site if kept is None else taken(site, kept), num_images)
        return logits[:, 0] if num_images is None else logits

    def _tokens(self, images, site: Site, num_images: int | None):
        """Returns the tokens [B, T, M] of the site, prefix tokens included."""
        images, size = jnp.asarray(images), self.patch_size
        embed = Linear((self.block.width,), 3, name="patches_to_tokens", **self.block.types)
        if images.ndim == 5:
            self._refuse_patches(images, site, num_images)
            # Other slots may hold anything, and NaN times a gradient of 0 is NaN.
            images = jnp.where(standing(site)[..., None, None, None], images, 0)
            return self._with_prefix_slots(embed(images), site)
        rows, columns = self.patches(*images.shape[1:3])
        self._refuse_site(images, site, rows, columns)
        if self.resnet is not None:
            images = ResNetStem(self.resnet, self.resnet_width, name="resnet", **self.block.types)(images)
        cut = images.reshape(len(images), rows, size, *images.shape[2:])  # one axis at a time: meshes may be explicit
        cut = cut.reshape(len(images), rows, size, columns, size, -1).swapaxes(2, 3)
        x = embed(cut.reshape(len(images), rows * columns, size, size, -1))
        prefix = self._prefix()
        prefix = split_as(x, jnp.broadcast_to(prefix, (len(x), *prefix.shape))).astype(x.dtype)
        return jnp.concatenate([prefix, x], axis=1)

    def _refuse_patches(self, patches, site: Site, num_images: int | None) -> None:
        size = self.patch_size
        if self.resnet is not None:
            raise ValueError("a ResNet stem sees whole images: patches of several sizes take resnet=None")
        if patches.shape[2:4] != (size, size) or site.segment.shape != patches.shape[:2]:
            raise ValueError(
                f"patches are [B, N, {size}, {size}, C] with sites of their own, [B, N]; got {patches.shape} and "
                f"{site.segment.shape}"
            )
        if isinstance(site.segment, np.ndarray) and site.segment.max(initial=0) > (num_images or 1):
            raise ValueError(
                f"a row holds image {site.segment.max()}, but num_images={num_images}: give num_images=I for rows of up to I "
                "images, numbered from 1 by site.segment"
            )

    def _refuse_site(self, images, site: Site, rows: int, columns: int) -> None:
        count, (height, width) = self.num_prefix, images.shape[1:3]
        if site.segment.shape[-1] != count + rows * columns:
            raise ValueError(
                f"{height}x{width} images make {count} prefix tokens and {rows}x{columns} patches, but the site has "
                f"{site.segment.shape[-1]} tokens"
            )
        expected = np.concatenate([np.arange(1, count + 1), np.zeros(rows * columns)])
        if isinstance(site.prefix, np.ndarray) and (site.prefix != expected).any():
            raise ValueError(
                f"the {count} prefix tokens of an image come first, with site.prefix 1 to {count}, and patches have 0: take "
                f"model.sites({height}, {width}); got {site.prefix}"
            )
        if isinstance(site.position, np.ndarray) and site.position.shape[site.segment.ndim :] == (2,):
            sides = tuple(len(np.unique(site.position[..., count:, axis])) for axis in (0, 1))
            if math.prod(sides) == rows * columns and sides != (rows, columns):
                raise ValueError(
                    f"{height}x{width} images make {rows}x{columns} patches, but the site is a grid of "
                    f"{sides[0]}x{sides[1]}: take model.sites({height}, {width})"
                )

    def _with_prefix_slots(self, x, site: Site):
        """Puts prefix tokens into their slots, and NaN into the slot of a prefix token that the model lacks."""
        prefix = jnp.concatenate([self._prefix(), jnp.full((1, self.block.width), jnp.nan, jnp.float32)])
        slot = (site.prefix > 0) & (site.segment > 0)  # NaN in padding would reach every token
        return jnp.where(slot[..., None], prefix[jnp.clip(site.prefix - 1, 0, self.num_prefix)].astype(x.dtype), x)

    def _prefix(self):
        """Returns the prefix tokens, [P, M], in float32 at least, in which their gradients are summed."""
        prefix = [jnp.zeros((0, self.block.width), jnp.float32)]
        if self.has_cls:
            prefix.append(self.param("cls", nn.initializers.zeros, (1, self.block.width), self.block.param_dtype))
        if self.distillation_token:
            prefix.append(
                self.param("distillation", nn.initializers.normal(0.02), (1, self.block.width), self.block.param_dtype)
            )
        if self.num_registers:
            shape = (self.num_registers, self.block.width)
            prefix.append(self.param("registers", nn.initializers.normal(0.02), shape, self.block.param_dtype))
        return jnp.concatenate(prefix)

    def _read(self, x, site: Site, num_images: int | None):
        """Returns the logits [B, I, num_classes] of the images in each row."""
        first = int(self.has_cls)
        read = readers(site, num_images, prefix=first)
        pooled = MapPooling(self.block, name="map")(x, read) if self.pooling == "map" else mean(x, read)
        if self.has_cls:  # an image without a class token is a mistake; a row may have fewer images than others
            lacks = readers(site, num_images).any(axis=-1) & ~read.any(axis=-1)
            pooled = jnp.where(lacks[..., None], jnp.nan, pooled)
        crowded = (jnp.asarray(site.segment) > (num_images or 1)).any(axis=-1)
        pooled = jnp.where(crowded[..., None, None], jnp.nan, pooled)
        if self.pooling == "cls_mean":
            pooled = jnp.concatenate([pooled, mean(x, readers(site, num_images))], axis=-1)
        if self.norm_after_pooling:
            pooled = Norm(self.block, name="pooled_norm")(pooled)
        if self.pre_logits:
            pooled = jnp.tanh(Linear((self.pre_logits,), name="pre_logits", **self.block.types)(pooled))
        if not self.num_classes:
            return pooled
        head = functools.partial(self.float32_head, self.num_classes, kernel_init=nn.initializers.zeros)
        logits = head(name="head")(pooled)
        if not self.distillation_token:
            return logits
        return (logits + head(name="head_distillation")(mean(x, readers(site, num_images, prefix=first + 1)))) / 2


def image_channels(params: Mapping[str, Any]) -> int:
    """Returns the channels of the images of a model with these parameters; leaves may have further leading axes."""
    first = params["resnet"]["conv_root"] if "resnet" in params else params["patches_to_tokens"]
    return first["kernel"].shape[-2]


def check_size(name: str, size: Any) -> None:
    """Checks the field `name`.

    Raises:
      ValueError: for a size that is no (height, width).
    """
    if isinstance(size, int) or len(size) != 2:
        raise ValueError(
            f"{name}={size} must be (height, width), as in {(size, size) if isinstance(size, int) else (48, 32)}"
        )
