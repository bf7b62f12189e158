"""Confidence intervals, tests and verdicts from the values of seeded runs.

Intervals and p-values are of Student's t: of the values of one row, of the differences seed by seed where two rows read
the same weights (paired), and Welch's where they were trained apart. Holm's correction is over a family of tests: all tests
of a table, or all claims about one study. Seeds are all that varies: the sampling of the test set is left out. A published
model has no seeds: there, texts or images take their place, paired where they are the same ones. Sources:
Student (1908), https://doi.org/10.1093/biomet/6.1.1; Welch (1947), https://doi.org/10.1093/biomet/34.1-2.28; Holm (1979),
Scandinavian Journal of Statistics 6(2), 65-70.
"""

import math
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtr, stdtrit  # Student's t: scipy.stats.t calls these, ~50x slower for curves

from experiments.records import At, StudyRecords

LEVEL = 0.05  # the chance of at least one false separation among the tests of a family
_ROUNDING = 2.0**-21  # a few roundings of float32, as a share of the largest number in a sum


class Interval(NamedTuple):
    """``mean`` ± ``half_width``, in the unit of the values.

    Attributes:
      mean: centre of the interval; nan when there was no value at all.
      half_width: nan when it cannot be known (a single value).
    """

    mean: float
    half_width: float

    def scaled(self, factor: float) -> "Interval":
        """Returns the interval in another unit, e.g. ``scaled(100)`` for per cent."""
        return Interval(self.mean * factor, self.half_width * abs(factor))

    def text(self, digits: int = 3, signed: bool = False) -> str:
        """Returns ``97.10 ± 0.31``; ``97.10 ± -`` if the half-width is unknown.

        A half-width that would round to zero is shown as ``<0.01``; zero is only shown for values that do not vary.
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
    """An estimate of a mean, a difference of means or another contrast.

    Attributes:
      value: in the unit of the values.
      error: standard error of the value; nan when it cannot be known (a sample of one value).
      freedom: degrees of freedom of the error; 0 where that is nan, or does not vary.
      least: the smallest p-value that values which do not vary can have: their number may be small, and they agree by chance.
    """

    value: float
    error: float
    freedom: float
    least: float = 0.0

    def scaled(self, factor: float) -> "Estimate":
        """Returns the estimate in another unit, or with the other sign."""
        return self._replace(value=self.value * factor, error=self.error * abs(factor))

    def interval(self) -> Interval:
        """Returns the 95 % interval ``value ± t(freedom) error``, not corrected for other tests."""
        if math.isnan(self.error) or self.error == 0:
            return Interval(self.value, self.error)
        return Interval(self.value, float(stdtrit(self.freedom, 1 - LEVEL / 2)) * self.error)

    def p(self, against: float = 0.0) -> float:
        """Returns the two-sided p-value of "the truth is `against`"; nan if the error is unknown.

        Values that do not vary have no error: their p-value is `least` if they differ from `against`, else 1.
        """
        if math.isnan(self.error):
            return math.nan
        if self.error == 0:
            return 1.0 if self.value == against else self.least
        return float(2 * stdtr(self.freedom, -abs(self.value - against) / self.error))

    def p_within(self, bound: float) -> float:
        """Returns the p-value of "the truth is at least `bound` away from 0": small for a sure tie (two one-sided tests)."""
        if math.isnan(self.error):
            return math.nan
        if self.error == 0:
            return 1.0 if abs(self.value) >= bound else self.least
        return float(stdtr(self.freedom, (abs(self.value) - bound) / self.error))


def estimate(samples: Iterable[tuple[float, Iterable[float]]]) -> Estimate:
    """Estimates the sum of weight * mean over independent samples whose variances may differ.

    The degrees of freedom follow Welch and Satterthwaite; with one sample it is Student's t, with the weights 1 and
    -1 of two samples Welch's.

    Args:
      samples: (weight, [n] one finite value per seed) of each sample.
    """
    found = [(weight, [float(value) for value in values]) for weight, values in samples]
    value = math.fsum(weight * statistics.mean(values) for weight, values in found)
    if any(len(values) < 2 for _, values in found):
        return Estimate(value, math.nan, 0.0)
    # In exact rational arithmetic: equal values give exactly 0.
    parts = [weight**2 * statistics.variance(values) / len(values) for weight, values in found]
    error2 = math.fsum(parts)
    if error2 == 0:
        return Estimate(value, 0.0, 0.0, _least([len(values) for _, values in found]))
    # Shares of the variance, not variances: their squares cannot underflow.
    shares = [(part / error2) ** 2 / (len(values) - 1) for part, (_, values) in zip(parts, found, strict=True)]
    return Estimate(value, math.sqrt(error2), 1 / math.fsum(shares))


def _least(sizes: Sequence[int]) -> float:
    """Returns the smallest two-sided p-value of a permutation test of the two smallest samples, or of one and its like."""
    a, b, *_ = *sorted(sizes), max(sizes)
    return 2 / math.comb(a + b, a)


def mean_interval(values: Iterable[float]) -> Interval:
    """Returns Student's 95 % interval of the mean: ``mean ± t(n - 1) sqrt(var / n)``.

    Args:
      values: [n] one finite value per seed. One value has no half-width (nan).
    """
    return estimate([(1.0, values)]).interval()


class WeightedCell(NamedTuple):
    """A weight times the mean of a cell: the values of a row's metric, by seed.

    Attributes:
      values: {seed: value}; None if the value is not finite.
      runs: names of the trained weights, or of the texts that one model is measured on; terms of the same are paired.
    """

    weight: float
    values: Mapping[int, float | None]
    runs: Hashable


def term(study: StudyRecords, row: str, metric: str, at: At = None, weight: float = 1.0) -> WeightedCell:
    """Returns the term of a cell of the study; it has no values if the cell was not measured.

    Numbers of one model on each text or image are paired with others on the same texts or images, whatever the weights.
    """
    records = study.rows.get(row, ())
    runs = frozenset(record.data_digest if record.each else record.run for record in records)
    return WeightedCell(weight, study.values(row, metric, at), runs)


def contrast(terms: Sequence[WeightedCell]) -> Estimate:
    """Estimates the sum of the terms, paired by seed if they read the same weights, else as independent samples.

    Pairs use the seeds that all terms of the same weights share. All values are finite.

    Raises:
      ValueError: rows of the same weights share no seed.
    """
    samples: dict[Hashable, list[WeightedCell]] = {}
    for one in terms:
        samples.setdefault(one.runs, []).append(one)
    return estimate([(1.0, _by_seed(sample)) for sample in samples.values()])


def slope_weights(sizes: Sequence[float]) -> list[float]:
    """Returns the weights of values at these sizes whose sum is the slope of their least-squares line, per tenfold size."""
    x = np.log10(np.asarray(sizes, float))
    away = x - x.mean()
    return [float(weight) for weight in away / (away**2).sum()]


def difference_of(a: WeightedCell, b: WeightedCell) -> Estimate:
    """Estimates the mean of one cell minus the mean of another; see `contrast`."""
    return contrast([a, b._replace(weight=-b.weight)])


def _by_seed(terms: Sequence[WeightedCell]) -> list[float]:
    """Returns the sum of the terms for each seed that all of them have; sums that differ by roundings alone become equal."""
    seeds = [seed for seed in terms[0].values if all(seed in cell.values for cell in terms)]
    if not seeds:
        known = " and ".join(str([*cell.values]) for cell in terms)
        raise ValueError(f"rows of the same weights have no seed in common, {known}: there is nothing to compare")
    parts = np.array([[cell.weight * cell.values[seed] for cell in terms] for seed in seeds], float)
    sums, rounding = [math.fsum(row) for row in parts], _ROUNDING * np.abs(parts).max()
    if np.ptp(sums) > rounding:
        return sums
    return [0.0 if abs(sums[0]) <= rounding else sums[0]] * len(sums)


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def finite_values(values: Mapping[int, float | None]) -> list[float]:
    """Returns the finite values of a cell."""
    return [float(value) for value in values.values() if _is_finite(value)]


def is_whole(values: Mapping[int, float | None]) -> bool:
    """Whether a cell was measured and all its seeds are finite: a mean of survivors would be biased."""
    return bool(values) and all(map(_is_finite, values.values()))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values: rejecting tests with p of at most `LEVEL` keeps the chance of any false rejection below it.

    The i-th smallest of m, i from 1, becomes ``max over j <= i of min(1, (m - j + 1) p_j)``. A p-value of nan is not a
    test: it stays nan and is not counted.
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
      p: Holm's adjusted p-value of "the truth is 0"; nan if no test is possible.
      tests: number of tests in the family.
    """

    estimate: Estimate
    p: float
    tests: int

    @property
    def separated(self) -> bool:
        """Whether it differs from 0 after Holm's correction; False if it cannot be tested."""
        return self.p <= LEVEL


