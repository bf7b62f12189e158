"""Encodings that add a code of waves, or of their neighbours, to the tokens."""

import math

import numpy as np
from hypothesis import strategies as st

from members.member import Member, Oracle, both, grids, lines


class SinusoidalOracle(Oracle):
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(pos / 10000^(2i/d)), d / A channels for each axis.

    An odd width ends with a 0, as fairseq pads it.
    """

    def code(self, p, prefix, width):
        code = []
        for coordinate in [] if p is None else p:
            d = 2 * (width // 2 // len(p))
            angle = [coordinate / self.e.base ** (2 * i / d) for i in range(d // 2)]
            if self.e.layout == "interleaved":
                code += [f(a) for a in angle for f in (math.sin, math.cos)]
            else:
                code += [math.sin(a) for a in angle] + [math.cos(a) for a in angle]
        return np.pad(code, (0, width - len(code)))


class ScaledSinusoidalOracle(Oracle):
    """s [sin(p w_c) | cos(p w_c)], w_c = theta^(-c / (d/2)); d / A channels for each axis."""

    def code(self, p, prefix, width):
        code = []
        for coordinate in [] if p is None else p:
            half = width // len(p) // 2
            angle = [coordinate * self.e.base ** -(c / half) for c in range(half)]
            code += [math.sin(a) for a in angle] + [math.cos(a) for a in angle]
        return float(self.params["scale"][0]) * np.pad(code, (0, width - len(code)))


class SincosOracle(Oracle):
    """[sin x w, cos x w, sin y w, cos y w], w_k = base^(-k / divisor)."""

    less = 0

    def code(self, p, prefix, width):
        if p is None:
            return np.zeros(width)
        y, x = p
        omega = [self.e.base ** -(k / (width // 4 - self.less)) for k in range(width // 4)]
        return np.array([f(place * w) for place in (x, y) for f in (math.sin, math.cos) for w in omega])


class SincosBigVisionOracle(SincosOracle):
    less = 1


class FourierOracle(Oracle):
    """GELU(r W1 + b1) W2 + b2, r = [cos p W, sin p W] / sqrt(F)."""

    def code(self, p, prefix, width):
        if p is None:
            return np.zeros(width)
        w = {name: np.asarray(array, np.float64) for name, array in self.params.items()}
        angle = p @ w["wave"]
        feature = np.concatenate([np.cos(angle), np.sin(angle)]) / math.sqrt(self.e.features)
        hidden = feature @ w["inner"] + w["inner_bias"]
        hidden = np.array([h * (1 + math.erf(h / math.sqrt(2))) / 2 for h in hidden])
        return hidden @ w["outer"] + w["outer_bias"]


class PegOracle(Oracle):
    """x[p] + b + sum of kernel[o] x[p + o] over the tokens of the document that stand at p + o."""

    def codes(self, x, row):
        kernel, bias = (np.asarray(self.params[name], np.float64) for name in ("kernel", "bias"))
        added = np.zeros_like(x)
        for i, p in enumerate(row.position):
            if p is None or row.segment[i] == 0:
                continue
            added[i] += bias
            for j, neighbour in enumerate(row.position):
                if neighbour is None or row.segment[j] != row.segment[i]:
                    continue
                at = (neighbour - p + self.e.kernel_size // 2).astype(int)
                if all(0 <= a < self.e.kernel_size for a in at):
                    added[i] += kernel[tuple(at)] * x[j]
        return added


bases = {"base": st.floats(1, 1e12)}
MEMBERS = {
    "fourier": Member(
        grids("fourier(features=6, hidden=5, gamma=2)") + lines("fourier(features=8, hidden=3)"),
        FourierOracle,
        {
            "features": st.integers(1, 100).map(lambda n: 2 * n),
            "hidden": st.integers(1, 100),
            "gamma": st.floats(1e-3, 1e3),
        },
        vit="fourier(features=8, hidden=4, gamma=1)",
        decoder="fourier(features=8, hidden=4, gamma=1)",
    ),
    "peg": Member(
        grids("peg()") + lines("peg(kernel_size=5)"),
        PegOracle,
        {"kernel_size": st.integers(0, 20).map(lambda n: 2 * n + 1)},
        decoder="",
    ),
    "scaled_sinusoidal": Member(
        both("scaled_sinusoidal(base=100)"), ScaledSinusoidalOracle, bases, decoder="scaled_sinusoidal()"
    ),
    "sincos2d_big_vision": Member(grids("sincos2d_big_vision(base=100)"), SincosBigVisionOracle, bases),
    "sincos2d_mae": Member(grids("sincos2d_mae(base=100)"), SincosOracle, bases),
    "sinusoidal": Member(
        both("sinusoidal()") + grids("sinusoidal(base=100, layout='concatenated')"),
        SinusoidalOracle,
        {**bases, "layout": st.sampled_from(["concatenated", "interleaved"])},
    ),
}
