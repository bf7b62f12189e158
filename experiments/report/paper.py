"""Figures of a published table or curve beside ours, and of a quantity that varies over the tables of one config."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from ml_collections import ConfigDict

from experiments.records import Records
from experiments.report import figures
from experiments.report.figures import Axis, Drawn
from experiments.report.statistics import LEVEL, Estimate, Line, contrast, difference, is_whole, judge, line, term
from experiments.report.table import better_or_worse, headline
from experiments.report.units import title_of, unit_of
from posjax.describe.figures import GREY, INK
from posjax.describe.markdown import escape_markdown, grid

AGREES, DISAGREES, UNSETTLED = "agrees", "disagrees", "not settled"
JUDGED = {AGREES: "#4f7fd0", DISAGREES: "#e8590c"}  # colours that no family has
Place = tuple[str, str]  # study, row


class Compared(NamedTuple):
    """A difference of the paper's and ours, both in the shown unit; ours is exploratory if the paper's is a tie."""

    what: str
    paper: float
    ours: Estimate
    judgement: str
    tie: bool


def compared(records: Records, paper: ConfigDict) -> list[Compared]:
    """Returns the paper's differences beside ours: each place against `paper.reference`, or `paper.pairs` in each study.

    Args:
      paper: source, metric (our name), values {study: {row: value}}, tie (differences up to here count as none), and
        reference (study, row) or pairs of rows.
    """
    places = [
        (study, row)
        for study in records.studies
        for row in records.rows(study)
        if row in paper["values"].get(study, {}) and is_whole(records.values(study, row, paper.metric))
    ]
    ours, theirs = {}, {}
    for a, b in dict.fromkeys(_pairs(places, paper)):
        ours[a, b] = difference(*(term(records, *place, paper.metric) for place in (a, b)))
        theirs[a, b] = paper["values"][a[0]][a[1]] - paper["values"][b[0]][b[1]]
    judged = judge({pair: each for pair, each in ours.items() if abs(theirs[pair]) > paper.tie})
    scale, found = unit_of(paper.metric).scale, []
    for (a, b), each in ours.items():
        tie = (a, b) not in judged
        judgement = _of_tie(each, paper.tie) if tie else _judgement(judged[a, b].separated, each.value, theirs[a, b])
        found.append(Compared(_what(a, b), scale * theirs[a, b], each.scaled(scale), judgement, tie))
    return found


def _pairs(places: Sequence[Place], paper: ConfigDict) -> list[tuple[Place, Place]]:
    if paper.get("reference") is None:
        named = [
            ((study, a), (study, b)) for study in dict.fromkeys(study for study, _ in places) for a, b in paper.pairs
        ]
        return [(a, b) for a, b in named if a in places and b in places]
    reference = tuple(paper.reference)
    if reference not in places:
        return []
    first: dict[str, Place] = {}
    for place in places:
        first.setdefault(place[1], place)
    pairs = [(place, reference) for place in places if place != reference]
    return pairs + [(place, first[place[1]]) for place in places if first[place[1]] != place]


def _what(a: Place, b: Place) -> str:
    """Returns a difference's name: "rope - none, scan" within a study, else "1-D, stem - none, stem"."""
    (study, row), (other, base) = ((study.replace("_", " "), row) for study, row in (a, b))
    return f"{row} - {base}, {study}" if study == other else f"{row}: {study} - {other}" if row == base else _both(a, b)


def _both(a: Place, b: Place) -> str:
    return " - ".join(f"{row} ({study.replace('_', ' ')})" for study, row in (a, b))


def _judgement(separated: bool, ours: float, theirs: float) -> str:
    return UNSETTLED if not separated else AGREES if (ours > 0) == (theirs > 0) else DISAGREES


def _of_tie(ours: Estimate, tie: float) -> str:
    return "as close to 0" if ours.p_within(tie) <= LEVEL else "apart" if ours.p() <= LEVEL else UNSETTLED


