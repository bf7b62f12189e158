"""From records of seeded runs to values, from values to confidence intervals and tests, and from tests to verdicts.

Intervals and p-values are of Student's t: of the values of one row, of the differences seed by seed where two rows read
the same weights (paired), and Welch's where they were trained apart. Holm's correction is over a family of tests: all
those that a table, or a list of claims, makes about one study. Seeds are all that varies: the sampling of the test set is
left out. Sources: Student (1908), https://doi.org/10.1093/biomet/6.1.1; Welch (1947),
https://doi.org/10.1093/biomet/34.1-2.28; Holm (1979), Scandinavian Journal of Statistics 6(2), 65-70.

A record is one line of results.jsonl, one (study, encoding, seed) run. Studies and rows keep the order in which the
records name them first, so a table reads like its config.
"""

import math
import re
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtr, stdtrit  # Student's t: what scipy.stats.t calls, ~50x cheaper for curves

Record = Mapping[str, Any]
Rows = dict[str, list[Record]]  # label -> its runs, one per seed

LEVEL = 0.05  # the chance of one false separation, or more, among the tests of a family
CHOOSING = "choosing "  # before the name of a metric: measured on what a sweep's points are chosen by
REQUIRED = ("study", "encoding", "label", "seed", "metrics")


class Metric(NamedTuple):
    """A result column: a metric, at one evaluated length (tokens) if it was measured by length."""

    name: str
    length: int | None = None


ACCURACY = Metric("accuracy")


class Interval(NamedTuple):
    """``mean`` ± ``half_width``, in the unit of the values.

    Attributes:
      mean: centre of the interval; nan when there was no value at all.
      half_width: nan when it cannot be known (a single value).
      n: values behind it; for a difference, those of both samples.
    """

    mean: float
    half_width: float
    n: int

    @property
    def low(self) -> float:
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        return self.mean + self.half_width

    def scaled(self, factor: float) -> "Interval":
        """The same interval in another unit, e.g. ``scaled(100)`` for per cent."""
        return Interval(self.mean * factor, self.half_width * abs(factor), self.n)

    def text(self, digits: int = 3, signed: bool = False) -> str:
        """``97.10 ± 0.31``; ``97.10 ± -`` where the half-width is unknown.

        A half-width that would round to zero reads ``<0.01``: zero is only shown for values that do not vary.
        """
        mean = f"{self.mean:{'+' if signed else ''}.{digits}f}"
        if math.isnan(self.half_width):
            return f"{mean} ± -"
        if 0 < self.half_width < 0.5 * 10**-digits:
            return f"{mean} ± <{10**-digits:.{digits}f}"
        return f"{mean} ± {self.half_width:.{digits}f}"

    def __str__(self) -> str:
        return self.text()


class Estimate(NamedTuple):
    """What is known of a mean, a difference of means or another contrast.

    Attributes:
      value: in the unit of the values.
      error: standard error of the value; nan when it cannot be known (a sample of one value).
      freedom: degrees of freedom of the error; 0 where that is nan, or does not vary.
      n: values behind it; for a contrast, those of all its samples.
      least: the smallest p-value that values which do not vary can have: their number may be small, and they agree by chance.
    """

    value: float
    error: float
    freedom: float
    n: int
    least: float = 0.0

    def scaled(self, factor: float) -> "Estimate":
        """The same estimate in another unit, or with the other sign."""
        return self._replace(value=self.value * factor, error=self.error * abs(factor))

    def interval(self, confidence: float = 0.95) -> Interval:
        """``value ± t(freedom) error``, not corrected for other tests.

        Raises:
          ValueError: a confidence outside (0, 1).
        """
        if not 0 < confidence < 1:
            raise ValueError(f"confidence must lie in (0, 1), e.g. 0.95; got {confidence}")
        if math.isnan(self.error) or self.error == 0:
            return Interval(self.value, self.error, self.n)
        return Interval(self.value, float(stdtrit(self.freedom, (1 + confidence) / 2)) * self.error, self.n)

    def p(self, against: float = 0.0) -> float:
        """Two-sided p-value of "the truth is `against`"; nan where the error cannot be known.

        Values that do not vary have no error: `least` where they differ from `against`, else 1.
        """
        if math.isnan(self.error):
            return math.nan
        if self.error == 0:
            return 1.0 if self.value == against else self.least
        return float(2 * stdtr(self.freedom, -abs(self.value - against) / self.error))

    def p_within(self, bound: float) -> float:
        """p-value of "the truth is at least `bound` away from 0": small where it is surely nearer (two one-sided tests)."""
        if math.isnan(self.error):
            return math.nan
        if self.error == 0:
            return 1.0 if abs(self.value) >= bound else self.least
        return float(stdtr(self.freedom, (abs(self.value) - bound) / self.error))


