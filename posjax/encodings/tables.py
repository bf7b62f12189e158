"""Encodings that add a learned row, looked up by position."""

import functools
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Float32, Int32, Shaped

from posjax.encoding import Array, Encoding, Grid, Needs, Site, axes
from posjax.encodings.placement import extents, standing
from posjax.encodings.resize import check_extent, extent_of, resampling, resize, resize_flat, resize_rows
from posjax.spec import nearest, register

_COMBINATIONS = ["sum", "concatenate"]
_AXES = ("time", "row", "column")  # the last two on a grid


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Table:
    """A learned table: one row for each prefix token, then one for each position, a grid's in raster order."""

    rows: Any  # Float[Array, "N M"]; a tree of specs, axes or gradients holds something else here
    extent: tuple[int, ...] = field(metadata={"static": True})  # (length,) or (height, width)


class _ResizedAtRunTime(Encoding):
    """Tables with an argument `resize`, which fits them to each image; `place` then records the image's grid."""

    @property
    def hooks(self) -> frozenset[str]:
        return super().hooks if self.resize is not None else super().hooks - {"place"}

    @property
    def needs(self) -> Needs:
        return Needs.WHOLE_POSITIONS | (Needs(0) if self.resize is None else Needs.WHOLE_DOCUMENT)

    def place(self, params, site, key=None):
        return site if self.resize is None else _with_size(site)


@register("learned")
@dataclass(frozen=True)
class Learned(_ResizedAtRunTime):
    """A learned row for every position and every prefix token, initialised N(0, stddev^2).

    Devlin et al. (2018); for images the flat table (N + 1, M) of Dosovitskiy et al. (2020), arXiv 2010.11929, whose first
    row belongs to the class token. A grid's table is flat too, but remembers its (height, width), so that a 7 x 28
    image cannot be mistaken for a 14 x 14 one.

    A position outside the table is refused: ValueError where positions are known at tracing time, a row of NaN where they
    are not. JAX's own look-up would return the last row. `resized` makes the table of another grid, prefix rows kept.

    Args:
      resize: a method of `posjax.encodings.resize`, by name: at run time every image is given the table resized to its own
        grid, whatever else is in its batch or row; a grid of the table's size gets the table itself. That grid, which `place`
        keeps as `site.state`, is 1 + the image's largest positions: of a masked image it is too small where all tokens
        of the last row or column are missing. The whole image must be there: no cached decoding. On a line likewise for a
        document; a line that `raster` has made of a grid is resized as a line, not as the grid: there take `resized`.

    Raises:
      ValueError: for an unknown resize; from `init` where `dims` gives neither length nor grid; from `embed` for a position
        outside the table, with `resize` for one below 0.
    """

    family = "tables"
    formula = (r"x_p \leftarrow x_p + E_p",)

    relative = False

    stddev: float = 0.02
    resize: str | None = None

    def __post_init__(self):
        _check_resize(self)

    def init(self, key, dims):
        if dims.length is None and dims.grid is None:
            raise ValueError(
                "learned needs to know how many rows to learn: give Dims(length=...) or Dims(grid=...); "
                "with experiments, config.model.length, or data.positions='window' if documents are long"
            )
        extent = (dims.length,) if dims.grid is None else tuple(dims.grid)
        shape = (dims.prefix + int(np.prod(extent)), dims.width)
        return Table(self.stddev * jax.random.normal(key, shape, jnp.float32), extent)

    def resized(self, params, old_grid, new_grid, method="torch_bicubic"):
        return self, resized_table(self, params, old_grid, new_grid, method)

    def embed(self, params, x, site):
        num_prefix = params.rows.shape[0] - int(np.prod(params.extent))
        if self.resize is not None:
            read = _read_resized(self, params.extent, site, num_prefix)
            weight = functools.reduce(lambda a, b: (a[:, :, None] * b[:, None]).reshape(len(a), -1), read)
            code = _product(weight, params.rows[num_prefix:])
            return added(x, _or_prefix(code, params.rows[:num_prefix], site), site)
        position, inside = whole_inside(self, axes(site), params.extent)
        where, num_rows = numpy_if_known(position, site.prefix), params.rows.shape[0]
        strides = np.cumprod((1, *params.extent[:0:-1]))[::-1].astype(np.int32)
        row = where.where(inside, num_prefix + (position * strides).sum(axis=1, dtype=np.int32), num_rows)
        known_prefix = where.where(site.prefix <= num_prefix, site.prefix - 1, num_rows)
        row = where.where(site.prefix > 0, known_prefix, row)
        refuse_outside(
            self, row >= num_rows, site, params.extent, num_prefix, "make the table larger (Dims length, grid, prefix)"
        )
        return added(x, rows_at(params.rows, row), site)


