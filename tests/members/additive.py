"""Encodings that add a code to the tokens."""

import math

import numpy as np
from hypothesis import strategies as st

from members.member import Member, Oracle, both, grids


class SinusoidalOracle(Oracle):
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(pos / 10000^(2i/d)), d / A channels for each axis."""

    def code(self, p, prefix, width):
        code = []
        for coordinate in [] if p is None else p:
            d = width // len(p)
            angle = [coordinate / self.e.base ** (2 * i / d) for i in range(d // 2)]
            if self.e.layout == "interleaved":
                code += [f(a) for a in angle for f in (math.sin, math.cos)]
            else:
                code += [math.sin(a) for a in angle] + [math.cos(a) for a in angle]
        return np.array(code or [0.0] * width)


class LearnedOracle(Oracle):
    def code(self, p, prefix, width):
        rows = np.asarray(self.params.rows, np.float64)
        extent = self.params.extent
        num_prefix = len(rows) - math.prod(extent)
        if p is None:
            return rows[prefix - 1]
        table = rows[num_prefix:].reshape(*extent, width)
        return table[tuple(int(c) for c in p)]


MEMBERS = {
    "learned": Member(both("learned(stddev=1)"), LearnedOracle, {"stddev": st.floats(0, 10)}),
    "sinusoidal": Member(
        both("sinusoidal()") + grids("sinusoidal(base=100, layout='concatenated')"),
        SinusoidalOracle,
        {"base": st.floats(1, 1e12), "layout": st.sampled_from(["concatenated", "interleaved"])},
    ),
}
