"""The searches of LongRoPE and LongRoPE2: by how much each frequency of a trained rope is divided, so that long texts are
read best. One evolution, two ways to vary its candidates.

LongRoPE: Ding et al. (2024), arXiv 2402.13753, as the authors' code has it (github microsoft/LongRoPE, dim_mono): factors do
not fall from high frequencies to low ones; known scalings and their mutations are the first population, and the best of each
round are parents of mutations and crossovers; the last factor may exceed the scaling by 1. They hold for first tokens too.

LongRoPE2: Shang et al. (2025), arXiv 2502.20082, section 3.2, algorithms 1 and 2 (no code of it is published): a candidate
has a critical frequency, from which on factors lie between the growth of the length and twice that; below it they are those
of NTK, s^(i/d) with s the factor of the critical frequency d. Candidates are compared by the loss of answers far from
their facts ("needle-driven perplexity"); `weight` marks the answers.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from ml_collections import ConfigDict

from experiments.studies.long_context import read_tokens
from experiments.studies.plan import Row
from experiments.studies.readings import plain_rope, text_place
from posjax import data
from posjax.data.windows import Batch
from posjax.encoding import Array, sites
from posjax.encodings import rope
from posjax.encodings.angles import angles
from posjax.encodings.scaling import Scaling, Spectrum
from posjax.models import Decoder
from posjax.spec import nearest, parse, parse_layers
from posjax.training.runs import Run

_CHANGE = 0.3  # probability that a mutation or a crossover looks at a factor, in both papers
_STEP = 0.01  # of the grid on which LongRoPE's code draws factors; LongRoPE2 tells none
_STARTS = ("linear(factor={})", "ntk(factor={})", "yarn(factor={}, original_length={})")
METHODS = ("longrope", "longrope2")
_TEXT = "text"  # what a search reads, if no retrieval task


class Budget(NamedTuple):
    """The number of candidates: `population`, then in each of `rounds` some `mutations` and `crossovers` of `parents`."""

    population: int = 12
    rounds: int = 6
    mutations: int = 6
    crossovers: int = 6
    parents: int = 6


Factors = Float[np.ndarray, " C"]


def search_factors(
    score: Callable[[Factors], float], starts: Sequence[Factors], largest: float, budget: Budget, seed: int = 0
) -> tuple[Factors, float]:
    """Returns LongRoPE's factors with the lowest score of all candidates, and that score; equal arguments give equal factors.

    Args:
      score: to be minimised; a candidate with a score that is not finite is never chosen.
      starts: known factors, each ascending and at least 1.
      largest: of any factor.
    """
    rng = np.random.default_rng(seed)
    return _evolved(score, starts, functools.partial(_mutated, rng=rng, least=1.0, largest=largest), budget, rng)


def search_critical(
    score: Callable[[Factors], float], critical: range, count: int, growth: float, budget: Budget, seed: int = 0
) -> tuple[Factors, float]:
    """Returns LongRoPE2's factors, as `search_factors`, for `count` factors and a length that grows `growth` times.

    Args:
      critical: the candidates for the critical frequency, see `critical_frequencies`.
      budget: its crossovers do not count: there are mutations alone.
    """
    rng = np.random.default_rng(seed)
    first = [rng.integers(math.ceil(growth), math.floor(2 * growth) + 1) for _ in critical]
    # A candidate is its critical frequency, then the factors from there on.
    starts = [np.array([d, *[s] * (count - d)], np.float64) for d, s in zip(critical, first, strict=True)]

    def mutated(candidate: np.ndarray) -> np.ndarray:
        return np.append(candidate[0], _mutated(candidate[1:], rng, least=growth, largest=2 * growth))

    def factors(candidate: np.ndarray) -> Factors:
        critical, scaled = int(candidate[0]), candidate[1:]
        return np.concatenate([scaled[0] ** (np.arange(critical) / critical), scaled])

    mutations = budget._replace(crossovers=0)
    best, lowest = _evolved(lambda candidate: score(factors(candidate)), starts, mutated, mutations, rng)
    return factors(best), lowest


def critical_frequencies(encoding: rope, count: int, trained: int) -> range:
    """From the frequency that turns ten times in the trained length to that which turns once (eq. 7; there, of channels).

    The indices are rounded up, and clipped to the frequencies of a rope of `count` frequencies.
    """
    ten, one = (math.ceil(count * math.log(trained / (2 * math.pi * turns), encoding.base)) for turns in (10, 1))
    return range(min(max(ten, 0), count - 1), min(max(one, 0), count - 1) + 1)


def _evolved(
    score: Callable[[np.ndarray], float],
    starts: Sequence[np.ndarray],
    mutated: Callable[[np.ndarray], np.ndarray],
    budget: Budget,
    rng: np.random.Generator,
) -> tuple[np.ndarray, float]:
    """Returns the best candidate of all rounds, and its score."""
    scores: dict[tuple[float, ...], float] = {}

    def meet(candidate: np.ndarray) -> None:
        key = tuple(np.round(candidate, 6).tolist())
        if key not in scores:
            value = float(score(np.array(key)))
            scores[key] = value if math.isfinite(value) else math.inf

    def best(count: int) -> list[np.ndarray]:
        return [np.array(key) for key in sorted(scores, key=scores.__getitem__)[:count]]

    for start in starts:
        meet(start)
    for index in range(budget.population - len(starts)):
        meet(mutated(np.asarray(starts[index % len(starts)], np.float64)))
    for _ in range(budget.rounds):
        parents = best(budget.parents)
        for _ in range(budget.mutations):
            meet(mutated(parents[rng.integers(len(parents))]))
        for _ in range(budget.crossovers):
            meet(_crossed(*(parents[index] for index in np.sort(rng.integers(len(parents), size=2))), rng))
    (lowest,) = best(1)
    return lowest, scores[tuple(lowest.tolist())]


def _mutated(factors: Factors, rng: np.random.Generator, *, least: float, largest: float) -> Factors:
    """Some factors drawn anew between their neighbours."""
    made = factors.copy()
    for index in np.flatnonzero(rng.random(len(made)) < _CHANGE):
        low = made[index - 1] if index else least
        high = made[index + 1] if index + 1 < len(made) else largest
        made[index] = min(low + _STEP * rng.integers(int((high - low) / _STEP) + 1), high)
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
    """Returns the factors of PI, NTK and YaRN for a rope of `count` frequencies, whose trained length grows by `factor`."""
    spectrum = Spectrum(encoding.base, count, np.arange(count))
    known = [parse(f"rope(scaling={each.format(repr(float(factor)), trained)})").scaling for each in _STARTS]
    return [np.maximum.accumulate(np.clip(1 / each.multiplier(spectrum, None), 1, factor)) for each in known]


def loss_of_factors(
    model: Decoder, params: Any, batch: Batch, factor: float, trained: int
) -> Callable[[Factors], float]:
    """The mean loss (nats a token) of a batch read under factors, over the runs of an ensemble; one program for all factors.

    Args:
      params: leaves [R, ...].
      batch: tokens, targets and weight [N, T], all read at once; targets of weight 0 do not count.
      factor, trained: as `known_factors`; they say the attention factor, sqrt(1 + ln factor / ln trained).
    """
    encoding = parse(model.encoding) if isinstance(model.encoding, str) else model.encoding
    attention = math.sqrt(1 + math.log(factor) / math.log(trained))
    given = [jnp.asarray(batch[name]) for name in ("tokens", "targets", "weight")]
    site = sites(batch["tokens"].shape[1])

    @jax.jit
    def loss(params, factors, tokens, targets, weight):
        tried = rope(encoding.base, encoding.layout, encoding.fraction, _Tried(factors, attention))
        losses = read_tokens(model.clone(encoding=tried), params, tokens, targets, site)[0]
        return jnp.sum(losses * weight) / jnp.sum(weight)

    runs = [jax.tree.map(lambda leaf, run=run: leaf[run], params) for run in range(len(jax.tree.leaves(params)[0]))]
    runs = list(map(jax.device_put, runs))
    return lambda factors: float(np.mean([loss(run, jnp.asarray(factors, jnp.float32), *given) for run in runs]))


def check_search(row: Row, table: ConfigDict, documents: data.Documents) -> None:
    """Refuses a search without options, of an unknown method or task, of no plain rope, or in a text that is too short."""
    if "search" not in table:
        raise ValueError(f"row {row.label!r} asks for factors to be searched for: give search")
    method, task = table.search.get("method", METHODS[0]), table.search.get("task", _TEXT)
    for name, given, known in (("method", method, METHODS), ("task", task, (_TEXT, *data.retrieval.TASKS))):
        if given not in known:
            raise ValueError(f"no search.{name} is named {given!r}; {nearest(given, list(known))}")
    length = table.search.length
    plain_rope(parse_layers(row.training.model.encoding), text_place(row.training, length, length))
    _search_batch(row, table.search, documents, windows=1)


def find_factors(run: Run, search: ConfigDict, row: Row, documents: data.Documents) -> list[float]:
    """Returns the factors that read a batch best, of all seeds together, by the method and budget of `search`."""
    at = text_place(run.config, search.length, search.length)
    encoding, trained, factor = plain_rope(parse_layers(run.model.encoding), at), at.trained, at.scale
    batch = _search_batch(row, search, documents, search.windows)
    score = loss_of_factors(run.model, run.params, batch, factor, trained)
    budget = Budget(**{name: search[name] for name in Budget._fields})
    if search.get("method", METHODS[0]) == "longrope2":
        critical = critical_frequencies(encoding, at.frequencies, trained)
        factors, _ = search_critical(score, critical, at.frequencies, factor, budget, search.seed)
    else:
        known = known_factors(encoding, at.frequencies, factor, trained)
        factors, _ = search_factors(score, known, 1 + factor, budget, search.seed)
    return factors.tolist()


def _search_batch(row: Row, search: ConfigDict, documents: data.Documents, windows: int) -> Batch:
    """Returns the batch of a search: windows of a split, evenly spread, or a retrieval task with its needle first."""
    given, tokenizer = row.training.data, documents.tokenizer
    source = dict(data_dir=given.data_dir, files=given.files, field=given.get("text_field", "text"))
    text = data.load_stream(given.name, search.split, **source, tokenizer=tokenizer).tokens
    task = search.get("task", _TEXT)
    if task != _TEXT:
        asked = dict(length=search.length, count=windows, seed=search.seed, depth=0.0, haystack=text)
        return data.retrieval_batch(task, **asked, tokenizer=tokenizer)
    if len(text) < search.length + 1:
        raise ValueError(
            f"search.length={search.length} needs as many tokens and one more, and {search.split!r} of {given.name!r} "
            f"has {len(text)}: choose another search.split or a shorter length"
        )
    starts = np.linspace(0, len(text) - search.length - 1, windows).astype(int)
    read = np.stack([text[start : start + search.length + 1] for start in starts]).astype(np.int32)
    batch = {"tokens": read[:, :-1], "targets": read[:, 1:], "weight": np.ones(read[:, 1:].shape, np.float32)}
    return data.windows.with_bos(batch, tokenizer.bos)


@dataclass(frozen=True, eq=False)
class _Tried(Scaling):
    """Factors that are traced, so that all of them share a program."""

    factors: Array
    factor: float

    def angles(self, position, wave, spectrum, length):
        return angles(position, jnp.asarray(wave, jnp.float32) / self.factors[spectrum.index])

    def attention(self, position, length):
        return self.factor
