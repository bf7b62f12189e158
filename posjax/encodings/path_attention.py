"""Transforms that accumulate along the path from a key to a query, one matrix for every token between them."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Float32

from posjax.encoding import Array, Encoding, Needs
from posjax.encodings.gates import Order, last_before
from posjax.encodings.pairs import related
from posjax.spec import register

_CHUNK = 64  # keys whose transforms are multiplied out at once, as the authors' kernel has it


@register("path")
@dataclass(frozen=True)
class PaTH(Encoding):
    """Products of Householder-like transforms along the path from key to query: q_i . H_i H_(i-1) ... H_(j+1) k_j.

    H_t = I - beta_t w_t w_t^T with w_t = silu(conv(U V x_t)) and beta_t = 2 sigmoid(u . x_t + b), for every head.
    As in the code w is then divided by sqrt(|w|^2 + 1e-6): in narrow models it begins shorter than 1 (0.4 with 24 channels).
    V and U are a projection of low rank, conv is a causal convolution, per channel, over the last `d_conv` tokens of the
    document, x is the layer's input. Yang et al. (2025), arXiv 2505.16381, and the authors' code (flash-linear-attention,
    fla/layers/path_attn.py, and fla/ops/path_attn/naive.py for the products). The paper's PaTH-FoX is `path() + fox()`,
    but for a factor: the code divides sums of log gates by sqrt(D) as it does products, which is `path() +
    data_dependent_alibi(bidirectional=False, post_log_scale=D^(-1/2))`.

    The tokens between are tokens of the query's document by their positions, wherever they lie in the arrays; only their
    order matters, and of tokens at one position the order of the arrays. A key later than its query, and one where either
    stands nowhere, is multiplied as it is. Positions that fall along the arrays let a query read what comes after it.
    Products of `_CHUNK` keys are taken at once, by a triangular system of that size, and queries pass through the chunks
    from the last to the first; a single query passes its keys one by one. A query needs all of its keys in one tile.

    Args:
      rank: of the projection.
      d_conv: tokens that the convolution spans.
      stddev: of all matrices and taps at first.

    Parameters: {"down": V [M, rank], "up": U [rank, H, D], "taps": [d_conv, H, D], the last of them the token's own,
    "kernel": u [M, H], "bias": b [H]}, initialised N(0, stddev^2), b at 0, as in the code. Where heads share keys, the code
    shares w and beta too, and projects to w by one matrix of full rank; here each head has its own.

    Raises:
      ValueError: for a rank or d_conv below 1, a d_conv above 64, a negative stddev; for positions of several axes.
    """

    family = "contextual"
    formula = (
        r"\ell_{mn} = \frac{q_m\cdot H_m H_{m-1}\cdots H_{n+1} k_n}{\sqrt D},\quad H_t = I - \beta_t"
        " w_t w_t^T",
        r"\beta_t = 2\sigma\left(u\cdot x_t + b\right),\quad w_t = \frac{\hat w_t}{\sqrt{|\hat w_t|^2"
        r" + 10^{-6}}},\quad \hat w = \mathrm{silu}\left(\mathrm{conv}\left(U V x\right)\right)",
    )

    dimensions = (1,)
    needs = Needs.WHOLE_ROWS | Needs.HEAD_DIM
    ranges = "rank >= 1", "d_conv >= 1", "d_conv <= 64", "stddev >= 0"

    rank: int = 32
    d_conv: int = 3
    stddev: float = 0.02

    @property
    def observes(self):
        return max(self.d_conv - 1, 1)

    def init(self, key, dims):
        head = (dims.num_heads, dims.head_dim)
        shapes = {"down": (dims.width, self.rank), "up": (self.rank, *head), "taps": (self.d_conv, *head)}
        shapes |= {"kernel": (dims.width, dims.num_heads)}
        keys = jax.random.split(key, len(shapes))
        drawn = {
            n: self.stddev * jax.random.normal(k, shapes[n], jnp.float32) for n, k in zip(shapes, keys, strict=True)
        }
        return drawn | {"bias": jnp.zeros(dims.num_heads, jnp.float32)}

    def observe(self, params, x, site, past=None):
        self.coordinates(site)
        past = last_before(site, past, self.observes)
        order, x = Order.of(site, past), x.astype(jnp.float32)
        projected = jnp.einsum("tm,mr,rhd->thd", x, params["down"], params["up"], precision="highest")
        w = jax.nn.silu(order.convolved(projected, () if past is None else past.state[2], params["taps"]))
        w = w * jax.lax.rsqrt(jnp.sum(w**2, axis=-1, keepdims=True) + 1e-6)
        beta = 2 * jax.nn.sigmoid(jnp.matmul(x, params["kernel"], precision="highest") + params["bias"])
        count = order.total(jnp.ones(len(x), jnp.float32), () if past is None else past.state[3])
        return site._replace(state=(w, order.kept(beta), order.kept(projected), count))

    def product(self, q, q_site, k, k_site):
        plain = super().product(q, q_site, k, k_site)
        order, (w, beta, _, key) = Order.of(k_site, None), k_site.state
        passed = related(q_site, k_site) & (key[None] <= q_site.state[3][:, None])
        k = jnp.repeat(k, q.shape[1] // k.shape[1], axis=1)
        along = (jnp.asarray(x)[order.index].astype(jnp.float32) for x in (k, w, w * beta[..., None]))
        logits = _along_path(q.astype(jnp.float32), *along, passed[:, order.index])[:, :, order.rank]
        return jnp.where(passed, logits, plain)


def _along_path(
    q: Float32[Array, "T H D"],
    k: Float32[Array, "S H D"],
    w: Float32[Array, "S H D"],
    w_beta: Float32[Array, "S H D"],
    passed: Bool[Array, "T S"],
) -> Float[jax.Array, "H T S"]:
    """q_t . H_n ... H_(s+1) k_s, over the tokens n that query t has passed; keys in their order.

    Within a chunk, H_n ... H_1 = I - W^T (I + L)^-1 B with rows w of W and beta w of B, and L the part of B W^T below the
    diagonal, the authors' UT transform. Leaving out the last rows of W leaves out the last factors.
    """
    if len(q) == 1:
        return _of_one_query(q, k, w, w_beta, passed)
    size = min(_CHUNK, 1 << (len(k) - 1).bit_length())  # a power of two

    def chunks(x, axis):
        x = jnp.pad(x, [(0, -x.shape[axis] % size if a == axis else 0) for a in range(x.ndim)])
        return jnp.moveaxis(x.reshape(*x.shape[:axis], -1, size, *x.shape[axis + 1 :]), axis, 0)

    def through(q, chunk):
        k, w, w_beta, passed = chunk
        solved = _inverse(jnp.tril(_dot("shd,rhd->hsr", w_beta, w), -1))
        onto_keys = jnp.tril(_dot("shd,rhd->hsr", w_beta, k), -1)
        onto = _dot("hsr,hrc->hsc", solved, jnp.concatenate([onto_keys, jnp.moveaxis(w_beta, 1, 0)], axis=-1))
        taken = _dot("hts,hsr->htr", jnp.where(passed, _dot("htd,shd->hts", q, w), 0.0), onto)
        logits = _dot("htd,shd->hts", q, k) - taken[..., :size]
        return q - taken[..., size:], logits

    rows = [chunks(x, 0) for x in (k, w, w_beta)]
    _, logits = jax.lax.scan(through, jnp.moveaxis(q, 1, 0), (*rows, chunks(passed, 1)), reverse=True)
    return jnp.moveaxis(logits, 0, 2).reshape(*logits.shape[1:3], -1)[:, :, : len(k)]


def _of_one_query(q, k, w, w_beta, passed) -> Float[jax.Array, "H 1 S"]:
    """Computes `_along_path` token by token from the last: for a single query the products of a chunk cost more."""

    def through(q, token):
        k, w, w_beta, passed = token
        taken = jnp.where(passed, jnp.sum(q * w, axis=-1, keepdims=True), 0.0)
        return q - taken * w_beta, jnp.sum(q * k, axis=-1)

    _, logits = jax.lax.scan(through, q[0], (k, w, w_beta, passed[0]), reverse=True)
    return logits.T[:, None]


@jax.custom_jvp
def _inverse(lower: Float32[Array, "H S S"]) -> Float32[jax.Array, "H S S"]:
    """(I + lower)^-1 for the entries below the diagonal, S a power of two: block by block, from blocks of one row to all.

    The inverse of [[A, 0], [B, C]] is [[A^-1, 0], [-C^-1 B A^-1, C^-1]]. XLA's own triangular solver takes its rows one after
    the other: of 32 systems of 64 rows, forward and backward, 494 ms of one CPU core where this takes 4.
    """
    heads, size, _ = lower.shape
    inverse, rows = jnp.ones((heads, size, 1, 1), jnp.float32), 1
    while rows < size:
        pairs = lower.reshape(heads, size // (2 * rows), 2 * rows, size // (2 * rows), 2 * rows)
        below = jnp.moveaxis(jnp.diagonal(pairs, axis1=1, axis2=3), -1, 1)[:, :, rows:, :rows]
        first, second = inverse[:, 0::2], inverse[:, 1::2]
        corner = -_dot("hnij,hnjk->hnik", second, _dot("hnij,hnjk->hnik", below, first))
        above = jnp.concatenate([first, jnp.zeros_like(first)], axis=-1)
        inverse = jnp.concatenate([above, jnp.concatenate([corner, second], axis=-1)], axis=-2)
        rows *= 2
    return inverse[:, 0]


@_inverse.defjvp
def _inverse_tangent(primals, tangents):
    inverse = _inverse(*primals)
    return inverse, -_dot("hij,hjk->hik", _dot("hij,hjk->hik", inverse, jnp.tril(*tangents, -1)), inverse)


def _dot(subscripts: str, a: Array, b: Array) -> Float[jax.Array, "..."]:
    return jnp.einsum(subscripts, a, b, precision="highest")