def estimate(samples: Iterable[tuple[float, Iterable[float]]]) -> Estimate:
    """The sum of weight * mean over independent samples whose variances may differ.

    The degrees of freedom are those of Welch and Satterthwaite; with one sample it is Student's t, with the weights 1 and
    -1 of two samples Welch's.

    Args:
      samples: (weight, [n] one finite value per seed) of each.

    Raises:
      ValueError: no samples, a sample without values, or a value that is not finite.
    """
    found = [(weight, _checked(values)) for weight, values in samples]
    if not found:
        raise ValueError("an estimate needs at least one sample; got none")
    value = math.fsum(weight * statistics.mean(values) for weight, values in found)
    n = sum(len(values) for _, values in found)
    if any(len(values) < 2 for _, values in found):
        return Estimate(value, math.nan, 0.0, n)
    # In exact rational arithmetic: equal values give exactly 0.
    parts = [weight**2 * statistics.variance(values) / len(values) for weight, values in found]
    error2 = math.fsum(parts)
    if error2 == 0:
        return Estimate(value, 0.0, 0.0, n, _least([len(values) for _, values in found]))
    # Shares of the variance, not variances: their squares cannot underflow.
    shares = [(part / error2) ** 2 / (len(values) - 1) for part, (_, values) in zip(parts, found, strict=True)]
    return Estimate(value, math.sqrt(error2), 1 / math.fsum(shares), n)


def _least(sizes: Sequence[int]) -> float:
    """The smallest two-sided p-value of a permutation test of the two smallest samples, or of one against its like."""
    a, b, *_ = *sorted(sizes), max(sizes)
    return 2 / math.comb(a + b, a)


def mean_interval(values: Iterable[float], confidence: float = 0.95) -> Interval:
    """Student's t interval of the mean: ``mean ± t(n - 1) sqrt(var / n)``.

    Args:
      values: [n] one finite value per seed. One value has no half-width (nan).
      confidence: coverage in (0, 1).

    Raises:
      ValueError: no values, a value that is not finite, or a confidence outside (0, 1).
    """
    return estimate([(1.0, values)]).interval(confidence)


def difference_interval(a: Iterable[float], b: Iterable[float], confidence: float = 0.95) -> Interval:
    """Welch's interval of ``mean(a) - mean(b)`` of two independent samples; raises as `mean_interval`."""
    return estimate([(1.0, a), (-1.0, b)]).interval(confidence)


class Term(NamedTuple):
    """A weight times the mean of a metric over the runs of a row."""

    weight: float
    runs: Sequence[Record]
    metric: Metric


def contrast(terms: Sequence[Term]) -> Estimate:
    """The sum of the terms, paired by seed where they are of the same weights, else of independent samples.

    Pairs are of the seeds that all terms of the same weights have.

    Raises:
      ValueError: a value that is missing or not finite, or rows of the same weights that have no seed in common.
    """
    samples: list[list[Term]] = []
    for term in terms:
        same = next((found for found in samples if share_weights(found[0].runs, term.runs)), None)
        if same is None:
            samples.append([term])
        else:
            same.append(term)
    return estimate([(1.0, _by_seed(sample)) for sample in samples])


