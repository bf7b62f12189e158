"""Kernels of the distance, with a few parameters or none."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from posjax.encoding import Encoding, Site
from posjax.encodings.angles import angles, axial
from posjax.encodings.in_kernel import InKernel
from posjax.encodings.pairs import OffsetBias, length, per_head, related
from posjax.spec import nearest, register

_KINDS = ["log", "power"]


@register("kerple")
@dataclass(frozen=True)
class Kerple(InKernel, OffsetBias):
    """A conditionally positive definite kernel of the distance d = |q - k|, with a learned p and a learned a per head.

    Chi et al. (2022), arXiv 2205.09921, section 4: kind="log" is -p ln(1 + a d), kind="power" is -a d^p with p at most 2.
    Positions of several axes are compared by Euclidean distance, of which these kernels are conditionally positive
    definite too. Zero where a token stands nowhere, and not scaled by 1/sqrt(D).

    Parameters: "p" and "a", [H]. The authors clamp both to 0.01 or more, and p to at most 2 in the power kernel, by writing
    over them in the forward pass. Here a and p are the softplus of the parameters, and p of the power kernel twice their
    sigmoid, so gradients never vanish at a bound. Initialised so that p is uniform in (0, 2) and a in (0, 1),
    as theirs, both at least 0.01, and p at most 1.99 in the power kernel.

    Raises:
      ValueError: for an unknown kind.
    """

    kind: str = "log"

    def __post_init__(self):
        if self.kind not in _KINDS:
            raise ValueError(f"kerple has no kind {self.kind!r}; {nearest(self.kind, _KINDS)}")

    def init(self, key, dims):
        p, a = jax.random.uniform(key, (2, dims.num_heads), minval=0.01)
        p = jnp.clip(2 * p, 0.01, 1.99)
        raw = jnp.log(p / (2 - p)) if self.kind == "power" else _softplus_inverse(p)
        return {"p": raw, "a": _softplus_inverse(a)}

    def of_offset(self, params, offset, num_heads):
        distance = length(offset)
        p, a = (jnp.asarray(params[name], jnp.float32)[:, None, None] for name in ("p", "a"))
        if self.kind == "log":
            return -jax.nn.softplus(p) * jnp.log1p(jax.nn.softplus(a) * distance)
        apart = distance > 0
        power = jnp.exp(2 * jax.nn.sigmoid(p) * jnp.log(jnp.where(apart, distance, 1.0)))
        return jnp.where(apart, -jax.nn.softplus(a) * power, 0.0)

    def kernel_constants(self, params, num_heads):
        p = 2 * jax.nn.sigmoid(params["p"]) if self.kind == "power" else jax.nn.softplus(params["p"])
        return jnp.stack([p, jax.nn.softplus(params["a"])], axis=1)

    def kernel_bias(self, constants, offset):
        (p, a), distance = constants, jnp.abs(offset).astype(jnp.float32)
        if self.kind == "log":
            return -p * jnp.log(1 + a * distance)
        power = jnp.exp(p * jnp.log(jnp.maximum(distance, 1.0)))
        return jnp.where(distance > 0, -a * power, 0.0)


def _softplus_inverse(x: Float[jax.Array, " H"]) -> Float[jax.Array, " H"]:
    return jnp.log(jnp.expm1(x))


@register("sandwich")
@dataclass(frozen=True)
class Sandwich(Encoding):
    """The inner product of two sinusoidal codes: sum_c cos((q - k) base^(-2c/dim)), over 8h/H for head h = 1 ... H.

    Chi et al. (2022), arXiv 2212.10356: dim is their d-bar, 128 whatever the model's width; c = 0 ... dim/2 - 1.
    With A position axes each has the frequencies of dim/A channels, and their sums add up.
    Computed as that inner product, so no array beyond the tile is wider than dim. Zero where a token stands nowhere,
    and not scaled by 1/sqrt(D).

    Raises:
      ValueError: for a dim that is not positive and even, or (on call) cannot be shared by the axes; for a base not positive.
    """

    dim: int = 128
    base: float = 10_000.0

    def __post_init__(self):
        if self.dim < 2 or self.dim % 2:
            raise ValueError(f"sandwich needs a positive even dim, got {self.dim}")
        if not self.base > 0:
            raise ValueError(f"sandwich(base=...) must be positive, got {self.base}")

    def bias(self, params, q, q_site, k, k_site):
        num_heads = q.shape[1]
        similarity = jnp.matmul(self._code(q_site), self._code(k_site).T, precision="highest")
        bias = per_head(num_heads / (8 * np.arange(1, num_heads + 1))) * similarity
        return jnp.where(related(q_site, k_site), bias, 0.0)

    def _code(self, site: Site) -> Float[jax.Array, "T C"]:
        position = self.coordinates(site)
        num_axes = position.shape[1]
        angle = angles(position, axial(self.base, num_axes, self.dim // 2, "sandwich: a dim"))
        return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=1)
