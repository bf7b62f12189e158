"""Encodings whose bias depends on what queries and keys hold."""

import math

import numpy as np
from hypothesis import strategies as st

from members.member import Member, Oracle, both, grids, lines


class ShawOracle(Oracle):
    """e_ij = x_i W^Q (x_j W^K + a^K_ij)^T / sqrt(d_z), z_i = sum_j alpha_ij (x_j W^V + a^V_ij), a_ij = w_clip(j - i, k)."""

    def vectors(self, row, which, i, j, dim):
        total = np.zeros(dim)
        if row.position[i] is None or row.position[j] is None or which not in self.params:
            return total
        for table, query, key in zip(self.params[which], row.position[i], row.position[j], strict=True):
            left = self.e.max_relative_position or (len(table) - 1) // 2
            right = left if self.e.right is None else self.e.right
            total += np.asarray(table, np.float64)[left + max(-left, min(right, int(key - query)))]
        return total

    def logit(self, row, head, i, j):
        q = row.q[i, head]
        return q @ self.vectors(row, "key", i, j, len(q)) / (math.sqrt(len(q)) if self.e.scaled else 1)

    def value(self, row, head, i, j, dim):
        return self.vectors(row, "value", i, j, dim)


class TransformerXLOracle(Oracle):
    """Terms (b), (c) and (d) of section 3.3; R_d as in Vaswani et al., one frequency at a time."""

    def logit(self, row, head, i, j):
        u, v, w = (np.asarray(self.params[name], np.float64) for name in ("u", "v", "position"))
        q, k = row.q[i, head], row.k[j, head]
        total = u[head] @ k
        if row.position[i] is not None and row.position[j] is not None:
            total += (q + v[head]) @ (self.sinusoid(row.position[i] - row.position[j], len(w)) @ w[:, head])
        return total / math.sqrt(len(q))

    def sinusoid(self, distance, width):
        sines, cosines, d = [], [], width // len(distance)
        for x in distance:
            if self.e.clamp_len > 0:
                x = max(-self.e.clamp_len, min(self.e.clamp_len, x))
            angle = [x / self.e.base ** (2 * c / d) for c in range(d // 2)]
            sines += [math.sin(a) for a in angle]
            cosines += [math.cos(a) for a in angle]
        return np.array(sines + cosines)


class InklingOracle(Oracle):
    """rel_logits[d] = (x_i W_r)[head] @ proj[:, d] for 0 <= d < rel_extent, one pair at a time; tau on it and on q."""

    def observe(self, row):
        self.states = np.einsum("tm,amhr->tahr", row.x, np.asarray(self.params["project"], np.float64))
        if self.e.clip is not None:
            self.states = self.states * np.asarray(self.params["scale"], np.float64)
            for state in self.states.reshape(-1, self.e.rank):
                state *= min(1.0, self.e.clip / (math.sqrt(state @ state) + 1e-6))

    def tau(self, position):
        if self.e.n_floor is None or position is None:
            return 1.0
        return 1 + self.e.alpha * math.log(max((position[0] + 1) / self.e.n_floor, 1.0))

    def transform(self, row, head, i, j, q, k):
        return self.tau(row.position[i]) * q, k

    def logit(self, row, head, i, j):
        if row.position[i] is None or row.position[j] is None:
            return 0.0
        total = 0.0
        for axis, (to, start) in enumerate(zip(row.position[j], row.position[i], strict=True)):
            column = math.trunc(start - to) + (self.e.extent - 1 if self.e.bidirectional else 0)
            profiles = np.asarray(self.params["profiles"], np.float64)[axis]
            if not 0 <= column < profiles.shape[1]:
                return 0.0
            total += self.states[i, axis, head] @ profiles[:, column]
        return self.tau(row.position[i]) * total


class CoPEOracle(Oracle):
    """g_ij = sigmoid(q_i . k_j / sqrt(d)), p_ij = sum of g_it from t = j to t = i, e[p] = (p - floor) e[ceil] + ..."""

    def logit(self, row, head, i, j):
        if row.position[i] is None or row.position[j] is None:
            return 0.0
        q, e = row.q[i, head], np.asarray(self.params, np.float64)
        between = [
            t
            for t, p in enumerate(row.position)
            if p is not None and row.segment[t] == row.segment[i] and row.position[j][0] <= p[0] <= row.position[i][0]
        ]
        p = sum(1 / (1 + math.exp(-(q @ row.k[t, head]) / math.sqrt(len(q)))) for t in between)
        p = min(p, self.e.npos - 1)
        low, high = math.floor(p), math.ceil(p)
        bias = q @ ((p - low) * e[high] + (1 - (p - low)) * e[low])
        return bias / math.sqrt(len(q)) if self.e.scaled else bias


class DebertaOracle(Oracle):
    """(Q^c K^cT + Q^c K^rT_delta + K^c Q^rT_delta) / sqrt(3d), with the authors' log buckets."""

    def transform(self, row, head, i, j, q, k):
        return q / math.sqrt(1 + len(self.e.pos_att_type)), k

    def logit(self, row, head, i, j):
        if row.position[i] is None or row.position[j] is None:
            return 0.0
        q, k = row.q[i, head], row.k[j, head]
        delta = deberta_row(int(row.position[i][0] - row.position[j][0]), self.e)
        total = 0.0
        if "c2p" in self.e.pos_att_type:
            total += q @ np.asarray(self.params["pos_key"], np.float64)[delta, head]
        if "p2c" in self.e.pos_att_type:
            total += k @ np.asarray(self.params["pos_query"], np.float64)[delta, head]
        return total / math.sqrt((1 + len(self.e.pos_att_type)) * len(q))


def deberta_row(offset: int, e) -> int:
    """make_log_bucket_position and the clamp around it, in float64; offset is query - key."""
    span, bucket = e.max_relative_positions, offset
    if e.position_buckets > 0:
        span, mid = e.position_buckets, e.position_buckets // 2
        if abs(offset) > mid:
            log = math.log(abs(offset) / mid) / math.log((e.max_relative_positions - 1) / mid) * (mid - 1)
            bucket = math.copysign(math.ceil(log - 1e-9) + mid, offset)
    return int(max(0, min(2 * span - 1, bucket + span)))


class TupeOracle(Oracle):
    """(x_i W^Q)(x_j W^K)^T / sqrt(2d) + (p_i U^Q)(p_j U^K)^T / sqrt(2d), with theta_1 and theta_2 for [CLS]."""

    def transform(self, row, head, i, j, q, k):
        return q / math.sqrt(2), k

    def logit(self, row, head, i, j):
        if row.position[i] is None:
            return float(self.params["untied"][0, head])
        if row.position[j] is None:
            return float(self.params["untied"][1, head])
        u_q, u_k = (np.asarray(self.params[name], np.float64)[:, head] for name in ("query", "key"))
        return (self.p(row.position[i]) @ u_q) @ (self.p(row.position[j]) @ u_k) / math.sqrt(2 * u_q.shape[1])

    def p(self, position):
        table = np.asarray(self.params["table"].rows, np.float64).reshape(*self.params["table"].extent, -1)
        row = table[tuple(int(c) for c in position)]
        return (row - row.mean()) / math.sqrt(row.var() + 1e-5)


class StickBreakingOracle(Oracle):
    """A_ij = beta_ij prod of (1 - beta_ik) over the keys k between, from the nearest on; registers come before all others."""

    def weights(self, row, i, seen, logits):
        found, left = np.zeros(len(seen)), 1.0
        for n in sorted(range(len(seen)), key=lambda n: self.order(row, seen[n]), reverse=True):
            if self.passes(row, i, seen[n]):
                beta = 1 / (1 + math.exp(-logits[n]))
                found[n] = beta * left
                left *= 1 - beta
        return found

    def order(self, row, j):
        return (0, row.prefix[j], j) if row.position[j] is None else (1, row.position[j][0], j)

    def passes(self, row, i, j):
        if row.position[i] is None or row.position[j] is None:
            return row.prefix[i] != row.prefix[j] or self.e.attend_current
        distance = row.position[i][0] - row.position[j][0]
        return distance > 0 or (distance == 0 and self.e.attend_current)


class TapaOracle(Oracle):
    """Equation 12, one pair at a time, as a product of vectors of length 1 that comes out so behind the scale."""

    def transform(self, row, head, i, j, q, k):
        theta, dim = self.e.theta, len(q)
        count, distance = round(theta * dim), 0.0
        if row.position[i] is not None and row.position[j] is not None:
            distance = abs(row.position[i][0] - row.position[j][0])
        phase = 2 * math.pi * distance**self.e.alpha * (q[count:] @ k[count:]) / math.sqrt((1 - theta) * dim)
        logit = q[:count] @ k[:count] / math.sqrt(theta * dim) * math.cos(phase)
        return np.array([logit * math.sqrt(dim)]), np.ones(1)


# Short queries and keys, for phases of less than a turn: in longer ones the roundings of two programs grow to more than 1e-5.
TURNED = "rope(layout='interleaved', scaling=yarn(factor=4, original_length=64, attention_factor=0.3))"
MEMBERS = {
    "cope": Member(
        lines("cope(npos=5, stddev=1)", "cope(npos=3, scaled=False, stddev=1)", "cope(stddev=1)"),
        CoPEOracle,
        {"npos": st.integers(2, 500), "scaled": st.booleans(), "stddev": st.floats(0, 10)},
        vit="raster(width=3) >> cope(npos=4, stddev=1)",
    ),
    "deberta": Member(
        lines(
            "deberta(position_buckets=8, max_relative_positions=9)",
            "deberta()",
            "deberta(position_buckets=-1, max_relative_positions=5)",
            "deberta(position_buckets=6, max_relative_positions=20, pos_att_type=('p2c',))",
        ),
        DebertaOracle,
        {
            "position_buckets": st.integers(2, 50).map(lambda n: 2 * n) | st.just(-1),
            "max_relative_positions": st.integers(130, 1000),
            "pos_att_type": st.sampled_from([("c2p",), ("p2c",), ("p2c", "c2p"), ("c2p", "p2c")]),
            "shared": st.booleans(),
            "norm_epsilon": st.floats(1e-12, 1e-3),
        },
        vit="raster(width=3) >> deberta(position_buckets=4, max_relative_positions=6)",
    ),
    "inkling": Member(
        lines(
            "inkling(rank=3, extent=4, stddev=0.5)",
            "inkling(extent=6, n_floor=3, alpha=0.7, clip=0.8, stddev=0.5)",
            "inkling(stddev=0.5)",
            "self_extend(group=3, window=4) >> inkling(extent=9, stddev=0.5)",
        )
        + grids("inkling(rank=4, extent=2, bidirectional=True, stddev=0.5)", "inkling(extent=2, clip=1, stddev=0.5)"),
        InklingOracle,
        {
            "rank": st.integers(1, 64),
            "extent": st.integers(1, 2000),
            "n_floor": st.none() | st.integers(1, 10**6),
            "alpha": st.floats(0, 10),
            "clip": st.none() | st.floats(0.01, 100),
            "bidirectional": st.booleans(),
            "stddev": st.floats(0, 10),
        },
        vit="inkling(rank=2, extent=2, bidirectional=True, stddev=0.5)",
        decoder="inkling(rank=3, extent=4, n_floor=3, clip=2, stddev=0.5)",
    ),
    "shaw": Member(
        both("shaw(max_relative_position=4)")
        + lines("shaw()", "shaw(max_relative_position=1, values=False)")
        + lines("shaw(max_relative_position=3, right=1)")
        + both("shaw(max_relative_position=None, values=False, scaled=False)")
        + grids("shaw(max_relative_position=None)"),
        ShawOracle,
        {
            "max_relative_position": st.integers(1, 500),
            "values": st.booleans(),
            "right": st.none() | st.integers(0, 500),
            "scaled": st.booleans(),
        },
        vit="shaw(max_relative_position=1)",
    ),
    "stick_breaking": Member(
        lines(
            "stick_breaking()",
            "rope() + window(4) + stick_breaking(attend_current=True)",
            "alibi() + stick_breaking()",
            "self_extend(group=2, window=4) >> (rope() + stick_breaking())",
        )
        + grids("raster(width=7) >> stick_breaking()"),
        StickBreakingOracle,
        {"attend_current": st.booleans()},
        vit="raster(width=3) >> stick_breaking(attend_current=True)",
        decoder="rope() + stick_breaking()",
    ),
    "tapa": Member(
        lines(f"{TURNED} + tapa()", f"{TURNED} + tapa(alpha=0.4, theta=0.75)"),
        TapaOracle,
        {"alpha": st.floats(0.01, 2), "theta": st.floats(0.01, 0.99)},
        vit=f"raster(width=3) >> ({TURNED} + tapa())",
    ),
    "transformer_xl": Member(
        both("transformer_xl()", "transformer_xl(base=100, clamp_len=4)"),
        TransformerXLOracle,
        {"base": st.floats(1, 1e12), "clamp_len": st.integers(1, 1000) | st.just(-1)},
    ),
    "tupe": Member(both("tupe(stddev=0.5)"), TupeOracle, {"stddev": st.floats(0.001, 10)}),
}
