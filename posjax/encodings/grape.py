"""GRAPE, group representational position encoding: Zhang et al. (2025), arXiv 2512.07805, ICLR 2026.

A position acts on queries and keys as an element of a group. In the multiplicative part it is a rotation, exp(n L) with L
skew-symmetric: `rope`, `rope_mixed` and `cayley_string` are its members. In the additive part it is unipotent, I + n A with
A^2 = 0, on queries and keys that two constants extend: `alibi` and `fox` are its members. Here are the
members that have no other name, as in the authors' code (model-architectures/GRAPE, model/llama-mha-grape-*.py).
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float32

from posjax.encoding import Array, Encoding, Needs, order_of, stands
from posjax.encodings.angles import angles, geometric
from posjax.encodings.bias import alibi_slopes
from posjax.encodings.gates import Order, last_before, sums_after
from posjax.encodings.pairs import length, per_head, related
from posjax.encodings.rotary import rotated, rotated_by_head
from posjax.spec import nearest, register

_GATES = ["both", "query", "key"]
_GATE_SCALE = 16.0  # by which the authors divide the logits of contextual gates
_EPS = float(np.finfo(np.float32).eps)  # of torch's rms_norm


@register("grape_a")
@dataclass(frozen=True)
class GrapeA(Encoding):
    """Additive GRAPE: a linear bias with a rate that query and key decide, -d omega_h (softplus(v_h.q) + softplus(u_h.k)).

    Arguments of softplus are divided by sqrt(D), d = |q - k|. Zhang et al. (2025), arXiv 2512.07805, equation 4.6
    (GRAPE-A-QK), and the authors' code (model/llama-mha-grape-a-*.py), where omega_h is ALiBi's slope times a learned
    factor: without v and u it is `alibi`. Queries and keys come as they are before any rotation; the authors normalise
    theirs (QK-norm). GRAPE is causal: without a causal mask the bias is symmetric. Zero where a token stands nowhere.

    Args:
      gate: "both", or only the "query"'s term (GRAPE-A-Q) or the "key"'s (GRAPE-A-K).
      normalized: v and u are divided by their length, as in the code; False: equation 4.6 as written.

    Parameters: {"omega": [H], of which the factor is softplus, 1 at first; "query": v [H, D]; "key": u [H, D]}, both N(0,
    1/D), without the one that has no gate.

    Raises:
      ValueError: for an unknown gate; for positions of several axes.
    """

    family = "contextual"
    formula = (
        r"b^{(h)}_{mn} = -|m-n|\,\omega_h\left(\mathrm{softplus}\left(\frac{v_h\cdot q_m}{\sqrt"
        r" D}\right) + \mathrm{softplus}\left(\frac{u_h\cdot k_n}{\sqrt D}\right)\right)",
    )

    dimensions = (1,)

    gate: str = "both"
    normalized: bool = True

    def __post_init__(self):
        if self.gate not in _GATES:
            raise ValueError(f"grape_a has no gate {self.gate!r}; {nearest(self.gate, _GATES)}")

    def init(self, key, dims):
        shape, keys = (dims.num_heads, dims.head_dim), jax.random.split(key)
        drawn = {
            n: dims.head_dim**-0.5 * jax.random.normal(k, shape, jnp.float32)
            for n, k in zip(("query", "key"), keys, strict=True)
        }
        gates = {name: vector for name, vector in drawn.items() if self.gate in ("both", name)}
        return {"omega": jnp.full(dims.num_heads, np.log(np.e - 1), jnp.float32)} | gates

    def bias(self, params, q, q_site, k, k_site):
        query, key = (self.coordinates(site)[:, 0] for site in (q_site, k_site))
        rate = jax.nn.softplus(params["omega"]) * np.float32(alibi_slopes(q.shape[1]))
        gates = 0.0
        if "query" in params:
            gates = gates + self._gates(params["query"], q)[:, :, None]
        if "key" in params:
            gates = gates + self._gates(params["key"], k)[:, None, :]
        bias = -length((key[None] - query[:, None],)) * rate[:, None, None] * gates
        return jnp.where(related(q_site, k_site), bias, 0.0)

    def _gates(self, vector: Float[Array, "H D"], x: Float[Array, "T H D"]) -> Float32[jax.Array, "H T"]:
        if self.normalized:
            vector = vector / jnp.maximum(jnp.linalg.norm(vector, axis=1, keepdims=True), 1e-6)
        logits = jnp.einsum("thd,hd->ht", x.astype(jnp.float32), vector, precision="highest")
        return jax.nn.softplus(logits * x.shape[-1] ** -0.5)


@register("grape_ap")
@dataclass(frozen=True)
class GrapeAP(Encoding):
    """Path-integral GRAPE: a bias that sums what the query thinks of every token after the key, up to itself.

    bias_tj = sum over l = j + 1 ... t of alpha_h log sigmoid(p_t . R^l n(p_l) / P), with p = W_h x of P channels, x the
    layer's input, n its division by its root mean square, R^l the rotation by l radians of pairs (c, c + P/2), and
    ALiBi's slopes alpha. Zhang et al. (2025), arXiv 2512.07805, equations 5.1 and 5.2, in the form of the authors' code
    (model/ llama-mha-grape-ap-v1.py): the text normalises both p, its code the rotated one alone. As that rotation
    depends on the token's own position, and not on its distance to the query, the bias is not relative; with terms that
    do not depend on t it is `fox`. Keys later than the query have no bias, and neither have tokens that stand nowhere.

    The tokens from j to t are tokens of t's own document by their positions, wherever they lie in the arrays.

    Args:
      p_head_dim: P, 8 in the authors' runs.

    Parameters: {"kernel": [M, H, P]}, initialised N(0, 1/(4 M)) as by the authors.

    Raises:
      ValueError: for a p_head_dim that is odd, below 2 or above 2^16; for positions of several axes.
    """

    family = "contextual"
    formula = (
        r"b^{(h)}_{mn} = \sum_{l=n+1}^{m} \alpha_h \ln\sigma\left(\frac{p_m\cdot R^l\hat"
        r" p_l}{P}\right),\quad p_l = W_h x_l,\quad \alpha_h = 2^{-8h/H}",
        r"H\ \text{a power of 2; else the slopes of the next lower power, then every other one of"
        " twice as many heads}",
    )

    dimensions = (1,)
    relative = False
    needs = Needs.WHOLE_ROWS
    observes = 0
    ranges = "p_head_dim >= 2", "p_head_dim <= 65536"

    p_head_dim: int = 8

    def __post_init__(self):
        super().__post_init__()
        if self.p_head_dim % 2:
            raise ValueError(f"grape_ap rotates pairs of channels: p_head_dim must be even, got {self.p_head_dim}")

    def init(self, key, dims):
        shape = (dims.width, dims.num_heads, self.p_head_dim)
        return {"kernel": 0.5 * dims.width**-0.5 * jax.random.normal(key, shape, jnp.float32)}

    def observe(self, params, x, site, past=None):
        self.coordinates(site)
        return site._replace(
            state=jnp.einsum("tm,mhp->thp", x.astype(jnp.float32), params["kernel"], precision="highest")
        )

    def bias(self, params, q, q_site, k, k_site):
        key = self.coordinates(k_site)[:, 0]
        before = jnp.asarray(order_of(k_site)[None] <= order_of(q_site)[:, None])
        counted = (k_site.segment[None] == q_site.segment[:, None]) & before & stands(k_site)[None]
        probe = k_site.state * jax.lax.rsqrt(jnp.mean(k_site.state**2, axis=-1, keepdims=True) + _EPS)
        angle = angles(key[:, None], np.ones((1, self.p_head_dim // 2)))
        edges = jnp.einsum("thp,shp->hts", q_site.state, rotated(probe, -angle, "half"), precision="highest")
        edges = per_head(alibi_slopes(q.shape[1])) * jax.nn.log_sigmoid(edges / self.p_head_dim)
        bias = sums_after(jnp.where(counted, edges, 0.0), order_of(k_site))
        return jnp.where(related(q_site, k_site) & before, bias, 0.0)


@register("grape_m")
@dataclass(frozen=True)
class GrapeM(Encoding):
    """Contextual multiplicative GRAPE: token t turns pair c by theta_c times the gates of all tokens before it.

    Phi_t = sum over s < t of sigmoid((w . x_s + b) / 16), x the layer's input; theta learned and positive. Zhang et al.
    (2025), arXiv 2512.07805, section 5 (phases Phi), and the authors' code (model/llama-mha-grape-m-ctx.py), which alone
    gives the gate: its comments say softplus, starting at 0.001, it computes a sigmoid that starts at sigmoid(ln(e^0.001
    - 1) / 16) = 0.394. Without content, Phi_t = t, this is `rope_mixed(base=10000, layout='half')` (GRAPE-M-nonctx). Only
    the order of positions matters, not their distances. Pairs are (c, c + D/2). Tokens that stand nowhere are not turned.

    Args:
      base: theta begins as base^(-2c/D).
      per_head: gates of each head's own.
      stddev: of w at first; 0 in the authors' code.

    Parameters: {"kernel": [M, H or 1], "bias": [H or 1], "log_wave": [D/2], ln theta}. Phi is summed in float32: it errs by
    about 10^-7 of itself.

    Raises:
      ValueError: for a base that is not positive or a negative stddev; from `init` for an odd head dim; for positions of
        several axes.
    """

    family = "contextual"
    formula = (
        r"q'_{t,c} = q_{t,c}\,e^{i\Phi_t\theta_c},\quad k'_{t,c} = k_{t,c}\,e^{i\Phi_t\theta_c}",
        r"\Phi_t = \sum_{s<t} \sigma\left(\frac{w\cdot x_s + b}{16}\right),\quad"
        r" \theta_c\ \text{learned}",
    )

    dimensions = (1,)
    observes = 1
    ranges = "stddev >= 0", "base > 0"

    base: float = 10_000.0
    per_head: bool = False
    stddev: float = 0.0

    @property
    def needs(self) -> Needs:
        return Needs.EVERY_HEAD if self.per_head else Needs(0)

    def init(self, key, dims):
        if dims.head_dim % 2:
            raise ValueError(f"grape_m rotates pairs of channels: head_dim must be even, got {dims.head_dim}")
        gates = dims.num_heads if self.per_head else 1
        return {
            "kernel": self.stddev * jax.random.normal(key, (dims.width, gates), jnp.float32),
            "bias": jnp.full(gates, np.log(np.expm1(1e-3)), jnp.float32),
            "log_wave": jnp.asarray(np.log(geometric(self.base, dims.head_dim // 2)), jnp.float32),
        }

    def observe(self, params, x, site, past=None):
        self.coordinates(site)
        past = last_before(site, past, self.observes)
        logits = jnp.matmul(x.astype(jnp.float32), params["kernel"], precision="highest") + params["bias"]
        gates, order = jax.nn.sigmoid(logits / _GATE_SCALE), Order.of(site, past)
        upto = () if past is None else past.state[0]
        return site._replace(state=(order.total(gates, upto), order.kept(gates)))

    def rotate(self, params, q, q_site, k, k_site):
        wave = jnp.exp(params["log_wave"])[None]
        # The phase before each token: the sum up to it less its own gate.
        return tuple(
            rotated_by_head(x, total - own, wave) for x, (total, own) in ((q, q_site.state), (k, k_site.state))
        )