def to_markdown(found: Sequence[Compared], paper: ConfigDict) -> str:
    """Returns a table row for each difference, and a note on how they were judged."""
    unit = unit_of(paper.metric)
    rows = [
        (
            escape_markdown(each.what),
            f"{each.paper:+.{unit.digits}f}",
            each.ours.interval().text(unit.digits, signed=True),
            f"{each.judgement}{' (tie of the paper)' if each.tie else ''}",
        )
        for each in found
    ]
    tests = sum(not each.tie for each in found)
    told = (
        f"Differences of {paper.metric} in {unit.of_differences}: those of {paper.source}, and ours with 95 % intervals, "
        f"judged after Holm's correction over {tests} tests. Differences of the paper's of up to "
        f"{paper.tie * unit.scale:g} count as ties; what ours say of ties is exploratory."
    )
    return f"{grid(('difference', 'paper', 'ours', 'verdict'), rows)}\n\n{escape_markdown(told)}"


def forest(found: Sequence[Compared], paper: ConfigDict) -> Drawn:
    """Draws the paper's differences (diamonds) and ours with 95 % intervals (dots), a line each.

    Filled dots agree or disagree after Holm's correction; in the grey band the paper's differences count as none.
    """
    unit = unit_of(paper.metric)
    figure = Figure(figsize=(figures.WIDTH, 0.8 + 0.27 * len(found)), layout="constrained")
    axes = figure.add_subplot()
    figures.finish(axes)
    axes.axvspan(-paper.tie * unit.scale, paper.tie * unit.scale, color="#eeeeee", zorder=0)
    axes.axvline(0, color="black", linewidth=0.8, zorder=1)
    for y, each in enumerate(found):
        color, ours = JUDGED.get(each.judgement, GREY), each.ours.interval()
        face = color if each.judgement in JUDGED else "white"
        half = None if math.isnan(ours.half_width) else ours.half_width
        look = dict(fmt="o", color=color, markerfacecolor=face, markersize=5, elinewidth=1.5, capsize=2.5)
        axes.errorbar(ours.mean, y, xerr=half, **look)
        axes.plot(each.paper, y, "D", color=INK, markerfacecolor="none", markersize=5)
        right = axes.get_yaxis_transform()
        axes.text(1.02, y, each.judgement, transform=right, va="center", fontsize=figures.SMALL, color=INK)
    axes.set_yticks(range(len(found)), [each.what for each in found], parse_math=False, fontsize=figures.SMALL)
    axes.set_ylim(len(found) - 0.4, -0.6)
    axes.set_xlabel(f"difference of {paper.metric} ({unit.of_differences})", fontsize=figures.TYPE)
    told = f"Hollow diamonds are differences in {paper.source}, dots ours with 95 % intervals. {counted(found)}"
    return Drawn("beside_the_paper", figure, told)


def counted(found: Sequence[Compared]) -> str:
    """Counts the agreements with the paper, ties left out."""
    planned = [each.judgement for each in found if not each.tie]
    told = [f"{planned.count(name)} {words}" for name, words in _WORDS.items()]
    return f"Of the paper's {len(planned)} differences {told[0]}, {told[1]} and {told[2]}."


_WORDS = {AGREES: "agree with ours", DISAGREES: "do not", UNSETTLED: "are not settled here"}


def along(records: Records, axis: ConfigDict) -> Drawn | None:
    """Draws the headline of every row over the studies, placed at `axis.values` {study: number}; None without a headline.

    The caption names the gains from the first study to the last that differ from the least gain.
    """
    places = {study: float(x) for study, x in axis["values"].items() if study in records.studies}
    ordered = sorted(places, key=places.__getitem__)
    if len(ordered) < 2 or not (found := headline(records, ordered[0])):
        return None
    column = found[0]
    unit, rows = unit_of(column.metric), dict.fromkeys(record.row for record in records)
    cells = {row: {places[s]: v for s in ordered if (v := records.values(s, row, *column))} for row in rows}
    lines = {row: line(by_place).scaled(unit.scale) for row, by_place in cells.items() if by_place}
    names = {places[study]: study.replace("_", " ") for study in ordered}
    shown = Axis(axis.title, None, names, log=places[ordered[-1]] >= 8 * places[ordered[0]])
    title = title_of(column.metric, records[0].unit)
    figure = figures.line_panels(lines, figures.styles(records), {"": list(lines)}, shown, title)
    told = f"{column.metric.capitalize()} along the {axis.title}: means and 95 % intervals over seeds."
    return Drawn("along", figure, " ".join([told, *_gains(records, ordered[0], ordered[-1], column)]))


