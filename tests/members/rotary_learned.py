"""Rotary encodings that learn or generalise."""

import math

import numpy as np
import scipy.linalg
from hypothesis import strategies as st

from members.member import Member, Oracle, both, grids, lines
from members.scaling import scaled, scalings

BASE = st.floats(1, 1e12)
LAYOUT = st.sampled_from(["half", "interleaved"])


def pairs(size, layout):
    return [(c, c + size // 2) if layout == "half" else (2 * c, 2 * c + 1) for c in range(size // 2)]


class MixedOracle(Oracle):
    """R(theta_x p_x + theta_y p_y) for each pair of channels, with the learned thetas of the head.

    A scaling multiplies each by as much as the frequency with which it began.
    """

    def rotate(self, vector, p, head):
        if p is None:
            return vector
        out, wave = np.array(vector), np.asarray(self.params["wave"], np.float64)
        dim = len(vector) // len(p)
        (scaled_to, _), (trained, _) = (scaled(s, self.e.base, dim, None) for s in (self.e.scaling, None))
        wave = wave * np.tile(np.divide(scaled_to, trained), len(p))
        for c, (i, j) in enumerate(pairs(len(vector), self.e.layout)):
            z = (vector[i] + 1j * vector[j]) * np.exp(1j * sum(p[a] * wave[a, head, c] for a in range(len(p))))
            out[i], out[j] = z.real, z.imag
        return out


class CompassOracle(Oracle):
    """r exp(i phi) for each pair of channels, x along the columns and y along the rows."""

    def rotate(self, vector, p, head):
        if p is None:
            return vector
        length = np.asarray(self.params["magnitude"], np.float64)[head]
        (scaled_to, _), (trained, _) = (scaled(s, self.e.base, len(vector), None) for s in (self.e.scaling, None))
        length, out = length * np.divide(scaled_to, trained), np.array(vector)
        for c, (i, j) in enumerate(pairs(len(vector), self.e.layout)):
            along = p[0]
            if len(p) == 2:
                phi = float(self.params["direction"][head, c])
                along = math.cos(phi) * p[1] + math.sin(phi) * p[0]
            z = (vector[i] + 1j * vector[j]) * np.exp(1j * length[c] * along)
            out[i], out[j] = z.real, z.imag
        return out


class RePoOracle(Oracle):
    """r_i = Swish(h_i W_g) * (h_i W_c), z_i = r_i W_z for each head, and RoPE at z_i."""

    def observe(self, row):
        gate, content, place = (np.asarray(self.params[name], np.float64) for name in ("gate", "content", "place"))
        self.z = [(h @ gate / (1 + np.exp(-(h @ gate))) * (h @ content)) @ place for h in row.x]

    def transform(self, row, head, i, j, q, k):
        return tuple(x if row.position[t] is None else self.turned(x, self.z[t][head]) for x, t in ((q, i), (k, j)))

    def turned(self, vector, z):
        half = len(vector) // 2
        w = [self.e.base ** (-2 * c / len(vector)) for c in range(half)]
        turned = (vector[:half] + 1j * vector[half:]) * np.exp(1j * z * np.array(w))
        return np.concatenate([turned.real, turned.imag])


class LearnedFrequenciesOracle(Oracle):
    """theta_c exp(alpha_c), the same for all heads."""

    def rotate(self, vector, p, head):
        if p is None:
            return vector
        out, alpha = np.array(vector), np.asarray(self.params["log_scale"], np.float64)
        share = len(alpha) // len(p)
        for c, (i, j) in enumerate(pairs(len(vector), self.e.layout)):
            theta = math.exp(alpha[c]) * self.e.base ** (-(c % share) / share)
            z = (vector[i] + 1j * vector[j]) * np.exp(1j * p[c // share] * theta)
            out[i], out[j] = z.real, z.imag
        return out


class RealAndImaginaryOracle(Oracle):
    """Re and Im of sum_c q_c conj(k_c) exp(i (m - n) theta_c), of the query and the key of the first head of a pair."""

    def transform(self, row, head, i, j, q, k):
        q, k = row.q[i, head // 2 * 2], row.k[j, head // 2 * 2]
        z = self.turned(q, row.position[i]) * self.turned(k, row.position[j]).conj()
        return np.ones(len(z)), z.imag if head % 2 else z.real

    def turned(self, x, p):
        i, j = np.array(pairs(len(x), self.e.layout)).T
        p = np.zeros(1) if p is None else p
        thetas, m = scaled(self.e.scaling, self.e.base, len(x) // len(p), None)
        return m * (x[i] + 1j * x[j]) * np.exp([1j * position * theta for position in p for theta in thetas])


class PolarOracle(Oracle):
    """Complex numbers of magnitude softplus(q_c) and phase p w_c, the keys' with a learned phase of their own."""

    def transform(self, row, head, i, j, q, k):
        delta = np.asarray(self.params["phase"], np.float64)[head] * (row.position[j] is not None)
        product = self.polar(q, row.position[i], 0).conj() * self.polar(k, row.position[j], delta)
        return np.ones(len(q)), product.real  # their product is the logit

    def polar(self, x, p, delta):
        magnitude, phase = np.log1p(np.exp(x)), np.zeros(len(x))
        if p is not None:
            share = len(x) // len(p)
            phase = np.array([p[c // share] * self.e.base ** (-(c % share) / share) for c in range(len(x))])
        return magnitude * np.exp(1j * (phase + delta))


class LieOracle(Oracle):
    def rotate(self, vector, p, head):
        if p is None:
            return vector
        entries = np.asarray(self.params["generator"], np.float64)
        head, g, out = min(head, entries.shape[1] - 1), self.e.generator_dim, np.array(vector)
        for block in range(len(vector) // g):
            generator = np.zeros((g, g))
            for a, x in enumerate(p):
                entry = iter(x * entries[a, head, block])
                for row in range(g):
                    for column in range(row + 1, g):
                        generator[row, column] += next(entry)
            here = slice(block * g, block * g + g)
            out[here] = scipy.linalg.expm(generator - generator.T) @ vector[here]
        return out


class XPosOracle(Oracle):
    """(q_c e^{i m w_c} zeta_c^{m/B}) and (k_c e^{i n w_c} zeta_c^{-n/B})."""

    def transform(self, row, head, i, j, q, k):
        return self.turn(q, row.position[i], 1), self.turn(k, row.position[j], -1)

    def turn(self, vector, p, sign):
        if p is None:
            return vector
        d, out = len(vector), np.array(vector)
        for c, (i, j) in enumerate(pairs(d, self.e.layout)):
            zeta = (2 * c / d + self.e.gamma) / (1 + self.e.gamma)
            z = (vector[i] + 1j * vector[j]) * np.exp(1j * p[0] * self.e.base ** (-2 * c / d))
            z = z * zeta ** (sign * p[0] / self.e.scale_base)
            out[i], out[j] = z.real, z.imag
        return out


class FourierOracle(Oracle):
    """A cosine and a sine series for each channel pair, 1 and 1 where the series has no column left."""

    def rotate(self, vector, p, head):
        if p is None:
            return vector
        d = len(vector)
        kept = [w for c in range(d // 2) if (w := self.e.base ** (-2 * c / d)) >= 2 * math.pi / self.e.original_length]
        cos_of, sin_of = (np.asarray(self.params[name], np.float64)[head] for name in ("cos", "sin"))
        out = np.array(vector)
        for c in range(d // 2):
            cos = sin = 1.0
            if c < cos_of.shape[1]:
                cos = sum(cos_of[n, c] * math.cos(p[0] * w) for n, w in enumerate(kept))
                sin = sum(sin_of[n, c] * math.sin(p[0] * w) for n, w in enumerate(kept))
            a, b = vector[c], vector[c + d // 2]
            out[c], out[c + d // 2] = a * cos - b * sin, a * sin + b * cos
        return out


MEMBERS = {
    "rope_mixed": Member(
        [
            *grids("rope_mixed()", "rope_mixed(base=3, layout='half')"),
            *lines("rope_mixed(base=100)"),
            *grids("rope_mixed(scaling=ntk(factor=3))"),
        ],
        MixedOracle,
        {"base": BASE, "layout": LAYOUT, "scaling": scalings()},
    ),
    "compass_rope": Member(
        [
            *grids("compass_rope()", "compass_rope(base=3, layout='half')"),
            *lines("compass_rope(base=100)"),
            *grids("compass_rope(scaling=ntk(factor=3))"),
        ],
        CompassOracle,
        {"base": BASE, "layout": LAYOUT, "scaling": scalings()},
    ),
    "pope": Member(
        [*both("pope(base=100, bias_uniform_init=True)"), *lines("pope()")],
        PolarOracle,
        {"base": BASE, "bias_uniform_init": st.booleans()},
    ),
    "repo": Member(
        lines("repo(base=100, stddev=0.5)") + grids("repo(hidden_dim=5, stddev=0.5)"),
        RePoOracle,
        {"base": BASE, "hidden_dim": st.integers(1, 500) | st.none(), "stddev": st.floats(0, 10)},
        vit="raster(width=3) >> repo(stddev=0.5)",
        decoder="repo(stddev=0.5)",
    ),
    "lerope": Member(
        lines("lerope(base=100)") + grids("lerope(base=30, layout='interleaved')"),
        LearnedFrequenciesOracle,
        {"base": BASE, "layout": LAYOUT},
    ),
    "rope_pp": Member(
        lines("rope_pp(base=100)") + grids("rope_pp(layout='interleaved', scaling=ntk(factor=3))"),
        RealAndImaginaryOracle,
        {"base": BASE, "layout": LAYOUT, "scaling": scalings()},
    ),
    "liere": Member(
        [
            *grids("liere(generator_dim=4)", "liere(generator_dim=3, per_head=False)"),
            *lines("liere(generator_dim=2)"),
        ],
        LieOracle,
        {"generator_dim": st.integers(2, 64), "per_head": st.booleans()},
    ),
    "xpos": Member(
        lines(
            "xpos(scale_base=8, centred=True)",
            "xpos(scale_base=8, gamma=1)",
            "xpos(base=100, layout='interleaved')",
        ),
        XPosOracle,
        {
            "base": BASE,
            "scale_base": st.floats(0.1, 1e9),
            "gamma": st.floats(0.01, 100),
            "centred": st.booleans(),
            "layout": LAYOUT,
        },
        vit="raster(width=3) >> xpos()",
    ),
    "fope": Member(
        lines(
            "fope(base=100, original_length=100, gain=1)",
            "fope(base=100, original_length=30, gain=1, learnable=True)",
        ),
        FourierOracle,
        {
            "base": BASE,
            "original_length": st.integers(7, 10**6),
            "gain": st.floats(0, 10),
            "learnable": st.booleans(),
        },
        vit="raster(width=3) >> fope(original_length=64)",
        decoder="fope(original_length=64)",
    ),
}