@register("learned_factorized")
@dataclass(frozen=True)
class LearnedFactorized(_ResizedAtRunTime):
    """A learned row for every row of a grid and one for every column, summed or side by side; and one per prefix token.

    combine="concatenate" is the 2-D condition of Dosovitskiy et al. (2020), arXiv 2010.11929, appendix D.4: M/2 channels
    for each axis (here the row's first). combine="sum" gives each axis the whole width. It has h + w rows instead of h w;
    all start at N(0, stddev^2). A grid of three axes is a video: it has rows for each time too, which come first, as the
    axial positions of VideoGPT (Yan et al. 2021, arXiv 2104.10157). Positions outside are refused as by `learned`; `resize`
    and `resized` work as there, axis by axis.

    Raises:
      ValueError: for another `combine`, an unknown resize; from `init` without a grid of two or three axes or for a width
        that they cannot share; from `embed` for positions that are not whole, of other axes or outside the tables.
    """

    family = "tables"
    formula = (
        r"x_{(y,x)} \leftarrow x_{(y,x)} + E^{\mathrm{row}}_y +"
        r" E^{\mathrm{column}}_x\quad\text{or}\quad x_{(y,x)} + \left[E^{\mathrm{row}}_y \,\middle|\,"
        r" E^{\mathrm{column}}_x\right]",
    )

    relative = False
    dimensions = (2, 3)

    combine: str = "concatenate"
    stddev: float = 0.02
    resize: str | None = None

    def __post_init__(self):
        _check_resize(self)
        if self.combine not in _COMBINATIONS:
            raise ValueError(f"learned_factorized cannot {self.combine!r}; {nearest(self.combine, _COMBINATIONS)}")

    def init(self, key, dims):
        if dims.grid is None or len(dims.grid) not in self.dimensions:
            raise ValueError(
                "learned_factorized needs to know how many rows and columns to learn: give Dims(grid=...), of a video with "
                f"the number of times before them; got grid={dims.grid}"
            )
        count = len(dims.grid)
        if self.combine == "concatenate" and dims.width % count:
            raise ValueError(
                f"learned_factorized: a width of {dims.width} cannot be shared by {count} axes; combine='sum' can"
            )
        width = dims.width if self.combine == "sum" else dims.width // count
        *keys, prefix_key = jax.random.split(key, count + 1)
        params = {
            name: self.stddev * jax.random.normal(k, (size, width), jnp.float32)
            for name, k, size in zip(_AXES[-count:], keys, dims.grid, strict=True)
        }
        if dims.prefix:  # an empty array would be a parameter that nothing depends on
            params["prefix"] = self.stddev * jax.random.normal(prefix_key, (dims.prefix, dims.width), jnp.float32)
        return params

    def resized(self, params, old_grid, new_grid, method="torch_bicubic"):
        if old_grid == new_grid:
            return self, params
        names = [name for name in _AXES if name in params]
        check_extent(self.spec_name, tuple(len(params[name]) for name in names), old_grid)
        sizes = dict(zip(names, new_grid, strict=True))
        return self, params | {n: resize(params[n], (size,), method=method) for n, size in sizes.items()}

    def embed(self, params, x, site):
        tables = [params[name] for name in _AXES if name in params]
        extent = tuple(table.shape[0] for table in tables)
        prefix = params.get("prefix", np.zeros((0, x.shape[-1]), np.float32))
        position = self.coordinates(site)
        if self.resize is not None:
            read = _read_resized(self, extent, site, prefix.shape[0], apart=True)
            parts = [_product(weight, table) for weight, table in zip(read, tables, strict=True)]
        else:
            position, inside = whole_inside(self, position, extent)
            where = numpy_if_known(position, site.prefix)
            outside = where.where(site.prefix > 0, site.prefix > prefix.shape[0], ~inside)
            refuse_outside(self, outside, site, extent, prefix.shape[0], "make the tables larger (Dims grid, prefix)")
            parts = [rows_at(t, where.where(inside, position[:, a], t.shape[0])) for a, t in enumerate(tables)]
        code = sum(parts) if self.combine == "sum" else jnp.concatenate(parts, axis=-1)
        return added(x, _or_prefix(code, prefix, site), site)


def resized_table(encoding: Encoding, table: Table, old: Grid, new: Grid, method: Any) -> Table:
    """The table of another grid, with the rows of prefix tokens as they are.

    Raises:
      ValueError: for a table of another grid than `old`, or an unknown method.
    """
    if old == new:
        return table
    check_extent(encoding.spec_name, table.extent, old)
    num_prefix = table.rows.shape[0] - int(np.prod(table.extent))
    grid = resize_flat(table.rows[num_prefix:], old, new, method=method)
    return Table(numpy_if_known(grid).concatenate([table.rows[:num_prefix], grid]), extent_of(new))


