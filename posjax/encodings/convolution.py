"""A convolution over the positions of tokens: a token learns its place from its neighbours."""

import itertools
import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int32

from posjax.encoding import Array, Encoding, Needs, Site
from posjax.spec import register


@register("peg")
@dataclass(frozen=True)
class Peg(Encoding):
    """Conditional positional encoding: x[p] + b + sum over offsets o of kernel[o] * x[p + o], channel by channel.

    Chu et al. (2021), arXiv 2102.10882 (CPVT, also in Twins). A depthwise convolution with a kernel of kernel_size^A
    offsets, o from -(kernel_size // 2) to kernel_size // 2 on each of A = 1 or 2 axes; on whole grids it is torch's
    `Conv2d(M, M, kernel_size, padding=kernel_size // 2, groups=M)` and a residual. Places without a token count as zero, by
    which tokens near the border learn where they are. CPVT puts it behind the first block; `embed` acts before it.

    Neighbours are found by their positions: tokens may come in any order, with padding or other documents among them, and
    a document's tokens are neighbours of its own alone. Tokens that share a place are added up. Known positions are looked
    up at tracing time; unknown ones are sorted once and searched, in O(n log n). Tokens that stand nowhere neither see nor
    are seen. The kernel starts at N(0, 2 / kernel_size^A), the bias at 0, as in timm's Twins. `embed` reads other tokens,
    later ones too: not for causal models.

    Raises:
      ValueError: for an even kernel_size; for positions that are not whole numbers, or with another number of axes than in
        `init` (two if Dims has a grid, else one).
    """

    family = "other"
    formula = (r"x_p \leftarrow x_p + b + \sum_{o} w_o \odot x_{p+o}",)

    needs = Needs.WHOLE_POSITIONS | Needs.BOTH_DIRECTIONS
    dimensions = (1, 2)

    kernel_size: int = 3

    def __post_init__(self):
        if self.kernel_size < 1 or self.kernel_size % 2 == 0:
            raise ValueError(f"peg needs an odd kernel_size, which has a middle, got {self.kernel_size}")

    def init(self, key, dims):
        window = (self.kernel_size,) * (1 if dims.grid is None else 2)
        scale = (2 / math.prod(window)) ** 0.5
        return {
            "kernel": scale * jax.random.normal(key, (*window, dims.width), jnp.float32),
            "bias": jnp.zeros(dims.width, jnp.float32),
        }

    def embed(self, params, x, site):
        position, kernel = self.coordinates(site), params["kernel"]
        if not np.issubdtype(position.dtype, np.integer):
            raise ValueError(f"peg looks for neighbours at whole positions, got {position.dtype}")
        if kernel.ndim - 1 != position.shape[1]:
            raise ValueError(f"peg has learned a kernel over {kernel.ndim - 1} position axes, got {position.shape[1]}")
        half = self.kernel_size // 2
        offsets = np.array(list(itertools.product(range(-half, half + 1), repeat=position.shape[1])), np.int32)
        group, neighbour, found = _neighbours(site, position, offsets)
        there = jnp.zeros(x.shape, jnp.float32).at[group].add(x.astype(jnp.float32))
        added = jnp.asarray(params["bias"])
        for weight, at, known in zip(kernel.reshape(len(offsets), -1), neighbour, found, strict=True):
            added = added + weight * jnp.where(known[:, None], there[at], 0.0)
        standing = (site.segment > 0) & (site.prefix == 0)
        return x + jnp.where(standing[:, None], added, 0.0).astype(x.dtype)


def _neighbours(
    site: Site, position: Int32[Array, "T A"], offsets: Int32[np.ndarray, "O A"]
) -> tuple[Int32[Array, " T"], Int32[Array, "O T"], Bool[Array, "O T"]]:
    """(the place of each token, the place at each offset from it, whether a token stands there).

    Places are numbered in the order of (document, position); padding and tokens that stand nowhere share places that no
    look-up finds.
    """
    known = all(isinstance(leaf, np.ndarray) for leaf in (position, site.segment, site.prefix))
    where = np if known else jnp
    standing = (site.segment > 0) & (site.prefix == 0)
    address = where.concatenate([where.where(standing, site.segment, 0)[:, None], position], axis=1)
    order = where.lexsort(address.T[::-1])
    table = address[order]
    starts = where.concatenate([where.ones(1, bool), (table[1:] != table[:-1]).any(axis=1)])
    place = where.cumsum(starts, dtype=np.int32) - 1
    wanted = address + np.pad(offsets, ((0, 0), (1, 0)))[:, None]
    at = where.minimum(_first_not_below(where, table, wanted), len(table) - 1)
    found = (table[at] == wanted).all(axis=-1) & standing
    return place[where.argsort(order)], place[at], found


def _first_not_below(where, table: Int32[Array, "T C"], wanted: Int32[Array, "O T C"]) -> Int32[Array, "O T"]:
    """Binary search for rows in a table in lexicographic order."""
    low = where.zeros(wanted.shape[:-1], np.int32)
    high = low + len(table)
    for _ in range(len(table).bit_length()):
        middle = (low + high) // 2
        row = table[where.minimum(middle, len(table) - 1)]
        below = where.zeros(low.shape, bool)
        for column in reversed(range(table.shape[1])):
            a, b = row[..., column], wanted[..., column]
            below = (a < b) | ((a == b) & below)
        low, high = where.where(below & (low < high), middle + 1, low), where.where(below, high, middle)
    return low
