"""Gates that accumulate along a document."""

import math

import numpy as np
from hypothesis import strategies as st

from members.member import Member, Oracle, lines


class GateOracle(Oracle):
    """Sums gates over the tokens between key and query, one pair at a time."""

    def observe(self, row):
        self.z = np.tensordot(row.x, np.asarray(self.params["kernel"], np.float64), 1) + self.params["bias"]

    def between(self, row, i, j):
        """The tokens of the document after the earlier of two, up to the later one."""
        low, high = sorted([row.position[i][0], row.position[j][0]])
        return [
            t
            for t, p in enumerate(row.position)
            if p is not None and row.segment[t] == row.segment[i] and low < p[0] <= high
        ]

    def logit(self, row, head, i, j):
        if row.position[i] is None or row.position[j] is None:
            return 0.0
        return sum(self.log_gate(row, head, t, i, j) for t in self.between(row, i, j))


class FoxOracle(GateOracle):
    def log_gate(self, row, head, t, i, j):
        return math.log(1 / (1 + math.exp(-self.z[t, head])))


class DataDependentAlibiOracle(GateOracle):
    def log_gate(self, row, head, t, i, j):
        z = self.z[t]
        if self.e.bidirectional:
            z = z[0 if row.position[j][0] < row.position[i][0] else 1]
        return self.e.post_log_scale * math.log(1 / (1 + math.exp(-z[head])))


class CableOracle(GateOracle):
    def log_gate(self, row, head, t, i, j):
        return -math.log(1 + math.exp(self.z[t, head]))


class PerRowAlibiOracle(GateOracle):
    """The gates of query i for key j and the tokens after it, up to the one before i."""

    def observe(self, row):
        self.asked, self.probe = np.moveaxis(
            np.tensordot(row.x, np.asarray(self.params["kernel"], np.float64), 1), 1, 0
        )

    def logit(self, row, head, i, j):
        here, there = row.position[i], row.position[j]
        if here is None or there is None:
            return 0.0
        between = [
            t
            for t, p in enumerate(row.position)
            if p is not None and row.segment[t] == row.segment[i] and there[0] <= p[0] < here[0]
        ]
        z = [self.asked[i, head] @ self.probe[t, head] / math.sqrt(self.e.gate_head_dim) for t in between]
        return -self.e.post_log_scale * sum(math.log1p(math.exp(-each)) for each in z)


class SelectiveRopeOracle(Oracle):
    """Complex rotation by the sum of angles of the tokens of a document up to each one, found one by one."""

    def observe(self, row):
        p = {name: np.asarray(value, np.float64) for name, value in self.params.items()}
        heads, pairs = p["taps"].shape[1:]
        wave = [self.e.base ** (-2 * c / (2 * pairs)) for c in range(pairs)]
        phi = []
        for x in row.x:
            shares = x.reshape(heads, -1)
            unit = np.concatenate([share / math.sqrt(share @ share + 1e-6) for share in shares])
            phi.append(np.tensordot(unit @ p["down"], p["up"], 1))
        self.angle = np.zeros((len(row.x), heads, pairs))
        for t, here in enumerate(row.position):
            if here is None:
                continue
            past = [s for s, q in enumerate(row.position) if q is not None and row.segment[s] == row.segment[t]]
            past = sorted((s for s in past if row.position[s][0] <= here[0]), key=lambda s: row.position[s][0])
            for n in range(len(past)):
                window = past[max(0, n + 1 - self.e.d_conv) : n + 1]
                taps = p["taps"][len(p["taps"]) - len(window) :]
                self.angle[t] += wave * sum(tap * phi[s] for tap, s in zip(taps, window, strict=True))

    def transform(self, row, head, i, j, q, k):
        return turned(q, self.angle[i, head]), turned(k, self.angle[j, head])


