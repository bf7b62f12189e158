"""What is seen only across the studies of one ablation: a paper's table beside ours, and a quantity along an axis."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from posjax.analysis.report import plots
from posjax.analysis.report.table import UNITS, Cell, Row, StudyTable, Unit
from posjax.analysis.statistics import (
    Interval,
    Line,
    Metric,
    Record,
    Rows,
    difference_interval,
    group,
    mean_interval,
    metric_values,
)


class Paper(NamedTuple):
    """A published table: one column a study, one row a label, and what its numbers are."""

    source: str
    metric: str  # of our records, with which it is compared
    reference: tuple[str, str]  # (study, label) against which every cell is held
    tie: float  # differences of the paper's up to here count as none
    values: Mapping[str, Mapping[str, float]]  # study -> label -> value


class Verdict(NamedTuple):
    """One difference of the paper's and ours: `judgement` is "agrees", "disagrees" or "not separated"."""

    what: str
    paper: float
    ours: Interval
    judgement: str


def paper_table(records: Sequence[Record], paper: Paper) -> StudyTable:
    """Our means and intervals with the paper's numbers behind them, and below what agrees and what does not."""
    studies, unit = group(records), UNITS.get(paper.metric, Unit())
    labels = list(dict.fromkeys(label for rows in studies.values() for label in rows))
    table_rows = []
    for label in labels:
        runs = next(rows[label] for rows in studies.values() if label in rows)
        cells = tuple(_cell(rows, label, paper, study, unit) for study, rows in studies.items())
        table_rows.append(Row(label, runs[0]["encoding"], cells))
    notes = [_sentence(verdict, unit) for verdict in verdicts(records, paper)]
    caption = (
        f"In each cell: our {paper.metric}{unit.suffix}, mean ± 95 % interval over seeds, and in brackets that of "
        f"{paper.source}. Ours are separated where their 95 % Welch interval leaves out 0. Differences of the paper's of at "
        f"most {paper.tie * unit.scale:g} count as none: there ours agree where their whole interval is as close to 0."
    )
    return StudyTable("beside the paper", tuple(studies), tuple(table_rows), caption, tuple(notes))


def verdicts(records: Sequence[Record], paper: Paper) -> list[Verdict]:
    """Every cell against the reference, then, in each row of it, every column against the first one the row has."""
    studies = group(records)
    cells = [
        (study, label) for study, rows in studies.items() for label in rows if label in paper.values.get(study, {})
    ]
    pairs = [(cell, paper.reference) for cell in cells if cell != paper.reference]
    first = {}
    for study, label in cells:
        first.setdefault(label, (study, label))
    pairs += [(cell, first[cell[1]]) for cell in cells if first[cell[1]] != cell]
    return [
        _verdict(studies, paper, a, b)
        for a, b in dict.fromkeys(pairs)
        if paper.reference[1] in studies.get(paper.reference[0], {})
    ]


def _verdict(studies: Mapping[str, Rows], paper: Paper, a: tuple[str, str], b: tuple[str, str]) -> Verdict:
    ours = difference_interval(*(metric_values(studies[s][label], Metric(paper.metric))[0] for s, label in (a, b)))
    theirs = paper.values[a[0]][a[1]] - paper.values[b[0]][b[1]]
    apart = abs(ours.mean) > ours.half_width
    if abs(theirs) <= paper.tie:
        inside = -paper.tie <= ours.low and ours.high <= paper.tie
        judgement = "agrees" if inside else "disagrees" if apart else "not separated"
    elif apart:
        judgement = "agrees" if (ours.mean > 0) == (theirs > 0) else "disagrees"
    else:
        judgement = "not separated"
    return Verdict(f"{a[1]}, {a[0]} - {b[1]}, {b[0]}", theirs, ours, judgement)


def _cell(rows: Rows, label: str, paper: Paper, study: str, unit: Unit) -> Cell:
    theirs = paper.values.get(study, {}).get(label)
    published = "" if theirs is None else f" ({theirs * unit.scale:.{unit.digits}f})"
    values = metric_values(rows.get(label, []), Metric(paper.metric))[0]
    if not values:
        return Cell(f"-{published}")
    interval = mean_interval(values).scaled(unit.scale)
    return Cell(interval.text(unit.digits) + published, interval=interval)


def _sentence(verdict: Verdict, unit: Unit) -> str:
    ours = verdict.ours.scaled(unit.scale).text(unit.digits, signed=True)
    return f"{verdict.what}: paper {verdict.paper * unit.scale:+.{unit.digits}f}, ours {ours}: {verdict.judgement}."


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
