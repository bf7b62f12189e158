"""Position maps: `raster(width=14) >> learned()` shows `learned` other positions than the model gave.

The maps here are deterministic; those that draw positions at random are in randomizing.py.
"""

import math
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int32, Shaped

from posjax.encoding import Array, Dims, Needs, PositionMap, Site
from posjax.mask import Memory
from posjax.spec import register


@register("raster")
@dataclass(frozen=True)
class Raster(PositionMap):
    """(row, column) on a grid of this width becomes row * width + column: a 1-D encoding sees an image as a line.

    The "1-D" condition of Dosovitskiy et al. (2020), arXiv 2010.11929, appendix D.4. The end of a row lies next to the
    start of the next one.
    `resized` sets the width of the new grid, and a table behind it is resized as a grid.

    Raises:
      ValueError: for positions that are not (row, column), a width below 1, or columns beyond the width (where positions
        are known at tracing time), which would be taken for patches of the next row.

    >>> import posjax as pj
    >>> Raster(width=3).place((), pj.grid(2, 3)).position.tolist()
    [0, 1, 2, 3, 4, 5]
    """

    family = "position maps"
    formula = (r"(y, x) \mapsto y\,W + x",)

    dimensions = (2,)

    width: int

    def __post_init__(self):
        if self.width < 1:
            raise ValueError(f"raster needs a width of at least 1, got {self.width}")

    def dims(self, dims):
        if dims.grid is None:
            return dims
        if dims.grid[1] != self.width:
            raise ValueError(
                f"raster(width={self.width}) does not fit a grid of {dims.grid}: use raster(width={dims.grid[1]})"
            )
        return dims._replace(grid=None, length=dims.grid[0] * dims.grid[1])

    def axes_after(self, num_axes):
        return 1

    def grid_after(self, grid):
        self.dims(Dims(0, 0, 0, grid=grid))
        return (grid,)

    def resized(self, params, old_grid, new_grid, method="torch_bicubic"):
        return replace(self, width=new_grid[1]), params

    def place(self, params, site, key=None):
        self.coordinates(site)
        column = site.position[:, 1]
        outside = (site.segment > 0) & ((column < 0) | (column >= self.width))
        if not isinstance(outside, jax.core.Tracer) and outside.any():
            raise ValueError(
                f"raster(width={self.width}) got columns {column.min()} to {column.max()}: set the grid's width"
            )
        return site._replace(position=site.position[:, 0] * self.width + site.position[:, 1])


@register("axis")
@dataclass(frozen=True)
class Axis(PositionMap):
    """One of several position axes: `axis(index=1) >> alibi()` sees how far apart columns are, and nothing of rows.

    For tokens that stand on a line and have, say, a digit place beside it:
    `(axis(index=0) >> rope()) + (axis(index=1) >> abacus())`.

    Two axes of three may stay: `(axis(index=0) >> learned()) + (axis(index=(1, 2)) >> learned())` has a table of frames and
    one of patches, as TimeSformer (Bertasius et al. 2021, arXiv 2102.05095) and MViT's use_separate_pos_embed.

    Raises:
      ValueError: for an index that is neither 0, 1 or 2 nor two of these that rise, or positions that have no such axis.
    """

    family = "position maps"
    formula = (r"(p_0, p_1, \dots) \mapsto p_a",)

    index: int | tuple[int, ...]

    def __post_init__(self):
        if self.index not in (0, 1, 2, (0, 1), (0, 2), (1, 2)):
            raise ValueError(f"axis(index=...) is 0, 1 or 2, or two of them as in (1, 2); got {self.index}")

    @property
    def dimensions(self):
        return tuple(
            num_axes for num_axes in (2, 3) if num_axes > np.max(self.index) and np.size(self.index) < num_axes
        )

    def dims(self, dims):
        if dims.grid is None:
            return dims
        if isinstance(self.index, tuple):
            return dims._replace(grid=tuple(dims.grid[axis] for axis in self.index))
        return dims._replace(grid=None, length=dims.grid[self.index])

    def axes_after(self, num_axes):
        return np.size(self.index)

    def place(self, params, site, key=None):
        return site._replace(position=self.coordinates(site)[:, np.array(self.index)])


