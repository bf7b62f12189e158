"""Linear contrasts of results, written as they are said: ``at("alibi", 4096) - at("alibi", 128)``.

A `Cell` is the mean over seeds of one metric of one row. Cells add up, with weights, to a `Contrast`: a value, a
difference, a difference of differences, a mean over tasks. What is known of it is `statistics.contrast`'s estimate: paired
by seed where cells are of the same weights, else of independent samples.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from experiments.report.statistics import Estimate, Metric, Rows, Term, metric_values
from experiments.report.statistics import contrast as estimate_of
from experiments.report.table import UNITS, Unit

Tables = Mapping[str, Rows]  # table -> row -> runs


class Cell(NamedTuple):
    """Where a number stands: the folder under results, its table, row and metric, at a length or resolution."""

    folder: str
    table: str
    row: str
    metric: str
    at: int | None = None

    def __str__(self) -> str:
        return self.row if self.at is None else f"{self.row} @{self.at}"


@dataclasses.dataclass(frozen=True)
class Contrast:
    """A sum of weight * cell."""

    terms: tuple[tuple[float, Cell], ...]

    def __add__(self, other: "Contrast") -> "Contrast":
        return Contrast(self.terms + other.terms)

    def __sub__(self, other: "Contrast") -> "Contrast":
        return self + -1.0 * other

    def __rmul__(self, factor: float) -> "Contrast":
        return Contrast(tuple((factor * weight, cell) for weight, cell in self.terms))

    def __truediv__(self, divisor: float) -> "Contrast":
        return (1 / divisor) * self

    def __str__(self) -> str:
        """``alibi @4096 - alibi @128``; a mean over tables says of which."""
        tables = list(dict.fromkeys(cell.table for _, cell in self.terms))
        if len(tables) > 1:
            return self._over(tables)
        parts = [f"{'-' if weight < 0 else '+'} {_times(weight)}{cell}" for weight, cell in self.terms]
        return " ".join(parts).removeprefix("+ ")

    def _over(self, tables: Sequence[str]) -> str:
        """Where every table has the same terms it is their mean; else each cell names its table."""
        own = [tuple((w, c._replace(table="")) for w, c in self.terms if c.table == table) for table in tables]
        if all(terms == own[0] for terms in own):
            scaled = Contrast(tuple((weight * len(tables), cell) for weight, cell in own[0]))
            return f"mean over {', '.join(tables)} of {scaled}"
        parts = [f"{'-' if w < 0 else '+'} {_times(w)}{c} ({c.table})" for w, c in self.terms]
        return " ".join(parts).removeprefix("+ ")


def _times(weight: float) -> str:
    return "" if math.isclose(abs(weight), 1) else f"{abs(weight):.3g} "


class Table(NamedTuple):
    """A table of results, whose cells are called by row: ``table("alibi", 4096)``."""

    folder: str
    table: str
    metric: str

    def __call__(self, row: str, at: int | None = None) -> Contrast:
        return Contrast(((1.0, Cell(self.folder, self.table, row, self.metric, at)),))


def mean(contrasts: Sequence[Contrast]) -> Contrast:
    """Their mean, e.g. over tasks or lengths."""
    return sum(contrasts[1:], contrasts[0]) / len(contrasts)


def unit_of(metric: str) -> Unit:
    """How a metric is shown: shares of right answers, by length or at all, in points of a hundred."""
    share = metric.startswith(("accuracy", "exact match"))
    return UNITS["accuracy"] if share else UNITS.get(metric, Unit())


def runs_of(cell: Cell, folders: Mapping[str, Tables]) -> list:
    """The records of a cell's row; none where they are not there, or not all of them have a finite value."""
    runs = folders.get(cell.folder, {}).get(cell.table, {}).get(cell.row, [])
    values, n = metric_values(runs, Metric(cell.metric, cell.at))
    return list(runs) if runs and n and len(values) == n else []


def evaluate(contrast: Contrast, folders: Mapping[str, Tables]) -> Estimate | None:
    """What is known of a contrast; None where a cell has no records, or a seed without a finite value."""
    terms = [Term(weight, runs_of(cell, folders), Metric(cell.metric, cell.at)) for weight, cell in contrast.terms]
    return estimate_of(terms) if all(term.runs for term in terms) else None
