"""Parabolas whose coefficients the content decides."""

import math

import numpy as np
from hypothesis import strategies as st

from members.member import Member, Oracle, both, grids


class PapeOracle(Oracle):
    """The places of both tokens along each direction, and one parabola after the other."""

    def observe(self, row):
        curve = np.asarray(self.params["curve"], np.float64)
        self.a = [np.log1p(np.exp(np.tensordot(x, curve[:, 0], 1))) for x in row.x]
        self.b = [np.tensordot(x, curve[:, 1], 1) for x in row.x]

    def logit(self, row, head, i, j):
        if row.position[i] is None or row.position[j] is None:
            return 0.0
        total = 0.0
        for r in range(self.e.parabolas):
            direction = np.asarray(self.params["direction"], np.float64)[:, head, r]
            apart = row.position[i] @ direction - row.position[j] @ direction
            total += self.b[i][head, r] * apart - self.a[i][head, r] * apart**2
        return total


class PapeRiOracle(Oracle):
    def observe(self, row):
        self.a = np.log1p(np.exp(row.x @ np.asarray(self.params["curve"], np.float64)))

    def logit(self, row, head, i, j):
        if row.position[i] is None or row.position[j] is None:
            return 0.0
        scaled = float(self.params["scale"][head]) * math.dist(row.position[i], row.position[j])
        return -self.a[i, head] * scaled**2


MEMBERS = {
    "pape": Member(
        both("pape(parabolas=3)") + grids("pape(parabolas=1)"), PapeOracle, {"parabolas": st.integers(1, 200)}
    ),
    "pape_ri": Member(both("pape_ri()"), PapeRiOracle),
}