def difference(a: Sequence[Record], b: Sequence[Record], metric: Metric, other: Metric | None = None) -> Estimate:
    """Row a less row b, at a metric, or that of a less another metric of b; see `contrast`."""
    return contrast([Term(1.0, a, metric), Term(-1.0, b, other or metric)])


def difference_of_gains(
    a: tuple[Sequence[Record], Sequence[Record]],
    b: tuple[Sequence[Record], Sequence[Record]],
    metric: Metric,
    start: Metric | None = None,
) -> Estimate:
    """What a gains less what b gains, each from its first runs, at `start`, to its second ones, at `metric`; see `contrast`.

    The runs of a pair are the same for a gain along lengths or resolutions: then every seed has its own gain.
    """
    start = start or metric
    of_a = [Term(1.0, a[1], metric), Term(-1.0, a[0], start)]
    return contrast([*of_a, Term(-1.0, b[1], metric), Term(1.0, b[0], start)])


def share_weights(a: Sequence[Record], b: Sequence[Record]) -> bool:
    """Whether two rows read the same trained weights, or fine-tunes of the same, so that their seeds are pairs."""

    def named(run: Record) -> Hashable:
        return run.get("training_hash") or (run["study"], run["label"], run.get("config_hash"))

    def base(run: Record) -> Hashable:
        return (run["study"], run["base"]) if run.get("base") else None

    same_base = base(a[0]) is not None and base(a[0]) == base(b[0])
    return same_base or {named(run) for run in a} == {named(run) for run in b}


def _by_seed(terms: Sequence[Term]) -> list[float]:
    """The sum of the terms for each seed that all of them have."""
    found = [{run["seed"]: _flat(run).get(term.metric) for run in term.runs} for term in terms]
    seeds = [seed for seed in found[0] if all(seed in values for values in found)]
    labels = " and ".join(dict.fromkeys(repr(term.runs[0]["label"]) for term in terms))
    if not seeds:
        raise ValueError(f"the runs of {labels} have no seed in common: there is nothing to compare")
    for term, values in zip(terms, found, strict=True):
        if failed := [seed for seed in seeds if values[seed] is None or not math.isfinite(values[seed])]:
            raise ValueError(f"{term.metric} of {term.runs[0]['label']!r} is missing or not finite at seeds {failed}")
    return [math.fsum(t.weight * values[seed] for t, values in zip(terms, found, strict=True)) for seed in seeds]


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values: rejecting those of at most `LEVEL` keeps the chance of any false rejection below it.

    The i-th smallest of m, i from 1, becomes ``max over j <= i of min(1, (m - j + 1) p_j)``. A p-value of nan is no test:
    it stays nan and is not counted.
    """
    adjusted, largest = [math.nan] * len(p_values), 0.0
    order = sorted((index for index, p in enumerate(p_values) if not math.isnan(p)), key=lambda index: p_values[index])
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


class Verdict(NamedTuple):
    """An estimate judged among the others of its family.

    Attributes:
      p: Holm's adjusted p-value of "the truth is 0"; nan where no test is possible.
      tests: how many the family has.
    """

    estimate: Estimate
    p: float
    tests: int

    @property
    def separated(self) -> bool:
        """Whether it differs from 0 after Holm's correction; what cannot be tested is separated from nothing."""
        return self.p <= LEVEL

    def __str__(self) -> str:
        return "separated" if self.separated else "not separable"


def judge(family: Mapping[Any, Estimate]) -> dict[Any, Verdict]:
    """A verdict on each estimate of a family: all those that are tested about one study, by any name."""
    p_values = [each.p() for each in family.values()]
    tests = sum(not math.isnan(p) for p in p_values)
    return {name: Verdict(each, p, tests) for (name, each), p in zip(family.items(), holm(p_values), strict=True)}


