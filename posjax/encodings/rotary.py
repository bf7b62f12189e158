"""Encodings that rotate queries and keys by angles linear in the position: one primitive, and its plainest members."""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Float, Float32

from posjax.encoding import Array, Encoding, Needs, Site, stands
from posjax.encodings.angles import angles, axial
from posjax.encodings.scaling import Scaling, Spectrum, document_lengths
from posjax.gradients import with_transpose
from posjax.spec import nearest, register

_LAYOUTS = ["half", "interleaved"]
# The name, in `jax.checkpoint` policies, of cosines and sines that all heads share.
TABLES = "rotary tables"


class Rotary(Encoding):
    """The base of all rotary encodings: angle[t, c] = sum_a position[t, a] wave[a, c] turns the c-th pair of channels.

    A member is a frozen dataclass that defines `wave` (by default `axial`) and inherits `rotate`. It redeclares the class
    attributes below that are its arguments as fields. Channel pairs are (c, c + R/2) with layout="half", as in
    GPT-NeoX and Llama, and (2c, 2c + 1) with layout="interleaved", as in GPT-J, where R is the rotary dim: the first
    int(fraction D) channels of a head. The other channels pass unchanged. Tokens that stand nowhere are not rotated.

    A scaling changes the frequencies and may multiply queries and keys by an attention factor. The factor is a temperature,
    so it applies to the rotated channels of all tokens, also of those that stand nowhere.
    """

    base = 10_000.0
    layout = "half"
    fraction = 1.0
    scaling = None
    ranges = ("base > 0",)

    def wave(self, num_axes: int, channels: int) -> Float[np.ndarray, "A C"]:
        """Radians by which `channels` pairs turn per unit of each position axis, in float64 and before scaling."""
        what = "head_dim" if self.fraction == 1 else "rotary dim"
        return axial(self.base, num_axes, channels, f"{self.spec_name}: a {what}")

    def spectrum(self, num_axes: int, channels: int) -> Spectrum:
        """The frequency by which a scaling treats each column of `wave`; by default that of `axial`."""
        count = channels // num_axes
        return Spectrum(self.base, count, np.tile(np.arange(count), num_axes))

    def __post_init__(self):
        super().__post_init__()
        if self.layout not in _LAYOUTS:
            raise ValueError(f"{self.spec_name} has no layout {self.layout!r}; {nearest(self.layout, _LAYOUTS)}")
        if not 0 < self.fraction <= 1:
            raise ValueError(f"{self.spec_name}(fraction=...) must be above 0 and at most 1, got {self.fraction}")
        if not isinstance(self.scaling, Scaling | None):
            raise ValueError(
                f"{self.spec_name}(scaling=...) takes a frequency scaling, as in scaling=linear(factor=2), "
                f"got {self.scaling!s}"
            )

    @property
    def needs(self) -> Needs:
        return Needs.DOCUMENT_LENGTH if self.scaling is not None and self.scaling.length_dependent else Needs(0)

    @property
    def relative(self) -> bool:
        return Needs.DOCUMENT_LENGTH not in self.needs  # a document's length is an absolute position

    def rotate(self, params, q, q_site, k, k_site):
        q_length, k_length = self._lengths(q_site, k_site)
        q_turn, k_turn = self._turn(q_site, q_length, q.shape[-1]), self._turn(k_site, k_length, k.shape[-1])
        return rotated(q, *q_turn), rotated(k, *k_turn)

    def _lengths(self, q_site: Site, k_site: Site):
        """The length of the document of each query and of each key, None where no angle depends on it."""
        return document_lengths(q_site, k_site) if Needs.DOCUMENT_LENGTH in self.needs else (None, None)

    def _turn(self, site: Site, length: Float32[Array, " T"] | None, head_dim: int):
        """The angles, the layout and the attention factor of `rotated`."""
        position, channels = self.coordinates(site), self._rotary_dim(head_dim) // 2
        wave = self.wave(position.shape[1], channels)
        if self.scaling is None:
            return jnp.where(stands(site)[:, None], angles(position, wave), 0.0), self.layout
        spectrum = self.spectrum(position.shape[1], channels)
        angle = self.scaling.angles(position, wave, spectrum, length)
        return jnp.where(stands(site)[:, None], angle, 0.0), self.layout, self.scaling.attention(position, length)

    def _rotary_dim(self, head_dim: int) -> int:
        rotary_dim = int(self.fraction * head_dim)
        if rotary_dim < 2 or rotary_dim % 2:
            what = "head_dim" if self.fraction == 1 else f"fraction={self.fraction} of a head_dim of {head_dim}"
            raise ValueError(f"{self.spec_name} rotates pairs of channels: {what} must be even, got {rotary_dim}")
        return rotary_dim


