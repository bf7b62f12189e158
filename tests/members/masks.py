"""Masks: which keys a query may see."""

from hypothesis import strategies as st

from members.member import Member, Oracle, both, lines

sizes = st.integers(1, 10_000)
counts = st.integers(0, 100)


class MaskOracle(Oracle):
    """A class token sees and is seen."""

    def sees(self, row, i, j):
        q, k = row.position[i], row.position[j]
        return q is None or k is None or self.shows(q, k)


class WindowOracle(MaskOracle):
    """flash-attention's sides: from `left` keys before the query to `right` keys after it."""

    def shows(self, q, k):
        left = self.e.size - 1
        right = left if self.e.ahead is None else self.e.ahead
        return all(a - left <= b <= a + right for a, b in zip(q, k, strict=True))


class DilatedOracle(MaskOracle):
    def shows(self, q, k):
        steps = [(a - b) / self.e.dilation for a, b in zip(q, k, strict=True)]
        return all(step in range(1 - self.e.size, self.e.size) for step in steps)


class ChunkedOracle(MaskOracle):
    def shows(self, q, k):
        chunks = [(a // self.e.size, b // self.e.size) for a, b in zip(q, k, strict=True)]
        return all(b in range(int(a) - self.e.before, int(a) + self.e.after + 1) for a, b in chunks)


class LongformerOracle(MaskOracle):
    """Section 3.1: w / 2 tokens on each side; global attention is symmetric."""

    def shows(self, q, k):
        is_global = min(q[0], k[0]) < self.e.num_global
        return is_global or 2 * abs(q[0] - k[0]) <= self.e.window


class SinksOracle(MaskOracle):
    def shows(self, q, k):
        return k[0] < self.e.num_sinks or abs(q[0] - k[0]) < self.e.window


class BigBirdOracle(MaskOracle):
    def shows(self, q, k):
        q, k = int(q[0] // self.e.block_size), int(k[0] // self.e.block_size)
        return abs(q - k) <= 1 or min(q, k) < self.e.num_global or min(q, k) in bigbird_draws(max(q, k), self.e)


def bigbird_draws(block: int, e) -> set[int]:
    """The earlier blocks that a block is joined to: one from each of num_random shares of those that are left."""
    left, drawn = list(range(e.num_global, block - 1)), set()
    for n in range(e.num_random):
        share = left[n * len(left) // e.num_random : (n + 1) * len(left) // e.num_random]
        if share:
            drawn.add(share[mixed(block, n, e.seed) % len(share)])
    return drawn


def mixed(block: int, share: int, seed: int) -> int:
    x = (block * 0x9E3779B1 + share * 0x85EBCA77 + seed * 0xC2B2AE3D) % 2**32
    x = (x ^ x >> 16) * 0x85EBCA6B % 2**32
    x = (x ^ x >> 13) * 0xC2B2AE35 % 2**32
    return x ^ x >> 16


# In a decoder, two layers must carry every one of 7 tokens to the last, by a test of it.
MEMBERS = {
    "window": Member(
        both("window(size=3)")
        + lines("rope() + window(size=2)")
        + both("window(size=4, ahead=1)", "window(2, ahead=3)"),
        WindowOracle,
        {"size": sizes, "ahead": st.none() | counts},
        vit="window(size=2)",
        decoder="rope() + window(size=4)",
    ),
    "dilated": Member(
        lines("dilated(size=3)") + both("dilated(size=2, dilation=3)"),
        DilatedOracle,
        {"size": sizes, "dilation": sizes},
        vit="dilated(size=2)",
        decoder="rope() + dilated(size=4, dilation=1)",
    ),
    "chunked": Member(
        both("chunked(size=3)", "chunked(size=2, before=1)") + lines("chunked(size=2, before=1, after=2)"),
        ChunkedOracle,
        {"size": sizes, "before": counts, "after": counts},
        vit="chunked(size=2)",
        decoder="rope() + chunked(size=9)",
    ),
    "longformer": Member(
        lines("longformer(window=4, num_global=4)", "longformer(window=2, num_global=0)"),
        LongformerOracle,
        {"window": sizes.map(lambda n: 2 * n), "num_global": counts},
        vit="raster(width=3) >> longformer(window=2)",
        decoder="rope() + longformer(window=6)",
    ),
    "sinks": Member(
        lines("sinks(num_sinks=4, window=3)", "sinks(num_sinks=0, window=4) + rope()"),
        SinksOracle,
        {"num_sinks": counts, "window": sizes},
        vit="raster(width=3) >> sinks(num_sinks=2, window=2)",
        decoder="rope() + sinks(num_sinks=1, window=4)",
    ),
    "bigbird": Member(
        lines("bigbird(block_size=2, num_random=1, num_global=2, seed=7)", "bigbird(block_size=1, num_random=2)"),
        BigBirdOracle,
        {
            "block_size": sizes,
            "num_random": st.integers(0, 64),
            "num_global": counts,
            "seed": st.integers(0, 2**32 - 1),
        },
        vit="raster(width=3) >> bigbird(block_size=1, num_random=1, num_global=1)",
        decoder="rope() + bigbird(block_size=2, num_random=0, num_global=1)",
    ),
}
