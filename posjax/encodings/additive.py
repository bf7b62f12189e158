"""Encodings that add a code to the tokens."""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int32

from posjax.encoding import Array, Encoding, Site, axes, stands
from posjax.encodings.angles import angles, axial
from posjax.spec import nearest, register

_LAYOUTS = ["interleaved", "concatenated"]


@register("sinusoidal")
@dataclass(frozen=True)
class Sinusoidal(Encoding):
    """Fixed sines and cosines: PE[p, 2c] = sin(p base^(-2c/M)), PE[p, 2c + 1] = cos(p base^(-2c/M)).

    Vaswani et al. (2017), arXiv 1706.03762, section 3.5; tensor2tensor's and fairseq's M/2 - 1 in the exponent is not
    theirs and not ours. layout="concatenated" writes all sines before all cosines. With A position axes each axis has a
    code of M/A channels, in the order of the axes (row, then column); the exponent is -2c/(M/A).
    Nothing is added to tokens that stand nowhere.

    Raises:
      ValueError: for a width not divisible by 2 A, or an unknown layout.
    """

    relative = False

    base: float = 10_000.0
    layout: str = "interleaved"

    def __post_init__(self):
        if self.layout not in _LAYOUTS:
            raise ValueError(f"sinusoidal has no layout {self.layout!r}; {nearest(self.layout, _LAYOUTS)}")
        if not self.base > 0:
            raise ValueError(f"sinusoidal(base=...) must be positive, got {self.base}")

    def embed(self, params, x, site):
        width, position = x.shape[-1], axes(site)
        if width % 2:
            raise ValueError(f"sinusoidal pairs a sine with a cosine: the width must be even, got {width}")
        num_axes = position.shape[1]
        angle = angles(position, axial(self.base, num_axes, width // 2, "sinusoidal: a width"))
        angle = angle.reshape(-1, num_axes, width // 2 // num_axes)
        join = jnp.stack if self.layout == "interleaved" else jnp.concatenate
        code = join([jnp.sin(angle), jnp.cos(angle)], axis=-1).reshape(-1, width)
        return x + jnp.where(stands(site)[:, None], code, 0.0).astype(x.dtype)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Table:
    """A learned table: one row for each prefix token, then one for each position, a grid's in raster order."""

    rows: Any  # Float[Array, "N M"]; a tree of specs, axes or gradients holds something else here
    extent: tuple[int, ...] = field(metadata={"static": True})  # (length,) or (height, width)


@register("learned")
@dataclass(frozen=True)
class Learned(Encoding):
    """A learned row for every position and every prefix token, initialised N(0, stddev^2).

    Devlin et al. (2018); for images the flat table (N + 1, M) of Dosovitskiy et al. (2020), arXiv 2010.11929, whose first
    row belongs to the class token. A grid's table is flat too, but remembers its (height, width), so that a 7 x 28
    image cannot be mistaken for a 14 x 14 one.

    A position outside the table is refused: ValueError where positions are known at tracing time, a row of NaN where they
    are not. JAX's own look-up would hand out the last row.

    Raises:
      ValueError: from `init` where `dims` gives neither length nor grid; from `embed` for a position outside the table.
    """

    relative = False
    whole_positions = True

    stddev: float = 0.02

    def init(self, key, dims):
        if dims.length is None and dims.grid is None:
            raise ValueError(
                "learned needs to know how many rows to learn: give Dims(length=...) or Dims(grid=...); "
                "with experiments, config.model.length, or data.positions='window' if documents are long"
            )
        extent = (dims.length,) if dims.grid is None else tuple(dims.grid)
        shape = (dims.prefix + int(np.prod(extent)), dims.width)
        return Table(self.stddev * jax.random.normal(key, shape), extent)

    def embed(self, params, x, site):
        row = _row(params, site)
        _refuse_outside(params, site, row)
        code = jnp.asarray(params.rows).at[row].get(mode="fill", fill_value=jnp.nan)
        # Padding may stand anywhere (left of position 0, say), and its NaN would reach every token as 0 * NaN.
        return x + jnp.where(site.segment[:, None] > 0, code, 0.0).astype(x.dtype)


def _row(table: Table, site: Site) -> Int32[Array, " T"]:
    """The row of each token; one past the table's end for a token that has none."""
    position, extent = axes(site), table.extent
    if position.shape[1] != len(extent):
        raise ValueError(f"learned has a table for positions of {len(extent)} axes, got {position.shape[1]}")
    if not np.issubdtype(position.dtype, np.integer):
        raise ValueError(f"learned looks up whole positions, got {position.dtype}")
    where = np if isinstance(position, np.ndarray) and isinstance(site.prefix, np.ndarray) else jnp
    num_rows, num_prefix = table.rows.shape[0], table.rows.shape[0] - int(np.prod(extent))
    inside = where.all((position >= 0) & (position < where.asarray(extent)), axis=1)
    strides = np.cumprod((1, *extent[:0:-1]))[::-1].astype(np.int32)
    row = where.where(inside, num_prefix + (position * strides).sum(axis=1, dtype=np.int32), num_rows)
    known_prefix = where.where(site.prefix <= num_prefix, site.prefix - 1, num_rows)
    return where.where(site.prefix > 0, known_prefix, row)


def _refuse_outside(table: Table, site: Site, row: Int32[Array, " T"]) -> None:
    if isinstance(row, jax.core.Tracer) or isinstance(site.segment, jax.core.Tracer):
        return  # values are not known yet; the look-up fills NaN
    outside = np.flatnonzero((np.asarray(row) >= table.rows.shape[0]) & (np.asarray(site.segment) > 0))
    if outside.size:
        token = outside[0]
        what = f"prefix token {site.prefix[token]}" if site.prefix[token] else f"position {site.position[token]}"
        raise ValueError(
            f"learned has rows for positions below {'x'.join(map(str, table.extent))} and "
            f"{table.rows.shape[0] - int(np.prod(table.extent))} prefix tokens, none for {what}: "
            "make the table larger (Dims length, grid, prefix) or resize it"
        )