@register("rope")
@dataclass(frozen=True)
class Rope(Rotary):
    """Rotary position embedding: x'_c = x_c exp(i p base^(-2c/D)), so that q'_m . k'_n depends on m - n alone.

    Su et al. (2021), arXiv 2104.09864, eq. 34. Channel pairs are (c, c + D/2), as in GPT-NeoX and Llama, or with
    layout="interleaved" (2c, 2c + 1), as in the paper and GPT-J; the two differ by a fixed permutation of the channels.
    With A position axes each takes D/A channels and the exponent is -2c/(D/A): the axial form of Heo et al. (2024),
    arXiv 2403.13298, who use base=100 for images. Tokens that stand nowhere are left unrotated.

    Args:
      fraction: of the head dim: the first int(fraction D) channels are rotated, and their number replaces D in the exponent
        ("partial" RoPE: 1/4 in GPT-NeoX and GPT-J).
      scaling: of the frequencies, for contexts longer than the trained one; see posjax.encodings.scaling.

    Raises:
      ValueError: for a rotary dim not divisible by 2 A, an unknown layout, or a scaling that is not a `Scaling`.

    >>> str(Rope(base=500_000, layout="interleaved"))
    "rope(base=500000, layout='interleaved')"
    """

    family = "rotary"
    formula = (
        r"q'_c = q_c\,e^{i m\theta_c},\quad k'_c = k_c\,e^{i n\theta_c},\quad \theta_c = \beta^{-2c/D}",
        r"\langle q'_m, k'_n \rangle = \mathrm{Re} \sum_c q_c\,\bar k_c\,e^{i(m-n)\theta_c}",
    )

    base: float = 10_000.0
    layout: str = "half"
    fraction: float = 1.0
    scaling: Scaling | None = None


@register("p_rope")
@dataclass(frozen=True)
class PRope(Rotary):
    """RoPE whose lowest frequencies are 0: of each axis' D/2A pairs of channels only the first int(proportion D/2A) turn.

    Barbero et al. (2024), arXiv 2410.06205, section 6; "proportional" in transformers and Gemma. Unlike rope(fraction=...),
    which rotates the first channels as if there were no others, the exponent still has all of D, and in layout="half"
    the channels that pass are the last of either half. proportion=1 is rope(), proportion=0 no encoding at all.

    Raises:
      ValueError: as rope, and for a proportion outside [0, 1].
    """

    family = "rotary"
    formula = (
        r"q'_c = q_c\,e^{i m\theta_c},\quad \theta_c = \begin{cases} \beta^{-2c/D} & c < \lfloor r"
        r" D/2 \rfloor \\ 0 & \text{else} \end{cases}",
    )

    base: float = 10_000.0
    layout: str = "half"
    proportion: float = 0.75
    scaling: Scaling | None = None

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.proportion <= 1:
            raise ValueError(f"p_rope(proportion=...) must be within 0 and 1, got {self.proportion}")

    def wave(self, num_axes, channels):
        wave, spectrum = super().wave(num_axes, channels), self.spectrum(num_axes, channels)
        return np.where(spectrum.index < int(self.proportion * spectrum.count), wave, 0.0)


