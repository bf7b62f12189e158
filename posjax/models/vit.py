"""Vision transformer: Dosovitskiy et al. (2020), arXiv 2010.11929, hosting any encoding."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Float

from posjax.attention import ContextParallel
from posjax.encoding import Encoding, Site, grid
from posjax.models.layers import Trunk, batch_axis
from posjax.spec import nearest, parse_layers

_POOLINGS = ["cls", "map", "mean"]


class ViT(nn.Module):
    """Images [B, height, width, channels] to class logits [B, num_classes] in float32.

        model = ViT(num_classes=10, encoding="rope(base=100)", image_size=(28, 28), patch_size=4)
        site = model.sites(28, 28)
        logits = model.apply(model.init(key, images, site), images, site)

    Prefix tokens (the class token where `pooling` is "cls", then `num_registers` registers; Darcet et al. 2023,
    arXiv 2309.16588) stand nowhere. `image_size` is the one at which tables are made; other grids may be given at
    run time to encodings that carry over. pooling: "cls", "mean" over the patches, or "map", attention with a learned
    query (Zhai et al. 2021, arXiv 2106.04560).

    Raises (on call):
      ValueError: for an image size that the patches do not tile, an unknown pooling or injection.
    """

    num_classes: int
    encoding: str | Encoding | tuple[str | Encoding, ...] = "learned"
    image_size: tuple[int, int] = (32, 32)
    patch_size: int = 4
    width: int = 192
    depth: int = 12
    num_heads: int = 3
    mlp_dim: int | None = None  # 4 * width where None
    pooling: str = "cls"
    num_registers: int = 0
    injection: str = "stem"
    dropout: float = 0.0
    implementation: str = "auto"
    dtype: Any = jnp.float32
    attention_dtype: Any = None
    param_dtype: Any = jnp.float32
    context: ContextParallel | None = None  # the devices that share the tokens of each image
    num_kv_heads: int | None = None  # heads of keys and values; num_heads where None

    @property
    def num_prefix(self) -> int:
        return (self.pooling == "cls") + self.num_registers

    def patches(self, height: int, width: int) -> tuple[int, int]:
        """How many patches tile an image of this size, down and across."""
        size = self.patch_size
        if size < 1 or height % size or width % size:
            fits = [s for s in range(1, min(height, width) + 1) if height % s == 0 and width % s == 0]
            raise ValueError(
                f"patches of {size}x{size} do not tile an image of {height}x{width}; patch_size may be {fits}"
            )
        return height // size, width // size

    def sites(self, height: int, width: int) -> Site:
        """Where the tokens of images of this size stand."""
        return grid(*self.patches(height, width), prefix=self.num_prefix)

    @nn.compact
    def __call__(self, images: Float[jax.Array, "B h w c"], site: Site, *, train: bool = False):
        if self.pooling not in _POOLINGS:
            raise ValueError(f"no pooling is named {self.pooling!r}; {nearest(self.pooling, _POOLINGS)}")
        rows, columns = self.patches(*images.shape[1:3])
        if site.segment.shape[-1] != self.num_prefix + rows * columns:
            raise ValueError(
                f"{images.shape[1]}x{images.shape[2]} images make {self.num_prefix} prefix tokens and {rows}x{columns} "
                f"patches, but the site has {site.segment.shape[-1]} tokens"
            )
        types = dict(dtype=self.dtype, param_dtype=self.param_dtype)
        window = (self.patch_size, self.patch_size)
        x = nn.Conv(self.width, window, strides=window, padding="VALID", name="patches_to_tokens", **types)(images)
        x = self._with_prefix(x.reshape(x.shape[0], rows * columns, self.width))
        trunk = Trunk(
            parse_layers(self.encoding),
            self.depth,
            self.num_heads,
            self.mlp_dim or 4 * self.width,
            injection=self.injection,
            grid=self.patches(*self.image_size),
            prefix=self.num_prefix,
            dropout=self.dropout,
            implementation=self.implementation,
            attention_dtype=self.attention_dtype,
            context=self.context,
            num_kv_heads=self.num_kv_heads,
            name="trunk",
            **types,
        )
        x, _ = trunk(x, site, train=train)
        x = self._pooled(x, site)
        head = dict(dtype=jnp.float32, param_dtype=self.param_dtype)
        return nn.Dense(self.num_classes, kernel_init=nn.initializers.zeros, name="head", **head)(x)

    def _with_prefix(self, x):
        prefix = []
        if self.pooling == "cls":
            prefix.append(self.param("cls", nn.initializers.zeros, (1, self.width), self.param_dtype))
        if self.num_registers:
            shape = (self.num_registers, self.width)
            prefix.append(self.param("registers", nn.initializers.normal(0.02), shape, self.param_dtype))
        prefix = [jnp.broadcast_to(p.astype(x.dtype), (x.shape[0], *p.shape)) for p in prefix]
        return jnp.concatenate([*prefix, x], axis=1)

    def _pooled(self, x, site: Site):
        if self.pooling == "cls":
            return x[:, 0]
        patch = jnp.asarray((site.prefix == 0) & (site.segment > 0))
        patch = patch if batch_axis(site) == 0 else jnp.broadcast_to(patch, x.shape[:2])
        if self.pooling == "mean":
            weight = patch[..., None].astype(x.dtype)
            return (x * weight).sum(axis=1) / jnp.maximum(weight.sum(axis=1), 1)
        query = self.param("map_query", nn.initializers.normal(0.02), (1, self.width), self.param_dtype)
        query = jnp.broadcast_to(query.astype(x.dtype), (x.shape[0], 1, self.width))
        read = nn.MultiHeadDotProductAttention(
            self.num_heads, dtype=self.dtype, param_dtype=self.param_dtype, name="map_attention"
        )
        return read(query, x, mask=patch[:, None, None])[:, 0]
