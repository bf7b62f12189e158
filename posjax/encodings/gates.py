"""Encodings computed from the content: gates that accumulate along a document, in the order of its positions.

`observe` turns a layer's input into a running sum per token, which is its `site.state`, float32, and travels into the
KV cache; bias and rotation compare the sums of query and key. Only the order of positions matters, not their distances.
Class token, registers and padding add nothing and have a sum of zero. Positions are to rise along the arrays, as in
text: where they fall, a sum holds tokens that causal attention hides.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Float32, Int, Shaped

from posjax.encoding import Array, Encoding, Needs, Site, both_stand, order_of, rises
from posjax.encodings.angles import geometric
from posjax.encodings.pairs import related
from posjax.encodings.rotary import rotated
from posjax.spec import register


class _Gate(Encoding):
    """A bias that sums the log gates of the tokens after the key up to the query."""

    dimensions = (1,)
    observes = 1

    def gate(self, params, x: Float[Array, "T M"]) -> Float32[Array, "T *N H"]:
        """The log of the gates, at most 0."""
        return jax.nn.log_sigmoid(_linear(params, x))

    def observe(self, params, x, site, past=None):
        self.coordinates(site)
        past = last_before(site, past, self.observes)
        order = Order.of(site, past)
        return site._replace(state=order.total(self.gate(params, x), () if past is None else past.state))

    def bias(self, params, q, q_site, k, k_site):
        bias = self.compare(
            jnp.moveaxis(q_site.state, 0, -1)[..., None], jnp.moveaxis(k_site.state, 0, -1)[..., None, :]
        )
        return jnp.where(both_stand(q_site, k_site), bias, 0.0)

    def is_difference(self, site):
        return rises(site)

    def potential(self, params, site, num_heads):
        return -site.state

    def compare(self, q: Float32[Array, "*N H T 1"], k: Float32[Array, "*N H 1 S"]) -> Float32[Array, "H T S"]:
        # Sums fall along the document, so this is c_q - c_k for the keys before a query, and c_k - c_q for later ones.
        return -jnp.abs(q - k)


@register("fox")
@dataclass(frozen=True)
class Fox(_Gate):
    """Forgetting attention: bias_ij = sum over l = j + 1 ... i of log sigmoid(w_h . x_l + b_h), for every head h.

    Lin et al. (2025), Forgetting Transformer, arXiv 2503.02130, section 3; x is the layer's input, from which queries and
    keys are projected too. In a bidirectional model a later key is seen through the gates from i + 1 to j: the same -|c_i -
    c_j| of running sums c, which cannot tell left from right (`data_dependent_alibi` can).

    Parameters: kernel [M, H], initialised N(0, 1/M); bias [H], at `bias_init`: gates start at sigmoid(bias_init).
    """

    family = "contextual"
    formula = (r"b^{(h)}_{mn} = \sum_{l=n+1}^{m} \ln\sigma\left(w_h\cdot x_l + \beta_h\right)",)

    bias_init: float = 0.0

    def init(self, key, dims):
        return _linear_init(key, (dims.width, dims.num_heads), dims.width**-0.5, self.bias_init)


@register("data_dependent_alibi")
@dataclass(frozen=True)
class DataDependentAlibi(_Gate):
    """Forgetting attention in both directions, with gates of their own: f for keys before a query, g for those after it.

    bias_ij = sum over l = j + 1 ... i of log f_l for a key before, over l = i + 1 ... j of log g_l for one after. The form of
    x-transformers' DataDependentAlibi (with causal=False), which cites the Forgetting Transformer (arXiv 2503.02130) for
    it; its gates start almost open, at sigmoid(5). bidirectional=False has no g: it is `fox` with that start.

    Args:
      post_log_scale: factor of the log gates.

    Parameters: kernel [M, 2, H], initialised N(0, 1/M); bias [2, H], at `bias_init`. Without the axis of 2 where not
    bidirectional.
    """

    family = "contextual"
    formula = (
        r"b^{(h)}_{mn} = \begin{cases} \sum_{l=n+1}^{m} \ln f_{h,l} & n \le m \\ \sum_{l=m+1}^{n} \ln"
        r" g_{h,l} & n > m \end{cases}",
        r"f_{h,l} = \sigma\left(w_h\cdot x_l + \beta_h\right),\quad g_{h,l} = \sigma\left(w'_h\cdot"
        r" x_l + \beta'_h\right)",
    )
    ranges = ("post_log_scale > 0",)

    bidirectional: bool = True
    bias_init: float = 5.0
    post_log_scale: float = 1.0

    def init(self, key, dims):
        gates = (2, dims.num_heads) if self.bidirectional else (dims.num_heads,)
        return _linear_init(key, (dims.width, *gates), dims.width**-0.5, self.bias_init)

    def gate(self, params, x):
        return self.post_log_scale * super().gate(params, x)

    def is_difference(self, site):
        return not self.bidirectional and rises(site)

    def compare(self, q, k):
        if not self.bidirectional:
            return super().compare(q, k)
        # The difference of the other direction is positive, and the minimum drops it.
        return jnp.minimum(q[0] - k[0], 0.0) + jnp.minimum(k[1] - q[1], 0.0)


@register("cable")
@dataclass(frozen=True)
class Cable(_Gate):
    """Context-aware biases: bias_ij = -sum over l = j + 1 ... i of softplus(w_h . x_l + b_h).

    Veisi et al. (2025), arXiv 2503.08067, and its code (src/Cable.py). As -softplus(z) = log sigmoid(-z), this is `fox` with
    w and b turned around, and another start. The bias is added to logits scaled by 1/sqrt(D), like any other; the authors'
    code divides logits by sqrt(C / n_embd), which is 1. In a bidirectional model later keys are treated as by `fox`.

    Parameters: kernel [M, H], initialised N(0, 0.02^2), and bias [H], at 0, both as in the code: every head starts near
    a slope of log 2.
    """

    family = "contextual"
    formula = (r"b^{(h)}_{mn} = -\sum_{l=n+1}^{m} \mathrm{softplus}\left(w_h\cdot x_l + \beta_h\right)",)

    def init(self, key, dims):
        return _linear_init(key, (dims.width, dims.num_heads), 0.02, 0.0)

    def gate(self, params, x):
        return -jax.nn.softplus(_linear(params, x))


@register("per_row_alibi")
@dataclass(frozen=True)
class PerRowAlibi(Encoding):
    """Data-dependent ALiBi per row: a query has gates of its own for the keys from each key up to itself.

    bias_ij = s sum over l = j ... i - 1 of log sigmoid(a_i . b_l / sqrt(P)), with a = W_h x and b = W'_h x of P channels
    and x the layer's input. From PerRowDataDependentAlibi of x-transformers 2.31.10; no paper describes it. Two points differ
    from `fox`: the key's own gate counts and the query's does not, and a gate depends on the query that asks. With W = 0
    every gate is 1/2, a slope of s ln 2 for all heads. Keys later than the query have no bias, as the source is causal;
    tokens that stand nowhere have none either.

    Args:
      gate_head_dim: P, `dim_head` at the source.
      post_log_scale: s.

    Parameters: {"kernel": [M, 2, H, P]}, W and W', initialised uniformly within 1/sqrt(M), PyTorch's default.
    """

    family = "contextual"
    formula = (
        r"b^{(h)}_{mn} = s\sum_{l=n}^{m-1} \ln\sigma\left(\frac{a_m\cdot b_l}{\sqrt P}\right),\quad a_l ="
        r" W_h x_l,\quad b_l = W'_h x_l",
    )

    dimensions = (1,)
    needs = Needs.WHOLE_ROWS
    observes = 0
    ranges = "gate_head_dim >= 1", "post_log_scale > 0"

    gate_head_dim: int = 8
    post_log_scale: float = 1.0

    def init(self, key, dims):
        shape = (dims.width, 2, dims.num_heads, self.gate_head_dim)
        limit = dims.width**-0.5
        return {"kernel": jax.random.uniform(key, shape, jnp.float32, minval=-limit, maxval=limit)}

    def observe(self, params, x, site, past=None):
        self.coordinates(site)
        return site._replace(state=jnp.tensordot(x.astype(jnp.float32), params["kernel"], axes=1, precision="highest"))

    def bias(self, params, q, q_site, k, k_site):
        asked, probe = q_site.state[:, 0], k_site.state[:, 1]
        before = jnp.asarray(order_of(k_site)[None] < order_of(q_site)[:, None])
        counted = related(q_site, k_site) & before
        gates = jnp.einsum("thp,shp->hts", asked, probe, precision="highest") * self.gate_head_dim**-0.5
        terms = jnp.where(counted, self.post_log_scale * jax.nn.log_sigmoid(gates), 0.0)
        return jnp.where(counted, sums_after(terms, order_of(k_site), own=True), 0.0)


@register("selective_rope")
@dataclass(frozen=True)
class SelectiveRope(Encoding):
    """Rotation by angles that the content decides: token t turns pair c of head h by sum over s <= t of phi_s[h, c] w_c.

    w_c = base^(-2c/D), and phi = conv(U V x^): x^ is the layer's input, each head's share of it normalised to length 1; V and
    U a projection of low rank; conv a causal convolution, per channel, over the last `d_conv` tokens of the document.
    Movahedi et al. (2025), arXiv 2511.17388, and the defaults of its code (modules/rotary.py): without its optional phase
    gate and bias, and with fixed w. Pairs are (c, c + D/2). q'_i . k'_j depends on the sum between j and i alone, whichever
    comes first. Angles are kept as fractions of a turn, in [-1/2, 1/2], so that long documents lose no precision.
    Class token and registers are not rotated.

    Parameters, initialised uniformly within 1/sqrt(inputs), PyTorch's default, as in the code: down [M, rank], up
    [rank, H, D/2], and taps [d_conv, H, D/2], the last of them the token's own.

    Raises:
      ValueError: for a base that is not positive, a rank or d_conv below 1, a d_conv above 64; from `init` for
        an odd head dim or a width that the heads do not divide.
    """

    family = "contextual"
    formula = (
        r"q'_{t,c} = q_{t,c}\,e^{i\Phi_{t,c}},\quad k'_{t,c} = k_{t,c}\,e^{i\Phi_{t,c}},\quad"
        r" \Phi_{t,c} = \theta_c \sum_{s\le t} \varphi_{s,c}",
        r"\varphi = \mathrm{conv}\left(U V \hat x\right),\quad \theta_c = \beta^{-2c/D}",
    )

    dimensions = (1,)
    needs = Needs.EVERY_HEAD
    ranges = "rank >= 1", "d_conv >= 1", "d_conv <= 64", "base > 0"

    base: float = 500_000.0
    rank: int = 16
    d_conv: int = 4

    @property
    def observes(self):
        return max(self.d_conv - 1, 1)

    def init(self, key, dims):
        if dims.head_dim % 2:
            raise ValueError(f"selective_rope rotates pairs of channels: head_dim must be even, got {dims.head_dim}")
        if dims.width % dims.num_heads:
            raise ValueError(f"selective_rope: width {dims.width} is not divisible by {dims.num_heads} heads")
        pairs = (dims.num_heads, dims.head_dim // 2)
        shapes = dict(down=(dims.width, self.rank), up=(self.rank, *pairs), taps=(self.d_conv, *pairs))
        keys = jax.random.split(key, len(shapes))
        return {
            name: jax.random.uniform(name_key, shape, jnp.float32, minval=-(shape[0] ** -0.5), maxval=shape[0] ** -0.5)
            for (name, shape), name_key in zip(shapes.items(), keys, strict=True)
        }

    def observe(self, params, x, site, past=None):
        self.coordinates(site)
        past = last_before(site, past, self.observes)
        order = Order.of(site, past)
        before = ((), ()) if past is None else past.state
        heads, pairs = params["taps"].shape[1:]
        shares = x.astype(jnp.float32).reshape(len(x), heads, -1)
        shares = shares * jax.lax.rsqrt(jnp.sum(shares**2, axis=-1, keepdims=True) + 1e-6)
        phi = jnp.einsum("tm,mr,rhc->thc", shares.reshape(x.shape), params["down"], params["up"], precision="highest")
        wave = jnp.asarray(geometric(self.base, pairs) / (2 * np.pi), jnp.float32)
        turns = wave * order.convolved(phi, before[1], params["taps"])
        return site._replace(state=(order.total(turns, before[0], _fraction), order.kept(phi)))

    def rotate(self, params, q, q_site, k, k_site):
        return tuple(rotated(x, 2 * np.pi * site.state[0], "half") for x, site in ((q, q_site), (k, k_site)))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Frequencies:
    """The parameters of `carope`, and the number of channel pairs of a head."""

    kernel: Any  # [M, H]
    bias: Any  # [H]
    pairs: int = field(metadata={"static": True})


@register("carope")
@dataclass(frozen=True)
class CaRope(Encoding):
    """Context-aware RoPE: token t turns pair c of head h by the sum over s <= t of f_h(x_s)^c, f = 1/(1 + softplus(w.x + b)).

    Veisi et al. (2025), arXiv 2507.23083, section 2; x is the layer's input. `rope` is the same with f = base^(-2/D) for all
    tokens. The paper starts from there, which no w does without b, and prints f without b: b = 0 is f as printed. It names
    no code, and axiomlab/Cable, of the same authors, holds none of it. Pairs are (c, c + D/2). Only the order of positions
    matters, not their distances; the first pair turns by a radian a token, whatever it holds. Angles are kept as fractions
    of a turn, in [-1/2, 1/2]; against float64 they are off by some 6e-8 rad a token, as each step is rounded alike. Tokens
    that stand nowhere are not turned and turn nobody.

    Args:
      base: f begins as base^(-2/D) for every head.
      stddev: of w at first; with 0 the model begins as one with `rope`.

    Parameters: a Frequencies of kernel (w) [M, H], initialised N(0, stddev^2), and bias (b) [H].

    Raises:
      ValueError: for a base of at most 1 or a negative stddev; from `init` for an odd head dim; for positions of several
        axes.
    """

    family = "contextual"
    formula = (
        r"q'_{t,c} = q_{t,c}\,e^{i\Phi_{t,c}},\quad k'_{t,c} = k_{t,c}\,e^{i\Phi_{t,c}},\quad"
        r" \Phi_{t,c} = \sum_{s\le t} f_h\left(x_s\right)^c",
        r"f_h(x) = \frac{1}{1 + \mathrm{softplus}\left(w_h\cdot x + b_h\right)}",
    )

    dimensions = (1,)
    needs = Needs.EVERY_HEAD
    observes = 1
    ranges = "stddev >= 0", "base > 1"

    base: float = 10_000.0
    stddev: float = 0.0

    def init(self, key, dims):
        if dims.head_dim % 2:
            raise ValueError(f"carope rotates pairs of channels: head_dim must be even, got {dims.head_dim}")
        softplus = self.base ** (2 / dims.head_dim) - 1
        bias = softplus + np.log(-np.expm1(-softplus))  # the inverse of softplus, which cannot overflow
        start = _linear_init(key, (dims.width, dims.num_heads), self.stddev, bias)
        return Frequencies(**start, pairs=dims.head_dim // 2)

    def observe(self, params, x, site, past=None):
        self.coordinates(site)
        past = last_before(site, past, self.observes)
        order = Order.of(site, past)
        log_frequency = -jnp.log1p(
            jax.nn.softplus(_linear({"kernel": params.kernel, "bias": params.bias}, x))
        )  # [T, H]
        turns = jnp.exp(log_frequency[..., None] * np.arange(params.pairs, dtype=np.float32)) / (2 * np.pi)
        return site._replace(state=order.total(turns, () if past is None else past.state, _fraction))

    def rotate(self, params, q, q_site, k, k_site):
        return tuple(rotated(x, 2 * np.pi * site.state, "half") for x, site in ((q, q_site), (k, k_site)))


def sums_after(
    terms: Float[Array, "H T S"], position: Shaped[Array, " S"], own: bool = False
) -> Float[jax.Array, "H T S"]:
    """The sum of the terms of the keys that stand later than each key; with `own` of those at its position too."""
    position = jnp.asarray(position)
    order = jnp.argsort(position)
    sums = jax.lax.cumsum(terms[:, :, order], axis=2, reverse=True)
    sums = jnp.pad(sums, ((0, 0), (0, 0), (0, 1)))
    return sums[:, :, jnp.searchsorted(position[order], position, side="left" if own else "right")]


def last_before(site: Site, past: Site | None, count: int) -> Site | None:
    """Keeps the last `count` tokens of a document's past before a single new one; several new tokens need all of it.

    Found by as many passes over the past, where `Order` sorts it. Places that no token takes have segment 0.
    """
    if past is None or len(site.segment) > 1 or len(past.segment) <= count:
        return past
    position, new = (jax.lax.stop_gradient(jnp.asarray(order_of(s))) for s in (past, site))
    document = jnp.where(site.prefix == 0, site.segment, 0)
    left = (past.segment == document) & (document > 0) & (past.prefix == 0) & (position <= new)
    slot, nowhere = jnp.arange(len(left), dtype=jnp.int32), _least(position.dtype)
    chosen = []
    for _ in range(count):
        latest = jnp.max(jnp.where(left, position, nowhere))
        # Of tokens at one position the one furthest along the cache; -1 where none is left.
        chosen.append(jnp.max(jnp.where(left & (position == latest), slot, -1)))
        left = left & (slot != chosen[-1])
    chosen = jnp.stack(chosen[::-1])
    nearest = jax.tree.map(lambda x: jnp.asarray(x)[chosen], past)
    return nearest._replace(segment=jnp.where(chosen < 0, 0, nearest.segment))


def _least(dtype):
    return jnp.finfo(dtype).min if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min


class Order(NamedTuple):
    """The tokens of the past and of now, sorted by document and position; ties in the order of the cache and the array.

    Padding, class token and registers belong to no document.
    """

    index: Int[Array, " N"]  # of the n-th token in order; past tokens are numbered first
    rank: Int[Array, " N"]  # the inverse
    first: Bool[Array, " N"]  # whether the n-th in order begins a document
    in_document: Bool[Array, " T"]
    num_past: int

    @staticmethod
    def of(site: Site, past: Site | None) -> "Order":
        seen = [site] if past is None else [past, site]
        documents = [jnp.where(s.prefix == 0, s.segment, 0) for s in seen]
        document = jnp.concatenate(documents)
        position = jax.lax.stop_gradient(jnp.concatenate([order_of(s) for s in seen]))
        index = jnp.lexsort((position, document))
        document = document[index]
        first = jnp.concatenate([jnp.ones(1, bool), document[1:] != document[:-1]])
        num_past = len(document) - len(site.segment)
        return Order(index, jnp.argsort(index), first, documents[-1] > 0, num_past)

    def kept(self, x: Shaped[Array, "T ..."]) -> Shaped[Array, "T ..."]:
        """x with zeros for the tokens of no document."""
        return jnp.where(self.in_document.reshape(-1, *[1] * (x.ndim - 1)), x, 0.0)

    def total(self, step: Float32[Array, "T ..."], past, wrap: Callable = lambda x: x) -> Float32[Array, "T ..."]:
        """The sum of `step` over the tokens of a document up to each one; goes on from the totals of the past.

        Tokens of the past, and those that begin a document, set the sum; all others add to it. Sums are made in a tree and
        never across documents, so their error grows as the logarithm of a document's length.
        """
        values = self._sorted(step, past)
        sets = self.first | (self.index < self.num_past)

        def join(a, b):
            return a[0] | b[0], wrap(jnp.where(b[0], b[1], a[1] + b[1]))

        _, total = jax.lax.associative_scan(join, (sets.reshape(-1, *[1] * (values.ndim - 1)), values))
        return self.kept(total[self.rank][self.num_past :])

    def convolved(self, x: Float32[Array, "T ..."], past, taps: Float[Array, "W ..."]) -> Float32[Array, "T ..."]:
        """sum over n of taps[-1 - n] times x of the n-th token before, if the document has one."""
        values = self._sorted(x, past)
        out, reaches = taps[-1] * values, jnp.ones(len(values), bool)
        for n in range(1, len(taps)):
            values = jnp.roll(values, 1, axis=0)
            reaches = jnp.roll(reaches, 1) & ~self.first
            out = out + taps[-1 - n] * jnp.where(reaches.reshape(-1, *[1] * (values.ndim - 1)), values, 0.0)
        return out[self.rank][self.num_past :]

    def _sorted(self, x, past):
        x = self.kept(x)
        return (jnp.concatenate([past, x]) if self.num_past else x)[self.index]


def _fraction(turns):
    return turns - jnp.round(turns)


def _linear_init(key, shape: tuple[int, ...], stddev: float, bias: float):
    return {
        "kernel": stddev * jax.random.normal(key, shape, jnp.float32),
        "bias": jnp.full(shape[1:], bias, jnp.float32),
    }


def _linear(params, x: Float[Array, "T M"]) -> Float32[Array, "T ..."]:
    kernel = params["kernel"]
    return jnp.tensordot(x.astype(jnp.float32), kernel, axes=1, precision="highest") + params["bias"]
