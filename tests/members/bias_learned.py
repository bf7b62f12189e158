"""Biases of logits made for images, and those that a small network makes."""

import math

import numpy as np
from hypothesis import strategies as st

import posjax as pj
from members.bias import OUT_OF_VIEW
from members.member import Member, Oracle, both, grids, lines

# The middle of what each directed head sees, in degrees clockwise from up.
LOOKS = {
    180: [0, 180, 270, 90],
    90: [315, 45, 225, 135, 0, 180, 270, 90],
    45: [337.5, 202.5, 292.5, 67.5, 22.5, 157.5, 247.5, 112.5],
}


class LookHereOracle(Oracle):
    def bias(self, head, num_heads, p_query, p_key):
        undirected = num_heads // 3 if self.e.undirected is None else self.e.undirected
        distance, looks, directed = math.dist(p_query, p_key), LOOKS[self.e.fov], num_heads - undirected
        if head >= directed:
            shared = max(undirected / 4, 1)  # heads to a slope
            return -self.e.slope * 4 ** -(1 + (head - directed) // shared) * distance
        down, right = p_key - p_query
        ahead = math.degrees(math.atan2(right, -down)) - looks[head % len(looks)]
        if distance and abs((ahead + 180) % 360 - 180) > self.e.fov / 2 + 1e-9:
            return OUT_OF_VIEW
        return -self.e.slope * 2 ** -(1 + head // len(looks)) * distance


class SwinOracle(Oracle):
    def bias(self, head, num_heads, p_query, p_key):
        extent = self.params.extent
        table = np.asarray(self.params.rows, np.float64)[: math.prod(2 * n - 1 for n in extent)]
        table = table.reshape(*[2 * n - 1 for n in extent], num_heads)
        return table[(*(p_query - p_key + np.array(extent) - 1).astype(int), head)]


class BeitOracle(SwinOracle):
    def logit(self, row, head, i, j):
        q, k, last = row.prefix[i], row.prefix[j], self.params.prefix
        special = np.asarray(self.params.rows, np.float64)[-(2 * last + last**2) :, head]
        if q and k:
            return special[2 * last :].reshape(last, last)[q - 1, k - 1]
        if q or k:
            return special[q - 1] if q else special[last + k - 1]
        return super().logit(row, head, i, j)


def layer(params, x):
    return x @ np.asarray(params["kernel"], np.float64) + np.asarray(params.get("bias", 0.0), np.float64)


def log_of(x):
    return np.sign(x) * np.log1p(np.abs(x))


class SwinV2Oracle(Oracle):
    def bias(self, head, num_heads, p_query, p_key):
        window = np.array(self.e.pretrained_window or self.params.window)
        first, second = self.params.layers
        hidden = layer(first, log_of(8 * (p_query - p_key) / (window - 1)) / np.log(8))
        return 16 / (1 + np.exp(-layer(second, np.maximum(hidden, 0))[head]))


class DpbOracle(Oracle):
    def bias(self, head, num_heads, p_query, p_key):
        offset = p_query - p_key
        x = layer(self.params["offset"], log_of(offset) if self.e.log_distance else offset)
        for norm, block in zip(self.params["norms"], self.params["layers"], strict=True):
            x = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
            x = x * np.asarray(norm["scale"], np.float64) + np.asarray(norm["bias"], np.float64)
            x = layer(block, np.maximum(x, 0))
        return x[head]


class FireOracle(Oracle):
    def bias(self, head, num_heads, p_query, p_key):
        c = abs(float(self.params["c"][0]))
        threshold = abs(self.e.init_L * float(self.params["L_multiplier"][0]))
        far = math.hypot(*(max(0.0, x) for x in p_query))
        x = math.log(c * math.dist(p_query, p_key) + 1) / (math.log(c * max(threshold, far) + 1) + self.e.eps)
        first, second = self.params["layers"]
        return layer(second, np.maximum(layer(first, np.array([x])), 0))[head]


class DapeOracle(Oracle):
    def __init__(self, e, params):
        from members import MEMBERS  # which is made of this module

        super().__init__(e, params)
        self.inner = MEMBERS[e.encoding.spec_name].oracle(e.encoding, params["encoding"])

    def logit(self, row, head, i, j):
        if row.position[i] is None or row.position[j] is None:
            return 0.0
        inner = self.features(row, i, j)[row.num_heads + head]
        if self.e.kernel_size == 1:
            return inner + self.network(lambda n: self.features(row, i, j), 0)[head]
        upto = [t for t, p in enumerate(row.position) if p is not None and p[0] <= row.position[i][0]]
        upto = sorted((t for t in upto if row.segment[t] == row.segment[i]), key=lambda t: row.position[t][0])
        if j not in upto:
            return inner
        nothing = np.zeros(2 * row.num_heads)
        features = lambda n: self.features(row, i, upto[n]) if 0 <= n < len(upto) else nothing  # noqa: E731
        return inner + self.network(features, upto.index(j))[head]

    def features(self, row, i, j):
        heads = range(row.num_heads)
        content = [row.q[i, h] @ row.k[j, h] / math.sqrt(row.q.shape[-1]) for h in heads]
        return np.array(content + [self.inner.logit(row, h, i, j) for h in heads])

    def network(self, features, n):
        """Two layers over the features of the n-th key and its neighbours; before the first key nothing is hidden."""
        first, second = self.params["layers"]
        half = self.e.kernel_size // 2

        def convolved(layer, x, n):
            kernel = np.asarray(layer["kernel"], np.float64).reshape(self.e.kernel_size, -1, len(layer["bias"]))
            return sum(x(n + o - half) @ tap for o, tap in enumerate(kernel)) + np.asarray(layer["bias"], np.float64)

        def hidden(n):
            z = convolved(first, features, n)
            return np.where(z > 0, z, 0.01 * z) * (n >= 0)

        return convolved(second, hidden, n)


HIDDEN = st.integers(2, 1024)

MEMBERS = {
    "beit": Member(grids("beit(stddev=1)"), BeitOracle, {"stddev": st.floats(0, 10)}),
    "dape": Member(
        lines(
            "dape(hidden_dim=5)",
            "dape(encoding=t5(num_buckets=8, max_distance=6), hidden_dim=4)",
            "dape(encoding=alibi(), hidden_dim=4, kernel_size=3)",
        )
        + grids("dape(encoding=swin(stddev=1), hidden_dim=5)", "dape(encoding=none(), hidden_dim=5)"),
        DapeOracle,
        {
            "encoding": st.sampled_from(
                [pj.parse(spec) for spec in ("none()", "t5() + alibi()", "interpolate(factor=2) >> fire()")]
            ),
            "hidden_dim": HIDDEN,
            "kernel_size": st.integers(0, 9).map(lambda half: 2 * half + 1),
        },
    ),
    "dpb": Member(
        both("dpb(hidden_dim=5)") + grids("dpb(hidden_dim=4, log_distance=True)"),
        DpbOracle,
        {"hidden_dim": HIDDEN, "log_distance": st.booleans()},
    ),
    "fire": Member(
        both("fire(hidden_dim=6, init_c=0.5, init_L=4)") + grids("fire(hidden_dim=5, init_L=1)"),
        FireOracle,
        {
            "hidden_dim": HIDDEN,
            "init_c": st.floats(1e-3, 10),
            "init_L": st.floats(1, 1e6),
            "eps": st.floats(1e-12, 1e-2),
        },
    ),
    "lookhere": Member(
        grids("lookhere()", "lookhere(fov=180, slope=0.5)", "lookhere(fov=45, undirected=0)"),
        LookHereOracle,
        {
            "fov": st.sampled_from([180, 90, 45]),
            "undirected": st.none() | st.integers(0, 16),
            "slope": st.floats(0, 10),
        },
    ),
    "swin": Member(both("swin(stddev=1)"), SwinOracle, {"stddev": st.floats(0, 10)}),
    "swin_v2": Member(
        grids("swin_v2(hidden_dim=6)", "swin_v2(hidden_dim=5, pretrained_window=(3, 4))")
        + lines("swin_v2(hidden_dim=6)"),
        SwinV2Oracle,
        {
            "hidden_dim": HIDDEN,
            "pretrained_window": st.none() | st.tuples(st.integers(1, 99), st.integers(1, 99)),
        },
    ),
}
