"""Frequency scalings that depend on the length n of a token's document. Other letters are as in scalings.py."""

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from posjax.encodings.angles import angles
from posjax.encodings.scaling import Scaling, Spectrum
from posjax.encodings.scalings import (
    check_attention,
    check_betas,
    check_factor,
    check_length,
    mixed,
    ntk_exponent,
    yarn_ramp,
)
from posjax.spec import register


@register("dynamic_ntk")
@dataclass(frozen=True)
class DynamicNtk(Scaling):
    """NTK-aware scaling for a document of length n > N: s = factor n/N - (factor - 1); no scaling up to N.

    emozilla (2023); "dynamic" in transformers, whose max_position_embeddings is N. Here n is the length of each document
    of a packed row; transformers takes the longest row of the batch for all of them, and the longest one
    seen so far until one shorter than N comes.

    Args:
      doubling: n is rounded up to the next of N, 2N, 4N, ...: with factor=2 that of Qwen 1 (use_dynamic_ntk).

    Raises:
      ValueError: for a factor below 1, an original_length below 1, or a rotary with a single frequency.
    """

    formula = (
        r"\theta'_c = \theta_c\,s_T^{-c/(C-1)},\quad s_T = \max\left(1,\ \frac{sT}{N} - (s-1)\right)",
        r"T\ \text{the length of the document}",
    )

    length_dependent = True

    factor: float
    original_length: int
    doubling: bool = False

    def __post_init__(self):
        check_factor(self)
        check_length(self)

    def multiplier(self, spectrum, length):
        if self.doubling:
            steps = self.original_length * 2.0 ** np.arange(32, dtype=np.float32)
            length = jnp.asarray(steps)[(length[:, None] > steps[:-1]).sum(-1)]
        grown = 1 + self.factor * jnp.maximum(0.0, (length - self.original_length) / self.original_length)
        return grown[:, None] ** -ntk_exponent(self, spectrum).astype(np.float32)


@register("dynamic_yarn")
@dataclass(frozen=True)
class DynamicYarn(Scaling):
    """YaRN for a document of length n: s = max(1, n/N), m = 0.1 ln s + 1.

    Peng et al. (2023), arXiv 2309.00071, section 3.3 on dynamic scaling, and LlamaDynamicYaRNScaledRotaryEmbedding in its
    code. Arguments as in yarn.

    Raises:
      ValueError: for an original_length below 1, beta_fast <= beta_slow, or a rotary whose base is not above 1.
    """

    formula = (
        r"\text{YaRN with}\quad s_T = \max\left(1, \frac{T}{N}\right),\quad \mu = 0.1\ln s_T + 1",
        r"T\ \text{the length of the document}",
    )

    length_dependent = True

    original_length: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    def __post_init__(self):
        check_length(self)
        check_betas(self, "beta_fast", "beta_slow")

    def multiplier(self, spectrum, length):
        return mixed(yarn_ramp(self, spectrum).astype(np.float32), self._factor(length)[:, None])

    def attention(self, position, length):
        return 0.1 * jnp.log(self._factor(length)) + 1

    def _factor(self, length):
        return jnp.maximum(1.0, length / self.original_length)


@register("longrope")
@dataclass(frozen=True)
class LongRope(Scaling):
    """LongRoPE: theta_c / short_factor[c] in documents of up to N tokens, theta_c / long_factor[c] in longer ones.

    Ding et al. (2024), arXiv 2402.13753, whose factors are searched for, with one pair of sets as released (Phi-3) and
    read by transformers. m = sqrt(1 + ln s / ln N) multiplies queries and keys at any length.

    Args:
      short_factor, long_factor: C numbers each.
      factor: s, the factor by which the context has grown.
      attention_factor: replaces m.
      start_tokens: n-hat of the paper: positions below it keep their frequencies, and m = 1 as in the authors' code;
        transformers has none.

    Raises:
      ValueError: for factors that are not positive numbers in tuples, or not as many as the rotary has frequencies, a
        factor below 1, an original_length below 2, an attention_factor that is not positive, or negative start_tokens.
    """

    formula = (
        r"\theta'_c = \begin{cases} \theta_c/\lambda^{\mathrm{short}}_c & T \le N"
        r" \\ \theta_c/\lambda^{\mathrm{long}}_c & T > N \end{cases},\quad \mu = \sqrt{1 + \frac{\ln"
        r" s}{\ln N}}",
        r"T\ \text{the length of the document};\ \mu\ \text{multiplies queries and keys}",
    )

    length_dependent = True

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    factor: float
    original_length: int
    attention_factor: float | None = None
    start_tokens: int = 0

    def __post_init__(self):
        for name in ("short_factor", "long_factor"):
            numbers = getattr(self, name)
            if not isinstance(numbers, tuple) or not all(type(x) in (int, float) and x > 0 for x in numbers):
                raise ValueError(f"longrope({name}=...) takes a tuple of positive numbers, got {numbers!r}")
        check_factor(self)
        check_length(self, least=2)
        check_attention(self)
        if self.start_tokens < 0:
            raise ValueError(f"longrope(start_tokens=...) must not be negative, got {self.start_tokens}")

    def multiplier(self, spectrum, length):
        long = (length > self.original_length)[:, None]
        short_factor, long_factor = (self._factors(spectrum, name) for name in ("short_factor", "long_factor"))
        return jnp.where(long, (1 / long_factor).astype(np.float32), (1 / short_factor).astype(np.float32))

    def attention(self, position, length):
        if self.attention_factor is None:
            factor = math.sqrt(1 + math.log(self.factor) / math.log(self.original_length))
        else:
            factor = float(self.attention_factor)
        return jnp.where(self._starts(position), 1.0, jnp.float32(factor)) if self.start_tokens else factor

    def angles(self, position, wave, spectrum, length):
        """Exact, as each token takes one of at most three waves."""
        choose = lambda which, a, b: jnp.where(which.reshape(-1, *[1] * (wave.ndim - 1)), a, b)  # noqa: E731
        short, long = (
            angles(position, wave / self._factors(spectrum, name).astype(wave.dtype))
            for name in ("short_factor", "long_factor")
        )
        scaled = choose(length > self.original_length, long, short)
        return choose(self._starts(position), angles(position, wave), scaled) if self.start_tokens else scaled

    def _starts(self, position):
        return jnp.all(jnp.asarray(position) < self.start_tokens, axis=1)

    def _factors(self, spectrum: Spectrum, name: str) -> Float[np.ndarray, " C"]:
        numbers = np.asarray(getattr(self, name), np.float64)
        if len(numbers) != spectrum.count:
            raise ValueError(
                f"longrope({name}=...) has {len(numbers)} numbers, the rotary {spectrum.count} frequencies: "
                f"give one for each"
            )
        return numbers[spectrum.index]
