"""Encodings that rotate queries and keys."""

import numpy as np
from hypothesis import strategies as st

from members.member import Member, Oracle, both


class RopeOracle(Oracle):
    """f(x, m) = x exp(i m theta) on complex numbers x = a + ib, theta_i = base^(-2i/d), d = D / A for each axis."""

    def rotate(self, vector, p, head):
        if p is None:
            return vector
        d = len(vector) // len(p)
        phase = np.array([c * self.e.base ** (-2 * i / d) for c in p for i in range(d // 2)])
        half = len(vector) // 2
        if self.e.layout == "half":
            turned = (vector[:half] + 1j * vector[half:]) * np.exp(1j * phase)
            return np.concatenate([turned.real, turned.imag])
        turned = (vector[0::2] + 1j * vector[1::2]) * np.exp(1j * phase)
        return np.stack([turned.real, turned.imag], axis=1).ravel()


MEMBERS = {
    "rope": Member(
        both("rope()", "rope(base=100, layout='interleaved')"),
        RopeOracle,
        {"base": st.floats(1, 1e12), "layout": st.sampled_from(["half", "interleaved"])},
        vit="rope(base=100)",
    ),
}