@register("hope")
@dataclass(frozen=True)
class Hope(Rotary):
    """High-frequency rotary position encoding: RoPE without the pairs that do not turn once within the trained length.

    Chen et al. (2024), arXiv 2410.21216: the pairs with a period of 2 pi / frequency > original_length see only a part of
    their circle in training. They get frequency 0 and carry content alone. The trained frequencies decide which pairs these
    are; a scaling changes only the others. (Hyperbolic HoPE and the HoPE of video models share the name and nothing else.)

    Raises:
      ValueError: as rope, and for an original_length below 1.
    """

    family = "rotary"
    formula = (
        r"q'_c = q_c\,e^{i m\theta_c},\quad \theta_c = \begin{cases} \beta^{-2c/D} &"
        r" 2\pi\,\beta^{2c/D} \le N \\ 0 & \text{else} \end{cases}",
    )
    ranges = ("original_length >= 1",)

    original_length: int
    base: float = 10_000.0
    layout: str = "half"
    scaling: Scaling | None = None

    def wave(self, num_axes, channels):
        wave, spectrum = super().wave(num_axes, channels), self.spectrum(num_axes, channels)
        return np.where(2 * np.pi / spectrum.frequency > self.original_length, 0.0, wave)


@register("value_rotary")
@dataclass(frozen=True)
class ValueRotary(Rotary):
    """Rotary value embedding (RoVE): o_i = R_i^T sum_j a_ij R_j v_j, so a value arrives rotated by its distance.

    García-Castellanos et al. (2026), arXiv 2606.11275. R_p is the rotation of `rope`, here applied to values and, inverted,
    to outputs: outputs depend on differences of positions only. Su's VO-RoPE (2025, kexue.fm, archive 10862) is the same
    formula, alone. Queries and keys are left to other encodings: `rope() + value_rotary()` is what he calls QKVO-RoPE. Tokens
    that stand nowhere are not turned, as keys or as queries.

    Args:
      turned_back: whether outputs are turned by the inverse rotation. False: o_i = sum_j a_ij R_j v_j, which knows where each
        key stands: rotary_value=True of RoFormer, in transformers and in the authors' code.
      base, layout, fraction, scaling: as in `rope`. An attention factor of a scaling is a temperature of logits: values are
        turned without it.

    Raises:
      ValueError: as rope, and for a scaling that depends on the length of a document, which a cached value cannot know.
    """

    family = "rotary"
    formula = (r"o_m = R_m^\top \sum_n a_{mn}\,R_n v_n",)

    base: float = 10_000.0
    layout: str = "half"
    fraction: float = 1.0
    scaling: Scaling | None = None
    turned_back: bool = True

    needs = Needs(0)
    rotate = Encoding.rotate

    @property
    def relative(self) -> bool:
        return self.turned_back

    @property
    def hooks(self) -> frozenset[str]:
        return super().hooks if self.turned_back else super().hooks - {"output"}

    def __post_init__(self):
        super().__post_init__()
        if self.scaling is not None and self.scaling.length_dependent:
            raise ValueError(
                f"value_rotary(scaling={self.scaling}) depends on the length of a document, and values are cached as they "
                "are turned: choose a scaling with fixed frequencies, as linear, ntk or yarn"
            )

    def value(self, params, v, k_site):
        angle, layout, *_ = self._turn(k_site, None, v.shape[-1])
        return rotated(v, angle, layout)

    def output(self, params, out, q_site):
        if not self.turned_back:
            return out
        angle, layout, *_ = self._turn(q_site, None, out.shape[-1])
        return rotated(out, -angle, layout)


def rotated(
    x: Float[Array, "T H D"],
    angle: Float32[Array, "T *C"],
    layout: str,
    factor: Float32[Array, " T"] | float = 1.0,
) -> Float[Array, "T H D"]:
    """Rotates pairs of channels by their angles, in float32, and returns x's dtype.

    Args:
      angle: [T, C], or [T, H, C] where heads differ. Channels after the first 2 C pass unrotated.
      factor: multiplies the rotated channels; one number for all tokens, or one for each.

    >>> x = jnp.float32([[[1, 0, 5]]])
    >>> print(np.asarray(rotated(x, jnp.float32([[np.pi / 3]]), "half")).round(3))    # the third channel passes
    [[[0.5   0.866 5.   ]]]
    """
    factor = factor if isinstance(factor, float) else factor.reshape(-1, *[1] * (angle.ndim - 1))
    cos, sin = _computed_once(factor * jnp.cos(angle)), _computed_once(factor * jnp.sin(angle))
    if angle.ndim == 2:
        cos, sin = (table[:, None] for table in checkpoint_name((cos, sin), TABLES))
    forms = {"tpu": rotated_by_product, "default": rotated_by_pairs}
    channels = 2 * angle.shape[-1]
    turned = jax.lax.platform_dependent(
        x[..., :channels], cos, sin, **{platform: functools.partial(form, layout) for platform, form in forms.items()}
    )
    return turned if channels == x.shape[-1] else jnp.concatenate([turned, x[..., channels:]], axis=-1)


