"""Encodings that rotate queries and keys."""

import numpy as np
from hypothesis import strategies as st

from members.member import Member, Oracle, both


class RopeOracle(Oracle):
    """f(x, m) = x exp(i m theta) on complex numbers x = a + ib, theta_i = base^(-2i/d), d = r / A for each axis.

    Only the first r = int(fraction D) channels of x are such numbers.
    """

    def rotate(self, vector, p, head):
        if p is None:
            return vector
        r = int(self.e.fraction * len(vector))
        d = r // len(p)
        turn = np.exp([1j * c * self.e.base ** (-2 * i / d) for c in p for i in range(d // 2)])
        return np.concatenate([turned(vector[:r], turn, self.e.layout), vector[r:]])


def turned(vector, turn, layout):
    """The complex numbers that a vector stands for, times others."""
    half = len(vector) // 2
    if layout == "half":
        z = (vector[:half] + 1j * vector[half:]) * turn
        return np.concatenate([z.real, z.imag])
    z = (vector[0::2] + 1j * vector[1::2]) * turn
    return np.stack([z.real, z.imag], axis=1).ravel()


FREQUENCIES = {
    "base": st.floats(1, 1e12),
    "layout": st.sampled_from(["half", "interleaved"]),
    "scaling": st.none(),
}
FRACTION = st.floats(0, 1, exclude_min=True)

MEMBERS = {
    "rope": Member(
        both("rope()", "rope(base=100, layout='interleaved', fraction=0.5)"),
        RopeOracle,
        FREQUENCIES | {"fraction": FRACTION},
        vit="rope(base=100)",
    ),
}
