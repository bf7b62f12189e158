"""Encodings of nodes in graphs and trees."""

import math

import numpy as np
from hypothesis import strategies as st

from members.member import Member, Oracle, both, grids, lines


class GraphormerOracle(Oracle):
    """b_phi(v_i, v_j): phi is the shortest path's length, a value of its own where there is none or a virtual node."""

    def logit(self, row, head, i, j):
        table = np.asarray(self.params["table"], np.float64)[:, head]
        if row.position[i] is None or row.position[j] is None:
            return table[-1]
        steps = int(row.relation.distance[i][row.relation.node[j]])
        return table[-2] if steps == -1 else table[min(steps, self.e.max_distance)]


class CentralityOracle(Oracle):
    """h_i = x_i + z_deg(v_i)."""

    def codes(self, x, row):
        table = np.asarray(self.params["table"], np.float64)
        degrees = [sum(int(steps) == 1 for steps in row.relation.distance[i]) for i in range(len(x))]
        rows = [table[min(degree, self.e.max_degree)] for degree in degrees]
        return np.array([0 * r if p is None else r for r, p in zip(rows, row.position, strict=True)])


class FeaturesOracle(Oracle):
    """C p + c."""

    def code(self, p, prefix, width):
        if p is None:
            return np.zeros(width)
        kernel, bias = (np.asarray(self.params[name], np.float64) for name in ("kernel", "bias"))
        return sum(feature * row for feature, row in zip(p, kernel, strict=True)) + bias


class TreeOracle(Oracle):
    """A stack of one-hot branches, each weighed by p^level sqrt((1 - p^2) M / 2) in every feature."""

    def code(self, p, prefix, width):
        code = np.zeros(width)
        if p is None:
            return code
        rates = [math.tanh(float(rate)) for rate in self.params["rate"]]
        for level, branch in enumerate(map(int, p)):
            for f, rate in enumerate(rates):
                if branch:
                    place = (level * self.e.degree + branch - 1) * len(rates) + f
                    code[place] = rate**level * math.sqrt((1 - rate**2) * width / 2)
        return code


MEMBERS = {
    "graphormer": Member(
        both("graphormer(max_distance=3, stddev=1)"),
        GraphormerOracle,
        {"max_distance": st.integers(1, 600), "stddev": st.floats(0, 10)},
        vit="",
        decoder="",
    ),
    "centrality": Member(
        both("centrality(max_degree=2, stddev=1)"),
        CentralityOracle,
        {"max_degree": st.integers(0, 600), "stddev": st.floats(0, 10)},
        vit="",
        decoder="",
    ),
    "laplacian": Member(
        grids("laplacian(pos_enc_dim=2)") + lines("interpolate(factor=8) >> laplacian(pos_enc_dim=1)"),
        FeaturesOracle,
        {"pos_enc_dim": st.integers(1, 64)},
    ),
    "random_walk": Member(
        grids("random_walk(pos_enc_dim=2)") + lines("interpolate(factor=8) >> random_walk(pos_enc_dim=1)"),
        FeaturesOracle,
        {"pos_enc_dim": st.integers(1, 64)},
    ),
    "tree": Member(
        grids("tree(depth=2, degree=6)") + lines("tree(depth=1, degree=20)"),
        TreeOracle,
        {"depth": st.integers(1, 16), "degree": st.integers(1, 16)},
        vit="tree(depth=2, degree=6)",
        decoder="tree(depth=1, degree=16)",
    ),
}
