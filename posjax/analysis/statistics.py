"""From records of seeded runs to values, and from values to confidence intervals.

Student's t for one row, Welch's t for the difference of two: Student (1908), https://doi.org/10.1093/biomet/6.1.1;
Welch (1947), https://doi.org/10.1093/biomet/34.1-2.28. A record is one line of results.jsonl, one (study, encoding,
seed) run. Studies and rows keep the order in which the records name them first, so a table reads like its config.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtrit  # Student's t quantile: what scipy.stats.t.ppf calls, ~50x cheaper for curves

Record = Mapping[str, Any]
Rows = dict[str, list[Record]]  # label -> its runs, one per seed

CHOOSING = "choosing "  # before the name of a metric: measured on what a sweep's points are chosen by
REQUIRED = ("study", "encoding", "label", "seed", "metrics")


class Metric(NamedTuple):
    """A result column: a metric, at one evaluated length (tokens) if it was measured by length."""

    name: str
    length: int | None = None


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


def mean_interval(values: Iterable[float], confidence: float = 0.95) -> Interval:
    """Student's t interval of the mean: ``mean ± t(n - 1) sqrt(var / n)``.

    Args:
      values: [n] one finite value per seed. One value has no half-width (nan).
      confidence: coverage in (0, 1).

    Raises:
      ValueError: no values, a value that is not finite, or a confidence outside (0, 1).
    """
    values = _checked(values, confidence)
    mean, error2 = _mean_and_error2(values)
    return Interval(mean, _half_width(error2, len(values) - 1, confidence), len(values))


def difference_interval(a: Iterable[float], b: Iterable[float], confidence: float = 0.95) -> Interval:
    """Welch's interval of ``mean(a) - mean(b)``: variances may differ, degrees of freedom by Welch-Satterthwaite.

    Args:
      a, b: [n_a], [n_b] one finite value per seed. If either has one value the half-width is nan.
      confidence: coverage in (0, 1).

    Raises:
      ValueError: as `mean_interval`, for either sample.
    """
    a, b = _checked(a, confidence), _checked(b, confidence)
    (mean_a, error2_a), (mean_b, error2_b) = _mean_and_error2(a), _mean_and_error2(b)
    error2 = error2_a + error2_b
    # A share of the variance, not the variance itself: its square cannot underflow.
    share = error2_a / error2 if error2 > 0 else 0.5
    freedom = 0.0
    if len(a) > 1 and len(b) > 1:
        freedom = 1 / (share**2 / (len(a) - 1) + (1 - share) ** 2 / (len(b) - 1))
    return Interval(mean_a - mean_b, _half_width(error2, freedom, confidence), len(a) + len(b))


def separated(a: Interval, b: Interval) -> bool:
    """Whether the two intervals do not touch. An unknown half-width separates nothing."""
    return abs(a.mean - b.mean) > a.half_width + b.half_width


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


def metric_values(runs: Sequence[Record], metric: Metric) -> tuple[list[float], int]:
    """Finite values of a metric over the runs of a row, and how many runs should have given one.

    That number is 0 if no run of the row reports the metric: it was not measured, which is no failure.
    """
    flat = [_flat(run) for run in runs]
    n = len(runs) if any(metric in run for run in flat) else 0
    return _finite(run.get(metric) for run in flat), n


def train_length(rows: Rows) -> int | None:
    """Tokens per training sequence: as recorded, else the smallest evaluated length; None if nothing is by length."""
    recorded = {run["train_length"] for run in all_runs(rows) if run.get("train_length")}
    if len(recorded) > 1:
        raise ValueError(f"runs of one study have train_length {sorted(recorded)}: name one study per train_length")
    evaluated = [metric.length for metric in metrics_of(rows) if metric.length is not None]
    return recorded.pop() if recorded else min(evaluated, default=None)


def headline(rows: Rows) -> list[Metric]:
    """What encodings are compared by: accuracy, else loss, at the training length and at the longest one."""
    metrics = metrics_of(rows)
    if Metric("accuracy") in metrics:
        return [Metric("accuracy")]
    losses = [metric for metric in metrics if metric.name == "loss"]
    return [metric for metric in losses if metric.length in (None, train_length(rows), losses[-1].length)]


def unit_of_text(runs: Iterable[Record]) -> str:
    """What a text is made of: "token" where a tokenizer made them, else "byte"."""
    return "token" if any(run.get("tokenizer") for run in runs) else "byte"


def all_runs(rows: Rows) -> list[Record]:
    return [run for runs in rows.values() for run in runs]


class Line(NamedTuple):
    """One encoding's curve, [n] points each; nan where not every seed is finite, so that no mean is of survivors."""

    x: np.ndarray
    mean: np.ndarray
    half_width: np.ndarray
    note: str  # "" or e.g. "3/5 finite"


def finite_note(values: Sequence[float], n: int) -> str:
    """``3/5 finite`` if only 3 of the n runs gave a finite value; empty if all did."""
    return f"{len(values)}/{n} finite" if len(values) < n else ""


def line_by_length(runs: Sequence[Record], metrics: Sequence[Metric]) -> Line:
    """One row's metric over its evaluated lengths (tokens)."""
    return _line([metric.length for metric in metrics], [metric_values(runs, metric) for metric in metrics])


def line_of_curves(runs: Sequence[Record]) -> Line:
    """One row's training loss over the steps that all its seeds recorded; empty if a seed has no curve."""
    curves = [dict(run["curve"]) for run in runs if run.get("curve")]
    if len(curves) < len(runs):
        return _line([], [])._replace(note=f"{len(curves)}/{len(runs)} curves")
    steps = sorted(set.intersection(*(set(curve) for curve in curves)))
    return _line(steps, [(_finite(curve[step] for curve in curves), len(runs)) for step in steps])


def _line(x: Sequence[float], found: Sequence[tuple[list[float], int]]) -> Line:
    """``found``: finite values and number of runs at each x, as `metric_values` gives them."""
    nothing = Interval(math.nan, math.nan, 0)
    intervals = [mean_interval(values) if values and len(values) == n else nothing for values, n in found]
    fewest, n = min(((values, n) for values, n in found), key=lambda pair: len(pair[0]) - pair[1], default=([], 0))
    mean = np.array([interval.mean for interval in intervals], float)
    half_width = np.array([interval.half_width for interval in intervals], float)
    return Line(np.array(x, float), mean, half_width, finite_note(fewest, n))


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


def _checked(values: Iterable[float], confidence: float) -> list[float]:
    values = [float(value) for value in values]
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie in (0, 1), e.g. 0.95; got {confidence}")
    if not values:
        raise ValueError("an interval needs at least one value; got none")
    if not all(map(math.isfinite, values)):
        raise ValueError(f"values must be finite, got {values}: count the runs that failed and pass the others")
    return values


def _mean_and_error2(values: list[float]) -> tuple[float, float]:
    """Mean and squared standard error of it, in exact rational arithmetic: equal values give exactly 0."""
    variance = statistics.variance(values) if len(values) > 1 else math.nan
    return statistics.mean(values), variance / len(values)


def _half_width(error2: float, freedom: float, confidence: float) -> float:
    if freedom <= 0:
        return math.nan
    return float(stdtrit(freedom, (1 + confidence) / 2)) * math.sqrt(error2)
