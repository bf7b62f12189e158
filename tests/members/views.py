"""Position maps that show each pair of tokens positions of its own."""

import math

import numpy as np
from hypothesis import strategies as st

from members.member import Member, Oracle, lines


class ViewsOracle(Oracle):
    """`around(inner)` wraps other oracles: each pair of tokens stands where `pair` says."""

    def around(self, inner):
        self.inner = inner
        return self

    def pair(self, i: float, j: float) -> tuple[float, float]:
        """The places of a query at i and a key at j for each other."""
        raise NotImplementedError

    def alone(self, p: float) -> float:
        """The place of a token for one that stands nowhere."""
        return p

    def seen_by(self, row, i, j):
        """The row as this pair sees it."""
        position, (q, k) = list(row.position), (row.position[i], row.position[j])
        if q is not None and k is not None:
            position[i], position[j] = (np.array([float(p)]) for p in self.pair(q[0], k[0]))
        elif q is not None:
            position[i] = np.array([float(self.alone(q[0]))])
        elif k is not None:
            position[j] = np.array([float(self.alone(k[0]))])
        return row._replace(position=position)

    def codes(self, x, row):
        return sum(oracle.codes(x, row) for oracle in self.inner)

    def observe(self, row):
        for oracle in self.inner:
            oracle.observe(row)

    def transform(self, row, head, i, j, q, k):
        for oracle in self.inner:
            q, k = oracle.transform(self.seen_by(row, i, j), head, i, j, q, k)
        return q, k

    def logit(self, row, head, i, j):
        return sum(oracle.logit(self.seen_by(row, i, j), head, i, j) for oracle in self.inner)

    def sees(self, row, i, j):
        return all(oracle.sees(self.seen_by(row, i, j), i, j) for oracle in self.inner)

    def weights(self, row, i, seen, logits):
        return next((w for oracle in self.inner if (w := oracle.weights(row, i, seen, logits)) is not None), None)

    def value(self, row, head, i, j, dim):
        return sum(oracle.value(self.seen_by(row, i, j), head, i, j, dim) for oracle in self.inner)


class SelfExtendOracle(ViewsOracle):
    def pair(self, i, j):
        g, w = self.e.group, self.e.window
        if i - j < w:
            return i, j
        return math.floor(i / g) + w - math.floor(w / g), math.floor(j / g)


class ReRopeOracle(ViewsOracle):
    def pair(self, i, j):
        distance, w = i - j, self.e.window
        if abs(distance) < w:
            return i, j
        return w + self.e.step * (distance - w), 0.0


class ShiftedOracle(ViewsOracle):
    """Distances as a list: 0 ... S - 1, then W, W + 1, ..."""

    def pair(self, i, j):
        near = self.e.offset
        return (i - j if i - j < near else self.e.local + (i - j - near)), 0.0


class DualChunkOracle(ViewsOracle):
    """Section 3, with chunk number n and place r of each token."""

    def pair(self, i, j):
        s, c = self.e.chunk, self.e.chunk + self.e.local
        (n_query, r_query), (n_key, r_key) = divmod(i, s), divmod(j, s)
        if n_query == n_key:
            return r_query, r_key
        return (min(s + r_query, c - 1) if n_query == n_key + 1 else c - 1), r_key

    def alone(self, p):
        return p % self.e.chunk


class StreamingOracle(ViewsOracle):
    """A cache that is filled token by token, and asked for the slots of query and key."""

    def pair(self, i, j):
        return (i, j) if i <= j else (self.cache(i).index(i), self.cache(i).index(j))

    def cache(self, i):
        cache = list(range(int(i) + 1))
        while len(cache) > self.e.num_sinks + self.e.window:
            del cache[self.e.num_sinks]
        return cache

    def sees(self, row, i, j):
        if row.position[i] is None or row.position[j] is None:
            return super().sees(row, i, j)
        query, key = row.position[i][0], row.position[j][0]
        kept = key in self.cache(query) if key <= query else key < self.e.num_sinks or key - query < self.e.window
        return kept and super().sees(row, i, j)


MEMBERS = {
    "self_extend": Member(
        lines(
            "self_extend(group=3, window=4) >> (rope(base=100) + t5(num_buckets=8, max_distance=6))",
            "self_extend(group=2, window=1) >> (window(size=3) + sinusoidal() + alibi())",
        ),
        SelfExtendOracle,
        {"group": st.integers(1, 100), "window": st.integers(1, 10_000)},
        vit="raster(width=3) >> self_extend(group=2, window=2) >> rope(base=100)",
        decoder="self_extend(group=2, window=2) >> rope()",
    ),
    "rerope": Member(
        lines("rerope(window=3) >> rope(base=100)", "rerope(window=4, step=0.25) >> rope(base=100)"),
        ReRopeOracle,
        {"window": st.integers(1, 10_000), "step": st.floats(0, 1)},
        vit="raster(width=3) >> rerope(window=2, step=0.5) >> rope(base=100)",
        decoder="rerope(window=2) >> rope()",
    ),
    "shifted": Member(
        lines("shifted(offset=4, local=2) >> rope(base=100)", "shifted(offset=3, local=0) >> (rope() + alibi())"),
        ShiftedOracle,
        {"offset": st.integers(128, 10_000), "local": st.integers(0, 128)},  # local is 128 where it is left out
        vit="raster(width=3) >> shifted(offset=3, local=1) >> rope(base=100)",
        decoder="shifted(offset=4, local=1) >> rope()",
    ),
    "dual_chunk": Member(
        lines("dual_chunk(chunk=4, local=2) >> rope(base=100)", "dual_chunk(chunk=3, local=3) >> (rope() + alibi())"),
        DualChunkOracle,
        {"chunk": st.integers(100, 10_000), "local": st.integers(1, 100)},
        vit="raster(width=3) >> dual_chunk(chunk=2, local=1) >> rope(base=100)",
        decoder="dual_chunk(chunk=3, local=1) >> rope()",
    ),
    "streaming": Member(
        lines("streaming(num_sinks=4, window=3) >> rope(base=100)", "streaming(num_sinks=0, window=2) >> alibi()"),
        StreamingOracle,
        {"num_sinks": st.integers(0, 100), "window": st.integers(1, 10_000)},
        vit="raster(width=3) >> streaming(num_sinks=2, window=2) >> rope(base=100)",
        decoder="streaming(num_sinks=1, window=4) >> rope()",
    ),
}
