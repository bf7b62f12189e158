"""Rows along an axis that studies vary, such as the size of the model: the headline, and leads with their slopes.

    config.axis = dict(title="parameters", values={"0.2M": 2e5, "0.8M": 8e5}, against="none", at=(256, 2048))

The lead of a row at a length is the loss of `against` less the row's. A line in the logarithm of the size is fitted by least
squares to the means over seeds; its slope is a contrast of the cells, so its interval and its p-value are those of other
contrasts (`experiments.report.statistics`). A size with one seed is drawn and does not count.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from ml_collections import ConfigDict

from experiments.records import Records, StudyRecords
from experiments.report import figures
from experiments.report.figures import Drawn, XAxis
from experiments.report.statistics import (
    Estimate,
    RowCurve,
    Verdict,
    WeightedCell,
    contrast,
    is_whole,
    judge_family,
    line,
    slope_weights,
    term,
)
from experiments.report.table import Column, better_or_worse, headline_columns
from experiments.report.units import title_of, unit_of
from posjax.describe.markdown import escape_markdown, grid

_DRAWS = 2000  # of the bootstrap


class Trend(NamedTuple):
    """A row's leads at one length, by size, and the slope per tenfold size; the slope needs two sizes with seeds."""

    leads: Mapping[float, Verdict]
    slope: Verdict | None


def along(records: Records, axis: ConfigDict) -> Drawn | None:
    """Draws the headline of every row over the studies, placed at `axis.values` {study: number}; None without a headline.

    The caption names gains from the first study to the last, of those with several seeds, that differ from the least gain.
    """
    studies = _by_size(records, axis)
    if len(studies) < 2 or not (found := headline_columns(studies[0][0])):
        return None
    column, unit, lines = found[0], unit_of(found[0].metric), {}
    for row in dict.fromkeys(record.row for record in records):
        curves = [line({x: values}) for study, x in studies if (values := study.values(row, *column))]
        if curves:  # one for each study: they may have different seeds
            x, mean, half_width = (np.concatenate(part) for part in zip(*(curve[:3] for curve in curves), strict=True))
            note, kinds = next((c.note for c in curves if c.note), ""), frozenset().union(*(c.kinds for c in curves))
            lines[row] = RowCurve(x, mean, half_width, note, kinds=kinds).scaled(unit.scale)
    names = {x: study.name.replace("_", " ") for study, x in studies}
    shown = XAxis(axis.title, None, names, log=studies[-1][1] >= 8 * studies[0][1])
    title = title_of(column.metric, records[0].unit)
    figure = figures.line_panels(lines, figures.styles(records), {"": list(lines)}, shown, title)
    caption = f"{column.metric.capitalize()} along the {axis.title}. {figures.bands_text(lines)}"
    several = [study for study, _ in studies if all(len(study.values(row, *column)) > 1 for row in study.rows)]
    gains = _gains(several[0], several[-1], column) if len(several) > 1 else []
    return Drawn("along", figure, " ".join([caption, *gains]))


def _gains(first: StudyRecords, last: StudyRecords, column: Column) -> list[str]:
    """Compares each row's gain along the axis with the least gain, after Holm's correction."""
    unit = unit_of(column.metric)
    sign = unit.scale if unit.best is max else -unit.scale  # a falling loss is a gain
    ends = {
        row: (term(last, row, *column, weight=sign), term(first, row, *column, weight=-sign))
        for row in first.rows
        if is_whole(first.values(row, *column)) and is_whole(last.values(row, *column))
    }
    if len(ends) < 2:
        return []
    least = min(ends, key=lambda row: contrast(ends[row]).value)
    other = [cell._replace(weight=-cell.weight) for cell in ends[least]]
    judged = judge_family({row: contrast([*terms, *other]) for row, terms in ends.items() if row != least})
    changes = [
        f"{row} {better_or_worse(*verdict.estimate.interval(), unit.digits, verdict.separated)[0]}"
        for row, verdict in judged.items()
    ]
    gained = f"From {first.name.replace('_', ' ')} to {last.name.replace('_', ' ')} {least} gains least"
    return [f"{gained}; beside it {', '.join(changes)} ({unit.of_differences}, after Holm's correction)."]


