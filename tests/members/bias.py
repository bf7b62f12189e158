"""Encodings that add a function of the distance to the logits."""

import math

import numpy as np
from hypothesis import strategies as st

from members.member import Member, Oracle, both, lines


class AlibiOracle(Oracle):
    def bias(self, head, num_heads, p_query, p_key):
        return -published_slopes(num_heads)[head] * math.dist(p_query, p_key)


def published_slopes(n: int) -> list[float]:
    """Press et al.'s get_slopes, after section 3 and footnote 8 of the paper: a recursion on heads."""
    if math.log2(n).is_integer():
        start = 2.0 ** -(2.0 ** -(math.log2(n) - 3))
        return [start * start**i for i in range(n)]
    closest = 2 ** math.floor(math.log2(n))
    return published_slopes(closest) + published_slopes(2 * closest)[0::2][: n - closest]


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
    "alibi": Member(both("alibi()"), AlibiOracle),
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
