"""Encodings that add a learned row, and the ids of arithmetic."""

import math

import numpy as np
from hypothesis import strategies as st

from members.member import Member, Oracle, both, grids, lines
from posjax.encodings.resize import METHODS


def keys(t):
    """The cubic convolution of Keys (1981) with a = -3/4."""
    t = abs(t)
    return 1.25 * t**3 - 2.25 * t**2 + 1 if t <= 1 else -0.75 * (t**3 - 5 * t**2 + 8 * t - 4) if t < 2 else 0.0


def read_at(table, position, size, method):
    """The row of a 1-D table, resized to `size` rows, at a whole position, entry by entry."""
    old = len(table)
    if method == "google_npz":
        place = position * (old - 1) / max(size - 1, 1)
        low = min(math.floor(place), old - 1)
        return table[low] + (place - low) * (table[min(low + 1, old - 1)] - table[low])
    assert method == "torch_bicubic"
    place = (position + 0.5) * old / size - 0.5
    near = range(math.floor(place) - 1, math.floor(place) + 3)
    return sum(keys(place - i) * table[min(max(i, 0), old - 1)] for i in near)


class ResizedOracle(Oracle):
    """With `resize`, each document reads a table of its own size."""

    def codes(self, x, row):
        self.sizes = {}
        for p, s in zip(row.position, row.segment, strict=True):
            if p is not None:
                self.sizes[int(s)] = np.maximum(self.sizes.get(int(s), 0), p + 1)
        return np.array(
            [
                self.code(p, n, x.shape[1], self.sizes.get(int(s))) if s else np.zeros(x.shape[1])
                for p, n, s in zip(row.position, row.prefix, row.segment, strict=True)
            ]
        )


class LearnedOracle(ResizedOracle):
    def code(self, p, prefix, width, size):
        rows = np.asarray(self.params.rows, np.float64)
        extent = self.params.extent
        num_prefix = len(rows) - math.prod(extent)
        if p is None:
            return rows[prefix - 1]
        table = rows[num_prefix:].reshape(*extent, width)
        for c, n in zip(p, size, strict=True):
            table = table[int(c)] if self.e.resize is None else read_at(table, c, n, self.e.resize)
        return table


class LearnedFactorizedOracle(ResizedOracle):
    """The row of y and the row of x, added or side by side."""

    def code(self, p, prefix, width, size):
        row, column = (np.asarray(self.params[name], np.float64) for name in ("row", "column"))
        if p is None:
            return np.asarray(self.params["prefix"], np.float64)[prefix - 1]
        y, x = (int(c) for c in p)
        if self.e.resize is None:
            at_y, at_x = row[y], column[x]
        else:
            at_y, at_x = (read_at(t, c, n, self.e.resize) for t, c, n in zip((row, column), p, size, strict=True))
        return at_y + at_x if self.e.combine == "sum" else np.array([*at_y, *at_x])


class AbacusOracle(Oracle):
    def code(self, p, prefix, width):
        return np.zeros(width) if p is None else np.asarray(self.params.rows, np.float64)[int(p[0])]


class CouplingOracle(Oracle):
    """Outside training the ids stay."""


METHOD = st.none() | st.sampled_from(sorted(METHODS))
MEMBERS = {
    "abacus": Member(
        lines("abacus(length=24, max_offset=5, stddev=1)")
        + grids("raster(width=7) >> abacus(length=60, max_offset=5, stddev=1)"),
        AbacusOracle,
        {"length": st.integers(102, 5000), "max_offset": st.integers(0, 100), "stddev": st.floats(0, 10)},
        vit="raster(width=3) >> abacus(length=102, stddev=1)",
    ),
    "learned": Member(
        both("learned(stddev=1)") + both("learned(stddev=1, resize='torch_bicubic')"),
        LearnedOracle,
        {"stddev": st.floats(0, 10), "resize": METHOD},
    ),
    "learned_factorized": Member(
        grids("learned_factorized(stddev=1)", "learned_factorized(combine='sum', stddev=1)")
        + grids("learned_factorized(stddev=1, resize='google_npz')"),
        LearnedFactorizedOracle,
        {"combine": st.sampled_from(["sum", "concatenate"]), "stddev": st.floats(0, 10), "resize": METHOD},
    ),
    "position_coupling": Member(
        lines("position_coupling(max_position=20) >> learned(stddev=1)"),
        CouplingOracle,
        {"max_position": st.integers(1, 10_000)},
        vit="raster(width=3) >> position_coupling(max_position=9) >> learned(stddev=1)",
    ),
}
