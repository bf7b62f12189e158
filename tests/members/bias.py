"""Encodings that add a function of the offset to the logits: fixed ones, kernels, and T5's buckets."""

import math

import numpy as np
from hypothesis import strategies as st

from members.member import Member, Oracle, both, grids, lines

OUT_OF_VIEW = -1e9


class AlibiOracle(Oracle):
    def bias(self, head, num_heads, p_query, p_key):
        num_heads = self.e.heads or num_heads
        if head >= num_heads:
            return 0.0
        if self.e.direction == "both":
            return -self.slope(head, num_heads) * math.dist(p_query, p_key)
        offset = p_key[0] - p_query[0]
        if self.e.direction == "offset":
            return self.slope(head, num_heads) * (0.5 - abs(offset) if offset < 0 else -abs(offset))
        looks_left = math.ceil(num_heads / 2)
        if head < looks_left:
            return self.slope(head, looks_left) * offset if offset <= 0 else OUT_OF_VIEW
        return -self.slope(head - looks_left, num_heads - looks_left) * offset if offset >= 0 else OUT_OF_VIEW

    def slope(self, head, num_heads):
        """keras-hub and MPT scale the exponents of Press et al.'s slopes, which end at 8."""
        return published_slopes(num_heads)[head] ** (self.e.exponent / 8)


class AlibiPiOracle(Oracle):
    def logit(self, row, head, i, j):
        if row.position[i] is None or row.position[j] is None:
            return 0.0
        together = zip(row.position, row.segment, strict=True)
        document = [p[0] for p, segment in together if segment == row.segment[i] and p is not None]
        n = max(document) - min(document) + 1
        slope = published_slopes(row.num_heads)[head] * min(1, self.e.original_length / n)
        return -slope * abs(row.position[i][0] - row.position[j][0])


def published_slopes(n: int) -> list[float]:
    """Press et al.'s get_slopes, after section 3 and footnote 8 of the paper: a recursion on heads."""
    if math.log2(n).is_integer():
        start = 2.0 ** -(2.0 ** -(math.log2(n) - 3))
        return [start * start**i for i in range(n)]
    closest = 2 ** math.floor(math.log2(n))
    return published_slopes(closest) + published_slopes(2 * closest)[0::2][: n - closest]


class KerpleOracle(Oracle):
    """-r1 log(1 + r2 |m - n|) and -r1 |m - n|^r2."""

    def bias(self, head, num_heads, p_query, p_key):
        p, a = (float(self.params[name][head]) for name in ("p", "a"))
        a, distance = math.log1p(math.exp(a)), math.dist(p_query, p_key)
        if self.e.kind == "log":
            return -math.log1p(math.exp(p)) * math.log(1 + a * distance)
        return -a * distance ** (2 / (1 + math.exp(-p)))


class BamOracle(Oracle):
    """-exp(a) (|k - q - m| + eps)^b, m = exp(c) - exp(-c)."""

    def bias(self, head, num_heads, p_query, p_key):
        a, b = (float(self.params[name][head]) for name in ("scale", "shape"))
        distance = math.dist(p_query, p_key)
        if self.e.location:
            distance = abs(p_key[0] - p_query[0] - 2 * math.sinh(float(self.params["location"][head])))
        return -math.exp(a) * (distance + 1e-5) ** b


class SandwichOracle(Oracle):
    def bias(self, head, num_heads, p_query, p_key):
        d = self.e.dim / len(p_query)  # of each axis
        frequencies = [self.e.base ** (-2 * i / d) for i in range(int(d) // 2)]
        offsets = [q - k for q, k in zip(p_query, p_key, strict=True)]
        return sum(math.cos(o * w) for o in offsets for w in frequencies) / (8 * (head + 1) / num_heads)


class T5Oracle(Oracle):
    def bias(self, head, num_heads, p_query, p_key):
        tables = np.asarray(self.params["table"], np.float64)
        tables = tables[None] if tables.ndim == 2 else tables
        offsets = [math.trunc(key - query) for query, key in zip(p_query, p_key, strict=True)]
        return sum(table[t5_bucket(offset, self.e), head] for table, offset in zip(tables, offsets, strict=True))


def t5_bucket(offset: int, e) -> int:
    """Bucket of key - query: exact, then floor(log) up to max_distance, as the text of T5's section 2.1 has it."""
    n, first = e.num_buckets, 0
    if e.bidirectional:
        n //= 2
        first = n if offset > 0 else 0
        distance = abs(offset)
    else:
        distance = max(-offset, 0)
    exact = n // 2
    if distance < exact:
        return first + distance
    log = math.log(distance / exact) / math.log(e.max_distance / exact)
    return first + min(n - 1, exact + math.floor(log * (n - exact)))


MEMBERS = {
    "alibi": Member(
        both("alibi()")
        + lines("alibi(direction='split')", "alibi(direction='offset')", "alibi(exponent=4, heads=1)")
        + lines("alibi(direction='split', heads=2)"),
        AlibiOracle,
        {
            "direction": st.sampled_from(["both", "offset", "split"]),
            "exponent": st.floats(0.5, 32),
            "heads": st.none() | st.just(1),
        },
    ),
    "alibi_pi": Member(
        lines("alibi_pi(original_length=6)", "alibi_pi(original_length=20)"),
        AlibiPiOracle,
        {"original_length": st.integers(1, 10**6)},
        vit="raster(width=3) >> alibi_pi(original_length=2)",
        decoder="alibi_pi(original_length=64)",
    ),
    "bam": Member(
        lines("bam(start='alibi', location=True)") + grids("bam(start='alibi')"),
        BamOracle,
        {"start": st.sampled_from(["uniform", "alibi"]), "location": st.booleans()},
    ),
    "kerple": Member(
        both("kerple()") + lines("kerple(kind='power')") + grids("kerple(kind='power')"),
        KerpleOracle,
        {"kind": st.sampled_from(["log", "power"])},
    ),
    "sandwich": Member(
        both("sandwich(dim=12)") + lines("sandwich(dim=6, base=100)"),
        SandwichOracle,
        {"dim": st.integers(1, 500).map(lambda n: 2 * n), "base": st.floats(1, 1e6)},
    ),
    "t5": Member(
        both("t5()") + lines("t5(num_buckets=8, max_distance=6, bidirectional=False)"),
        T5Oracle,
        {
            "num_buckets": st.integers(2, 50).map(lambda n: 2 * n),
            "max_distance": st.integers(101, 1000),
            "bidirectional": st.booleans(),
        },
        vit="t5(num_buckets=8, max_distance=4)",
        decoder="t5(num_buckets=6, max_distance=5, bidirectional=False)",
    ),
}
