"""One study as a table: rows with mean, interval and verdict, in Markdown."""

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from experiments.records import At, Record, StudyRecords
from experiments.report.statistics import (
    Estimate,
    Interval,
    Verdict,
    difference_of,
    finite_note,
    finite_values,
    is_whole,
    judge_family,
    mean_interval,
    term,
)
from experiments.report.units import many, title_of, unit_of, words
from posjax.describe.markdown import escape_markdown, grid

TIED = "≈"  # before a cell that is not separable from the best of its column
_MANY = 6  # from this many rows on, a sentence counts them instead of naming them


class Column(NamedTuple):
    """A column of numbers: a metric, and the length or resolution (`at`) where it was measured, if there are several."""

    metric: str
    at: At = None


class TableCell(NamedTuple):
    """The text of a cell, and whether it is bold: the best of its column, or clearly better or worse than no encoding."""

    text: str
    bold: bool = False


class StudyTable(NamedTuple):
    """A table of one study.

    Attributes:
      rows: {label: cells, one a column}.
      finding: a sentence on the best row and the rows not clearly behind it.
      tests: number of tests of Holm's correction.
    """

    title: str
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[TableCell, ...]]
    finding: str
    tests: int


class Comparison:
    """The rows of a study in some columns, with the tests of their table: each row against the best, and against others.

    Args:
      compared: columns in which every row is tested against each of `against`.
      against: labels of rows; `none` by default.
    """

    def __init__(
        self, study: StudyRecords, columns: Sequence[Column], compared: Sequence[Column], against: Sequence[str] = ()
    ):
        self.study = study
        self.none = next(filter(study.is_none, study.rows), None)
        self.against = [row for row in study.rows if (row in against if against else row == self.none)]
        self.best = {column: self._best(column) for column in columns}
        pairs = [(column, row, best) for column, best in self.best.items() if best is not None for row in study.rows]
        pairs += [(column, row, other) for column in compared for other in self.against for row in study.rows]
        found: dict[Any, Estimate] = {}
        for column, a, b in pairs:
            key = (column, frozenset((a, b)))
            if a != b and key not in found and all(is_whole(study.values(row, *column)) for row in (a, b)):
                found[key] = difference_of(term(study, a, *column), term(study, b, *column))
        self.judged = judge_family(found)

    @property
    def tests(self) -> int:
        return max((verdict.tests for verdict in self.judged.values()), default=0)

    def verdict(self, column: Column, a: str, b: str | None) -> Verdict | None:
        """Returns the verdict on the difference of two rows, in either order; None if a row has a seed that is not finite."""
        return self.judged.get((column, frozenset((a, b))))

    def mean(self, row: str, column: Column) -> float:
        return mean_interval(finite_values(self.study.values(row, *column))).mean

    def gain(self, row: str, column: Column, other: str) -> float:
        """The lead of a row's mean over another's, in the unit that is shown."""
        unit = unit_of(column.metric)
        return (1 if unit.best is max else -1) * unit.scale * (self.mean(row, column) - self.mean(other, column))

    def _best(self, column: Column) -> str | None:
        """Returns the row of the best mean, among rows whose seeds are all finite; None if all of them guess."""
        order = unit_of(column.metric).best
        means = {row: self.mean(row, column) for row in self.study.rows if is_whole(self.study.values(row, *column))}
        if order is None or len(means) < 2 or self.all_guess(column):
            return None
        return order(means, key=means.__getitem__)

    def all_guess(self, column: Column) -> bool:
        """Whether no row is clearly better than one answer for all test examples; False if that score is unknown."""
        score, order = self.study.guess.get(column.metric), unit_of(column.metric).best
        cells = [self.study.values(row, *column) for row in self.study.rows]
        found = [mean_interval(finite_values(cell)) for cell in cells if is_whole(cell)]
        if score is None or not found:
            return False
        return all(abs(x.mean - score) <= x.half_width for x in found if order(x.mean, score) != score)

    def finding(self, column: Column, title: str) -> str:
        """The sentence about a table: its best row, rows not clearly behind it, and rows better or worse than `none`."""
        best, unit = self.best.get(column), unit_of(column.metric)
        if self.all_guess(column):
            score = f"{unit.scale * self.study.guess[column.metric]:.{unit.digits}f}"
            return f"No row is clearly better than guessing: one answer for all has {title} {score}."
        if best is None or (unit.best is max and self.mean(best, column) == 0):
            return ""
        others = [row for row in self.study.rows if self.verdict(column, row, best)]
        tied = [row for row in others if not self.verdict(column, row, best).separated]
        top = mean_interval(finite_values(self.study.values(best, *column))).scaled(unit.scale).text(unit.digits)
        behind = f"not clearly ahead of {listed(tied)}" if tied else "clearly ahead of every other row"
        text = f"Best {title}: {best}, {top}, {behind}."
        if self.none is None or best == self.none:
            return text
        sides: dict[str, list[str]] = {"Better than no encoding": [], "Worse": [], "No clear difference": []}
        for row in self.study.rows:
            if found := self.verdict(column, row, self.none):
                better = "Better than no encoding" if self.gain(row, column, self.none) > 0 else "Worse"
                sides[better if found.separated else "No clear difference"].append(row)
        return " ".join([text, *(f"{side}: {listed(rows)}." for side, rows in sides.items() if rows)])

    def cells(self, column: Column, digits: int | None = None) -> list[TableCell]:
        """Mean and interval of each row; the best is bold, and ≈ marks rows that are not separable from it."""
        unit, best, cells = unit_of(column.metric), self.best.get(column), []
        digits = unit.digits if digits is None else digits
        for row in self.study.rows:
            values = self.study.values(row, *column)
            found = finite_values(values)
            text = mean_interval(found).scaled(unit.scale).text(digits) if found else "" if values else "-"
            if note := finite_note(len(found), len(values)):
                cells.append(TableCell(f"{text} ({note})" if text else note))
                continue
            verdict = self.verdict(column, row, best)
            cells.append(TableCell(f"{TIED} {text}" if verdict and not verdict.separated else text, row == best))
        return cells

    def deviations(self, column: Column) -> list[TableCell]:
        """The standard deviation of each row over its seeds; a dash for a single seed, or one that is not finite."""
        unit, cells = unit_of(column.metric), [self.study.values(row, *column) for row in self.study.rows]
        known = [finite_values(cell) if is_whole(cell) and len(cell) > 1 else () for cell in cells]
        return [
            TableCell(f"{unit.scale * statistics.stdev(values):.{unit.digits + 1}f}" if values else "-")
            for values in known
        ]

    def effects(self, column: Column, other: str) -> list[TableCell]:
        """The difference of each row from another; a dash where a seed is not finite."""
        unit, cells = unit_of(column.metric), []
        for row in self.study.rows:
            verdict = self.verdict(column, row, other)
            if verdict is None:
                cells.append(TableCell("-"))
                continue
            half = verdict.estimate.interval().scaled(unit.scale).half_width
            gain = self.gain(row, column, other)
            cells.append(TableCell(*better_or_worse(gain, half, unit.digits, verdict.separated)))
        return cells