def rotated_by_pairs(
    layout: str, x: Float[Array, "T H R"], cos: Float32[Array, "T #H C"], sin
) -> Float[Array, "T H R"]:
    """Multiplies the two channels of each pair: what CPUs and GPUs compute in one pass."""
    if layout == "half":
        half, x32 = x.shape[-1] // 2, x.astype(jnp.float32)
        a, b = x32[..., :half], x32[..., half:]
        turned = _beside(a * cos - b * sin, 0, half) + _beside(a * sin + b * cos, half, 0)
        return turned.astype(x.dtype)
    a, b = x[..., 0::2].astype(jnp.float32), x[..., 1::2].astype(jnp.float32)
    return jnp.stack([a * cos - b * sin, a * sin + b * cos], axis=-1).reshape(x.shape).astype(x.dtype)


def rotated_by_product(
    layout: str, x: Float[Array, "T H R"], cos: Float32[Array, "T #H C"], sin
) -> Float[Array, "T H R"]:
    """x cos + (x S) sin, where S exchanges the channels (a, b) of each pair for (-b, a): an exact product.

    A TPU's vector unit works on 128 channels at once, so halves of a head leave most of it idle; its matrix unit is fast.
    """
    # The transpose of a rotation is the rotation back. JAX's own multiplies by S last, in a layout that d cos has not.
    turned = functools.partial(_turned, layout)
    return with_transpose(turned, lambda d_out, cos, sin: turned(d_out, cos, -sin))(x, cos, sin)


def _turned(layout, x, cos, sin):
    size = x.shape[-1] // 2
    quarter = [[0, 1], [-1, 0]]
    exchange = np.kron(quarter, np.eye(size)) if layout == "half" else np.kron(np.eye(size), quarter)
    cos, sin = (jnp.tile(y, 2) if layout == "half" else jnp.repeat(y, 2, axis=-1) for y in (cos, sin))
    precision = jax.lax.Precision.HIGHEST if x.dtype == jnp.float32 else None
    other = jnp.matmul(x, jnp.asarray(exchange, x.dtype), precision=precision, preferred_element_type=jnp.float32)
    return (x.astype(jnp.float32) * cos + other * sin).astype(x.dtype)


def rotated_by_head(
    x: Float[Array, "T H D"], position: Float32[Array, "T #H"], wave: Float[Array, "1 C"], layout: str = "half"
) -> Float[Array, "T H D"]:
    """x turned as in `rope`, by a position of each head's own, or one for all."""
    angle = jax.vmap(lambda place: angles(place[:, None], wave), in_axes=1, out_axes=1)(position)
    return rotated(x, angle if angle.shape[1] > 1 else angle[:, 0], layout)


def _beside(x: Float32[jax.Array, "T H C"], before: int, after: int) -> Float32[jax.Array, "T H D"]:
    """x among zeros. A sum of such halves takes half the time of their concatenation on CPUs, and so does its gradient."""
    return jax.lax.pad(x, jnp.float32(0), ((0, 0, 0), (0, 0, 0), (before, after, 0)))


def _computed_once(x: Float32[jax.Array, "*T C"]) -> Float32[jax.Array, "*T C"]:
    """x, behind an identity product (exact at this precision) that no compiler fuses through.

    XLA on CPUs would otherwise compute angle, cosine and sine anew for every head and half that reads them, which was
    measured at ten times the cost of the rotation itself, forward and backward.
    """
    return jnp.dot(x, np.eye(x.shape[-1], dtype=np.float32), precision=jax.lax.Precision.HIGHEST)