def group(records: Sequence[Record]) -> dict[str, Rows]:
    """study -> label -> runs, in order of first appearance.

    Raises:
      ValueError: no records, a record without one of `REQUIRED`, a label that names two encodings, a seed given twice.
    """
    if not records:
        raise ValueError("there are no records: run at least one row before asking for its table")
    studies: dict[str, Rows] = {}
    for index, record in enumerate(records):
        missing = [key for key in REQUIRED if key not in record]
        if missing:
            raise ValueError(f"record {index} lacks {missing}; a record needs {list(REQUIRED)}")
        where = f"study {record['study']!r}, label {record['label']!r}"
        runs = studies.setdefault(record["study"], {}).setdefault(record["label"], [])
        if runs and runs[0]["encoding"] != record["encoding"]:
            raise ValueError(f"{where} names two encodings, {runs[0]['encoding']!r} and {record['encoding']!r}")
        if any(run["seed"] == record["seed"] for run in runs):
            raise ValueError(f"{where} has seed {record['seed']} twice: keep one record per seed")
        runs.append(record)
    return studies


def is_none(runs: Sequence[Record]) -> bool:
    """Whether a row is the reference without positions."""
    return runs[0]["label"] == "none" or runs[0]["encoding"] in ("none", "none()")


def metrics_of(rows: Rows) -> list[Metric]:
    """Every metric that any run reports, in order of first appearance, lengths ascending."""
    found = [metric for run in all_runs(rows) for metric in _flat(run)]
    names = list(dict.fromkeys(metric.name for metric in found))
    return sorted(set(found), key=lambda metric: (names.index(metric.name), metric.length or 0))


POSITION_ERROR = "position error"  # in what the text is made of
_BY_BLOCK = re.compile(r"(?P<what>.+) after (?P<block>\d+) blocks(?:, (?P<of>.+))?")


def by_block(metrics: Iterable[Metric]) -> dict[tuple[str, str], dict[int, Metric]]:
    """(what, of) -> block -> the metric called "<what> after <block> blocks[, <of>]"; `of` is "" where the text is meant."""
    found: dict[tuple[str, str], dict[int, Metric]] = {}
    for metric in metrics:
        if match := _BY_BLOCK.fullmatch(metric.name):
            found.setdefault((match["what"], match["of"] or ""), {})[int(match["block"])] = metric
    return {named: dict(sorted(blocks.items())) for named, blocks in sorted(found.items())}


def with_unit(what: str, runs: Iterable[Record]) -> str:
    """The title of something measured after each block: errors of positions are in bytes or tokens."""
    return f"{what} ({unit_of_text(runs)}s)" if what == POSITION_ERROR else what


def metric_values(runs: Sequence[Record], metric: Metric) -> tuple[list[float], int]:
    """Finite values of a metric over the runs of a row, and how many runs should have given one.

    That number is 0 if no run of the row reports the metric: it was not measured, which is no failure.
    """
    flat = [_flat(run) for run in runs]
    n = len(runs) if any(metric in run for run in flat) else 0
    return _finite(run.get(metric) for run in flat), n


def whole(rows: Rows, metric: Metric) -> dict[str, list[float]]:
    """The values of the rows whose every seed is finite: means of survivors are no fair sample."""
    found = {label: metric_values(runs, metric) for label, runs in rows.items()}
    return {label: values for label, (values, n) in found.items() if n and len(values) == n}


def train_length(rows: Rows) -> int | None:
    """Tokens per training sequence: as recorded, else the smallest evaluated length; None if nothing is by length."""
    recorded = {run["train_length"] for run in all_runs(rows) if run.get("train_length")}
    if len(recorded) > 1:
        raise ValueError(f"runs of one study have train_length {sorted(recorded)}: name one study per train_length")
    evaluated = [metric.length for metric in metrics_of(rows) if metric.length is not None]
    return recorded.pop() if recorded else min(evaluated, default=None)


def headline(rows: Rows) -> list[Metric]:
    """What encodings are compared by: accuracy; else the first of `BY_LENGTH`, at the training length and at the longest one.

    Exact matches that are 0 everywhere tell nothing: then it is the accuracy.
    """
    metrics = metrics_of(rows)
    if ACCURACY in metrics:
        return [ACCURACY]
    for name in BY_LENGTH:
        found = [metric for metric in metrics if metric.name == name]
        if any(any(metric_values(runs, metric)[0]) for metric in found for runs in rows.values()):
            return [metric for metric in found if metric.length in (None, train_length(rows), found[-1].length)]
    return []