def _check_resize(encoding: Encoding) -> None:
    if encoding.resize is not None:
        resampling(encoding.resize)


def _with_size(site: Site) -> Site:
    """The site with the size of each token's image as its state, which stays right when tokens are dropped later."""
    return site._replace(state=extents(site._replace(position=axes(site))))


def _read_resized(
    encoding: Encoding, extent: tuple[int, ...], site: Site, num_prefix: int, apart: bool = False
) -> list[Float[Array, "T N"]]:
    """The weights by which each token reads the table of each axis, resized to the token's own image.

    apart: each axis has a table of its own.
    """
    position = axes(site)
    whole_inside(encoding, position, extent)
    where = numpy_if_known(position, site.prefix)
    outside = where.where(site.prefix > 0, site.prefix > num_prefix, (position < 0).any(axis=1))
    refuse_outside(encoding, outside, site, extent, num_prefix, "make the table larger (Dims prefix)")
    size = site.state if len(site.state) else _with_size(site).state
    where = numpy_if_known(position, site.prefix, site.segment, size)
    position = where.where(standing(site)[:, None], where.maximum(position, 0), 0)  # others may stand beyond that size
    tables = [slice(a, a + 1) for a in range(len(extent))] if apart else [slice(None)]
    each = [w for at in tables for w in resize_rows(position[:, at], extent[at], size[:, at], encoding.resize)]
    below = outside[:, None] & (site.prefix == 0)[:, None]
    return [where.where(below, np.float32(np.nan), weight) for weight in each]


def _product(weight: Float[Array, "T N"], table: Float[Array, "N M"]) -> Float32[jax.Array, "T M"]:
    return jnp.matmul(weight, jnp.asarray(table, jnp.float32), precision=jax.lax.Precision.HIGHEST)


def _or_prefix(code: Float[Array, "T M"], prefix: Float[Array, "P M"], site: Site) -> Float[jax.Array, "T M"]:
    """The code for tokens that stand somewhere, a row of `prefix` for those that do not."""
    where = numpy_if_known(site.prefix)
    return jnp.where(site.prefix[:, None] > 0, rows_at(prefix, where.maximum(site.prefix - 1, 0)), code)


def numpy_if_known(*arrays: Array):
    """numpy if all arrays are known at tracing time, so that results are known too; else jax.numpy."""
    return np if all(isinstance(array, np.ndarray) for array in arrays) else jnp


def whole_inside(encoding: Encoding, position: Shaped[Array, "T A"], extent: tuple[int, ...]):
    """Whole positions, and True for positions in [0, extent) on every axis."""
    if position.shape[1] != len(extent):
        raise ValueError(
            f"{encoding.spec_name} has a table for positions of {len(extent)} axes, got {position.shape[1]}"
        )
    if not np.issubdtype(position.dtype, np.integer):
        raise ValueError(f"{encoding.spec_name} looks up whole positions, got {position.dtype}")
    where = numpy_if_known(position)
    return position, where.all((position >= 0) & (position < np.asarray(extent, position.dtype)), axis=1)


def rows_at(rows: Float[Array, "N M"], index: Int32[Array, " T"]) -> Float[jax.Array, "T M"]:
    """The rows at these indices, which are 0 or more; NaN beyond the end."""
    if not rows.shape[0]:
        return jnp.full((len(index), rows.shape[1]), jnp.nan, jnp.float32)
    return jnp.asarray(rows).at[index].get(mode="fill", fill_value=jnp.nan)


def added(x: Float[Array, "T M"], code: Float[Array, "T M"], site: Site) -> Float[Array, "T M"]:
    """Adds a code to tokens, in float32: the gradient of a code is a sum over the sequences of a batch."""
    # Padding may stand anywhere (left of position 0, say), and its NaN would reach every token as 0 * NaN.
    code = jnp.where(site.segment[:, None] > 0, code, 0.0)
    return (x.astype(jnp.promote_types(x.dtype, jnp.float32)) + code).astype(x.dtype)


def refuse_outside(
    encoding: Encoding, outside: Bool[Array, " T"], site: Site, extent: tuple[int, ...], num_prefix: int, mend: str
) -> None:
    if isinstance(outside, jax.core.Tracer) or isinstance(site.segment, jax.core.Tracer):
        return  # values are not known yet; the look-up fills NaN
    tokens = np.flatnonzero(np.asarray(outside) & (np.asarray(site.segment) > 0))
    if tokens.size:
        token = tokens[0]
        what = f"prefix token {site.prefix[token]}" if site.prefix[token] else f"position {site.position[token]}"
        raise ValueError(
            f"{encoding.spec_name} has rows for positions below {'x'.join(map(str, extent))} and {num_prefix} prefix "
            f"tokens, none for {what}: {mend} or resize it"
        )
