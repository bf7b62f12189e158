"""Products of queries and keys whose phase depends on the distance and on the content."""

import math
from dataclasses import dataclass

import jax.numpy as jnp

from posjax.encoding import Encoding, Needs
from posjax.encodings.pairs import related
from posjax.spec import register


@register("tapa")
@dataclass(frozen=True)
class Tapa(Encoding):
    """Token-aware phase attention: q_A . k_A / sqrt(theta D) cos(2 pi |m - n|^alpha q_P . k_P / sqrt((1 - theta) D)).

    A are the first theta D channels of a head, for the amplitude, and P the others, for the phase; nothing is learned. Wang
    et al. (2025), arXiv 2509.12635, equation 12, with the quadratic phase of equation 10; defaults are from section 4.1.
    No code of the authors could be read, so there is no golden. The division by sqrt(theta D) takes the place of that by
    sqrt(D): another `scale` of attention scales the amplitude alone, while temperatures and attention factors of other
    parts, which scale queries or keys, scale the phase too. Rotations by other parts of a sum come before both
    products: of pairs that lie in one of them, as `rope(layout="interleaved") + tapa()`; pairs (c, c + D/2) would be torn
    apart, and logits would then see where tokens stand. Where one of the two stands nowhere the phase is 0. It is
    computed in float32; but the rounding of q and k grows by 2 pi |m - n|^alpha |q_P . k_P|, so that long queries and keys
    in bfloat16 have phases that mean little.

    Args:
      alpha: how fast the phase grows with the distance.
      theta: the share of the channels that make the amplitude.

    Raises:
      ValueError: for an alpha that is not positive, a theta outside (0, 1); for a head dim of which theta is no whole number
        of channels; for positions of several axes.
    """

    family = "contextual"
    formula = (
        r"\ell_{mn} = \frac{q^A_m\cdot k^A_n}{\sqrt{\theta D}}"
        r" \cos\left(2\pi\,|m-n|^\alpha\,\frac{q^P_m\cdot k^P_n}{\sqrt{(1-\theta)D}}\right)",
        r"q = \left[q^A \,\middle|\, q^P\right],\quad k = \left[k^A \,\middle|\, k^P\right],\quad"
        r" \theta D\ \text{channels in}\ A",
    )

    dimensions = (1,)
    needs = Needs.HEAD_DIM
    ranges = ("alpha > 0",)

    alpha: float = 0.1
    theta: float = 0.5

    def __post_init__(self):
        super().__post_init__()
        if not 0 < self.theta < 1:
            raise ValueError(f"tapa(theta=...) must lie between 0 and 1, got {self.theta}")

    def init(self, key, dims):
        self._split(dims.head_dim)
        return ()

    def product(self, q, q_site, k, k_site):
        dim, k = q.shape[2], jnp.repeat(k, q.shape[1] // k.shape[1], axis=1)
        split = self._split(dim)
        amplitude, quadratic = (
            jnp.einsum("thc,shc->hts", a.astype(jnp.float32), b.astype(jnp.float32), precision="highest")
            for a, b in zip(jnp.split(q, [split], axis=2), jnp.split(k, [split], axis=2), strict=True)
        )
        query, key = (self.coordinates(site)[:, 0] for site in (q_site, k_site))
        away = jnp.where(related(q_site, k_site), jnp.abs(key[None] - query[:, None]), 0).astype(jnp.float32)
        # The slope of a power below 1 is infinite at 0.
        grown = jnp.where(away > 0, jnp.where(away > 0, away, 1.0) ** self.alpha, 0.0)
        turns = grown * quadratic / math.sqrt(dim - split)
        # Whole turns are taken off before they are multiplied by 2 pi: in float32 that rounds less.
        return math.sqrt(dim / split) * amplitude * jnp.cos(2 * math.pi * (turns - jnp.round(turns)))

    def _split(self, dim: int) -> int:
        """The number of channels that make the amplitude."""
        count = round(self.theta * dim)
        if not 0 < count < dim or abs(count - self.theta * dim) > 1e-6 * dim:
            raise ValueError(
                f"tapa(theta={self.theta}) gives {self.theta * dim:g} of {dim} channels to the amplitude: choose a theta "
                f"that makes a whole number from 1 to {dim - 1} of them, as {max(count, 1)}/{dim}"
            )
        return count
