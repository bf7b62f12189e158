"""Parabolas of the offset between two tokens, whose coefficients the query's content decides."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from posjax.encoding import Encoding, Needs
from posjax.encodings.pairs import linear_init, related
from posjax.encodings.rotary_learned import check_axes, num_axes
from posjax.mask import offset
from posjax.spec import register


class _Parabolas(Encoding):
    """A bias that is linear in `features` of the offset; the factors are the query's state."""

    observes = 0

    def features(self, away: jax.Array) -> jax.Array:
        """[T, S, F] of the offsets q - k, [T, S, A], in float32."""
        raise NotImplementedError

    def bias(self, params, q, q_site, k, k_site):
        away = offset(self.coordinates(k_site)[None], self.coordinates(q_site)[:, None]).astype(jnp.float32)
        bias = jnp.einsum("tsf,thf->hts", self.features(away), q_site.state, precision="highest")
        return jnp.where(related(q_site, k_site), bias, 0.0)


@register("pape")
@dataclass(frozen=True)
class Pape(_Parabolas):
    """PaPE: sums of parabolas of offsets along learned directions, b_r(x) d_r - a_r(x) d_r^2 with d_r = w_r . (q - k).

    Öhrström et al. (2026), "Where to Attend", arXiv 2602.01418, and `ParabolicPositionEncoder` of
    DTU-PAS/parabolic-position-encoding: x is the query's layer input, a_r = softplus(x . u_r) and b_r = x . v_r. The authors
    append 3 R + 2 channels to queries and keys. Here the sum over r is done before: a query keeps a form of its offset, A^2
    + A numbers for each head, and positions are subtracted before they are squared, so that the bias is exact far out too.
    Their logits are scaled by 1/sqrt(D) with the bias in them; here w and v are D^(-1/4) times theirs, which is the same.

    Their class token stands at 0, one patch before the first row and column, and is biased as any other; here tokens that
    stand nowhere have no bias. Positions are patches; with `normalize` the authors divide them by the size of the grid.

    Args:
      parabolas: R, for each head; 50 in the authors' configurations.

    Parameters: "direction", [A, H, R], an axis for each of `dims.grid` if that is given, otherwise one; the first axis is
    that of the rows, in the authors' images that of the columns. "curve", [M, 2, H, R], u and v. Theirs are initialised
    uniformly, w within 1/sqrt(A) of 0, u and v within 1/sqrt(M).

    Raises:
      ValueError: for fewer than one parabola, or tokens on other axes than the directions.
    """

    family = "contextual"
    formula = (
        r"b^{(h)}_{mn} = \sum_{r=1}^{R} b_r(x_m)\,\delta_r - a_r(x_m)\,\delta_r^2,\quad"
        r" \delta_r = w_r\cdot(m-n)",
        r"a_r(x) = \mathrm{softplus}(u_r\cdot x),\quad b_r(x) = v_r\cdot x",
    )
    ranges = ("parabolas >= 1",)

    parabolas: int = 50

    def init(self, key, dims):
        keys, heads, count = jax.random.split(key), dims.num_heads, self.parabolas
        direction = linear_init(keys[0], num_axes(dims), heads * count, bias=False)["kernel"]
        curve = linear_init(keys[1], dims.width, 2 * heads * count, bias=False)["kernel"]
        root = dims.head_dim**-0.25
        curve = curve.reshape(-1, 2, heads, count) * np.float32([1, root]).reshape(2, 1, 1)
        return {"direction": root * direction.reshape(-1, heads, count), "curve": curve}

    def observe(self, params, x, site, past=None):
        direction = params["direction"]
        check_axes(self, len(direction), self.coordinates(site).shape[1])
        a, b = jnp.einsum("tm,mnhr->nthr", x.astype(jnp.float32), params["curve"], precision="highest")
        squared = jnp.einsum("thr,ahr,bhr->thab", jax.nn.softplus(a), direction, direction, precision="highest")
        along = jnp.einsum("thr,ahr->tha", b, direction, precision="highest")
        return site._replace(state=jnp.concatenate([-squared.reshape(*along.shape[:2], -1), along], axis=-1))

    def features(self, away):
        squared = away[..., :, None] * away[..., None, :]
        return jnp.concatenate([squared.reshape(*away.shape[:2], -1), away], axis=-1)


@register("pape_ri")
@dataclass(frozen=True)
class PapeRi(_Parabolas):
    """PaPE-RI, the rotation-invariant PaPE: -a_h(x) (s_h |q - k|)^2, a parabola of the Euclidean distance.

    Öhrström et al. (2026), arXiv 2602.01418, and `ParabolicRotationInvariantPositionEncoder` of
    DTU-PAS/parabolic-position-encoding: a_h = softplus(x . u_h) of the query's layer input. s_h is drawn once and not
    learned, as in the code, where it is a buffer; it is D^(-1/4) times theirs, which scales logits by 1/sqrt(D) after the
    bias. Zero where a token stands nowhere.

    Parameters: "scale", [H], uniform within D^(-1/4) / sqrt(A) of 0, on A axes of `dims.grid`, otherwise one; "curve", [M,
    H], u, initialised within 1/sqrt(M) of 0.
    """

    family = "contextual"
    formula = (r"b^{(h)}_{mn} = -a_h(x_m)\,s_h^2\,|m-n|^2,\quad a_h(x) = \mathrm{softplus}(u_h\cdot x)",)
    needs = Needs.CONSTANT_PARAMS

    def init(self, key, dims):
        keys, bound = jax.random.split(key), num_axes(dims) ** -0.5 * dims.head_dim**-0.25
        scale = jax.random.uniform(keys[0], (dims.num_heads,), jnp.float32, minval=-bound, maxval=bound)
        return {"scale": scale, "curve": linear_init(keys[1], dims.width, dims.num_heads, bias=False)["kernel"]}

    def observe(self, params, x, site, past=None):
        a = jax.nn.softplus(jnp.matmul(x.astype(jnp.float32), params["curve"], precision="highest"))
        return site._replace(state=(-a * jax.lax.stop_gradient(params["scale"]) ** 2)[..., None])

    def features(self, away):
        return jnp.sum(away**2, axis=-1, keepdims=True)
