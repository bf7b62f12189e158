"""Encodings that scale queries, and the learned sink."""

import math

import numpy as np
from hypothesis import strategies as st

from members.member import Member, Oracle, both, grids, lines


class TemperatureOracle(Oracle):
    """q of position p times `factor(head, p + 1)`; positions below 0 count as 0."""

    def transform(self, row, head, i, j, q, k):
        return q if row.position[i] is None else q * self.factor(head, max(row.position[i][0] + 1, 1)), k


class LogNOracle(TemperatureOracle):
    def factor(self, head, n):
        if self.e.shifted:
            return math.log(self.e.original_length + n - 1, self.e.original_length)
        return max(1, math.log(n, self.e.original_length))


class Llama4Oracle(TemperatureOracle):
    def factor(self, head, n):
        return 1 + self.e.attn_scale * math.log(1 + n // self.e.floor_scale)


class PowerOracle(TemperatureOracle):
    def factor(self, head, n):
        return (1 + n / self.e.original_length) ** self.e.exponent


class SSMaxOracle(TemperatureOracle):
    def factor(self, head, n):
        return float(self.params["scale"][head]) * math.log(n)


class SinkOracle(Oracle):
    """softmax over [q K^T / sqrt(d), s_h], without its last column."""

    def sink(self, row, head, i):
        return float(self.params["sink"][head])


class TokenSinkOracle(Oracle):
    """As above, with s = x_i w_h of query i."""

    def sink(self, row, head, i):
        return float(row.x[i] @ np.asarray(self.params["kernel"], np.float64)[:, head])


def hosted(name: str, near: str, far: str):
    """A line, and a grid laid out on a line."""
    return lines(f"{name}({near})") + grids(f"raster(width=7) >> {name}({far})")


MEMBERS = {
    "learned_sink": Member(both("learned_sink(stddev=1)"), SinkOracle, {"stddev": st.floats(0, 10)}),
    "llama4_temperature": Member(
        hosted("llama4_temperature", "attn_scale=0.2, floor_scale=4", "attn_scale=0.2, floor_scale=5"),
        Llama4Oracle,
        {"attn_scale": st.floats(0, 10), "floor_scale": st.integers(1, 10**6)},
        vit="raster(width=3) >> llama4_temperature(attn_scale=2, floor_scale=2)",
        decoder="llama4_temperature(attn_scale=2, floor_scale=2)",
    ),
    "power_temperature": Member(
        hosted("power_temperature", "original_length=4, exponent=0.7", "original_length=5, exponent=0.7"),
        PowerOracle,
        {"original_length": st.integers(1, 10**6), "exponent": st.floats(0, 2)},
        vit="raster(width=3) >> power_temperature(original_length=2, exponent=1.0)",
        decoder="power_temperature(original_length=2, exponent=1.0)",
    ),
    "log_n": Member(
        hosted("log_n", "original_length=8", "original_length=9") + lines("log_n(original_length=8, shifted=True)"),
        LogNOracle,
        {"original_length": st.integers(2, 10**6), "shifted": st.booleans()},
        vit="raster(width=3) >> log_n(original_length=2)",
        decoder="log_n(original_length=2)",
    ),
    "ssmax": Member(
        hosted("ssmax", "scale=0.5", ""),
        SSMaxOracle,
        {"scale": st.floats(-10, 10)},
        vit="raster(width=3) >> ssmax(scale=1)",
        decoder="ssmax(scale=1)",
    ),
    "token_sink": Member(
        both("token_sink(stddev=0.5)") + lines("inkling(extent=4, stddev=0.5, clip=1) + token_sink(stddev=0.5)"),
        TokenSinkOracle,
        {"stddev": st.floats(0, 10)},
    ),
}
