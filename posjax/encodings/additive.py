"""Encodings that add a code of waves to the tokens; learned tables are in tables.py, a convolution in convolution.py."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float32, Shaped

from posjax.encoding import Array, Encoding, Site, axes, stands
from posjax.encodings.angles import angles, axial
from posjax.encodings.tables import added
from posjax.spec import nearest, register

_LAYOUTS = ["interleaved", "concatenated"]


@register("sinusoidal")
@dataclass(frozen=True)
class Sinusoidal(Encoding):
    """Fixed sines and cosines: PE[p, 2c] = sin(p base^(-2c/M)), PE[p, 2c + 1] = cos(p base^(-2c/M)).

    Vaswani et al. (2017), arXiv 1706.03762, section 3.5; tensor2tensor and fairseq divide c by M/2 - 1 where the paper has
    M/2. layout="concatenated" writes all sines before all cosines. With A position axes each axis has a code of M/A
    channels, in the order of the axes (row, then column); the exponent is -2c/(M/A). An odd width has the code of M - 1
    channels and a last channel of zeros, as in fairseq. Nothing is added to tokens that stand nowhere.

    Raises:
      ValueError: for a width that leaves more than one channel when divided by 2 A, or an unknown layout.
    """

    family = "waves"
    formula = (
        r"\mathrm{PE}_{p,2c} = \sin\left(p\,\omega_c\right),\quad \mathrm{PE}_{p,2c+1} ="
        r" \cos\left(p\,\omega_c\right)",
        r"\omega_c = \beta^{-2c/M}",
    )

    relative = False
    ranges = ("base > 0",)

    base: float = 10_000.0
    layout: str = "interleaved"

    def __post_init__(self):
        super().__post_init__()
        if self.layout not in _LAYOUTS:
            raise ValueError(f"sinusoidal has no layout {self.layout!r}; {nearest(self.layout, _LAYOUTS)}")

    def embed(self, params, x, site):
        return _added(x, _code(self, site, x.shape[-1], self.layout), site)


@register("scaled_sinusoidal")
@dataclass(frozen=True)
class ScaledSinusoidal(Encoding):
    """A sinusoidal code under a learned scale: s [sin(p w_c) | cos(p w_c)], w_c = base^(-2c/M).

    `ScaledSinusoidalEmbedding` of lucidrains/x-transformers. s is one number and starts at M^(-1/2), M the width, so that
    the code starts with a norm of 2^(-1/2) whatever the width: small beside embeddings of unit variance. Sines come before
    cosines. Axes and odd widths are as in `sinusoidal`; s is shared by all axes. Nothing is added to tokens that stand
    nowhere.

    Raises:
      ValueError: for a width that leaves more than one channel when divided by 2 A, or a base that is not positive.
    """

    family = "waves"
    formula = (
        r"\mathrm{PE}_p = s \left[\sin p\omega_c \,\middle|\, \cos p\omega_c\right]",
        r"\omega_c = \beta^{-2c/M}",
    )

    relative = False
    ranges = ("base > 0",)

    base: float = 10_000.0

    def init(self, key, dims):
        return {"scale": jnp.full(1, dims.width**-0.5, jnp.float32)}

    def embed(self, params, x, site):
        return _added(x, params["scale"] * _code(self, site, x.shape[-1], "concatenated"), site)


class _Sincos2d(Encoding):
    """[sin x w | cos x w | sin y w | cos y w] of a patch in row y and column x, a quarter of the width each."""

    relative = False
    dimensions = (2,)
    ranges = ("base > 0",)
    divisor_less: ClassVar[int]  # subtracted from the M/4 that divides the exponent

    def embed(self, params, x, site):
        position, width = self.coordinates(site), x.shape[-1]
        count, divisor = width // 4, width // 4 - self.divisor_less
        if width % 4 or divisor < 1:
            least = 4 * (1 + self.divisor_less)
            raise ValueError(
                f"{self.spec_name}: a width of {width} is no multiple of 4 from {least} on, "
                "which sines and cosines of two axes need"
            )
        wave = np.kron(np.eye(2), float(self.base) ** (-np.arange(count) / divisor)[None])
        return _added(x, _sines(position[:, ::-1], wave, "concatenated"), site)


@register("sincos2d_mae")
@dataclass(frozen=True)
class Sincos2dMae(_Sincos2d):
    """Sines and cosines on a grid, the column first: [sin x w | cos x w | sin y w | cos y w], w_k = base^(-k/(M/4)).

    He et al. (2021), arXiv 2111.06377, `get_2d_sincos_pos_embed`, where "w goes first": the first half of the channels
    encodes a patch's column x, the second half its row y. transformers' ViTMAE puts y first, and so do timm's
    `build_sincos2d_pos_embed(interleave_sin_cos=True)` and, on square grids, MoCo v3; that is
    `sinusoidal(layout="concatenated")`. timm's default is [sin y w | sin x w | cos y w | cos x w]. The three differ by
    permutations of channels. Nothing is added to tokens that stand nowhere (MAE: a row of zeros for the class token).

    Raises:
      ValueError: for a width not divisible by 4, positions that are not (row, column), or a base that is not positive.
    """

    family = "waves"
    formula = (
        r"\mathrm{PE}_{(y,x)} = \left[\sin x\omega_k \,\middle|\, \cos x\omega_k \,\middle|\, \sin"
        r" y\omega_k \,\middle|\, \cos y\omega_k\right]",
        r"\omega_k = \beta^{-k/(M/4)}",
    )

    divisor_less = 0

    base: float = 10_000.0


@register("sincos2d_big_vision")
@dataclass(frozen=True)
class Sincos2dBigVision(_Sincos2d):
    """Sines and cosines on a grid with the exponent k/(M/4 - 1): [sin x w | cos x w | sin y w | cos y w].

    `posemb_sincos_2d` of google-research/big_vision, the code of Beyer et al. (2022), arXiv 2205.01580. It says that it
    follows MoCo v3, whose exponent is k/(M/4): here the longest wave is exactly 2 pi base patches, there shorter.
    Nothing is added to tokens that stand nowhere.

    Raises:
      ValueError: for a width not divisible by 4 or below 8, positions that are not (row, column), or a base that is not
        positive.
    """

    family = "waves"
    formula = (
        r"\mathrm{PE}_{(y,x)} = \left[\sin x\omega_k \,\middle|\, \cos x\omega_k \,\middle|\, \sin"
        r" y\omega_k \,\middle|\, \cos y\omega_k\right]",
        r"\omega_k = \beta^{-k/(M/4-1)}",
    )

    divisor_less = 1

    base: float = 10_000.0


@register("fourier")
@dataclass(frozen=True)
class Fourier(Encoding):
    """Learned Fourier features: PE(p) = GELU(r W1 + b1) W2 + b2, r = [cos p W | sin p W] / sqrt(features).

    Li et al. (2021), arXiv 2106.02795, algorithm 1 with one group. All five arrays are learned; r has `features` channels
    (|F|), the hidden layer has `hidden` (|H|). W starts at N(0, gamma^-2), where gamma^-2 is the variance: the features of
    two tokens then have an inner product of about exp(-d^2 / (2 gamma^2)) / 2 at the distance d, so gamma is a length in
    units of position, which are patches or tokens here. (Ports that pass gamma^-2 as the standard deviation mean another
    length unless gamma is 1.) W1 and W2 start at N(0, 1/inputs), the biases at 0; the paper does not say. GELU is the exact
    one.

    The wave is learned, so p W is a float32 product: it errs by |p W| 2^-24 radians. Nothing is added to tokens that
    stand nowhere.

    Raises:
      ValueError: for an odd number of features, sizes below 1, a gamma that is not positive, or positions with another
        number of axes than in `init` (two if Dims has a grid, else one).
    """

    family = "waves"
    formula = (
        r"\mathrm{PE}_p = \mathrm{GELU}\left(r W_1 + b_1\right) W_2 + b_2",
        r"r = \frac{1}{\sqrt{F}} \left[\cos pW \,\middle|\, \sin pW\right]",
    )

    relative = False
    dimensions = (1, 2)
    ranges = "hidden >= 1", "gamma > 0"

    features: int = 384
    hidden: int = 32
    gamma: float = 10.0

    def __post_init__(self):
        super().__post_init__()
        if self.features < 2 or self.features % 2:
            raise ValueError(
                f"fourier pairs cosines with sines: features must be even and positive, got {self.features}"
            )

    def init(self, key, dims):
        wave_key, inner_key, outer_key = jax.random.split(key, 3)
        num_axes = 1 if dims.grid is None else 2
        return {
            "wave": jax.random.normal(wave_key, (num_axes, self.features // 2), jnp.float32) / self.gamma,
            "inner": jax.random.normal(inner_key, (self.features, self.hidden), jnp.float32) * self.features**-0.5,
            "inner_bias": jnp.zeros(self.hidden, jnp.float32),
            "outer": jax.random.normal(outer_key, (self.hidden, dims.width), jnp.float32) * self.hidden**-0.5,
            "outer_bias": jnp.zeros(dims.width, jnp.float32),
        }

    def embed(self, params, x, site):
        position, num_axes = self.coordinates(site), params["wave"].shape[0]
        if position.shape[1] != num_axes:
            raise ValueError(f"fourier has learned waves for {num_axes} position axes, got {position.shape[1]}")
        angle = _product(jnp.asarray(position, jnp.float32), params["wave"])
        feature = jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], axis=-1) * self.features**-0.5
        hidden = jax.nn.gelu(_product(feature, params["inner"]) + params["inner_bias"], approximate=False)
        return _added(x, _product(hidden, params["outer"]) + params["outer_bias"], site)


def _product(a: Float[Array, "T C"], b: Float[Array, "C E"]) -> Float32[jax.Array, "T E"]:
    """a @ b in float32 on every device: accelerators round the factors of a matrix product unless told not to."""
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def _code(encoding, site: Site, width: int, layout: str) -> Float32[jax.Array, "T M"]:
    """Sines and cosines of each axis; an odd width ends with a channel of zeros."""
    position = axes(site)
    wave = axial(encoding.base, position.shape[1], width // 2, f"{encoding.spec_name}: a width")
    return jnp.pad(_sines(position, wave, layout), ((0, 0), (0, width % 2)))


def _sines(position: Shaped[Array, "T A"], wave: Float[np.ndarray, "A C"], layout: str) -> Float32[jax.Array, "T M"]:
    """Sines and cosines of a block-diagonal wave matrix, one axis after the other."""
    num_axes, channels = wave.shape
    angle = angles(position, wave).reshape(-1, num_axes, channels // num_axes)
    join = jnp.stack if layout == "interleaved" else jnp.concatenate
    return join([jnp.sin(angle), jnp.cos(angle)], axis=-1).reshape(-1, 2 * channels)


def _added(x: Float[Array, "T M"], code: Float[Array, "T M"], site: Site) -> Float[Array, "T M"]:
    return added(x, jnp.where(stands(site)[:, None], code, 0.0), site)