def judge_family(family: Mapping[Any, Estimate], others: Sequence[float] = ()) -> dict[Any, Verdict]:
    """Returns a verdict on each estimate of a family: all estimates tested about one study, under any keys.

    Args:
      others: p-values of other tests of the family.
    """
    p_values = [*(estimate.p() for estimate in family.values()), *others]
    tests = sum(not math.isnan(p) for p in p_values)
    return {name: Verdict(family[name], p, tests) for name, p in zip(family, holm(p_values), strict=False)}


class RowCurve(NamedTuple):
    """One row's curve of [n] points; nan if not every seed is finite, since a mean of survivors would be biased.

    Attributes:
      half_width: of 95 % intervals; half the range where there are two seeds, whose interval would be 9 ranges wide.
      note: "" or e.g. "3/5 finite".
      kinds: words on `half_width`: `PAIRED`, `RANGE`.
      geometric: whether `mean` is the geometric mean, and `half_width` in units of the logarithm.
    """

    x: np.ndarray
    mean: np.ndarray
    half_width: np.ndarray
    note: str = ""
    geometric: bool = False
    kinds: frozenset[str] = frozenset()

    @property
    def low(self) -> np.ndarray:
        return self.mean * np.exp(-self.half_width) if self.geometric else self.mean - self.half_width

    @property
    def high(self) -> np.ndarray:
        return self.mean * np.exp(self.half_width) if self.geometric else self.mean + self.half_width

    def scaled(self, factor: float) -> "RowCurve":
        """Returns the line in another unit."""
        half_width = self.half_width if self.geometric else factor * self.half_width
        return self._replace(mean=factor * self.mean, half_width=half_width)