@register("interpolate")
@dataclass(frozen=True)
class Interpolate(PositionMap):
    """Position interpolation: p becomes p / factor, so that a context `factor` times longer fits the trained range.

    Chen et al. (2023), arXiv 2306.15595, eq. 4. Positions become float32:
    exact where the factor is a power of two, otherwise rounded to 2^-24 of their size (0.02 positions at 2^20 / 3).

    Raises:
      ValueError: for a factor that is not positive.
    """

    family = "position maps"
    formula = (r"p \mapsto \frac ps",)

    factor: float

    def __post_init__(self):
        if not self.factor > 0:
            raise ValueError(f"interpolate needs a positive factor, got {self.factor}")

    def place(self, params, site, key=None):
        position = jnp.asarray(site.position, jnp.float32)
        # XLA would multiply by the reciprocal of a number that it knows: 7 * (1/7) may fall short of 1.
        return site._replace(position=position / jax.lax.optimization_barrier(jnp.full_like(position, self.factor)))

    def before(self, memory):
        if math.isinf(memory.last):
            return memory
        # One token more, as rounding may shorten distances.
        return Memory(math.ceil(memory.last * self.factor) + 1, math.ceil(memory.first * self.factor))


@register("fit_grid")
@dataclass(frozen=True)
class FitGrid(PositionMap):
    """An image's grid stretched to height x width: p becomes p height / h on its h rows, p width / w on its w columns.

    The resolution policy of EVA-02 (Fang et al. 2023, arXiv 2303.11331, `pt_seq_len`) and of timm's `ref_feat_shape`: with
    the training grid as height and width a rotary encoding sees no coordinate beyond the trained ones; patches may fall
    between these. h and w are the image's own, 1 + its largest positions, whatever else is in its row or batch (timm 1.0.29
    computed angles on the largest grid of a batch, 1.0.31 does not). A masked image must keep at least one token of its
    last row and of its last column. The whole image must be there: no cached decoding.

    Args:
      height, width: the grid on which the encoding behind it was, or will be, trained.
      half_pixel: keeps the centres of patches where they are, (p + 1/2) height / h - 1/2. A relative encoding cannot tell
        the difference; a sinusoidal code can.

    Positions become float32, exact on the grid of height x width itself. It stays as it is for a model of another grid.

    Raises:
      ValueError: for a height or width below 1, or positions that are not (row, column).

    >>> import posjax as pj
    >>> FitGrid(14, 14).place((), pj.grid(28, 7)).position[-1].tolist()    # the last row and column of 28 x 7
    [13.5, 12.0]
    """

    family = "position maps"
    formula = (
        r"(y, x) \mapsto \left(\frac{y\,H_0}{H_1},\ \frac{x\,W_0}{W_1}\right)",
        r"H_0 \times W_0\ \text{the trained grid},\ H_1 \times W_1\ \text{that of the image}",
    )

    dimensions = (2,)
    relative = False
    needs = Needs.WHOLE_DOCUMENT

    height: int
    width: int
    half_pixel: bool = False

    def __post_init__(self):
        if min(self.height, self.width) < 1:
            raise ValueError(f"fit_grid needs a height and a width of at least 1, got {self.height} and {self.width}")

    def dims(self, dims):
        return dims if dims.grid is None else dims._replace(grid=(self.height, self.width))

    def place(self, params, site, key=None):
        position, size = self.coordinates(site), extents(site)
        where = np if all(isinstance(array, np.ndarray) for array in (position, size)) else jnp
        position, size = (where.asarray(array, np.float32) for array in (position, size))
        centre, fitted = np.float32(self.half_pixel / 2), np.array((self.height, self.width), np.float32)
        # The product first: it is whole, and on the grid of height x width the quotient is then the position itself.
        return site._replace(position=(position + centre) * fitted / size - centre)


