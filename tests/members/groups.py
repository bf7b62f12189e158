"""Rotations that form a group, in a learned basis or with commuting generators; and spherical RoPE, which form none."""

import math

import numpy as np
import scipy.linalg
from hypothesis import strategies as st

import posjax as pj
from members.member import Member, Oracle, both, grids, lines
from members.rotary import RopeOracle
from members.rotary_learned import BASE, MixedOracle


def skew(entries, size):
    """A = -A^T from the entries above its diagonal, row by row."""
    matrix, entry = np.zeros((size, size)), iter(np.asarray(entries, np.float64))
    for row in range(size):
        for column in range(row + 1, size):
            matrix[row, column] = next(entry)
    return matrix - matrix.T


class RebasedOracle(Oracle):
    """R(m) M_q q and R(n) M_k k, with the rotary encoding's own oracle for R."""

    def __init__(self, e, params):
        super().__init__(e, params)
        self.turn = {"rope": RopeOracle, "rope_mixed": MixedOracle}[e.rotary.spec_name](e.rotary, params["rotary"])
        self.of_head = {}

    def transform(self, row, head, i, j, q, k):
        if head not in self.of_head:
            self.of_head[head] = self.maps(head, len(q))
        of_queries, of_keys = self.of_head[head]
        return self.turn.transform(row, head, i, j, of_queries @ q, of_keys @ k)


class CayleyOracle(RebasedOracle):
    def maps(self, head, size):
        s = skew(self.params["skew"][head], size)
        p = (np.eye(size) - s) @ np.linalg.inv(np.eye(size) + s)
        return p, p


class HaropeOracle(RebasedOracle):
    def maps(self, head, size):
        u, v = (scipy.linalg.expm(skew(self.params[side][head], size)) for side in ("left", "right"))
        sigma = np.asarray(self.params["scale"][head], np.float64) + math.log(math.e - 1)
        a = u @ np.diag(np.log(1 + np.exp(sigma))) @ v.T
        return a, np.linalg.inv(a).T if self.e.keys == "inverse" else a


class GeneratedOracle(Oracle):
    """exp(sum_a p_a A_a) x, with a matrix exponential for each head and place."""

    def __init__(self, e, params):
        super().__init__(e, params)
        self.of_place = {}

    def rotate(self, vector, p, head):
        if p is None:
            return vector
        place = (head, *p)
        if place not in self.of_place:
            generators = self.generators(head, len(vector))
            self.of_place[place] = scipy.linalg.expm(sum(x * a for x, a in zip(p, generators, strict=True)))
        return self.of_place[place] @ vector


class CirculantOracle(GeneratedOracle):
    """C_a - C_a^T of circulant matrices."""

    def generators(self, head, size):
        circulants = [scipy.linalg.circulant(column[head]) for column in np.asarray(self.params["column"], np.float64)]
        return [c - c.T for c in circulants]


class ComOracle(GeneratedOracle):
    """theta_a B_j in block j for every axis a, or B_j for the axis j mod A alone."""

    def generators(self, head, size):
        entries, g = np.asarray(self.params["generator"], np.float64), self.e.generator_dim
        head, blocks = min(head, entries.shape[1] - 1), size // g
        if self.e.kind == "linear":
            theta = np.asarray(self.params["multiplier"], np.float64)
            each = [[theta[a, j] * skew(entries[0, head, j], g) for j in range(blocks)] for a in range(len(theta))]
        else:
            axes = len(entries)
            of_block = [skew(entries[j % axes, head, j // axes], g) for j in range(blocks)]
            each = [[b * (j % axes == a) for j, b in enumerate(of_block)] for a in range(axes)]
        return [scipy.linalg.block_diag(*blocks) for blocks in each]


class SphericalOracle(Oracle):
    """Yaw(w row) Roll(w column) on each triplet."""

    def rotate(self, vector, p, head):
        if p is None:
            return vector
        out, count = np.array(vector), len(vector) // 3
        for d in range(count):
            w = self.e.base ** (-d / count)
            (cr, sr), (cc, sc) = ((math.cos(w * x), math.sin(w * x)) for x in p)
            roll = np.array([[1, 0, 0], [0, cc, -sc], [0, sc, cc]])
            yaw = np.array([[cr, -sr, 0], [sr, cr, 0], [0, 0, 1]])
            out[3 * d : 3 * d + 3] = yaw @ roll @ out[3 * d : 3 * d + 3]
        return out


ROTARY = st.sampled_from([pj.parse(spec) for spec in ("rope()", "rope_mixed(base=3)", "mrope(sections=(1, 1, 2))")])
MEMBERS = {
    "cayley_string": Member(
        [*grids("cayley_string(stddev=0.5)"), *lines("cayley_string(rotary=rope(), stddev=1)")],
        CayleyOracle,
        {"rotary": ROTARY, "stddev": st.floats(0, 10)},
    ),
    "circulant_string": Member(both("circulant_string(base=10)"), CirculantOracle, {"base": BASE}),
    "harope": Member(
        [*grids("harope(stddev=0.5)"), *lines("harope(keys='inverse', stddev=0.5)")],
        HaropeOracle,
        {"rotary": ROTARY, "keys": st.sampled_from(["same", "inverse"]), "stddev": st.floats(0, 10)},
    ),
    "comrope": Member(
        [*grids("comrope(generator_dim=4)", "comrope(generator_dim=2, kind='axial', per_head=False)")],
        ComOracle,
        {
            "generator_dim": st.integers(2, 64),
            "per_head": st.booleans(),
            "kind": st.sampled_from(["linear", "axial"]),
        },
        decoder="comrope(generator_dim=4)",
    ),
    "spherical_rope": Member(grids("spherical_rope(base=10)"), SphericalOracle, {"base": BASE}, decoder=""),
}
