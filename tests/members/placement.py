"""Position maps."""

import numpy as np
from hypothesis import strategies as st

from members.member import Member, Oracle, grids, lines


class InterpolateOracle(Oracle):
    def move(self, p):
        return p / self.e.factor


class RasterOracle(Oracle):
    def move(self, p):
        return np.array([p[0] * self.e.width + p[1]])


MEMBERS = {
    "interpolate": Member(
        lines("interpolate(factor=2) >> rope()") + grids("interpolate(factor=3) >> alibi()"),
        InterpolateOracle,
        {"factor": st.integers(1, 64) | st.floats(1e-3, 1e6)},
        vit="interpolate(factor=2) >> rope",
        decoder="interpolate(factor=2) >> alibi",
    ),
    "raster": Member(
        grids("raster(width=7) >> learned(stddev=1)", "raster(width=7) >> rope()"),
        RasterOracle,
        {"width": st.integers(1, 10_000)},
        vit="raster(width=3) >> learned(stddev=1)",
    ),
}
