"""Position maps: `raster(width=14) >> learned()` shows `learned` other positions than the model gave."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from posjax.encoding import PositionMap
from posjax.spec import register


@register("raster")
@dataclass(frozen=True)
class Raster(PositionMap):
    """(row, column) on a grid of this width becomes row * width + column: a 1-D encoding sees an image as a line.

    The "1-D" condition of Dosovitskiy et al. (2020), appendix D.4. The end of a row lies next to the start of the next one.

    Raises:
      ValueError: for positions that are not (row, column), a width below 1, or columns beyond the width (where positions
        are known at tracing time), which would be taken for patches of the next row.
    """

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

    def place(self, params, site, key=None):
        self.coordinates(site)
        column = site.position[:, 1]
        outside = (site.segment > 0) & ((column < 0) | (column >= self.width))
        if not isinstance(outside, jax.core.Tracer) and outside.any():
            raise ValueError(
                f"raster(width={self.width}) got columns {column.min()} to {column.max()}: set the grid's width"
            )
        return site._replace(position=site.position[:, 0] * self.width + site.position[:, 1])


@register("interpolate")
@dataclass(frozen=True)
class Interpolate(PositionMap):
    """Position interpolation: p becomes p / factor, so that a context `factor` times longer fits the trained range.

    Chen et al. (2023), arXiv 2306.15595, eq. 4. Positions become float32:
    exact where the factor is a power of two, otherwise rounded to 2^-24 of their size (0.02 positions at 2^20 / 3).

    Raises:
      ValueError: for a factor that is not positive.
    """

    factor: float

    def __post_init__(self):
        if not self.factor > 0:
            raise ValueError(f"interpolate needs a positive factor, got {self.factor}")

    def place(self, params, site, key=None):
        return site._replace(position=jnp.asarray(site.position, jnp.float32) / self.factor)
