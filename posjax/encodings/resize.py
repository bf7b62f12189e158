"""One exact resize of learned tables, for load time and run time: a matrix along each axis.

    table = resize(table, (32, 20), method="torch_bicubic")     # [14, 14, M] to [32, 20, M]

Axes are resampled one by one: out = W table, with W [new, old] made from the sizes. So grids need not be square, and a grid
of 7 x 28 is not taken for one of 14 x 14. Between frameworks a resize differs in four choices, the fields of `Resampling`;
the presets in `METHODS` are those that published checkpoints were made with.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Shaped

from posjax.encoding import Array, Grid
from posjax.spec import nearest

_SUPPORT = {"linear": 1, "cubic": 2}
_ALIGNMENTS = ["corners", "half_pixel"]
_EDGES = ["renormalise", "repeat"]


@dataclass(frozen=True)
class Resampling:
    """A way to read a row of a table between its entries.

    Args:
      kernel: "linear", or "cubic", the convolution of Keys (1981) with the parameter `a`: -1/2 in Pillow and JAX and where
        torch antialiases, -3/4 in torch where it does not, and in OpenCV.
      antialias: where the table shrinks, the kernel is stretched to the new spacing. torch does not by default, JAX does.
      alignment: "half_pixel": entries are cells of equal size and both grids cover the same span; "corners": the first
        and last entries fall together (`align_corners=True`, `scipy.ndimage.zoom`).
      edge: what a kernel reads beyond the table: "repeat" reads its outermost entry; "renormalise" reads nothing and
        divides the other weights by their sum.
      offset: the spacing is that of new + offset entries: DINOv2 passes (new + 0.1) / old for the scale factor.

    Raises:
      ValueError: for an unknown kernel, alignment or edge, a negative offset or one with corners aligned, or `antialias`
        with any but renormalised half-pixel cells.
    """

    kernel: str = "linear"
    a: float = -0.5
    antialias: bool = False
    alignment: str = "half_pixel"
    edge: str = "renormalise"
    offset: float = 0.0

    def __post_init__(self):
        for field, known in (("kernel", [*_SUPPORT]), ("alignment", _ALIGNMENTS), ("edge", _EDGES)):
            if getattr(self, field) not in known:
                raise ValueError(
                    f"no {field} of a resize is named {getattr(self, field)!r}; {nearest(getattr(self, field), known)}"
                )
        corners = self.alignment == "corners"
        if self.antialias and (corners or self.edge == "repeat"):
            raise ValueError("an antialiased resize needs alignment='half_pixel' and edge='renormalise'")
        if not self.offset >= 0 or (corners and self.offset):
            raise ValueError(
                f"the offset of a resize is at least 0, and 0 where corners are aligned; got {self.offset}"
            )


METHODS = MappingProxyType(
    {
        "torch_bilinear": Resampling("linear", edge="repeat"),
        "torch_bicubic": Resampling("cubic", a=-0.75, edge="repeat"),
        "torch_bilinear_antialias": Resampling("linear", antialias=True),
        "torch_bicubic_antialias": Resampling("cubic", a=-0.5, antialias=True),
        "google_npz": Resampling("linear", alignment="corners"),
        "jax_linear": Resampling("linear", antialias=True),
        "jax_cubic": Resampling("cubic", a=-0.5, antialias=True),
        "dinov2": Resampling("cubic", a=-0.75, edge="repeat", offset=0.1),
    }
)


def resampling(method: str | Resampling) -> Resampling:
    """The preset of this name; a Resampling is returned as it is.

    Raises:
      ValueError: for an unknown name; the message names the nearest known one.
    """
    if isinstance(method, Resampling):
        return method
    if method not in METHODS:
        raise ValueError(f"no resize is named {method!r}; {nearest(str(method), sorted(METHODS))}")
    return METHODS[method]


def resize(
    table: Float[Array, "*grid M"], size: Sequence[int], *, method: str | Resampling = "torch_bicubic"
) -> Float[Array, "*size M"]:
    """A table [h, w, M] of one grid made into that of another, [height, width, M]; likewise on one axis or on three.

    Computed in float32, returned in the table's dtype, differentiable in the table. A table that has the size already is
    returned as it is. A NumPy array stays one. Sizes are static, so it may be called under `jax.jit`; see `resize_rows`
    for sizes that are data.

    Presets, and who resizes so:

    - torch_bilinear: `F.interpolate(mode="bilinear")`; timm's reader of Google's .npz files.
    - torch_bicubic: `F.interpolate(mode="bicubic")`; DeiT, DINO, rope-vit, transformers.
    - torch_bilinear_antialias, torch_bicubic_antialias: with antialias=True; the latter is timm's `resample_abs_pos_embed`.
    - google_npz: `scipy.ndimage.zoom(order=1)`; vision_transformer and big_vision where they load a checkpoint.
    - jax_linear, jax_cubic: `jax.image.resize`, antialiased as by default; big_vision's FlexiViT and NaFlex, and bonsai.
    - dinov2: bicubic by a scale factor of (new + 0.1) / old; DINOv2's own code. An axis that keeps its size is resampled
      too where the other one changes, as there.

    Raises:
      ValueError: for a table without the axes of `size` and one more, sizes below 1, or an unknown method.

    >>> table = np.float32([[0], [1]])
    >>> print(resize(table, (4,), method="torch_bilinear").ravel())
    [0.   0.25 0.75 1.  ]
    >>> print(resize(table, (4,), method="google_npz").ravel().round(2))    # keeps the ends where they are
    [0.   0.33 0.67 1.  ]
    """
    size, chosen = tuple(size), resampling(method)
    old = tuple(table.shape[:-1])
    if len(old) != len(size) or not size:
        raise ValueError(f"a table of shape {table.shape} is no grid of {len(size)} axes, as for a size of {size}")
    if size == old:
        return table
    where, product = np, np.tensordot
    if not isinstance(table, np.ndarray):
        where, product = jnp, functools.partial(jnp.tensordot, precision=jax.lax.Precision.HIGHEST)
    out = where.asarray(table, np.float32)
    for axis, (before, after) in enumerate(zip(old, size, strict=True)):
        matrix = resize_matrix(before, after, chosen).astype(np.float32)
        out = where.moveaxis(product(matrix, out, (1, axis)), 0, axis)
    return out.astype(table.dtype)


def resize_matrix(old: int, new: int, method: str | Resampling) -> Float[np.ndarray, "new old"]:
    """The matrix of one axis, in float64: row i holds the weights of the old entries in the new entry i.

    It is the identity where both sizes are equal, except for a method with an offset.

    Raises:
      ValueError: for sizes below 1 or an unknown method.
    """
    if min(old, new) < 1:
        raise ValueError(f"a table of {old} entries cannot be resized to {new}: both must be at least 1")
    chosen = resampling(method)
    return _weights(np, np.arange(new, dtype=np.float64)[:, None], old, np.float64(new), chosen, chosen.offset)


def resize_rows(
    position: Shaped[Array, "T A"], old: Sequence[int], new: Shaped[Array, "*#T A"], method: str | Resampling
) -> list[Float[Array, "T old"]]:
    """For each axis the rows of `resize_matrix` at positions of a grid whose size is data, in float32.

    Args:
      position: [T, A], 0 to new - 1; also between whole numbers.
      old: the size of the table.
      new: [A], or [T, A] where tokens stand on grids of their own.

    The product of a token's rows weighs the table as `resize` would. For a grid of the table's own size it is the identity,
    under a method with an offset too. NumPy arrays give NumPy arrays; traced ones are welcome.
    """
    chosen = resampling(method)
    where = np if all(isinstance(x, np.ndarray) for x in (position, new)) else jnp
    position, new = (where.asarray(x, np.float32) for x in (position, new))
    same = where.all(new == where.asarray(old, np.float32), axis=-1)
    offset = where.where(same, np.float32(0), np.float32(chosen.offset))[..., None]
    return [
        _weights(where, position[:, a, None], size, new[..., a, None], chosen, offset) for a, size in enumerate(old)
    ]


def _weights(where, position, old: int, new, method: Resampling, offset):
    """[T, old] from positions [T, 1], with new and offset numbers or [T or 1, 1].

    The source coordinate of a position is kept as a fraction. So it is exact for whole positions, in float32 too, and only
    the distances from it are rounded.
    """
    if method.alignment == "corners":
        numerator, denominator = position * (old - 1), where.maximum(new - 1, 1)
    else:
        numerator, denominator = (2 * position + 1) * old - (new + offset), 2 * (new + offset)
    beyond = _SUPPORT[method.kernel] if method.edge == "repeat" else 0
    entry = np.arange(-beyond, old + beyond, dtype=numerator.dtype)
    stretch = where.maximum(denominator, 2 * old) if method.antialias else denominator
    weight = _kernel(where, method, abs(numerator - denominator * entry) / stretch)
    if not beyond:
        return weight / weight.sum(axis=1, keepdims=True)
    before, within, after = weight[:, :beyond], weight[:, beyond : beyond + old], weight[:, beyond + old :]
    first, last = ((np.arange(old) == edge).astype(weight.dtype) for edge in (0, old - 1))
    return within + first * before.sum(axis=1, keepdims=True) + last * after.sum(axis=1, keepdims=True)


def _kernel(where, method: Resampling, t):
    """The weight of an entry at distance t, in entries."""
    if method.kernel == "linear":
        return where.maximum(1 - t, 0)
    a = method.a
    near, far = (1 - t) * (1 + t - (a + 2) * t * t), a * (t - 1) * (2 - t) ** 2  # factored, exact near their zeros
    return where.where(t <= 1, near, where.where(t < 2, far, np.zeros((), t.dtype)))


def resize_flat(rows: Float[Array, "N M"], old: Grid, new: Grid, *, method: str | Resampling) -> Float[Array, "O M"]:
    """`resize` of a flat table, N rows in raster order; a grid laid out on a line, ((h, w),), is resized as a grid."""
    old, new = (grid[0] if isinstance(grid[0], tuple) else grid for grid in (old, new))
    return resize(rows.reshape(*old, rows.shape[1]), new, method=method).reshape(-1, rows.shape[1])


def extent_of(grid: Grid) -> tuple[int, ...]:
    """The number of places on each axis; ((h, w),), a grid laid out on a line, has h w on one axis."""
    return tuple(math.prod(size) if isinstance(size, tuple) else size for size in grid)


def check_extent(name: str, extent: tuple[int, ...], grid: Grid) -> None:
    """
    Raises:
      ValueError: if the extent of the parameters is not that of the grid from which they are to be resized.
    """
    if extent != extent_of(grid):
        has, asked = ("x".join(map(str, size)) for size in (extent, extent_of(grid)))
        raise ValueError(f"{name} has learned a grid of {has}, so it cannot be resized from {asked}: name its own grid")
