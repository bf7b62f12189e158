"""Frequency scalings that are the same for every document.

In their formulas s is the factor by which the context grows, N the trained length, C the number of frequencies (half
the rotary dim), c = 0 ... C - 1, and theta_c = base^(-c/C).
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

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
    """

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


# Shared by the scalings here and in scalings_by_length.py.


def mixed(share, factor):
    """The multiplier of frequencies when a share of each is divided by the factor."""
    return (1 - share) + share / factor


def _by_turns(spectrum: Spectrum, factor, original_length, most, least) -> Float[np.ndarray, " C"]:
    turns = original_length * spectrum.frequency / (2 * np.pi)
    return mixed(np.clip((most - turns) / (most - least), 0, 1), factor)


def yarn_ramp(scaling: Scaling, spectrum: Spectrum) -> Float[np.ndarray, " C"]:
    if not spectrum.base > 1:
        raise ValueError(f"{scaling.spec_name} needs falling frequencies: a base above 1, got {spectrum.base}")
    low, high = (
        spectrum.count * math.log(scaling.original_length / (2 * math.pi * turns)) / math.log(spectrum.base)
        for turns in (scaling.beta_fast, scaling.beta_slow)
    )
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    # The published code holds the lower end above 0 and the higher below 2C - 1; if all channels lie beyond one of the two,
    # the ends would cross and the ramp would run backwards. Equal ends are 0.001 apart, as there.
    low, high = np.clip([low, high], 0, 2 * spectrum.count - 1)
    return np.clip((spectrum.index - low) / max(high - low, 0.001), 0, 1)


def ntk_exponent(scaling: Scaling, spectrum: Spectrum) -> Float[np.ndarray, " C"]:
    if spectrum.count < 2:
        raise ValueError(f"{scaling.spec_name} needs two frequencies or more on each axis: a larger head_dim")
    return spectrum.index / (spectrum.count - 1)


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
