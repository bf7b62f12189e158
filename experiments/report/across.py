"""What is seen only across the studies of one ablation: a paper's table beside ours, and a quantity along an axis."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from experiments.report import plots
from experiments.report.statistics import (
    ACCURACY,
    LEVEL,
    Estimate,
    Line,
    Metric,
    Record,
    Rows,
    Verdict,
    difference,
    difference_of_gains,
    group,
    headline,
    judge,
    mean_interval,
    metric_values,
    unit_of_text,
    whole,
)
from experiments.report.table import Cell, Row, StudyTable, Unit, unit_of
from posjax.describe.figures import GREY, INK, SMALL

BESIDE = "beside the paper"  # the name of the table


class Paper(NamedTuple):
    """A published table: one column a study, one row a label, and what its numbers are."""

    source: str
    metric: str  # of our records, with which it is compared
    reference: tuple[str, str] | None  # (study, label) against which every cell is held; None where there are pairs
    tie: float  # differences of the paper's up to here count as none: ours are then exploratory
    values: Mapping[str, Mapping[str, float]]  # study -> label -> value
    pairs: Sequence[tuple[str, str]] = ()  # labels, of which the first is held against the second one in every study


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
    studies, unit = group(records), unit_of(paper.metric)
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
    said = (_counted(found),) if found else ()
    return StudyTable(BESIDE, tuple(studies), tuple(table_rows), caption, tuple(notes), said)


def verdicts(records: Sequence[Record], paper: Paper) -> list[Compared]:
    """The paper's pairs in each column; or every cell against the reference, then each against the first one of its row."""
    studies = group(records)
    cells = [
        (study, label)
        for study, rows in studies.items()
        for label in whole(rows, Metric(paper.metric))
        if label in paper.values.get(study, {})
    ]
    pairs = _pairs(cells, paper)
    ours = {
        (a, b): difference(studies[a[0]][a[1]], studies[b[0]][b[1]], Metric(paper.metric))
        for a, b in dict.fromkeys(pairs)
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


def _pairs(cells: Sequence[tuple[str, str]], paper: Paper) -> list[tuple[tuple[str, str], tuple[str, str]]]:
    """What is compared, of the cells (study, label) that both have."""
    if paper.reference is None:
        named = [((study, a), (study, b)) for study in dict.fromkeys(s for s, _ in cells) for a, b in paper.pairs]
        return [(a, b) for a, b in named if a in cells and b in cells]
    reference = tuple(paper.reference)  # a list in a config that was read back
    if reference not in cells:
        return []
    first: dict[str, tuple[str, str]] = {}
    for study, label in cells:
        first.setdefault(label, (study, label))
    pairs = [(cell, reference) for cell in cells if cell != reference]
    return pairs + [(cell, first[cell[1]]) for cell in cells if first[cell[1]] != cell]


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


def paper_figures(records: Sequence[Record], paper: Paper) -> dict[str, plots.Captioned]:
    """The forest plot, where two cells of the paper are among the records; its caption counts the judgements."""
    found = verdicts(records, paper)
    if not found:
        return {}
    said = _counted(found)
    return {
        "beside_the_paper": plots.Captioned(forest(records, paper), f"Differences in {paper.source} and here. {said}")
    }


def _counted(found: Sequence[Compared]) -> str:
    """How often ours agree, of what the paper separates."""
    planned = [each.judgement for each in found if not each.exploratory]
    count = {name: planned.count(name) for name in ("agrees", "disagrees", "not separable")}
    told = ", ".join(f"{n} {name.replace('agrees', 'agree')}" for name, n in count.items())
    ties = len(found) - len(planned)
    return f"Of the paper's {len(planned)} differences {told}; {ties} ties of the paper's are exploratory."


def along_figures(records: Sequence[Record], values: Mapping[str, float], title: str) -> dict[str, plots.Captioned]:
    """`along`, of what studies are compared by; none where that is nothing.

    Its caption says what the ends of the axis have in common, and whose gain between them differs.
    """
    studies = group(records)
    first, last = (pick(studies, key=values.__getitem__) for pick in (min, max))
    if not (compared := headline(studies[first])):
        return {}
    metric = compared[0]
    told = _gains(studies, first, last, metric)
    return {"along": plots.Captioned(along(records, values, title, metric), f"{_title(records, metric)}: {told}")}


def _title(records: Sequence[Record], metric: Metric) -> str:
    if metric.name == "loss":
        return f"loss (nats per {unit_of_text(records)})" if metric.length else "loss (nats)"
    return f"{metric.name}{unit_of(metric.name).suffix}"


def _gains(studies: Mapping[str, Rows], first: str, last: str, metric: Metric) -> str:
    """What each row gains along the axis less what the row gains that gains least, Holm's correction over these."""
    unit, seen = unit_of(metric.name), "mean and 95 % interval over seeds."
    sign = unit.scale if unit.best is max else -unit.scale  # a loss that falls is a gain
    ends = [whole(studies[study], metric) for study in (first, last)]
    gains = {
        label: sign * (mean_interval(ends[1][label]).mean - mean_interval(ends[0][label]).mean)
        for label in ends[0]
        if label in ends[1]
    }
    if len(gains) < 2:
        return seen
    least = min(gains, key=gains.__getitem__)
    runs = {label: (studies[first][label], studies[last][label]) for label in gains}
    judged = judge({label: difference_of_gains(runs[label], runs[least], metric) for label in gains if label != least})
    digits = 1 if unit.scale == 100 else unit.digits
    told = [
        f"{label} {verdict.estimate.scaled(sign).interval().text(digits, signed=True)} ({verdict})"
        for label, verdict in judged.items()
    ]
    return (
        f"{seen} From {first} to {last} {least} gains least; {'points' if unit.scale == 100 else 'how much'} that others "
        f"gain more: {', '.join(told)}, at {LEVEL:g} after Holm's correction over {len(told)} tests."
    )


def along(
    records: Sequence[Record],
    values: Mapping[str, float],
    title: str,
    metric: Metric = ACCURACY,
    look: Mapping[str, plots.Style] | None = None,
) -> Figure:
    """Mean of a metric with its 95 % band of every row over the studies, which lie at `values` of a logarithmic axis.

    Raises:
      ValueError: for a study that has no value.
    """
    studies, look = group(records), look or plots.styles(records)
    if missing := sorted(studies.keys() - values.keys()):
        raise ValueError(f"studies {missing} have no value on the axis {title!r}: its values are {dict(values)}")
    rows = {label: runs for named in studies.values() for label, runs in named.items()}
    lines = {label: _along(studies, values, label, metric) for label in rows}
    names = {values[study]: study for study in studies}

    def dress(axes: Axes, first: bool) -> None:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator(sorted(names)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: names.get(x, f"{x:g}")))
        axes.xaxis.set_minor_locator(NullLocator())

    shown = plots.references(rows, lines, unit_of(metric.name).best)
    labels = (title, f"{_title(records, metric)}: mean, 95 % interval")

    return plots.line_panels(lines, look, plots.by_family(rows), dress, references=shown, labels=labels)


