"""The members of GRAPE that have no other name."""

import math

import numpy as np
from hypothesis import strategies as st

from members.gates import GateOracle, turned
from members.member import Member, Oracle, lines


def slope(head, num_heads):
    """ALiBi's: powers of two for the next lower power of two of heads, then every second one of the next higher."""
    low = 2 ** math.floor(math.log2(num_heads))
    return 2 ** (-8 * (head + 1) / low) if head < low else 2 ** (-4 * (2 * (head - low) + 1) / low)


class GrapeAOracle(Oracle):
    """(j - i) omega_h (softplus(v.q / sqrt(d)) + softplus(u.k / sqrt(d))) for keys before; as far on the other side."""

    def logit(self, row, head, i, j):
        if row.position[i] is None or row.position[j] is None:
            return 0.0
        omega = math.log1p(math.exp(self.params["omega"][head])) * slope(head, row.num_heads)
        rate = sum(
            self.gate(self.params[name][head], x[head])
            for name, x in (("query", row.q[i]), ("key", row.k[j]))
            if self.e.gate in ("both", name)
        )
        return -abs(row.position[i][0] - row.position[j][0]) * omega * rate

    def gate(self, vector, x):
        vector = np.asarray(vector, np.float64)
        if self.e.normalized:
            vector = vector / np.linalg.norm(vector)
        return math.log1p(math.exp(vector @ x / math.sqrt(len(x))))


class GrapeAPOracle(GateOracle):
    """The edges of query i to every token after key j, by complex numbers."""

    def observe(self, row):
        p = np.tensordot(row.x, np.asarray(self.params["kernel"], np.float64), 1)
        half = p.shape[-1] // 2
        self.asked = p[..., :half] + 1j * p[..., half:]
        root = np.sqrt((p**2).mean(axis=-1, keepdims=True) + np.finfo(np.float32).eps)
        self.probe = self.asked / root

    def logit(self, row, head, i, j):
        if row.position[j] is None or row.position[i] is None or row.position[j][0] > row.position[i][0]:
            return 0.0
        return super().logit(row, head, i, j)

    def log_gate(self, row, head, t, i, j):
        turned_probe = self.probe[t, head] * np.exp(-1j * row.position[t][0])
        z = (self.asked[i, head].conj() * turned_probe).real.sum() / self.e.p_head_dim
        return slope(head, row.num_heads) * -math.log1p(math.exp(-z))


class GrapeMOracle(GateOracle):
    """Each token turned by theta times the gates of the tokens of its document before it."""

    def transform(self, row, head, i, j, q, k):
        return tuple(turned(x, self.phase(row, head, t)) for x, t in ((q, i), (k, j)))

    def phase(self, row, head, t):
        theta = np.exp(np.asarray(self.params["log_wave"], np.float64))
        if row.position[t] is None or not row.segment[t]:
            return 0 * theta
        before = [
            self.z[s, min(head, self.z.shape[1] - 1)]
            for s, p in enumerate(row.position)
            if p is not None and row.segment[s] == row.segment[t] and p[0] < row.position[t][0]
        ]
        return theta * sum(1 / (1 + math.exp(-z / 16)) for z in before)

    def logit(self, row, head, i, j):
        return 0.0


STDDEV = st.floats(0, 10)
MEMBERS = {
    "grape_a": Member(
        lines("grape_a()", "grape_a(gate='query', normalized=False)", "grape_a(gate='key')"),
        GrapeAOracle,
        {"gate": st.sampled_from(["both", "query", "key"]), "normalized": st.booleans()},
        vit="raster(width=3) >> grape_a()",
    ),
    "grape_ap": Member(
        lines("grape_ap(p_head_dim=4)"),
        GrapeAPOracle,
        {"p_head_dim": st.integers(1, 64).map(lambda half: 2 * half)},
        vit="raster(width=3) >> grape_ap()",
    ),
    "grape_m": Member(
        lines("grape_m(base=10, stddev=5)", "grape_m(base=10, stddev=5, per_head=True)"),
        GrapeMOracle,
        {"base": st.floats(1, 1e12), "per_head": st.booleans(), "stddev": STDDEV},
        vit="raster(width=3) >> grape_m()",
    ),
}
