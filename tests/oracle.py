"""Attention with each encoding in float64 numpy, written from the papers' formulas one token and one head at a time.

It shares no code with posjax: it reads an encoding's hyper-parameters and nothing else. Slow and plain on purpose.
A new encoding adds a class to `ORACLES`; what it need not say it inherits from `Oracle`.
"""

import math

import numpy as np

from posjax.encoding import Placed, Sum


class Oracle:
    """NoPE. `p` is one token's position, an array of A axes, or None for a token that stands nowhere."""

    def __init__(self, encoding, params):
        self.e, self.params = encoding, params

    def place(self, p):
        return p

    def code(self, p, prefix, width):
        return np.zeros(width)

    def rotate(self, vector, p):
        return vector

    def bias(self, head, num_heads, p_query, p_key):
        return 0.0


class SinusoidalOracle(Oracle):
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(pos / 10000^(2i/d)), d / A channels for each axis."""

    def code(self, p, prefix, width):
        code = []
        for coordinate in [] if p is None else p:
            d = width // len(p)
            angle = [coordinate / self.e.base ** (2 * i / d) for i in range(d // 2)]
            if self.e.layout == "interleaved":
                code += [f(a) for a in angle for f in (math.sin, math.cos)]
            else:
                code += [math.sin(a) for a in angle] + [math.cos(a) for a in angle]
        return np.array(code or [0.0] * width)


class LearnedOracle(Oracle):
    def code(self, p, prefix, width):
        rows = np.asarray(self.params.rows, np.float64)
        extent = self.params.extent
        num_prefix = len(rows) - math.prod(extent)
        if p is None:
            return rows[prefix - 1]
        table = rows[num_prefix:].reshape(*extent, width)
        return table[tuple(int(c) for c in p)]


class RopeOracle(Oracle):
    """f(x, m) = x exp(i m theta) on complex numbers x = a + ib, theta_i = base^(-2i/d), d = D / A for each axis."""

    def rotate(self, vector, p):
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


class AlibiOracle(Oracle):
    def bias(self, head, num_heads, p_query, p_key):
        if p_query is None or p_key is None:
            return 0.0
        return -published_slopes(num_heads)[head] * math.dist(p_query, p_key)


class T5Oracle(Oracle):
    def bias(self, head, num_heads, p_query, p_key):
        if p_query is None or p_key is None:
            return 0.0
        tables = np.asarray(self.params["table"], np.float64)
        tables = tables[None] if tables.ndim == 2 else tables
        offsets = [math.trunc(key - query) for query, key in zip(p_query, p_key, strict=True)]
        return sum(table[t5_bucket(offset, self.e), head] for table, offset in zip(tables, offsets, strict=True))


class InterpolateOracle(Oracle):
    def place(self, p):
        return p / self.e.factor


class RasterOracle(Oracle):
    def place(self, p):
        return np.array([p[0] * self.e.width + p[1]])


ORACLES = {
    "none": Oracle,
    "sinusoidal": SinusoidalOracle,
    "learned": LearnedOracle,
    "rope": RopeOracle,
    "alibi": AlibiOracle,
    "t5": T5Oracle,
    "interpolate": InterpolateOracle,
    "raster": RasterOracle,
}


def published_slopes(n: int) -> list[float]:
    """Press et al.'s get_slopes, after section 3 and footnote 8 of the paper: a recursion on heads."""
    if math.log2(n).is_integer():
        start = 2.0 ** -(2.0 ** -(math.log2(n) - 3))
        return [start * start**i for i in range(n)]
    closest = 2 ** math.floor(math.log2(n))
    return published_slopes(closest) + published_slopes(2 * closest)[0::2][: n - closest]


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


def leaves(encoding, params, maps=()):
    """(position maps to apply, oracle) of each member of a composition."""
    if isinstance(encoding, Sum):
        for part, part_params in zip(encoding.parts, params, strict=True):
            yield from leaves(part, part_params, maps)
    elif isinstance(encoding, Placed):
        position_map = ORACLES[encoding.position_map.spec_name](encoding.position_map, params[0])
        yield from leaves(encoding.encoding, params[1], (*maps, position_map))
    else:
        yield maps, ORACLES[encoding.spec_name](encoding, params)


def attention(encoding, params, x, site, weights, *, causal=False):
    """[T, H, D] in float64; `site` as the model gives it, `weights` [3, M, H, D] project to q, k and v."""
    x, weights = np.asarray(x, np.float64).copy(), np.asarray(weights, np.float64)
    members = []
    for maps, oracle in leaves(encoding, params):
        position = [_placed(p, prefix, maps) for p, prefix in zip(site.position, site.prefix, strict=True)]
        members.append((oracle, position))
    for oracle, position in members:
        x += [oracle.code(p, prefix, x.shape[1]) for p, prefix in zip(position, site.prefix, strict=True)]
    q, k, v = (np.tensordot(x, w, axes=1) for w in weights)
    count, num_heads, head_dim = q.shape
    out = np.zeros_like(v)
    for head in range(num_heads):
        for i in range(count):
            seen = [j for j in range(count) if (j <= i or not causal) and site.segment[j] == site.segment[i] > 0]
            if not seen:
                continue
            logits = [_logit(members, q[i, head], k[j, head], i, j, head, num_heads) for j in seen]
            weight = np.exp(np.array(logits) - max(logits))
            out[i, head] = weight / weight.sum() @ v[seen, head]
    return out


def _placed(p, prefix, maps):
    if prefix:
        return None
    p = np.atleast_1d(np.asarray(p, np.float64))
    for position_map in maps:
        p = position_map.place(p)
    return p


def _logit(members, q, k, i, j, head, num_heads):
    bias = 0.0
    scale = 1 / math.sqrt(len(q))
    for oracle, position in members:
        q, k = oracle.rotate(q, position[i]), oracle.rotate(k, position[j])
        bias += oracle.bias(head, num_heads, position[i], position[j])
    return q @ k * scale + bias
