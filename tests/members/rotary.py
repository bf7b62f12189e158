"""Encodings that rotate queries and keys."""

import math

import numpy as np
from hypothesis import strategies as st

from members.member import Member, Oracle, both, grids, lines
from members.scaling import scaled, scalings


class RopeOracle(Oracle):
    """f(x, m) = x exp(i m theta) on complex numbers x = a + ib, theta_i = base^(-2i/d), d = r / A for each axis.

    Only the first r = int(fraction D) channels of x are such numbers. The length of a token's document is 1 + its
    last position on any axis.
    """

    def transform(self, row, head, i, j, q, k):
        return self.turned(row, i, q), self.turned(row, j, k)

    def turned(self, row, token, vector):
        p = row.position[token]
        alike = row.segment == row.segment[token]
        ends = [max(other) + 1 for other, same in zip(row.position, alike, strict=True) if same and other is not None]
        r = int(getattr(self.e, "fraction", 1) * len(vector))
        axes = next(other for other in row.position if other is not None)
        theta, m = self.thetas(r // len(axes), max(ends, default=0), p)
        turn = m * np.exp([1j * c * t for c in ([0] * len(axes) if p is None else p) for t in theta])
        return np.concatenate([turned(vector[:r], turn, self.e.layout), vector[r:]])

    def thetas(self, d, n, p):
        theta, m = scaled(self.e.scaling, self.e.base, d, n)
        if p is not None and max(p) < getattr(self.e.scaling, "start_tokens", 0):
            theta, m = scaled(None, self.e.base, d, n)
        return theta, m


class PRopeOracle(RopeOracle):
    def thetas(self, d, n, p):
        theta, m = super().thetas(d, n, p)
        return [t if i < math.floor(self.e.proportion * (d // 2)) else 0.0 for i, t in enumerate(theta)], m


class HopeOracle(RopeOracle):
    def thetas(self, d, n, p):
        theta, m = super().thetas(d, n, p)
        trained, _ = scaled(None, self.e.base, d, n)
        return [0.0 if 2 * math.pi / t > self.e.original_length else s for s, t in zip(theta, trained, strict=True)], m


class ValueRotaryOracle(RopeOracle):
    """o_i = R_i^T sum_j a_ij R_j v_j, where R_i^T R_j turns by the difference of positions; or without R_i^T."""

    def transform(self, row, head, i, j, q, k):
        return q, k

    def carried(self, row, head, i, j, v):
        axes = next(other for other in row.position if other is not None)
        r = int(self.e.fraction * len(v))
        theta, _ = scaled(self.e.scaling, self.e.base, r // len(axes), 1)
        query, key = (np.zeros(len(axes)) if p is None else p for p in (row.position[i], row.position[j]))
        query = query if self.e.turned_back else 0 * query
        turn = np.exp([1j * c * t for c in key - query for t in theta])
        return np.concatenate([turned(v[:r], turn, self.e.layout), v[r:]])


def turned(vector, turn, layout):
    """The complex numbers that a vector stands for, times others."""
    half = len(vector) // 2
    if layout == "half":
        z = (vector[:half] + 1j * vector[half:]) * turn
        return np.concatenate([z.real, z.imag])
    z = (vector[0::2] + 1j * vector[1::2]) * turn
    return np.stack([z.real, z.imag], axis=1).ravel()


ARGUMENTS = {
    "base": st.floats(1, 1e12),
    "layout": st.sampled_from(["half", "interleaved"]),
    "scaling": scalings(),
}
_LONGROPE = "longrope(short_factor=(1, 1, 2, 3), long_factor=(1, 2, 4, 8), factor=4, original_length=8, start_tokens=4)"
_YARN = "yarn(factor=4, original_length=16, beta_fast=2, beta_slow=0.1, truncate=False)"


def _fixed(scaling):
    return scaling is None or not scaling.length_dependent


MEMBERS = {
    "hope": Member(
        lines("hope(original_length=100, scaling=llama3(factor=4, original_length=16))")
        + grids("hope(original_length=8, base=2, layout='interleaved', scaling=ntk(factor=4))")
        + lines("hope(original_length=100, scaling=ntk_by_parts(factor=8, original_length=16, beta_fast=3))"),
        HopeOracle,
        ARGUMENTS | {"original_length": st.integers(1, 10**6)},
    ),
    "p_rope": Member(
        lines(f"p_rope(proportion=0.5, scaling={_YARN})")
        + grids("p_rope(base=100, layout='interleaved', proportion=0.5, scaling=linear(factor=3))")
        + lines(f"p_rope(base=10, scaling={_LONGROPE})"),
        PRopeOracle,
        ARGUMENTS | {"proportion": st.floats(0, 1)},
    ),
    "rope": Member(
        lines("rope()")
        + grids("rope(base=100, layout='interleaved', fraction=0.5)")
        + lines("rope(scaling=dynamic_ntk(factor=4, original_length=8))")
        + grids("rope(base=20, scaling=dynamic_yarn(original_length=3, beta_fast=1.5, beta_slow=0.1))")
        + grids("rope(base=100, scaling=dype(factor=2, original_length=8, time=0.5))")
        + lines("rope(base=100, scaling=clipped(count=2, scaling=resonance(scaling=linear(factor=2))))")
        + lines("rope(base=100, scaling=riflex(length=40, repetition=20))"),
        RopeOracle,
        ARGUMENTS | {"fraction": st.floats(0, 1, exclude_min=True)},
        vit="rope(base=100)",
    ),
    "value_rotary": Member(
        lines("value_rotary()")
        + grids("value_rotary(base=100, layout='interleaved', fraction=0.5)")
        + lines(f"value_rotary(base=100, scaling={_YARN})")
        + both("value_rotary(base=100, turned_back=False)"),
        ValueRotaryOracle,
        ARGUMENTS
        | {
            "fraction": st.floats(0, 1, exclude_min=True),
            "scaling": scalings().filter(_fixed),
            "turned_back": st.booleans(),
        },
        vit="value_rotary(base=100)",
    ),
}