def trends(records: Records, axis: ConfigDict, *, others: bool = False) -> dict[tuple[int, str], Trend]:
    """Returns the trend of each length and row; the leads are one family of tests, and the slopes another.

    Args:
      axis: values {study: size}, against (a row), at (lengths).
      others: takes the pairs without `against`, as "alibi over rope", in place of the leads over it.
    """
    leads: dict[tuple[int, str], dict[float, Sequence[WeightedCell]]] = {}
    for study, size in _by_size(records, axis):
        metric, own = headline_columns(study)[0].metric, [row for row in study.rows if row != axis.against]
        pairs = {f"{b} over {a}": (a, b) for a, b in itertools.combinations(own, 2)}
        pairs = pairs if others else {row: (axis.against, row) for row in own}
        for at, (name, (behind, ahead)) in itertools.product(axis.at, pairs.items()):
            pair = [term(study, behind, metric, at), term(study, ahead, metric, at, -1.0)]
            if all(is_whole(cell.values) for cell in pair):
                leads.setdefault((at, name), {})[size] = pair
    slopes = {key: slope for key, pairs in leads.items() if (slope := slope_of(pairs)) is not None}
    judged = judge_family(slopes)
    verdicts = judge_family({(key, n): contrast(pair) for key, pairs in leads.items() for n, pair in pairs.items()})
    return {key: Trend({n: verdicts[key, n] for n in pairs}, judged.get(key)) for key, pairs in leads.items()}


def _by_size(records: Records, axis: ConfigDict) -> list[tuple[StudyRecords, float]]:
    """Returns the studies on the axis that have records, and their sizes, ascending."""
    places = sorted(axis["values"].items(), key=lambda item: item[1])
    return [(records.studies[name], float(size)) for name, size in places if name in records.studies]


def slope_of(leads: Mapping[float, Sequence[WeightedCell]]) -> Estimate | None:
    """Returns the slope per tenfold size over the sizes with two seeds or more; None below two of those."""
    known = {size: pair for size, pair in leads.items() if all(len(cell.values) > 1 for cell in pair)}
    if len(known) < 2:
        return None
    weights = slope_weights(list(known))
    terms = [
        cell._replace(weight=w * cell.weight) for w, pair in zip(weights, known.values(), strict=True) for cell in pair
    ]
    return contrast(terms)


def trends_figure(found: Mapping[tuple[int, str], Trend], records: Records, axis: ConfigDict) -> Drawn:
    """Draws the leads by size, a panel for each length, with the fitted lines dashed."""
    lines, panels, look, fits = {}, {}, figures.styles(records), {}
    for (at, row), trend in found.items():
        intervals = [lead.estimate.interval() for lead in trend.leads.values()]
        panel = f"at {at:,} {records[0].unit}s"
        name = row + " " * len(panels.keys() - {panel})  # names of lines differ between panels
        lines[name] = RowCurve(np.array(list(trend.leads)), *np.array([[x.mean, x.half_width] for x in intervals]).T)
        look[name] = look[row]
        panels.setdefault(panel, []).append(name)
        if trend.slope:
            fits.setdefault(panel, []).append((look[row].color, *_fitted(trend)))

    def dress(axes: Axes) -> None:
        axes.axhline(0.0, color="black", linewidth=0.8, zorder=0)
        for color, x, y in fits.get(axes.get_title(loc="left"), []):
            axes.plot(x, y, color=color, linewidth=0.8, linestyle=(0, (4, 3)))

    sizes = {size for trend in found.values() for size in trend.leads}
    names = {size: study for study, size in axis["values"].items() if size in sizes}
    shown = XAxis(axis.title, None, names, log=True)
    figure = figures.line_panels(lines, look, panels, shown, f"lead over {axis.against} (nats)", dress=dress)
    caption = (
        f"Lead over {axis.against} by {axis.title}. The lead is the loss of {axis.against} less the row's, a mean over seeds "
        f"with its 95 % interval; above 0 a row is better. Dashed: the fitted lines.{figures.cut_text(lines)}"
    )
    return Drawn("trends", figure, caption)


def _fitted(trend: Trend) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ends (x, y) of the fitted line, over the sizes that count."""
    known = {size: lead.estimate.value for size, lead in trend.leads.items() if not math.isnan(lead.p)}
    x = np.array([min(known), max(known)])
    middle = np.log10(list(known)).mean()
    return x, np.mean(list(known.values())) + trend.slope.estimate.value * (np.log10(x) - middle)


def trends_markdown(found: Mapping[tuple[int, str], Trend], records: Records, axis: ConfigDict) -> str:
    """Returns the table of leads and slopes, and the table of parameters."""
    head, lines = trends_table(found, axis)
    lines = [[escape_markdown(row), *cells] for row, *cells in lines]
    paragraph = (
        f"The lead is in nats per {records[0].unit}, over {axis.against}; slopes, over those sizes of a row that have two "
        "seeds or more, with 95 % intervals, words after Holm's correction."
    )
    return "\n\n".join([paragraph, grid(head, lines), *_worth_markdown(records, axis)])


def trends_table(found: Mapping[tuple[int, str], Trend], axis: ConfigDict) -> tuple[list[str], list[list[str]]]:
    """Returns the head and the lines of the table of leads and slopes."""
    names = {size: study for study, size in axis["values"].items()}
    sizes = sorted({size for trend in found.values() for size in trend.leads})
    head = ["row", "length", *(f"lead at {names[size]}" for size in sizes), "per tenfold size", "the lead", "verdict"]
    lines = []
    for (at, row), trend in found.items():
        known = {size: lead.estimate.interval().text(signed=True) for size, lead in trend.leads.items()}
        cells = [known.get(size, "-") for size in sizes]
        slope = trend.slope.estimate.interval().text(signed=True) if trend.slope else "-"
        lines.append([row, f"{at:,}", *cells, slope, _word(trend), _verdict(trend, names)])
    return head, lines


def _verdict(trend: Trend, names: Mapping[float, str]) -> str:
    """Says at which sizes the row is better or worse than the other, after Holm's correction; one seed tells nothing."""

    def word(size: float) -> str:
        lead = trend.leads[size]
        return ("better" if lead.estimate.value > 0 else "worse") if lead.separated else "not settled"

    tested = [size for size, lead in trend.leads.items() if not math.isnan(lead.p)]
    groups = [(verdict, [names[size] for size in sizes]) for verdict, sizes in itertools.groupby(tested, word)]
    if len(groups) == 1:
        return f"{groups[0][0]} at every size"
    return ", ".join(f"{verdict} at {' and '.join(sizes)}" for verdict, sizes in groups) or "not tested"


