"""Position maps."""

import jax
import numpy as np
from hypothesis import strategies as st

from members.member import Member, Oracle, grids, lines


class InterpolateOracle(Oracle):
    def move(self, p):
        return p / self.e.factor


class RasterOracle(Oracle):
    def move(self, p):
        return np.array([p[0] * self.e.width + p[1]])


class FitGridOracle(Oracle):
    """x / feat * ref on each axis, feat the image's own size; or the same of the centres of patches."""

    def place(self, positions, prefix, segment):
        def moved(p, document):
            mates = [q for q, s in zip(positions, segment, strict=True) if q is not None and s == document]
            feat, centre = np.max(mates, axis=0) + 1, 0.5 * self.e.half_pixel
            return (p + centre) / feat * np.array([self.e.height, self.e.width]) - centre

        return [p if p is None or not s else moved(p, s) for p, s in zip(positions, segment, strict=True)]


class AxisOracle(Oracle):
    def move(self, p):
        return p[self.e.index : self.e.index + 1]


class UnpadOracle(Oracle):
    """Less the smallest position in the row, padding aside."""

    def place(self, positions, prefix, segment):
        counted = [p for p, s in zip(positions, segment, strict=True) if p is not None and s]
        first = np.min(counted, axis=0)
        return [p if p is None or not s else p - first for p, s in zip(positions, segment, strict=True)]


class ResetOracle(Oracle):
    """Less the smallest position in the document."""

    def place(self, positions, prefix, segment):
        def start(document):
            return np.min(
                [p for p, s in zip(positions, segment, strict=True) if p is not None and s == document], axis=0
            )

        return [p if p is None or not s else p - start(s) for p, s in zip(positions, segment, strict=True)]


class DrawnOracle(Oracle):
    """The r-th smallest of a document's n different positions becomes the r-th smallest of n draws, axis by axis."""

    def draws(self, key, n):
        return jax.random.permutation(key, self.e.length)[:n]

    def place(self, positions, prefix, segment):
        places = [p if p is None else np.array(p) for p in positions]
        for axis in range(max(len(p) for p in positions if p is not None)):
            key = jax.random.fold_in(jax.random.key(self.e.seed), axis)
            for document in set(segment) - {0}:
                mine = [i for i, p in enumerate(positions) if p is not None and segment[i] == document]
                different = sorted({positions[i][axis] for i in mine})
                drawn = sorted(float(d) for d in self.draws(key, len(different)))
                for i in mine:
                    places[i][axis] = drawn[different.index(positions[i][axis])]
        return places


class RandomFloatOracle(DrawnOracle):
    def draws(self, key, n):
        return [self.e.length * jax.random.uniform(jax.random.fold_in(key, r)) for r in range(n)]


class TrainingOnlyOracle(Oracle):
    """A map that moves nothing outside training."""


drawn = {"evaluate": st.sampled_from(["random", "keep"]), "seed": st.integers(0, 2**31 - 1)}
MEMBERS = {
    "axis": Member(
        grids("axis(index=1) >> rope()", "(axis(index=0) >> rope()) + (axis(index=1) >> alibi())"),
        AxisOracle,
        {"index": st.integers(0, 2)},
    ),
    "cape": Member(
        lines("cape() >> rope()") + grids("cape(max_global_shift=1) >> sinusoidal()"),
        TrainingOnlyOracle,
        {
            "max_global_shift": st.floats(0, 100),
            "max_local_shift": st.floats(0, 1),
            "max_global_scaling": st.floats(1, 10),
        },
    ),
    "fit_grid": Member(
        grids(
            "fit_grid(height=5, width=2) >> axial_rope()",
            "fit_grid(height=2, width=9, half_pixel=True) >> sinusoidal()",
        ),
        FitGridOracle,
        {"height": st.integers(1, 1000), "width": st.integers(1, 1000), "half_pixel": st.booleans()},
    ),
    "interpolate": Member(
        lines("interpolate(factor=2) >> rope()") + grids("interpolate(factor=3) >> alibi()"),
        InterpolateOracle,
        {"factor": st.integers(1, 64) | st.floats(1e-3, 1e6)},
        vit="interpolate(factor=2) >> rope",
        decoder="interpolate(factor=2) >> alibi",
    ),
    "pose": Member(
        lines("pose(length=64) >> rope()"),
        TrainingOnlyOracle,
        {"length": st.integers(1, 10**6)},
        vit="raster(width=3) >> pose(length=20) >> rope()",
    ),
    "random_float": Member(
        lines("random_float(length=30) >> rope()") + grids("random_float(length=20, seed=3) >> rope()"),
        RandomFloatOracle,
        {"length": st.floats(1, 1e6), **drawn},
        decoder="random_float(length=30, evaluate='keep') >> rope()",
    ),
    "randomized": Member(
        lines("randomized(length=5000) >> rope()") + grids("randomized(length=80, seed=1) >> rope()"),
        DrawnOracle,
        {"length": st.integers(1, 10**5), **drawn},
        decoder="randomized(length=30, evaluate='keep') >> alibi()",
    ),
    "raster": Member(
        grids("raster(width=7) >> learned(stddev=1)", "raster(width=7) >> rope()"),
        RasterOracle,
        {"width": st.integers(1, 10_000)},
        vit="raster(width=3) >> learned(stddev=1)",
    ),
    "reset": Member(lines("reset() >> rope()") + grids("reset() >> alibi()"), ResetOracle, decoder=""),
    "shape": Member(
        lines("shape(max_offset=10) >> learned(stddev=1)") + grids("shape(max_offset=3) >> learned(stddev=1)"),
        TrainingOnlyOracle,
        {"max_offset": st.integers(0, 10_000)},
    ),
    "unpad": Member(lines("unpad() >> rope()") + grids("unpad() >> alibi()"), UnpadOracle, decoder=""),
}