PAIRED = "of rows that read the same weights, intervals of the difference from the best of them, paired by seed"
RANGE = "of two seeds, their range"


def line(
    cells: Mapping[float, Mapping[int, float | None]],
    geometric: bool = False,
    base: Mapping[float, Mapping[int, float | None]] = MappingProxyType({}),
) -> RowCurve:
    """Returns the curve of {x: values by seed} at the points that every seed has, in the order of x.

    Args:
      cells: {x: values by seed}.
      geometric: takes means of logarithms, for a logarithmic axis.
      base: {x: values by seed} of another row: half-widths are there those of the differences from it.
    """
    seeds = {seed for values in cells.values() for seed in values}
    cells = {x: values for x, values in sorted(cells.items()) if values.keys() == seeds}
    fewest = min((len(finite_values(values)) for values in cells.values()), default=0)
    points = []
    for x, values in cells.items():
        found, origin = (_on_axis(each, geometric) for each in (values, base.get(x, {})))
        if len(found) < len(values):
            points.append((math.nan, math.nan))
            continue
        apart = [value - origin.get(seed, 0.0) for seed, value in found.items()]
        half_width = np.ptp(apart) / 2 if len(apart) == 2 else mean_interval(apart).half_width
        points.append((statistics.fmean(found.values()), half_width))
    mean, half_width = np.array(points, float).reshape(-1, 2).T
    note = finite_note(fewest, len(seeds))
    kinds = frozenset([PAIRED] * bool(base) + [RANGE] * (len(seeds) == 2))
    return RowCurve(np.array([*cells], float), np.exp(mean) if geometric else mean, half_width, note, geometric, kinds)


def _on_axis(values: Mapping[int, float | None], geometric: bool) -> dict[int, float]:
    """Returns the finite values by seed, or the logarithms of the positive ones."""
    found = {seed: float(value) for seed, value in values.items() if _is_finite(value)}
    return {seed: math.log(value) for seed, value in found.items() if value > 0} if geometric else found


def finite_note(finite: int, seeds: int) -> str:
    """Returns ``3/5 finite`` if only 3 of 5 seeds gave a finite value; "" if all did."""
    return f"{finite}/{seeds} finite" if finite < seeds else ""