@register("unpad")
@dataclass(frozen=True)
class Unpad(PositionMap):
    """Shifts the positions of a row so that its first token, padding aside, stands at 0.

    For batches whose positions count the padding on the left, as many tokenizers give them. On grids, each axis for itself.
    Tokens that stand nowhere are passed over. The whole row must be there: no cached decoding.
    """

    family = "position maps"
    formula = (r"p \mapsto p - \min_{p'\ \text{in the row}} p'",)

    needs = Needs.WHOLE_DOCUMENT

    def place(self, params, site, key=None):
        one_row = site._replace(segment=(site.segment > 0).astype(np.int32))
        return site._replace(position=site.position - first_and_last(one_row)[0])


@register("reset")
@dataclass(frozen=True)
class Reset(PositionMap):
    """Shifts the positions of each document of a packed row so that it begins at 0.

    For packed rows whose positions run on over documents. On grids, each axis for itself. `site.segment`, not positions,
    keeps documents from seeing each other. Padding and tokens that stand nowhere are passed over. The whole document must
    be there: no cached decoding.
    """

    family = "position maps"
    formula = (r"p \mapsto p - \min_{p'\ \text{in the document}} p'",)

    needs = Needs.WHOLE_DOCUMENT

    def place(self, params, site, key=None):
        return site._replace(position=site.position - first_and_last(site)[0])


def standing(site: Site) -> Bool[Array, "*B T"]:
    """Marks tokens whose position counts: no padding, no class token or register."""
    return (site.segment > 0) & (site.prefix == 0)


def documents(site: Site) -> Int32[Array, " T"]:
    """The document of each token; tokens without a position that counts share a last one."""
    where = np if isinstance(site.segment, np.ndarray) and isinstance(site.prefix, np.ndarray) else jnp
    return where.where(standing(site), site.segment, np.int32(np.iinfo(np.int32).max))


def extents(site: Site) -> Shaped[Array, "T *A"]:
    """The extent of each token's image or document on each axis: 1 + its largest position; 1 for tokens in none.

    It has no gradient with respect to positions.
    """
    known = isinstance(site.position, np.ndarray)
    position = site.position if known else jax.lax.stop_gradient(site.position)
    _, last = first_and_last(site._replace(position=position))
    return (np if isinstance(last, np.ndarray) else jnp).maximum(last, 0) + 1


def each_axis(function, position: Shaped[Array, "T *A"]):
    """Stacks what `function(axis number, positions on it)` returns for each axis; for a tuple, each of its parts."""
    if position.ndim == 1:
        return function(0, position)
    each = [function(axis, position[:, axis]) for axis in range(position.shape[1])]
    known = all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(each))
    return jax.tree.map(lambda *leaves: (np if known else jnp).stack(leaves, axis=1), *each)


def first_and_last(site: Site, among: Site | None = None) -> tuple[Shaped[Array, "T *A"], Shaped[Array, "T *A"]]:
    """The smallest and the largest position in each token's document, on each axis; 0 and 0 for tokens in none.

    Args:
      among: the tokens whose positions count, as keys for queries; by default the tokens of `site` itself.
    """
    among = site if among is None else among
    asked, document = documents(site), documents(among)
    known = all(isinstance(array, np.ndarray) for array in (asked, document, among.position))
    where = np if known else jnp
    asked, document = where.asarray(asked), where.asarray(document)

    def extremes(_, position):
        order = where.lexsort((position, document))
        by_document, by_position = document[order], where.asarray(position)[order]
        begin, end = (where.searchsorted(by_document, asked, side=side) for side in ("left", "right"))
        there, nowhere = standing(site) & (begin < end), where.zeros((), position.dtype)
        ends = where.minimum(begin, len(document) - 1), end - 1
        return tuple(where.where(there, by_position[index], nowhere) for index in ends)

    return each_axis(extremes, among.position)
