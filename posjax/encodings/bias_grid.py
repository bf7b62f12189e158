"""Biases made for images: heads that look one way, and tables over the offsets within a window."""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int32

from posjax.encoding import Array, Encoding, Needs, Site, axes
from posjax.encodings.pairs import HIDDEN, ElementwiseBias, length, related, same_document
from posjax.encodings.resize import check_extent, resize_flat
from posjax.encodings.tables import numpy_if_known
from posjax.spec import register

# Bounds of a head's view, by compass: right, down-right, down, ... clockwise, each as (row, column).
_COMPASS = np.array([(0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1)])
# Where the views of the heads begin; up, down, left, right for 180 degrees, then as in the authors' code.
_VIEWS = {180: (4, 0, 2, 6), 90: (4, 6, 2, 0, 5, 1, 3, 7), 45: (5, 2, 4, 7, 6, 1, 3, 0)}


@register("lookhere")
@dataclass(frozen=True)
class LookHere(ElementwiseBias):
    """Each head looks one way: -slope slope_h |q - k| for keys within its field of view, bounds included, none beyond it.

    Fuller et al. (2024), arXiv 2405.13985. An undirected head sees all keys. The directed heads come first and take turns:
    over the four sides at 180 degrees, over the four corners and then the four sides at 90, over the eight octants at 45;
    slope_h is 1/2 in the first round, 1/4 in the second and so on. The slopes of undirected heads are 4^-1, 4^-2, 4^-3,
    4^-4, each for equally many heads. With 6 or 12 heads this is the order of the authors' code; 16 heads were published
    with undirected=4 and the same heads in another order. A key out of view is given a bias of -1e9, far below any logit
    but finite, so a query that can see nothing else sees such keys. Every token sees itself; prefix tokens see all and are
    seen by all, without a bias. The offsets are compared as they are, so the grid need not be square.

    Args:
      fov: degrees that a directed head sees, 180, 90 or 45.
      undirected: how many heads see all around; None for a third of them, rounded down.
      slope: factor on all slopes. The authors let it fall from 3 in the first layer to 1 in the last; an encoding knows no
        layers, so this is their mean.

    Raises:
      ValueError: for another fov, undirected heads below 0 or (on call) more than there are, or a negative slope.
    """

    family = "decay"
    formula = (
        r"b^{(h)}_{mn} = \begin{cases} -s\,s_h\,\lVert m-n \rVert & n \text{ within the view of head"
        r" } h \\ -10^9 & \text{else} \end{cases}",
    )

    dimensions = (2,)

    fov: int = 90
    undirected: int | None = None
    slope: float = 2.0

    def __post_init__(self):
        if self.fov not in _VIEWS:
            raise ValueError(
                f"lookhere has fields of view of {', '.join(map(str, _VIEWS))} degrees, got fov={self.fov}"
            )
        if self.undirected is not None and (type(self.undirected) is not int or self.undirected < 0):
            raise ValueError(f"lookhere(undirected=...) is a number of heads or None, got {self.undirected!r}")
        if not self.slope >= 0:
            raise ValueError(f"lookhere(slope=...) cannot be negative, got {self.slope}")

    def constants(self, params, num_heads):
        undirected = num_heads // 3 if self.undirected is None else self.undirected
        if undirected > num_heads:
            raise ValueError(f"lookhere(undirected={undirected}) needs as many heads, got {num_heads}")
        begin, slopes = _views(self.fov, num_heads - undirected, undirected)
        # Both bounds of an undirected head are 0, so every key lies on their line.
        bounds = [np.where(begin[:, None] < 0, 0, _COMPASS[(begin + by) % 8]) for by in (0, self.fov // 45 + 4)]
        return np.concatenate([self.slope * slopes[:, None], *bounds], axis=1).astype(np.float32)

    def logit(self, constants, offset):
        slope, *bounds = constants
        row, column = (jnp.asarray(axis, jnp.float32) for axis in offset)

        def clockwise(bound_row, bound_column):  # from this bound, or on its line; the cross product is exact
            return bound_column * row - bound_row * column >= 0

        in_view = clockwise(*bounds[:2]) & clockwise(*bounds[2:])
        return jnp.where(in_view, -slope * length(offset), HIDDEN)


def _views(fov: int, directed: int, undirected: int) -> tuple[np.ndarray, np.ndarray]:
    """The compass index at which the view of each head begins (-1 if it is undirected), and its slope."""
    head, views = np.arange(directed), np.array(_VIEWS[fov])
    around = np.arange(undirected) * 4 // max(undirected, 4)
    begin = np.concatenate([views[head % len(views)], np.full(undirected, -1)])
    return begin, np.concatenate([0.5 ** (1 + head // len(views)), 0.25 ** (1 + around)])


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class OffsetTable:
    """Learned rows: one for each offset q - k within a window, in raster order, then rows of P prefix tokens: P rows for a
    prefix query and a patch, P for a patch and a prefix key, P^2 for a pair of prefix tokens.
    """

    rows: Any  # Float[Array, "N H"]; a tree of specs, axes or gradients holds something else here
    extent: tuple[int, ...] = field(metadata={"static": True})  # (length,) or (height, width) of the window
    prefix: int = field(metadata={"static": True})


@register("swin")
@dataclass(frozen=True)
class Swin(Encoding):
    """A learned bias for every offset within a window and every head: Swin's relative position bias.

    Liu et al. (2021), arXiv 2103.14030, eq. 4. The window is the grid or the length that the model is made for, of any
    shape, with 2h - 1 times 2w - 1 offsets (on a line 2n - 1). Zero where a token stands nowhere.

    An offset outside the table is refused: ValueError where positions are known at tracing time, NaN where they are not.
    `resized` resizes the table [2h - 1, 2w - 1] of each head to another window, as the authors do for fine-tuning (torch's
    bicubic); rows of prefix tokens stay. Behind `raster` there is no such table, and `resized` refuses.

    Parameters: an OffsetTable whose rows, [(2h - 1)(2w - 1), H], are laid out as in Swin's, timm's and transformers'
    checkpoints; initialised N(0, stddev^2). The authors truncate that normal at 100 standard deviations, which changes
    nothing.

    Raises:
      ValueError: from `init` where `dims` gives neither grid nor length; for fractional positions; as above.
    """

    family = "learned bias"
    formula = (r"b^{(h)}_{mn} = B_{h,\,\Delta y,\,\Delta x},\quad (\Delta y, \Delta x) = m - n",)

    needs = Needs.WHOLE_POSITIONS
    dimensions = (1, 2)

    stddev: float = 0.02

    def init(self, key, dims):
        if dims.length is None and dims.grid is None:
            raise ValueError(f"{self.spec_name} needs to know its window: give Dims(grid=...) or Dims(length=...)")
        extent = (dims.length,) if dims.grid is None else tuple(dims.grid)
        prefix = self._prefix(dims)
        count = int(np.prod([2 * n - 1 for n in extent])) + 2 * prefix + prefix**2
        return OffsetTable(self.stddev * jax.random.normal(key, (count, dims.num_heads), jnp.float32), extent, prefix)

    def resized(self, params, old_grid, new_grid, method="torch_bicubic"):
        if old_grid == new_grid:
            return self, params
        if isinstance(old_grid[0], tuple):
            raise ValueError(
                f"{self.spec_name} behind raster(...) knows offsets on a line, not on the grid: it cannot be resized"
            )
        check_extent(self.spec_name, params.extent, old_grid)
        old, new = (tuple(2 * n - 1 for n in grid) for grid in (old_grid, new_grid))
        count, where = int(np.prod(old)), numpy_if_known(params.rows)
        rows = resize_flat(params.rows[:count], old, new, method=method)
        rows = where.concatenate([rows, params.rows[count:]])
        return self, OffsetTable(rows, tuple(new_grid), params.prefix)

    def _prefix(self, dims):
        return 0

    def _has_row(self, q_site, k_site):
        return related(q_site, k_site)

    def bias(self, params, q, q_site, k, k_site):
        row, has_row = _row(params, q_site, k_site, self.spec_name), self._has_row(q_site, k_site)
        _refuse_outside(self.spec_name, params, row, has_row, q_site, k_site)
        by_head = jnp.asarray(params.rows, jnp.float32).T
        return jnp.where(has_row, by_head.at[:, row].get(mode="fill", fill_value=jnp.nan), 0.0)


@register("beit")
@dataclass(frozen=True)
class Beit(Swin):
    """Swin's table and learned biases for the class token: from it to patches, from patches to it, from it to itself.

    Bao et al. (2021), arXiv 2106.08254, in the authors' code. With P prefix tokens each has a bias to and from the patches,
    and each pair of them one of its own: P + P + P^2 rows behind the table, BEiT's three for P = 1. `dims.prefix` says how
    many there are; a further prefix token is refused like an offset outside the window.

    Parameters: as `swin`'s, initialised N(0, stddev^2), with the authors' default of zeros.
    """

    family = "learned bias"
    formula = (
        r"b^{(h)}_{mn} = \begin{cases} B_{h,\,\Delta y,\,\Delta x} & \text{between patches}"
        r" \\ u_h,\ v_h,\ w_h & \text{from, to and at the class token} \end{cases}",
    )

    stddev: float = 0.0

    def _prefix(self, dims):
        return dims.prefix

    def _has_row(self, q_site, k_site):
        return same_document(q_site, k_site)


def _row(table: OffsetTable, q_site: Site, k_site: Site, name: str) -> Int32[Array, "T S"]:
    """The row of each pair; one past the table's end for a pair that has none."""
    q_position, k_position = axes(q_site), axes(k_site)
    if q_position.shape[1] != len(table.extent):
        raise ValueError(f"{name} has a table for positions of {len(table.extent)} axes, got {q_position.shape[1]}")
    if not np.issubdtype(q_position.dtype, np.integer):
        raise ValueError(f"{name} looks up whole positions, got {q_position.dtype}")
    known = all(isinstance(leaf, np.ndarray) for site in (q_site, k_site) for leaf in site[:3])
    where, extent = np if known else jnp, np.array(table.extent, np.int32)
    index = q_position[:, None] - k_position[None] + (extent - 1)
    inside = where.all((index >= 0) & (index < 2 * extent - 1), axis=-1)
    sides = 2 * extent - 1
    strides = np.cumprod([1, *sides[:0:-1]])[::-1].astype(np.int32)
    nowhere, end = np.int32(table.rows.shape[0]), int(np.prod(sides))
    row = where.where(inside, (index * strides).sum(axis=-1, dtype=np.int32), nowhere)
    from_prefix, to_prefix, count = q_site.prefix[:, None], k_site.prefix[None], np.int32(table.prefix)
    special = where.where(
        to_prefix == 0,
        end + from_prefix - 1,
        where.where(from_prefix == 0, end + count + to_prefix - 1, end + count * (from_prefix + 1) + to_prefix - 1),
    )
    special = where.where((from_prefix <= count) & (to_prefix <= count), special, nowhere)
    return where.where((from_prefix == 0) & (to_prefix == 0), row, special).astype(np.int32)


def _refuse_outside(name: str, table: OffsetTable, row, has_row, q_site: Site, k_site: Site) -> None:
    if isinstance(row, jax.core.Tracer) or isinstance(has_row, jax.core.Tracer):
        return  # values are not known yet; the look-up fills NaN
    outside = np.argwhere(np.asarray(has_row) & (np.asarray(row) >= table.rows.shape[0]))
    if outside.size:
        t, s = outside[0]
        window = "x".join(map(str, table.extent))
        if prefix := max(q_site.prefix[t], k_site.prefix[s]):
            raise ValueError(
                f"{name} has rows for {table.prefix} prefix tokens, none for number {prefix}: set Dims prefix"
            )
        raise ValueError(
            f"{name} has rows for offsets within a window of {window}, none between positions {q_site.position[t]} and "
            f"{k_site.position[s]}: make the window larger (Dims length, grid) or resize the table"
        )