class CaRopeOracle(GateOracle):
    """phi_i(m) = sum of f(x_t)^i over t = 1 ... m, f(x) = 1 / (softplus(x W + b) + 1), of the tokens of a document."""

    def observe(self, row):
        self.z = np.tensordot(row.x, np.asarray(self.params.kernel, np.float64), 1) + self.params.bias

    def transform(self, row, head, i, j, q, k):
        return tuple(turned(x, self.phase(row, head, t, len(x) // 2)) for x, t in ((q, i), (k, j)))

    def phase(self, row, head, t, pairs):
        if row.position[t] is None:
            return np.zeros(pairs)
        upto = [
            s
            for s, p in enumerate(row.position)
            if p is not None and row.segment[s] == row.segment[t] and p[0] <= row.position[t][0]
        ]
        f = [1 / (1 + math.log1p(math.exp(self.z[s, head]))) for s in upto]
        return np.array([sum(each**c for each in f) for c in range(pairs)])

    def logit(self, row, head, i, j):
        return 0.0


def turned(vector, angle):
    half = len(vector) // 2
    z = (vector[:half] + 1j * vector[half:]) * np.exp(1j * angle)
    return np.concatenate([z.real, z.imag])


class PaTHOracle(GateOracle):
    """k_j passes through I - beta w w^T of every token after it, up to the query."""

    def observe(self, row):
        p = {name: np.asarray(value, np.float64) for name, value in self.params.items()}
        self.beta = 2 / (1 + np.exp(-row.x @ p["kernel"] - p["bias"]))
        self.w = np.zeros((len(row.x), *p["taps"].shape[1:]))
        projected = np.tensordot(row.x @ p["down"], p["up"], 1)
        for t, here in enumerate(row.position):
            if here is None:
                continue
            past = [s for s, q in enumerate(row.position) if q is not None and row.segment[s] == row.segment[t]]
            past = sorted((s for s in past if row.position[s][0] <= here[0]), key=lambda s: row.position[s][0])
            window = past[-self.e.d_conv :]
            taps = p["taps"][len(p["taps"]) - len(window) :]
            z = sum(tap * projected[s] for tap, s in zip(taps, window, strict=True))
            w = z / (1 + np.exp(-z))
            self.w[t] = w / np.sqrt((w**2).sum(axis=-1, keepdims=True) + 1e-6)

    def transform(self, row, head, i, j, q, k):
        if row.position[i] is None or row.position[j] is None or row.position[j][0] > row.position[i][0]:
            return q, k
        for t in sorted(self.between(row, i, j), key=lambda t: row.position[t][0]):
            k = k - self.beta[t, head] * (self.w[t, head] @ k) * self.w[t, head]
        return q, k

    def logit(self, row, head, i, j):
        return 0.0


real = st.floats(-10, 10)
MEMBERS = {
    "fox": Member(
        lines(
            "fox()", "(self_extend(group=3, window=4) >> rope()) + fox(bias_init=2)", "interpolate(factor=2) >> fox()"
        ),
        FoxOracle,
        {"bias_init": real},
        vit="raster(width=3) >> fox()",
        decoder="rope() + fox()",
    ),
    "data_dependent_alibi": Member(
        lines("data_dependent_alibi(bias_init=0)", "data_dependent_alibi(bidirectional=False, post_log_scale=3)"),
        DataDependentAlibiOracle,
        {"bidirectional": st.booleans(), "bias_init": real, "post_log_scale": st.floats(0.01, 10)},
        vit="raster(width=3) >> data_dependent_alibi(bias_init=1)",
        decoder="data_dependent_alibi(bidirectional=False)",
    ),
    "per_row_alibi": Member(
        lines("per_row_alibi()", "per_row_alibi(gate_head_dim=3, post_log_scale=2)"),
        PerRowAlibiOracle,
        {"gate_head_dim": st.integers(1, 64), "post_log_scale": st.floats(0.01, 10)},
        vit="raster(width=3) >> per_row_alibi()",
        decoder="per_row_alibi()",
    ),
    "cable": Member(lines("cable()"), CableOracle, vit="raster(width=3) >> cable()", decoder="cable()"),
    "path": Member(
        lines("path(rank=5, stddev=0.5)"),
        PaTHOracle,
        {"rank": st.integers(1, 64), "d_conv": st.integers(1, 8), "stddev": st.floats(0, 10)},
        vit="raster(width=3) >> path(rank=2, stddev=0.5)",
        decoder="path(rank=3, stddev=0.5)",
    ),
    "carope": Member(
        lines("carope(base=20, stddev=0.5)"),
        CaRopeOracle,
        {"base": st.floats(1.01, 1e12), "stddev": st.floats(0, 10)},
        vit="raster(width=3) >> carope(stddev=0.5)",
        decoder="carope(stddev=0.5)",
    ),
    "selective_rope": Member(
        lines("selective_rope(rank=5, base=100)", "selective_rope(d_conv=1)"),
        SelectiveRopeOracle,
        {"base": st.floats(1, 1e12), "rank": st.integers(1, 64), "d_conv": st.integers(1, 8)},
        vit="raster(width=3) >> selective_rope(rank=2)",
        decoder="selective_rope(rank=3)",
    ),
}
