"""Figures of a published table or curve beside ours."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from experiments.records import Records, StudyRecords
from experiments.report import figures
from experiments.report.figures import Drawn, XAxis
from experiments.report.statistics import LEVEL, Estimate, RowCurve, difference_of, is_whole, judge_family, line, term
from experiments.report.units import unit_of
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
        (name, row)
        for name, study in records.studies.items()
        for row in study.rows
        if row in paper["values"].get(name, {}) and is_whole(study.values(row, paper.metric))
    ]
    ours, theirs = {}, {}
    for a, b in dict.fromkeys(_pairs(places, paper)):
        ours[a, b] = difference_of(*(term(records.studies[name], row, paper.metric) for name, row in (a, b)))
        theirs[a, b] = paper["values"][a[0]][a[1]] - paper["values"][b[0]][b[1]]
    judged = judge_family({pair: difference for pair, difference in ours.items() if abs(theirs[pair]) > paper.tie})
    scale, found = unit_of(paper.metric).scale, []
    for (a, b), difference in ours.items():
        paper_says, tie = theirs[a, b], (a, b) not in judged
        if tie:
            apart = "apart" if difference.p() <= LEVEL else UNSETTLED
            verdict = "as close to 0" if difference.p_within(paper.tie) <= LEVEL else apart
        elif judged[a, b].separated:
            verdict = AGREES if (difference.value > 0) == (paper_says > 0) else DISAGREES
        else:
            verdict = UNSETTLED
        found.append(Compared(_name(a, b), scale * paper_says, difference.scaled(scale), verdict, tie))
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


def _name(a: Place, b: Place) -> str:
    """Returns a difference's name: "rope - none, scan" within a study, else "1-D, stem - none, stem"."""
    (study, row), (other, base) = ((study.replace("_", " "), row) for study, row in (a, b))
    if study == other:
        return f"{row} - {base}, {study}"
    return f"{row}: {study} - {other}" if row == base else f"{row} ({study}) - {base} ({other})"


def compared_markdown(found: Sequence[Compared], paper: ConfigDict) -> str:
    """Returns a table row for each difference, and a note on how they were judged."""
    unit = unit_of(paper.metric)
    rows = [
        (
            escape_markdown(difference.what),
            f"{difference.paper:+.{unit.digits}f}",
            difference.ours.interval().text(unit.digits, signed=True),
            f"{difference.judgement}{' (tie of the paper)' if difference.tie else ''}",
        )
        for difference in found
    ]
    tests = sum(not difference.tie for difference in found)
    paragraph = (
        f"Differences of {paper.metric} in {unit.of_differences}: those of {paper.source}, and ours with 95 % intervals, "
        f"judged after Holm's correction over {tests} tests. Differences of the paper's of up to "
        f"{paper.tie * unit.scale:g} count as ties; what ours say of ties is exploratory."
    )
    return f"{grid(('difference', 'paper', 'ours', 'verdict'), rows)}\n\n{escape_markdown(paragraph)}"


def forest(found: Sequence[Compared], paper: ConfigDict) -> Drawn:
    """Draws the paper's differences (diamonds) and ours with 95 % intervals (dots), a line each.

    Filled dots agree or disagree after Holm's correction; in the grey band the paper's differences count as none.
    """
    unit = unit_of(paper.metric)
    axes = figures.row_axes([difference.what for difference in found], [difference.judgement for difference in found])
    axes.axvspan(-paper.tie * unit.scale, paper.tie * unit.scale, color="#eeeeee", zorder=0)
    axes.axvline(0, color="black", linewidth=0.8, zorder=1)
    for y, difference in enumerate(found):
        color, ours = JUDGED.get(difference.judgement, GREY), difference.ours.interval()
        face = color if difference.judgement in JUDGED else "white"
        half = None if math.isnan(ours.half_width) else ours.half_width
        look = dict(fmt="o", color=color, markerfacecolor=face, markersize=5, elinewidth=1.5, capsize=2.5)
        axes.errorbar(ours.mean, y, xerr=half, **look)
        axes.plot(difference.paper, y, "D", color=INK, markerfacecolor="none", markersize=5)
    axes.set_xlabel(f"difference of {paper.metric} ({unit.of_differences})", fontsize=figures.TYPE)
    planned = [difference.judgement for difference in found if not difference.tie]
    caption = (
        f"Hollow diamonds are differences in {paper.source}, dots ours with 95 % intervals. Of the paper's {len(planned)} "
        f"differences {planned.count(AGREES)} agree with ours, {planned.count(DISAGREES)} do not and "
        f"{planned.count(UNSETTLED)} are not settled here."
    )
    return Drawn("beside_the_paper", axes.figure, caption)


def beside_curves(study: StudyRecords, curves: ConfigDict, styles: Mapping[str, figures.Style]) -> Drawn | None:
    """Draws published and our accuracies by resolution, both as shares of the accuracy at the trained resolution.

    Args:
      curves: source, trained (resolution), values {model: {row: {resolution: value}}} and rows {row: our labels}.
      styles: looks of our rows.
    """
    labels = {name: next(filter(study.rows.__contains__, known), None) for name, known in curves.rows.items()}
    labels = {name: label for name, label in labels.items() if label is not None}
    if not labels:
        return None
    lines = {name: _relative(study, label) for name, label in labels.items()}
    look = {name: styles[label] for name, label in labels.items()}
    panels = {"here": list(lines)}
    for model, rows in curves["values"].items():
        for name in filter(labels.__contains__, rows):
            points = {float(size): value for size, value in rows[name].items()}
            x, y = (np.array(part) for part in zip(*sorted(points.items()), strict=True))
            label = f"{name}, {model}"
            lines[label] = RowCurve(x / curves.trained, 100 * y / points[curves.trained], np.full(len(x), np.nan))
            look[label] = look[name]
            panels.setdefault(model, []).append(label)
    axis = XAxis("resolution over that of training", 1.0, {0.5: "0.5×", 1.0: "1×", 2.0: "2×"}, log=True)
    figure = figures.line_panels(lines, look, panels, axis, "accuracy (% of that at 1×)")
    caption = f"Accuracy as a share of that at the trained resolution, here and in {curves.source}."
    return Drawn("beside_the_paper", figure, caption)


def _relative(study: StudyRecords, row: str) -> RowCurve:
    """Returns a row's accuracy by resolution, in per cent of the same seed's at the trained resolution."""
    trained, power = study.trained_at, 0.5 if study.unit == "patch" else 1.0
    base, cells = study.values(row, "accuracy", trained), {}
    for at in study.metrics["accuracy"]:
        values = study.values(row, "accuracy", at)
        cells[(at / trained) ** power] = {
            seed: 100 * value / base[seed] for seed, value in values.items() if value is not None and base.get(seed)
        }
    return line(cells)