def better_or_worse(gain: float, half_width: float, digits: int, separated: bool) -> tuple[str, bool]:
    """Returns ("0.31 ± 0.02 better", True), or ("not settled (+0.03 ± 0.09)", False)."""
    if not separated:
        return f"not settled ({Interval(gain, half_width).text(digits, signed=True)})", False
    return f"{Interval(abs(gain), half_width).text(digits)} {'better' if gain > 0 else 'worse'}", True


def listed(rows: Sequence[str]) -> str:
    """Returns the rows as text, or their number if they are many; "and" separates rows that hold commas."""
    if len(rows) > _MANY:
        return f"{len(rows)} rows"
    return (" and " if any("," in row for row in rows) else ", ").join(rows)


# Metrics that only a figure shows.
_DRAWN_ALONE = ("training loss", "log probability", "seconds", "bytes")


def shown_metrics(study: StudyRecords) -> dict[str, list[At]]:
    """The metrics of a table, each with its places; a metric with two numbers a place is only drawn."""
    return {
        metric: ats
        for metric, ats in study.metrics.items()
        if not any(name in metric for name in _DRAWN_ALONE) and not any(isinstance(at, tuple) for at in ats)
    }


def headline_columns(study: StudyRecords) -> list[Column]:
    """Returns the columns that compare encodings: the first single number, else the first metric by length.

    Exact matches that are 0 everywhere are skipped.
    """
    metrics = {
        metric: ats
        for metric, ats in shown_metrics(study).items()
        if any(any(finite_values(study.values(row, metric, at))) for row in study.rows for at in ats)
    }
    single = next((metric for metric, ats in metrics.items() if ats == [None]), None)
    if single is not None:
        return [Column(single)]
    if not metrics:
        return []
    metric, ats = next(iter(metrics.items()))
    return [Column(metric, at) for at in ats if at in (study.trained_at, ats[-1])]