def _gains(records: Records, first: str, last: str, column: Any) -> list[str]:
    """Compares each row's gain along the axis with the least gain, after Holm's correction."""
    unit = unit_of(column.metric)
    sign = unit.scale if unit.best is max else -unit.scale  # a falling loss is a gain
    ends = {
        row: (term(records, last, row, *column, weight=sign), term(records, first, row, *column, weight=-sign))
        for row in records.rows(first)
        if is_whole(records.values(first, row, *column)) and is_whole(records.values(last, row, *column))
    }
    if len(ends) < 2:
        return []
    least = min(ends, key=lambda row: contrast(ends[row]).value)
    other = [each._replace(weight=-each.weight) for each in ends[least]]
    judged = judge({row: contrast([*terms, *other]) for row, terms in ends.items() if row != least})
    told = []
    for row, verdict in judged.items():
        interval = verdict.estimate.interval()
        told.append(f"{row} {better_or_worse(interval.mean, interval.half_width, unit.digits, verdict.separated)[0]}")
    gained = f"From {first.replace('_', ' ')} to {last.replace('_', ' ')} {least} gains least"
    return [f"{gained}; beside it {', '.join(told)} ({unit.of_differences}, after Holm's correction)."]


def beside_curves(records: Records, study: str, curves: ConfigDict) -> Drawn | None:
    """Draws published and our accuracies by resolution, both as shares of the accuracy at the trained resolution.

    Args:
      curves: source, trained (resolution), values {model: {row: {resolution: value}}} and rows {row: our labels}.
    """
    metric = "accuracy"
    trained = figures.trained_at(records.of(study))
    ours = {
        name: next((label for label in labels if label in records.rows(study)), None)
        for name, labels in curves.rows.items()
    }
    look, lines, panels = figures.styles(records), {}, {}
    for name, label in ours.items():
        if label is not None:
            lines[name] = _relative(records, study, label, metric, trained)
            look[name] = look[label]
    if not lines:
        return None
    panels["here"] = list(lines)
    for model, rows in curves["values"].items():
        for name in (name for name in rows if name in ours and ours[name] is not None):
            points = {float(size): value for size, value in rows[name].items()}
            x, y = (np.array(each) for each in zip(*sorted(points.items()), strict=True))
            lines[f"{name}, {model}"] = Line(
                x / curves.trained, 100 * y / points[curves.trained], np.full(len(x), np.nan)
            )
            look[f"{name}, {model}"] = look[name]
            panels.setdefault(model, []).append(f"{name}, {model}")
    axis = Axis("resolution over that of training", 1.0, {0.5: "0.5×", 1.0: "1×", 2.0: "2×"}, log=True)
    figure = figures.line_panels(lines, look, panels, axis, f"{metric} (% of that at 1×)")
    return Drawn(
        "beside_the_paper",
        figure,
        f"Accuracy as a share of that at the trained resolution, here and in {curves.source}.",
    )


def _relative(records: Records, study: str, row: str, metric: str, trained: int) -> Line:
    base, power = records.values(study, row, metric, trained), 0.5 if records.of(study)[0].unit == "patch" else 1.0
    cells = {}
    for at in records.metrics(study)[metric]:
        values = records.values(study, row, metric, at)
        shares = {
            seed: 100 * value / base[seed] for seed, value in values.items() if value is not None and base.get(seed)
        }
        cells[(at / trained) ** power] = shares
    return line(cells)