BY_LENGTH = ("exact match", "accuracy", "loss")


def unit_of_text(runs: Iterable[Record]) -> str:
    """What a text is made of: "token" where a tokenizer made them, else "byte"; problems are made of symbols."""
    runs = list(runs)
    if any(run.get("task") == "algorithmic" for run in runs):
        return "symbol"
    return "token" if any(run.get("tokenizer") for run in runs) else "byte"


def all_runs(rows: Rows) -> list[Record]:
    return [run for runs in rows.values() for run in runs]


class Line(NamedTuple):
    """One encoding's curve, [n] points each; nan where not every seed is finite, so that no mean is of survivors.

    Attributes:
      note: "" or e.g. "3/5 finite".
      geometric: the mean is that of the logarithms, of which `half_width` is, too.
    """

    x: np.ndarray
    mean: np.ndarray
    half_width: np.ndarray
    note: str
    geometric: bool = False

    @property
    def low(self) -> np.ndarray:
        return self.mean * np.exp(-self.half_width) if self.geometric else self.mean - self.half_width

    @property
    def high(self) -> np.ndarray:
        return self.mean * np.exp(self.half_width) if self.geometric else self.mean + self.half_width


def finite_note(values: Sequence[float], n: int) -> str:
    """``3/5 finite`` if only 3 of the n runs gave a finite value; empty if all did."""
    return f"{len(values)}/{n} finite" if len(values) < n else ""


def line_by_length(runs: Sequence[Record], metrics: Sequence[Metric], geometric: bool = False) -> Line:
    """One row's metric over its evaluated lengths (tokens)."""
    return _line([metric.length for metric in metrics], [metric_values(runs, m) for m in metrics], geometric)


def line_of_curves(runs: Sequence[Record], geometric: bool = False) -> Line:
    """One row's training loss over the steps that all its seeds recorded; empty if a seed has no curve."""
    curves = [dict(run["curve"]) for run in runs if run.get("curve")]
    if len(curves) < len(runs):
        return _line([], [], geometric)._replace(note=f"{len(curves)}/{len(runs)} curves")
    steps = sorted(set.intersection(*(set(curve) for curve in curves)))
    return _line(steps, [(_finite(curve[step] for curve in curves), len(runs)) for step in steps], geometric)


def _line(x: Sequence[float], found: Sequence[tuple[list[float], int]], geometric: bool) -> Line:
    """``found``: finite values and number of runs at each x, as `metric_values` gives them."""
    nothing = Interval(math.nan, math.nan, 0)
    fewest, n = min(((values, n) for values, n in found), key=lambda pair: len(pair[0]) - pair[1], default=([], 0))
    if geometric:
        found = [([math.log(value) for value in values if value > 0], n) for values, n in found]
    intervals = [mean_interval(values) if values and len(values) == n else nothing for values, n in found]
    mean = np.array([interval.mean for interval in intervals], float)
    half_width = np.array([interval.half_width for interval in intervals], float)
    note = finite_note(fewest, n)
    return Line(np.array(x, float), np.exp(mean) if geometric else mean, half_width, note, geometric)


def _finite(values: Iterable[float | None]) -> list[float]:
    return [float(value) for value in values if value is not None and math.isfinite(value)]


def _flat(run: Record) -> dict[Metric, float | None]:
    flat = {}
    for name, value in run["metrics"].items():
        if isinstance(value, Mapping):
            flat |= {Metric(name, int(length)): at_length for length, at_length in value.items()}
        else:
            flat[Metric(name)] = value
    return flat


def _checked(values: Iterable[float]) -> list[float]:
    values = [float(value) for value in values]
    if not values:
        raise ValueError("an interval needs at least one value; got none")
    if not all(map(math.isfinite, values)):
        raise ValueError(f"values must be finite, got {values}: count the runs that failed and pass the others")
    return values