def tables(study: StudyRecords, name: str, against: Sequence[str] = (), deviations: bool = False) -> list[StudyTable]:
    """Returns the tables of a study: its single numbers with the costs of rows, then each metric by length.

    Args:
      name: name of the study for headings.
      against: labels of the rows that every row is compared with; `none` by default.
      deviations: whether columns that are compared have standard deviations of seeds beside them.
    """
    metrics = shown_metrics(study)
    singles = [Column(metric, ats[0]) for metric, ats in metrics.items() if len(ats) == 1]
    groups = [singles] if singles else []
    groups += [[Column(metric, at) for at in ats] for metric, ats in metrics.items() if len(ats) > 1]
    made = []
    for index, columns in enumerate(groups):
        ends = [column for column in columns if column.at in (study.trained_at, columns[-1].at)]
        ends = ends if index else headline_columns(study)
        compared = [column for column in ends if column in columns and unit_of(column.metric).best is not None]
        metric = words(columns[0].metric)
        title = (name or metric) if index == 0 and singles else f"{name}, {metric}" if name else metric
        beside = compared if deviations else ()
        made.append(_table(study, title, columns, compared, against, beside, with_cost=index == 0))
    return made


def _table(study: StudyRecords, title: str, columns, compared, against, deviations, with_cost: bool) -> StudyTable:
    found = Comparison(study, columns, compared, against)
    digits = 1 if len(columns) > 4 and unit_of(columns[0].metric).scale == 100 else None
    one_metric = len({column.metric for column in columns}) == 1 < len(columns)
    titles = [_title(column, study.unit, study.trained_at, one_metric) for column in columns]
    cells = [found.cells(column, digits) for column in columns]
    for column in deviations:
        titles.append(f"{_title(column, study.unit, None, one_metric)}, sd of seeds")
        cells.append(found.deviations(column))
    for other, column in itertools.product(found.against, compared):
        titles.append(f"{_title(column, study.unit, None, one_metric)} against {other}")
        cells.append(found.effects(column, other))
    if with_cost:
        costs = _costs(study)
        titles, cells = [*titles, *costs], [*cells, *costs.values()]
    said = [found.finding(column, _title(column, study.unit, None, False)) for column in compared]
    by_row = dict(zip(study.rows, zip(*cells, strict=True), strict=True))
    return StudyTable(title, tuple(titles), by_row, " ".join(filter(None, said)), found.tests)


def _title(column: Column, text: str, trained: int | None, short: bool) -> str:
    """Returns "loss (nats per byte) at 512 (4×)"; only the place if all columns are of one metric."""
    what = title_of(column.metric, text)
    if column.at is None:
        return what
    if preposition := unit_of(column.metric).block:
        place = f"{preposition} block {column.at}"
        return place if short else f"{what} {place}"
    ratio = column.at / trained if trained else 0
    if text == "patch":  # four times the patches are twice the side of an image
        ratio **= 0.5
    times = f" ({ratio:.3g}×)" if trained else ""
    place = f"{column.at} {many(text)}".strip() + times
    return place if short else f"{what} at {place}"


def _costs(study: StudyRecords) -> dict[str, list[TableCell]]:
    """Returns the costs of rows: time of a step and speed, and learning rate, parameters and seeds where they differ."""
    rows = study.rows.values()
    texts = {
        "learning rate": [_distinct(f"{r.learning_rate:g}" for r in row if r.learning_rate) for row in rows],
        "parameters": [_distinct(f"{record.parameters:,}" for record in row) for row in rows],
        "step (ms)": [f"{1000 * time:,.1f}" if (time := seconds_of_step(row)) is not None else "-" for row in rows],
        "seeds": [str(len(row)) for row in rows],
    }
    kept = {name: found for name, found in texts.items() if len(set(found)) > 1 or name == "step (ms)"}
    for name, (title, form) in _SPEEDS.items():
        speeds = [
            next((form.format(record.speed[name]) for record in row if name in record.speed), "-") for row in rows
        ]
        kept |= {title: speeds} if set(speeds) != {"-"} else {}
    return {name: [TableCell(text) for text in found] for name, found in kept.items()}


_SPEEDS = {  # by their names in `Record.speed`: title and form
    "tokens_per_s": ("tokens/s", "{:,.0f}"),
    "images_per_s": ("images/s", "{:,.0f}"),
    "mfu": ("MFU", "{:.1%}"),
    "compile_time": ("compiling (s)", "{:,.1f}"),
}


def _distinct(texts: Iterable[str]) -> str:
    return " / ".join(dict.fromkeys(texts)) or "-"


def seconds_of_step(row: Sequence[Record]) -> float | None:
    """Returns the median time of a step over the seeds of a row; None if no seed was timed."""
    times = [record.step_time for record in row if record.step_time is not None]
    return statistics.median(times) if times else None


def table_markdown(table: StudyTable) -> str:
    """Returns GitHub's Markdown of the table alone."""
    rows = [
        (escape_markdown(row), *(f"**{cell.text}**" if cell.bold else cell.text for cell in cells))
        for row, cells in table.rows.items()
    ]
    return grid(("row", *map(escape_markdown, table.columns)), rows)
