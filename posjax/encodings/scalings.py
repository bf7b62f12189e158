"""Frequency scalings that are the same for every document.

In their formulas s is the factor by which the context grows, N the trained length, C the number of frequencies (half
the rotary dim), c = 0 ... C - 1, and theta_c = base^(-c/C).
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from posjax.encodings.angles import angles
from posjax.encodings.scaling import Scaling, Spectrum
from posjax.spec import register


@register("linear")
@dataclass(frozen=True)
class Linear(Scaling):
    """Position interpolation, applied to the frequencies: theta_c / s.

    Chen et al. (2023), arXiv 2306.15595, and kaiokendev. The same as interpolate(factor=s) >> rope(), but the
    division is done in float64, so that far positions are not rounded.

    Raises:
      ValueError: for a factor that is not positive.
    """

    formula = (r"\theta'_c = \frac{\theta_c}{s}",)

    factor: float

    def __post_init__(self):
        if not self.factor > 0:
            raise ValueError(f"linear needs a positive factor, got {self.factor}")

    def multiplier(self, spectrum, length):
        return np.full(len(spectrum.index), 1 / self.factor)


@register("ntk")
@dataclass(frozen=True)
class Ntk(Scaling):
    """NTK-aware scaling: base s^(C/(C-1)) instead of base, that is, theta_c s^(-c/(C-1)).

    bloc97 (2023), in Peng et al. (2023), arXiv 2309.00071, section 3.1: the highest frequency stays as it is, the lowest
    is divided by s.

    Raises:
      ValueError: for a factor below 1; for a rotary with a single frequency, which is both the highest and the lowest.
    """

    formula = (r"\theta'_c = \theta_c\,s^{-c/(C-1)},\quad c = 0, \dots, C-1",)

    factor: float

    def __post_init__(self):
        check_factor(self)

    def multiplier(self, spectrum, length):
        return self.factor ** -ntk_exponent(self, spectrum)


@register("ntk_by_parts")
@dataclass(frozen=True)
class NtkByParts(Scaling):
    """NTK-by-parts: theta_c g + theta_c / s (1 - g), where g grows from 0 to 1 with the turns of channel c in N tokens.

    Peng et al. (2023), arXiv 2309.00071, section 3.2: g is linear in r = N theta_c / 2 pi, 0 below beta_slow (alpha in the
    paper) and 1 above beta_fast (beta there). YaRN's published code, and so `yarn`, is linear in c instead; an earlier
    "part NTK" of the same repository has the NTK-aware frequencies between the two others, with other constants.
    With beta_fast=4 it is llama3.

    Raises:
      ValueError: for a factor below 1, an original_length below 1, or beta_fast <= beta_slow.
    """

    formula = (
        r"\theta'_c = g_c\,\theta_c + (1-g_c)\,\frac{\theta_c}{s}",
        r"g_c = \mathrm{clip}\left(\frac{r_c - \beta_{\mathrm{slow}}}{\beta_{\mathrm{fast}} -"
        r" \beta_{\mathrm{slow}}}, 0, 1\right),\quad r_c = \frac{N\theta_c}{2\pi}",
    )

    factor: float
    original_length: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0

    def __post_init__(self):
        check_factor(self)
        check_length(self)
        check_betas(self, "beta_fast", "beta_slow")

    def multiplier(self, spectrum, length):
        return _by_turns(spectrum, self.factor, self.original_length, self.beta_fast, self.beta_slow)


@register("llama3")
@dataclass(frozen=True)
class Llama3(Scaling):
    """The scaling of Llama 3.1: NTK-by-parts with other thresholds, 1 to 4 turns in N = 8192 tokens.

    As in Meta's code and transformers: frequencies with a period below N / high_freq_factor stay, those above
    N / low_freq_factor are divided by s, and between the two a mixture is linear in N / period. The rules agree at both
    borders.

    Raises:
      ValueError: for a factor below 1, an original_length below 1, or high_freq_factor <= low_freq_factor.
    """

    formula = (
        r"\theta'_c = \begin{cases} \theta_c & \lambda_c < N/\nu_{\mathrm{high}} \\ \theta_c/s &"
        r" \lambda_c > N/\nu_{\mathrm{low}} \\ (1-g_c)\,\theta_c/s + g_c\,\theta_c & \text{else}"
        r" \end{cases}",
        r"\lambda_c = \frac{2\pi}{\theta_c},\quad g_c = \frac{N/\lambda_c -"
        r" \nu_{\mathrm{low}}}{\nu_{\mathrm{high}} - \nu_{\mathrm{low}}}",
    )

    factor: float = 8.0
    original_length: int = 8192
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0

    def __post_init__(self):
        check_factor(self)
        check_length(self)
        check_betas(self, "high_freq_factor", "low_freq_factor")

    def multiplier(self, spectrum, length):
        return _by_turns(spectrum, self.factor, self.original_length, self.high_freq_factor, self.low_freq_factor)


@register("yarn")
@dataclass(frozen=True)
class Yarn(Scaling):
    """YaRN: theta_c (1 - g) + theta_c / s g, where g rises from 0 to 1 over the channels, and logits times m^2.

    Peng et al. (2023), arXiv 2309.00071, and its code, which transformers follows: g = clip((c - low) / (high - low), 0, 1)
    with low and high the channels that would turn beta_fast and beta_slow times in N tokens, C ln(N / 2 pi beta) / ln base,
    rounded down and up (truncate=False keeps them as they are, as gpt-oss does) and held within 0 and 2C - 1.

    Args:
      attention_factor: m, which multiplies queries and keys, so that logits grow by m^2; by default (0.1 mscale ln s + 1) /
        (0.1 mscale_all_dim ln s + 1), which is 0.1 ln s + 1 for the default mscales.
      mscale, mscale_all_dim: DeepSeek's. transformers heeds them only where both are given and not 0. DeepSeek's models
        also scale their softmax, by the square of 0.1 mscale_all_dim ln s + 1: that is `scale` of attend.

    Raises:
      ValueError: for a factor below 1, an original_length below 1, beta_fast <= beta_slow, an attention_factor that is not
        positive, a negative mscale, or a rotary whose base is not above 1.

    >>> spectrum = Spectrum(base=10_000, count=4, index=np.arange(4))
    >>> Yarn(factor=4, original_length=4096).multiplier(spectrum, None).round(3).tolist()
    [1.0, 1.0, 0.625, 0.25]
    >>> round(Yarn(factor=4, original_length=4096).attention(None, None), 4)
    1.1386
    """

    formula = (
        r"\theta'_c = (1-g_c)\,\theta_c + g_c\,\frac{\theta_c}{s},\quad \ell' = \mu^2\,\ell,\quad \mu"
        r" = 0.1\ln s + 1",
        r"g_c = \mathrm{clip}\left(\frac{c - c_{\mathrm{low}}}{c_{\mathrm{high}} - c_{\mathrm{low}}},"
        r" 0, 1\right),\quad c(\nu) = \frac{C}{\ln\beta}\ln\frac{N}{2\pi\nu}",
    )

    factor: float
    original_length: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    mscale: float = 1.0
    mscale_all_dim: float = 0.0

    def __post_init__(self):
        check_factor(self)
        check_length(self)
        check_betas(self, "beta_fast", "beta_slow")
        check_attention(self)
        for name in ("mscale", "mscale_all_dim"):
            if getattr(self, name) < 0:
                raise ValueError(f"yarn({name}=...) must not be negative, got {getattr(self, name)}")

    def multiplier(self, spectrum, length):
        return mixed(yarn_ramp(self, spectrum), self.factor)

    def attention(self, position, length):
        if self.attention_factor is not None:
            return float(self.attention_factor)
        growth = 0.1 * math.log(self.factor)
        return (growth * self.mscale + 1) / (growth * self.mscale_all_dim + 1)


@register("clipped")
@dataclass(frozen=True)
class Clipped(Scaling):
    """Clipped RoPE: the `count` lowest frequencies fall to 0 along half a cosine, w_i = (1 + cos(pi i / (count - 1))) / 2.

    Li et al. (2026), arXiv 2602.05258, section 4.2 (its name there, CoPE, is that of another encoding here), as in the
    authors' code, modeling_cope.py: i = 0 ... count - 1 runs over the lowest frequencies; the highest of these stays. The
    paper writes the taper as a function of the frequency. Their onset is the 44th of 64 frequencies, a count of 20.

    Args:
      soft: False: these frequencies are 0 (HardClip of the same code).
      scaling: gives the frequencies to clip; plain ones by default. The paper reads beyond the trained length under YaRN.

    Raises:
      ValueError: for a negative count, a rotary of fewer frequencies, or a scaling that depends on the length.
    """

    formula = (
        r"\theta'_c = w_c\,\theta_c,\quad w_c = \begin{cases} 1 & c < C-k \\ \frac12\left(1 +"
        r" \cos\frac{\pi\,(c-C+k)}{k-1}\right) & \text{else} \end{cases}",
    )

    count: int = 20
    soft: bool = True
    scaling: Scaling | None = None

    def __post_init__(self):
        if self.count < 0:
            raise ValueError(f"clipped(count=...) must not be negative, got {self.count}")
        check_inner(self)

    def multiplier(self, spectrum, length):
        if self.count > spectrum.count:
            raise ValueError(
                f"clipped(count={self.count}) of a rotary with {spectrum.count} frequencies: give a count of at most that"
            )
        taper = np.cos(np.linspace(0, np.pi, self.count)) / 2 + 0.5 if self.soft else np.zeros(self.count)
        weight = np.concatenate([np.ones(spectrum.count - self.count), taper])
        return inner_multiplier(self, spectrum) * weight[spectrum.index]

    def attention(self, position, length):
        return inner_attention(self, position)


@register("resonance")
@dataclass(frozen=True)
class Resonance(Scaling):
    """Resonance RoPE: 2 pi / round(2 pi / theta_c), so that every frequency has a whole number of tokens as its period.

    Wang et al. (2024), arXiv 2403.00071, and their code (sheryc/resonance_rope, ResonanceEmbedding in README.md): a period
    that is seen whole in training brings no angle that is new behind it. Halves are rounded to the even number, as by
    torch.round.

    Args:
      scaling: whose frequencies are rounded, in place of the plain ones: scaling=yarn(...) is Resonance YaRN.

    Raises:
      ValueError: for a scaling that depends on the length, or a period below half a token.
    """

    formula = (r"\theta'_c = \frac{2\pi}{\mathrm{round}\left(2\pi/\theta_c\right)}",)

    scaling: Scaling | None = None

    def __post_init__(self):
        check_inner(self)

    def multiplier(self, spectrum, length):
        period = 2 * np.pi / (spectrum.frequency * inner_multiplier(self, spectrum))
        if np.any(period <= 0.5):
            raise ValueError(
                f"resonance rounds periods to whole tokens, and one of {period.min():.3g} tokens would be 0"
            )
        return 2 * np.pi / np.round(period) / spectrum.frequency

    def attention(self, position, length):
        return inner_attention(self, position)


@register("riflex")
@dataclass(frozen=True)
class Riflex(Scaling):
    """RIFLEx: the intrinsic frequency of a video model falls to margin 2 pi / length, and all others stay.

    Zhao et al. (2025), arXiv 2502.15894, eq. 7 and 8, and thu-ml/RIFLEx, riflex_utils.py: longer films repeat themselves
    with the period of one frequency, which then does not go round once. It is the one whose period, rounded, is closest to
    `repetition`, the first of them where two are. As in hunyuanvideo.py of that code, nothing changes up to a length of
    that period.

    Args:
      length: frames (of latents) that are made.
      repetition: the frame at which films begin to repeat themselves; 50 in HunyuanVideo, 20 in CogVideoX-5B.
      margin: the share of a turn that the length makes; the paper has 1, the code 0.9.
      axis: of positions, along which time runs: (time, row, column).

    Raises:
      ValueError: for a length or repetition below 1, a margin outside (0, 1], or a negative axis; for positions that do not
        have that axis.
    """

    formula = (
        r"\theta'_c = \begin{cases} \rho\,2\pi/L & c = c^* \\ \theta_c & \text{else} \end{cases}",
        r"c^* = \mathrm{argmin}_c \left|\mathrm{round}\left(2\pi/\theta_c\right) - r\right|",
    )

    length: int
    repetition: int
    margin: float = 0.9
    axis: int = 0

    def __post_init__(self):
        for name in ("length", "repetition"):
            if getattr(self, name) < 1:
                raise ValueError(f"riflex({name}=...) must be at least 1, got {getattr(self, name)}")
        if not 0 < self.margin <= 1:
            raise ValueError(f"riflex(margin=...) must be above 0 and at most 1, got {self.margin}")
        if self.axis < 0:
            raise ValueError(f"riflex(axis=...) must not be negative, got {self.axis}")

    def multiplier(self, spectrum, length):
        series = spectrum._replace(index=np.arange(spectrum.count)).frequency
        periods = np.round(2 * np.pi / series)
        intrinsic = int(np.argmin(np.abs(periods - self.repetition)))
        if self.length <= periods[intrinsic]:
            return np.ones(len(spectrum.index))
        lowered = self.margin * 2 * np.pi / self.length / series[intrinsic]
        return np.where(spectrum.index == intrinsic, lowered, 1.0)

    def angles(self, position, wave, spectrum, length):
        if self.axis >= len(wave):
            raise ValueError(f"riflex(axis={self.axis}) of positions with {len(wave)} axes: count them from 0")
        of_axis = (np.arange(len(wave)) == self.axis).reshape(-1, *[1] * (wave.ndim - 1))
        return angles(position, wave * np.where(of_axis, self.multiplier(spectrum, length), 1.0).astype(wave.dtype))


# In how many turns within the trained length the two ramps of `dype` begin and end: of its repository, there named beta and
# gamma. The first goes from NTK-aware to linear frequencies, the second from unscaled ones to these.
_DYPE_RAMPS = ((1.25, 0.75), (16.0, 2.0))


@register("dype")
@dataclass(frozen=True)
class Dype(Scaling):
    """DyPE on YaRN: how far frequencies are scaled follows the time t of a diffusion model, from all at 1 to none at 0.

    Issachar et al. (2025), arXiv 2510.20766, as in guyyariv/DyPE, flux/transformer_flux.py (get_1d_rotary_pos_embed, method
    "yarn"): theta_c (g + (1 - g) (h s^(-c/(C-1)) + (1 - h) / s)), where g and h fall from 1 to 0 over the channels, as yarn's
    ramp does, between those that turn 16 and 2 times (g), and 1.25 and 0.75 times (h), in N / t^exponent tokens. m =
    0.1 ln s + 1 at any time. Both ends of a ramp are held within 0 and C: in that code they cross near t = 0, where all
    frequencies are then divided by s.

    Its NTK form is ntk(factor=s^(2 t^2)), one value for each step.

    Args:
      factor: s, how many times as large as in training the image is, the same on each axis.
      original_length: N, patches on an axis in training; 64 in FLUX.
      time: t, from 1 (noise) to 0. A traced number does too, so that one program serves all steps; its frequencies are then
        float32.
      exponent: lambda_t of the paper.

    Raises:
      ValueError: for a factor below 1, an original_length below 1, a time outside [0, 1], an exponent that is not positive, a
        rotary with a single frequency, or one whose base is not above 1.
    """

    formula = (
        r"\theta'_c = \theta_c\left(g_c + (1-g_c)\left(h_c\,s^{-c/(C-1)} +"
        r" \frac{1-h_c}{s}\right)\right)",
        r"g_c, h_c\ \text{fall from 1 to 0 over the channels, later as } t \text{ falls}",
    )

    factor: float
    original_length: int
    time: float | jax.Array = 1.0
    exponent: float = 2.0

    def __post_init__(self):
        check_factor(self)
        check_length(self)
        if not isinstance(self.time, jax.Array) and not 0 <= self.time <= 1:
            raise ValueError(f"dype(time=...) must be within 0 and 1, got {self.time}")
        if not self.exponent > 0:
            raise ValueError(f"dype(exponent=...) must be positive, got {self.exponent}")

    def multiplier(self, spectrum, length):
        check_base(self, spectrum)
        ntk = self.factor ** -ntk_exponent(self, spectrum)
        to_linear, to_scaled = (self._ramp(spectrum, *turns) for turns in _DYPE_RAMPS)
        scaled = ntk * (1 - to_linear) + to_linear / self.factor
        return (1 - to_scaled) + to_scaled * scaled

    def _ramp(self, spectrum: Spectrum, fast: float, slow: float):
        """0 for channels that turn fast times and more, 1 for those that turn slow times and less."""
        xp = jnp if isinstance(self.time, jax.Array) else np
        shift = spectrum.count * self.exponent / math.log(spectrum.base)
        with np.errstate(divide="ignore"):
            later = -shift * xp.log(self.time)  # channels by which the ramp moves; infinite at time 0
        low, high = xp.floor(_channel(self, spectrum, fast) + later), xp.ceil(_channel(self, spectrum, slow) + later)
        return _rising(spectrum.index, low, high, spectrum.count)

    def angles(self, position, wave, spectrum, length):
        wave = jnp.asarray(wave, jnp.float32) if isinstance(self.time, jax.Array) else wave
        return super().angles(position, wave, spectrum, length)

    def attention(self, position, length):
        return 0.1 * math.log(self.factor) + 1


# Shared by the scalings here and in scalings_by_length.py.


def mixed(share, factor):
    """The multiplier of frequencies when a share of each is divided by the factor."""
    return (1 - share) + share / factor


def _by_turns(spectrum: Spectrum, factor, original_length, most, least) -> Float[np.ndarray, " C"]:
    turns = original_length * spectrum.frequency / (2 * np.pi)
    return mixed(np.clip((most - turns) / (most - least), 0, 1), factor)


def yarn_ramp(scaling: Scaling, spectrum: Spectrum) -> Float[np.ndarray, " C"]:
    check_base(scaling, spectrum)
    low, high = (np.float64(_channel(scaling, spectrum, turns)) for turns in (scaling.beta_fast, scaling.beta_slow))
    if scaling.truncate:
        low, high = np.floor(low), np.ceil(high)
    return _rising(spectrum.index, low, high, 2 * spectrum.count - 1)


def _rising(index, low, high, most: int):
    """0 up to channel low and 1 from channel high on, both held within 0 and `most`.

    The published codes hold low above 0 and high below `most` only: if all channels lie beyond one of the two, these cross
    and the ramp runs backwards. Equal ends are 0.001 apart, as there; the lower one moves, so that channel 0 has 1 too.
    """
    low, high = low.clip(0, most), high.clip(0, most)
    return 1 - ((high - index) / (high - low).clip(0.001)).clip(0, 1)


def _channel(scaling, spectrum: Spectrum, turns: float) -> float:
    """The channel, between two perhaps, that turns so many times in the trained length."""
    return spectrum.count * math.log(scaling.original_length / (2 * math.pi * turns)) / math.log(spectrum.base)


def ntk_exponent(scaling: Scaling, spectrum: Spectrum) -> Float[np.ndarray, " C"]:
    if spectrum.count < 2:
        raise ValueError(f"{scaling.spec_name} needs two frequencies or more on each axis: a larger head_dim")
    return spectrum.index / (spectrum.count - 1)


def inner_multiplier(scaling, spectrum: Spectrum) -> Float[np.ndarray, " C"]:
    """The multiplier of the scaling within another one; ones without a scaling."""
    return np.ones(len(spectrum.index)) if scaling.scaling is None else scaling.scaling.multiplier(spectrum, None)


def inner_attention(scaling, position):
    return 1.0 if scaling.scaling is None else scaling.scaling.attention(position, None)


def check_inner(scaling) -> None:
    """Refuses a scaling that cannot stand within another: only a multiplier of frequencies, equal on each axis, can."""
    inner = scaling.scaling
    if inner is not None and (
        not isinstance(inner, Scaling) or inner.length_dependent or type(inner).angles is not Scaling.angles
    ):
        raise ValueError(
            f"{scaling.spec_name}(scaling={inner!s}) takes a scaling with fixed frequencies, as linear, ntk or yarn"
        )


def check_base(scaling, spectrum: Spectrum) -> None:
    if not spectrum.base > 1:
        raise ValueError(f"{scaling.spec_name} needs falling frequencies: a base above 1, got {spectrum.base}")


def check_factor(scaling) -> None:
    if not scaling.factor >= 1:
        raise ValueError(f"{scaling.spec_name} needs a factor of at least 1, got {scaling.factor}")


def check_length(scaling, least: int = 1) -> None:
    if scaling.original_length < least:
        raise ValueError(
            f"{scaling.spec_name}(original_length=...) must be at least {least}, got {scaling.original_length}"
        )


def check_betas(scaling, fast: str, slow: str) -> None:
    if not getattr(scaling, fast) > getattr(scaling, slow) > 0:
        raise ValueError(
            f"{scaling.spec_name} needs {fast} > {slow} > 0, got {getattr(scaling, fast)} and {getattr(scaling, slow)}"
        )


def check_attention(scaling) -> None:
    if scaling.attention_factor is not None and not scaling.attention_factor > 0:
        raise ValueError(f"{scaling.spec_name}(attention_factor=...) must be positive, got {scaling.attention_factor}")