def _word(trend: Trend) -> str:
    """Says whether a lead grows with size; where it is negative at the largest size with seeds it is a lag."""
    if trend.slope is None or not trend.slope.separated:
        return "not settled"
    tested = [lead.estimate.value for lead in trend.leads.values() if not math.isnan(lead.p)]
    last, slope = tested[-1], trend.slope.estimate.value
    return ("lead" if last > 0 else "lag") + (" grows" if (slope > 0) == (last > 0) else " shrinks")


def _worth_markdown(records: Records, axis: ConfigDict) -> list[str]:
    found = worth(records, axis)
    if not found:
        return []
    names = {size: study for study, size in axis["values"].items()}
    sizes = sorted({size for _, size in found})
    cells = [
        [escape_markdown(row), *(found.get((row, size), "-") for size in sizes)]
        for row in dict.fromkeys(row for row, _ in found)
    ]
    paragraph = (
        f"The factor of parameters with which a row has the least loss of a size at {axis.at[0]:,} {records[0].unit}s, by "
        "the line between its own sizes. Brackets hold 95 % of the draws of a bootstrap over seeds; beyond the largest size "
        "only a bound is known."
    )
    return [paragraph, grid(["row", *(names[size] for size in sizes)], cells)]


def worth(records: Records, axis: ConfigDict, seed: int = 0) -> dict[tuple[str, float], str]:
    """Returns {(row, size): the factor of parameters at which the row has the least loss of that size, as text}."""
    cells: dict[str, dict[float, list[float]]] = {}
    for study, size in _by_size(records, axis):
        metric = headline_columns(study)[0].metric
        for row in study.rows:
            if is_whole(values := study.values(row, metric, axis.at[0])):
                cells.setdefault(row, {})[size] = list(values.values())
    rng, found = np.random.default_rng(seed), {}
    for size in dict.fromkeys(size for by_size in cells.values() for size in by_size):
        here = {row: float(np.mean(by_size[size])) for row, by_size in cells.items() if size in by_size}
        best = min(here, key=here.__getitem__)
        for row in here:
            own = cells[row]
            if row == best:
                found[row, size] = "1 (least loss)"
            elif len(own) > 1:
                means = _drawn([*own.values(), cells[best][size]], rng)
                draws = [_factor(dict(zip(own, losses, strict=True)), loss, size) for *losses, loss in means]
                middle = _factor({n: float(np.mean(v)) for n, v in own.items()}, here[best], size)
                ends = np.quantile(draws, [0.025, 0.975], method="inverted_cdf")
                found[row, size] = _factor_text(middle, *ends, max(own) / size)
    return found


def _drawn(groups: Sequence[Sequence[float]], rng: np.random.Generator) -> list[list[float]]:
    """The means of groups [draws, groups] whose values are drawn anew, with replacement."""
    given = [(np.array(values), len(values)) for values in groups]
    return [[values[rng.integers(n, size=n)].sum() / n for values, n in given] for _ in range(_DRAWS)]


def _factor(by_size: Mapping[float, float], loss: float, size: float) -> float:
    """Returns the size at which the line between sizes reaches a loss, over `size`; inf beyond the largest."""
    sizes = sorted(by_size)
    losses = np.minimum.accumulate([by_size[n] for n in sizes])
    if loss < losses[-1]:
        return math.inf
    return float(np.exp(np.interp(-loss, -losses, np.log(sizes)))) / size


def _factor_text(factor: float, low: float, high: float, most: float) -> str:
    if math.isinf(factor):
        return f"> {most:.3g}"
    return f"{factor:.2g} ({low:.2g} to {f'beyond {most:.2g}' if math.isinf(high) else f'{high:.2g}'})"