def forest(records: Sequence[Record], paper: Paper) -> Figure:
    """The paper's differences (diamonds) beside ours with their 95 % intervals (dots), a line each, in the metric's unit.

    Filled dots agree or disagree after Holm's correction, hollow ones are not separable or exploratory; grey is the band in
    which the paper's differences count as none.

    Raises:
      ValueError: no difference of the paper's is among the records.
    """
    found, unit = verdicts(records, paper), unit_of(paper.metric)
    if not found:
        raise ValueError(f"no two cells of {paper.source} are among the records")
    figure = Figure(figsize=(8.4, 1.2 + 0.3 * len(found)), layout="constrained")
    axes = figure.add_subplot()
    plots.finish(axes)
    axes.axvspan(-paper.tie * unit.scale, paper.tie * unit.scale, color="#eeeeee", zorder=0)
    axes.axvline(0, color="black", linewidth=0.8, zorder=1)
    for y, each in enumerate(found):
        color = JUDGED.get(each.judgement, GREY)
        ours, face = each.ours.scaled(unit.scale).interval(), color if each.judgement in JUDGED else "white"
        half = None if math.isnan(ours.half_width) else ours.half_width
        look = dict(fmt="o", color=color, markerfacecolor=face, markersize=6, elinewidth=1.6, capsize=3)
        axes.errorbar(ours.mean, y, xerr=half, **look)
        axes.plot(each.paper * unit.scale, y, "D", color=INK, markerfacecolor="none", markersize=6)
        axes.annotate(
            each.judgement,
            (1.01, y),
            xycoords=axes.get_yaxis_transform(),
            va="center",
            fontsize=SMALL,
            color=INK,
        )
    axes.set_yticks(range(len(found)), [each.what for each in found], parse_math=False, fontsize=SMALL)
    axes.set_ylim(len(found) - 0.4, -0.6)
    points = " (points)" if unit.scale == 100 else unit.suffix
    axes.set_xlabel(f"difference of {paper.metric}{points}: ◇ the paper's, ● ours with its 95 % interval")
    return figure


JUDGED = {"agrees": "#4f7fd0", "disagrees": "#e8590c"}  # colours of no family


def _along(studies: Mapping[str, Rows], values: Mapping[str, float], label: str, metric: Metric) -> Line:
    found: list[tuple[float, Any]] = []
    for study, rows in studies.items():
        if label in rows and (numbers := metric_values(rows[label], metric)[0]):
            found.append((values[study], mean_interval(numbers).scaled(unit_of(metric.name).scale)))
    found.sort(key=lambda point: point[0])
    x, intervals = zip(*found, strict=True) if found else ((), ())
    return Line(
        np.array(x, float), np.array([i.mean for i in intervals]), np.array([i.half_width for i in intervals]), ""
    )
