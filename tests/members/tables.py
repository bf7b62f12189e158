"""Encodings that add a learned row, and the ids of arithmetic."""

import math

import numpy as np
from hypothesis import strategies as st

from members.member import Member, Oracle, both, grids, lines


class LearnedOracle(Oracle):
    def code(self, p, prefix, width):
        rows = np.asarray(self.params.rows, np.float64)
        extent = self.params.extent
        num_prefix = len(rows) - math.prod(extent)
        if p is None:
            return rows[prefix - 1]
        table = rows[num_prefix:].reshape(*extent, width)
        return table[tuple(int(c) for c in p)]


class LearnedFactorizedOracle(Oracle):
    """The row of y and the row of x, added or side by side."""

    def code(self, p, prefix, width):
        row, column = (np.asarray(self.params[name], np.float64) for name in ("row", "column"))
        if p is None:
            return np.asarray(self.params["prefix"], np.float64)[prefix - 1]
        y, x = (int(c) for c in p)
        return row[y] + column[x] if self.e.combine == "sum" else np.array([*row[y], *column[x]])


class AbacusOracle(Oracle):
    def code(self, p, prefix, width):
        return np.zeros(width) if p is None else np.asarray(self.params.rows, np.float64)[int(p[0])]


class CouplingOracle(Oracle):
    """Outside training the ids stay."""


MEMBERS = {
    "abacus": Member(
        lines("abacus(length=24, max_offset=5, stddev=1)")
        + grids("raster(width=7) >> abacus(length=60, max_offset=5, stddev=1)"),
        AbacusOracle,
        {"length": st.integers(102, 5000), "max_offset": st.integers(0, 100), "stddev": st.floats(0, 10)},
        vit="raster(width=3) >> abacus(length=102, stddev=1)",
    ),
    "learned": Member(both("learned(stddev=1)"), LearnedOracle, {"stddev": st.floats(0, 10)}),
    "learned_factorized": Member(
        grids("learned_factorized(stddev=1)", "learned_factorized(combine='sum', stddev=1)"),
        LearnedFactorizedOracle,
        {"combine": st.sampled_from(["sum", "concatenate"]), "stddev": st.floats(0, 10)},
    ),
    "position_coupling": Member(
        lines("position_coupling(max_position=20) >> learned(stddev=1)"),
        CouplingOracle,
        {"max_position": st.integers(1, 10_000)},
        vit="raster(width=3) >> position_coupling(max_position=9) >> learned(stddev=1)",
    ),
}
