"""What is seen only across the studies of one ablation: a paper's table beside ours, and a quantity along an axis."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from posjax.analysis.report import plots
from posjax.analysis.report.table import UNITS, Cell, Row, StudyTable, Unit
from posjax.analysis.statistics import (
    LEVEL,
    Estimate,
    Line,
    Metric,
    Record,
    Rows,
    Verdict,
    difference,
    group,
    judge,
    mean_interval,
    metric_values,
    whole,
)

BESIDE = "beside the paper"  # the name of the table


class Paper(NamedTuple):
    """A published table: one column a study, one row a label, and what its numbers are."""

    source: str
    metric: str  # of our records, with which it is compared
    reference: tuple[str, str]  # (study, label) against which every cell is held
    tie: float  # differences of the paper's up to here count as none: ours are then exploratory
    values: Mapping[str, Mapping[str, float]]  # study -> label -> value


class Compared(NamedTuple):
    """One difference of the paper's and ours.

    Attributes:
      what: "label, study - label, study".
      judgement: "agrees", "disagrees" or "not separable"; of the paper's ties "exploratory: as close to 0", "exploratory:
        apart" or "exploratory: not separable".
    """

    what: str
    paper: float
    ours: Estimate
    judgement: str

    @property
    def exploratory(self) -> bool:
        return self.judgement.startswith("exploratory")


def paper_table(records: Sequence[Record], paper: Paper) -> StudyTable:
    """Our means and intervals with the paper's numbers behind them, and below what agrees and what does not."""
    studies, unit = group(records), UNITS.get(paper.metric, Unit())
    labels = list(dict.fromkeys(label for rows in studies.values() for label in rows))
    table_rows = []
    for label in labels:
        runs = next(rows[label] for rows in studies.values() if label in rows)
        cells = tuple(_cell(rows, label, paper, study, unit) for study, rows in studies.items())
        table_rows.append(Row(label, runs[0]["encoding"], cells))
    found = verdicts(records, paper)
    notes = [_sentence(each, unit) for each in found]
    caption = (
        f"In each cell: our {paper.metric}{unit.suffix}, mean ± 95 % interval over seeds, and in brackets that of "
        f"{paper.source}. Differences are judged by Welch's t tests, at {LEVEL:g} after Holm's correction over the "
        f"{sum(not each.exploratory for each in found)} tests that the paper's table poses. Differences of the paper's of at "
        f"most {paper.tie * unit.scale:g} count as none: what ours say of those is exploratory, with no correction."
    )
    return StudyTable(BESIDE, tuple(studies), tuple(table_rows), caption, tuple(notes))


def verdicts(records: Sequence[Record], paper: Paper) -> list[Compared]:
    """Every cell against the reference, then, in each row of it, every column against the first one the row has."""
    studies = group(records)
    cells = [
        (study, label)
        for study, rows in studies.items()
        for label in whole(rows, Metric(paper.metric))
        if label in paper.values.get(study, {})
    ]
    pairs = [(cell, paper.reference) for cell in cells if cell != paper.reference]
    first = {}
    for study, label in cells:
        first.setdefault(label, (study, label))
    pairs += [(cell, first[cell[1]]) for cell in cells if first[cell[1]] != cell]
    ours = {
        (a, b): difference(studies[a[0]][a[1]], studies[b[0]][b[1]], Metric(paper.metric))
        for a, b in dict.fromkeys(pairs)
        if paper.reference in cells
    }
    theirs = {(a, b): paper.values[a[0]][a[1]] - paper.values[b[0]][b[1]] for a, b in ours}
    judged = judge({pair: each for pair, each in ours.items() if abs(theirs[pair]) > paper.tie})
    return [
        Compared(
            f"{a[1]}, {a[0]} - {b[1]}, {b[0]}",
            theirs[a, b],
            each,
            _judgement(judged.get((a, b)), each, theirs[a, b], paper),
        )
        for (a, b), each in ours.items()
    ]


def _judgement(verdict: Verdict | None, ours: Estimate, theirs: float, paper: Paper) -> str:
    """`verdict` is None where the paper has a tie."""
    if verdict is not None:
        same_sign = (ours.value > 0) == (theirs > 0)
        return ("agrees" if same_sign else "disagrees") if verdict.separated else "not separable"
    if ours.p_within(paper.tie) <= LEVEL:
        return "exploratory: as close to 0"
    return f"exploratory: {'apart' if ours.p() <= LEVEL else 'not separable'}"


def _cell(rows: Rows, label: str, paper: Paper, study: str, unit: Unit) -> Cell:
    theirs = paper.values.get(study, {}).get(label)
    published = "" if theirs is None else f" ({theirs * unit.scale:.{unit.digits}f})"
    values = metric_values(rows.get(label, []), Metric(paper.metric))[0]
    if not values:
        return Cell(f"-{published}")
    interval = mean_interval(values).scaled(unit.scale)
    return Cell(interval.text(unit.digits) + published, interval=interval)


def _sentence(compared: Compared, unit: Unit) -> str:
    ours = compared.ours.scaled(unit.scale).interval().text(unit.digits, signed=True)
    paper = f"{compared.paper * unit.scale:+.{unit.digits}f}"
    return f"{compared.what}: paper {paper}, ours {ours}: {compared.judgement}."


def accuracy_along(
    records: Sequence[Record],
    values: Mapping[str, float],
    title: str,
    look: Mapping[str, plots.Style] | None = None,
) -> Figure:
    """Mean accuracy (%) with its 95 % band of every row over the studies, which lie at `values` of a logarithmic axis.

    Raises:
      ValueError: for a study that has no value.
    """
    studies, look = group(records), look or plots.styles(records)
    if missing := sorted(studies.keys() - values.keys()):
        raise ValueError(f"studies {missing} have no value on the axis {title!r}: its values are {dict(values)}")
    labels = list(dict.fromkeys(label for rows in studies.values() for label in rows))
    lines = {label: _along(studies, values, label) for label in labels}
    figure = Figure(figsize=(6.8, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for label, line in lines.items():
        plots.draw_line(axes, line, look[label], marker=look[label].marker)
    ticks = sorted(values[study] for study in studies)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    names = {values[study]: study for study in studies}
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: names.get(x, f"{x:g}")))
    axes.xaxis.set_minor_locator(NullLocator())
    plots.finish(axes)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.6)
    axes.set_xlabel(title)
    axes.set_ylabel("accuracy (%): mean, 95 % interval")
    plots.label_lines(axes, lines, look)
    return figure


def _along(studies: Mapping[str, Rows], values: Mapping[str, float], label: str) -> Line:
    found: list[tuple[float, Any]] = []
    for study, rows in studies.items():
        if label in rows and (numbers := metric_values(rows[label], Metric("accuracy"))[0]):
            found.append((values[study], mean_interval(numbers).scaled(100)))
    found.sort(key=lambda point: point[0])
    x, intervals = zip(*found, strict=True) if found else ((), ())
    return Line(
        np.array(x, float), np.array([i.mean for i in intervals]), np.array([i.half_width for i in intervals]), ""
    )
