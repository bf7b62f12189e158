"""The search of LongRoPE: by how much each frequency of a trained rope is divided, so that long texts are read best.

Ding et al. (2024), arXiv 2402.13753, as the authors' code has it (github microsoft/LongRoPE, dim_mono): factors
do not decrease from high frequencies to low ones, a population starts from known scalings and their mutations, and each
round keeps the best as parents of mutations and crossovers; the last factor may exceed the scaling by 1. The paper also
searches how many first tokens keep their frequencies; here none do.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int32

from posjax.encoding import Array, sites
from posjax.encodings import rope
from posjax.encodings.angles import angles
from posjax.encodings.scaling import Scaling, Spectrum
from posjax.models import Decoder
from posjax.spec import parse
from posjax.studies.long_context import read_tokens

_CHANGE = 0.3  # probability that a mutation or a crossover looks at a factor
_STARTS = ("linear(factor={})", "ntk(factor={})", "yarn(factor={}, original_length={})")


class Budget(NamedTuple):
    """How much is tried: `population` first, then in each of `rounds` as many `mutations` and `crossovers` of `parents`."""

    population: int = 12
    rounds: int = 6
    mutations: int = 6
    crossovers: int = 6
    parents: int = 6


Factors = Float[np.ndarray, " C"]


def search_factors(
    score: Callable[[Factors], float],
    starts: Sequence[Factors],
    largest: float,
    *,
    budget: Budget,
    seed: int = 0,
    step: float = 0.01,
) -> tuple[Factors, float]:
    """The factors with the lowest score that were met, and that score; a function of the arguments alone.

    Args:
      score: what is minimised; anything that is not finite is never chosen.
      starts: known factors, each ascending and at least 1.
      largest: of any factor.
      step: of the grid on which mutations lie.

    Raises:
      ValueError: starts that decrease or leave [1, largest], or a budget without parents.
    """
    for start in starts:
        if np.any(np.diff(start) < 0) or start[0] < 1 or start[-1] > largest * (1 + 1e-9):
            raise ValueError(f"factors must not decrease and lie in 1..{largest:g}, got {np.asarray(start).tolist()}")
    if not starts or budget.parents < 1:
        raise ValueError(f"a search needs starts and parents, got {len(starts)} and {budget.parents}")
    rng, scores = np.random.default_rng(seed), {}

    def meet(factors: Factors) -> None:
        key = tuple(np.round(factors, 6).tolist())
        if key not in scores:
            found = float(score(np.array(key)))
            scores[key] = found if math.isfinite(found) else math.inf

    def best(count: int) -> list[Factors]:
        return [np.array(key) for key in sorted(scores, key=scores.__getitem__)[:count]]

    for start in starts:
        meet(start)
    for index in range(budget.population - len(starts)):
        meet(_mutated(np.asarray(starts[index % len(starts)], np.float64), largest, step, rng))
    for _ in range(budget.rounds):
        parents = best(budget.parents)
        for _ in range(budget.mutations):
            meet(_mutated(parents[rng.integers(len(parents))], largest, step, rng))
        for _ in range(budget.crossovers):
            one, other = (parents[index] for index in np.sort(rng.integers(len(parents), size=2)))
            meet(_crossed(one, other, rng))
    (found,) = best(1)
    return found, scores[tuple(found.tolist())]


def _mutated(factors: Factors, largest: float, step: float, rng: np.random.Generator) -> Factors:
    """Some factors drawn anew between their neighbours."""
    made = factors.copy()
    for index in np.flatnonzero(rng.random(len(made)) < _CHANGE):
        low = made[index - 1] if index else 1.0
        high = made[index + 1] if index + 1 < len(made) else largest
        made[index] = min(low + step * rng.integers(int((high - low) / step) + 1), high)
    return made


def _crossed(one: Factors, other: Factors, rng: np.random.Generator) -> Factors:
    """The first of two with some factors of the second, where they then still ascend."""
    made = one.copy()
    for index in np.flatnonzero(rng.random(len(made)) < _CHANGE):
        tried = made.copy()
        tried[index] = other[index]
        made = tried if np.all(np.diff(tried) >= 0) else made
    return made


def known_factors(encoding: rope, count: int, factor: float, trained: int) -> list[Factors]:
    """Those of PI, NTK and YaRN for a rope of `count` frequencies, whose trained length grows by `factor`."""
    spectrum = Spectrum(encoding.base, count, np.arange(count))
    known = [parse(f"rope(scaling={each.format(repr(float(factor)), trained)})").scaling for each in _STARTS]
    return [np.maximum.accumulate(np.clip(1 / each.multiplier(spectrum, None), 1, factor)) for each in known]


def loss_of_factors(
    model: Decoder, params: Any, windows: Int32[np.ndarray, "N T"], factor: float, trained: int
) -> Callable[[Factors], float]:
    """The mean loss (nats a token) of windows read under factors, over the runs of an ensemble; one program for all factors.

    Args:
      params: leaves [R, ...].
      windows: token rows, T - 1 of them read at once.
      factor, trained: as `known_factors`; they say the attention factor, sqrt(1 + ln factor / ln trained).
    """
    encoding = parse(model.encoding) if isinstance(model.encoding, str) else model.encoding
    attention = math.sqrt(1 + math.log(factor) / math.log(trained))
    pair, site = (jnp.asarray(windows[:, :-1]), jnp.asarray(windows[:, 1:])), sites(windows.shape[1] - 1)

    @jax.jit
    def loss(params, factors, tokens, targets):
        tried = model.clone(
            encoding=rope(encoding.base, encoding.layout, encoding.fraction, _Tried(factors, attention))
        )
        return jnp.mean(read_tokens(tried, params, tokens, targets, site)[0])

    runs = [jax.tree.map(lambda leaf, run=run: leaf[run], params) for run in range(len(jax.tree.leaves(params)[0]))]
    runs = list(map(jax.device_put, runs))
    return lambda factors: float(np.mean([loss(run, jnp.asarray(factors, jnp.float32), *pair) for run in runs]))


@dataclass(frozen=True, eq=False)
class _Tried(Scaling):
    """Factors that are traced, so that all of them share a program."""

    factors: Array
    factor: float

    def angles(self, position, wave, spectrum, length):
        return angles(position, jnp.asarray(wave, jnp.float32) / self.factors[spectrum.index])

    def attention(self, position, length):
        return self.factor
