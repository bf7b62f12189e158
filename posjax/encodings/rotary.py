"""Encodings that rotate queries and keys by angles linear in the position."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float32

from posjax.encoding import Array, Encoding, Site, axes, stands
from posjax.encodings.angles import angles, axial
from posjax.spec import nearest, register

_LAYOUTS = ["half", "interleaved"]


@register("rope")
@dataclass(frozen=True)
class Rope(Encoding):
    """Rotary position embedding: x'_c = x_c exp(i p base^(-2c/D)), so that q'_m . k'_n depends on m - n alone.

    Su et al. (2021), arXiv 2104.09864, eq. 34. Channel pairs are (c, c + D/2), as in GPT-NeoX and Llama, or with
    layout="interleaved" (2c, 2c + 1), as in the paper and GPT-J; the two differ by a fixed permutation of the channels.
    With A position axes each takes D/A channels and the exponent is -2c/(D/A): the axial form of Heo et al. (2024),
    arXiv 2403.13298, who use base=100 for images. Tokens that stand nowhere are left unrotated.

    Raises:
      ValueError: for a head dim not divisible by 2 A, or an unknown layout.
    """

    base: float = 10_000.0
    layout: str = "half"

    def __post_init__(self):
        if self.layout not in _LAYOUTS:
            raise ValueError(f"rope has no layout {self.layout!r}; {nearest(self.layout, _LAYOUTS)}")
        if not self.base > 0:
            raise ValueError(f"rope(base=...) must be positive, got {self.base}")

    def rotate(self, params, q, q_site, k, k_site):
        q_angles = self._angles(q_site, q.shape[-1])
        k_angles = q_angles if k_site is q_site else self._angles(k_site, k.shape[-1])
        return rotated(q, q_angles, self.layout), rotated(k, k_angles, self.layout)

    def _angles(self, site: Site, head_dim: int) -> Float32[jax.Array, "T C"]:
        if head_dim % 2:
            raise ValueError(f"rope rotates pairs of channels: head_dim must be even, got {head_dim}")
        position = axes(site)
        wave = axial(self.base, position.shape[1], head_dim // 2, "rope: a head_dim")
        return jnp.where(stands(site)[:, None], angles(position, wave), 0.0)


def rotated(x: Float[Array, "T H D"], angle: Float32[Array, "T D2"], layout: str) -> Float[Array, "T H D"]:
    """Rotates each pair of channels by its angle, in float32, and returns x's dtype."""
    cos, sin = _computed_once(jnp.cos(angle))[:, None], _computed_once(jnp.sin(angle))[:, None]
    if layout == "half":
        a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1).astype(x.dtype)
    a, b = x[..., 0::2].astype(jnp.float32), x[..., 1::2].astype(jnp.float32)
    return jnp.stack([a * cos - b * sin, a * sin + b * cos], axis=-1).reshape(x.shape).astype(x.dtype)


def _computed_once(x: Float32[jax.Array, "T C"]) -> Float32[jax.Array, "T C"]:
    """x, behind an identity product (exact at this precision) that no compiler fuses through.

    XLA on CPUs would otherwise compute angle, cosine and sine anew for every head and half that reads them, which was
    measured at ten times the cost of the rotation itself, forward and backward.
    """
    return jnp.dot(x, np.eye(x.shape[1], dtype=np.float32), precision=jax.lax.Precision.HIGHEST)
