"""Figures of a study, chosen by the metrics of its table.

A metric at several places is drawn as lines, a single number as points, a metric at lengths and depths as maps. Every figure
is `WIDTH` wide with panels below each other, so its letters can be read on a phone; its background is white on dark pages
too. A row has the colour and mark of its encoding's family (`experiments.report.families`); rows of a family differ in
dash. No pyplot, no global state.
"""

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedLocator, LogLocator, NullFormatter, NullLocator
from scipy.optimize import isotonic_regression

from experiments.records import At, Records, StudyRecords
from experiments.report.families import FAMILIES, family_of
from experiments.report.statistics import RowCurve, finite_values, is_whole, line, mean_interval, term
from experiments.report.table import Column, headline_columns, listed, shown_metrics
from experiments.report.units import many, title_of, unit_of, words
from posjax.describe.figures import GREY, INK

WIDTH = 4.8  # inches: 9 points of type are 9 pixels where a phone shows 360 of them
TYPE, SMALL = 9, 8  # points
MOST, ALIKE = 12, 3  # rows in one panel, and rows of one family there
_ROOM = 6  # rows of one family that get their own panel
_DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (8, 2, 2, 2)), (0, (3, 1, 1, 1, 1, 1)))
_SEEDS = "Small dots are seeds; large marks are means with 95 % intervals."


Values = Mapping[int, float | None]  # by seed


class Style(NamedTuple):
    color: str
    marker: str
    dash: object = "-"  # matplotlib's dash pattern
    filled: bool = True


class Drawn(NamedTuple):
    """A figure, the end of its file's name and its caption; a page folds it if `aside`."""

    name: str
    figure: Figure
    caption: str
    aside: bool = False


class XAxis(NamedTuple):
    """The axis along which a metric was measured.

    Attributes:
      trained: the place of training, which is marked, or None.
      names: names of places; "" shows the number itself.
      log: whether the axis is logarithmic.
    """

    title: str
    trained: float | None = None
    names: Mapping[float, str] = {}
    log: bool = False


REFERENCE = Style("#b4b4b4", "", (0, (2, 1)))  # a reference line that other panels repeat


def styles(records: Records) -> dict[str, Style]:
    """Returns the look of each row: colour and mark of its family; rows of a family differ in dash and filling of marks."""
    found, seen = {}, dict.fromkeys(FAMILIES, 0)
    for row, encoding in {record.row: record.encoding for record in records}.items():
        family = family_of(encoding)
        again, dash = divmod(seen[family], len(_DASHES))
        look = FAMILIES[family]
        found[row] = Style(look.color, look.marker, _DASHES[dash], (dash + again) % 2 == 0)
        seen[family] += 1
    return found


def study_figures(study: StudyRecords, look: Mapping[str, Style]) -> list[Drawn]:
    """Returns all figures for which a study has finite values: its headline first, learning curves last."""
    drawn, first = [], headline_columns(study)
    if first and first[0].at is None:
        drawn.append(_points(study, first[0], look))
    for metric, ats in shown_metrics(study).items():
        if ats == [None] or not _is_worth_drawing(study, metric, ats):
            continue
        if len(ats) == 1:
            drawn.append(_points(study, Column(metric, ats[0]), look))
        else:
            drawn.append(lines_figure(study, metric, look))
    drawn += _of_two_numbers(study, look)
    drawn += _costs(study, look)
    if steps := study.metrics.get("training loss"):
        made = means(study, "training loss", {step: step for step in steps}, may_be_log=True)
        figure = draw(study, made, look, XAxis("training step"), "training loss", min)
        drawn.append(Drawn("learning_curves", figure, f"Training loss by step. {bands_text(made)}", aside=True))
    return drawn


_FEW = 0.01  # smaller shares are invisible


def _is_worth_drawing(study: StudyRecords, metric: str, ats: Sequence) -> bool:
    """Whether a row has a finite value, and a visible one if the metric counts whole answers."""
    cells = [finite_values(study.values(row, metric, at)) for row in study.rows for at in ats]
    means = [np.mean(values) for values in cells if values]
    return bool(means) and ("exact match" not in metric or max(means) >= _FEW)


def _points(study: StudyRecords, column: Column, look: Mapping[str, Style]) -> Drawn:
    """Draws the mean with its interval and every seed as a dot; one line per row, in the order of the table."""
    unit, beside = unit_of(column.metric), []
    for row in study.rows:
        cell = study.values(row, *column)
        found = finite_values(cell)
        note = f" ({len(found)}/{len(cell)})" if len(found) < len(cell) else ""
        beside.append(f"{mean_interval(found).scaled(unit.scale).text(unit.digits)}{note}" if found else "-")
    axes = row_axes([*study.rows], beside)
    for y, row in enumerate(study.rows):
        if values := finite_values(study.values(row, *column)):
            interval, color = mean_interval(values).scaled(unit.scale), look[row].color
            spread = np.linspace(-0.07, 0.07, len(values)) * (len(values) > 1)  # equal seeds can be counted
            axes.scatter(unit.scale * np.array(values), y + 0.22 + spread, s=10, color=color, alpha=0.55, linewidths=0)
            half = None if math.isnan(interval.half_width) else interval.half_width
            bar = dict(fmt=look[row].marker, color=color, markersize=5.5, elinewidth=1.6, capsize=3, capthick=1.2)
            axes.errorbar(interval.mean, y - 0.08, xerr=half, **bar)
            if study.is_none(row):
                axes.axvline(interval.mean, color=GREY, linewidth=0.8, linestyle=":", zorder=0)
    axes.grid(axis="x", color="#e4e4e4", linewidth=0.6)
    caption = f"{words(column.metric).capitalize()}{_place(column, study)}. {_SEEDS}"
    low, high = axes.get_xlim()
    if (guess := unit.scale * study.guess.get(column.metric, math.inf)) - high < high - low > low - guess:
        axes.axvline(guess, **_GUESS)
        caption += _GUESSED
    if unit.best is max and unit.scale == 100:  # shares in per cent
        low, high = axes.get_xlim()
        axes.set_xlim(max(low, -1.0), min(high, 100.5))
    axes.set_xlabel(f"{title_of(column.metric, study.unit)}{_place(column, study)}", fontsize=TYPE)
    return Drawn(_file(column.metric), axes.figure, caption)


_GUESS = dict(color="black", linewidth=0.8, zorder=0)
_GUESSED = " Black line: one answer for all test examples."


def _place(column: Column, study: StudyRecords) -> str:
    return "" if column.at is None else f" at {column.at} {many(study.unit)}"


def row_axes(labels: Sequence[str], beside: Sequence[str]) -> Axes:
    """Returns the axes of a new figure with a line for each row: its label at the left, a text at the right."""
    axes = Figure(figsize=(WIDTH, 0.75 + 0.3 * len(labels)), layout="constrained").add_subplot()
    plain_axes(axes)
    for y, text in enumerate(beside):
        axes.text(1.02, y, text, transform=axes.get_yaxis_transform(), va="center", fontsize=SMALL, color=INK)
    axes.set_yticks(range(len(labels)), labels, parse_math=False)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    return axes


def _file(metric: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in metric).replace("__", "_")


def lines_figure(study: StudyRecords, metric: str, look: Mapping[str, Style]) -> Drawn:
    """Draws a metric over the places where it was measured; the place of training is marked."""
    ats, unit = study.metrics[metric], unit_of(metric)
    axis = axis_of(study, metric)
    made = means(study, metric, {at: at for at in ats}, may_be_log=unit.scale != 100)
    made = {row: curve.scaled(unit.scale) for row, curve in made.items()}
    by = "" if " by " in metric else f" by {axis.title.partition(' (')[0]}"
    caption = f"{words(metric).capitalize()}{by}. {bands_text(made)}"
    caption += f" Dashed: where rows were trained, {axis.trained:g}." if axis.trained else ""
    low, high = limits(made)
    guess = unit.scale * study.guess.get(metric, math.inf)
    caption += _GUESSED if low < guess < high else ""
    at_guess = functools.partial(Axes.axhline, y=guess, **_GUESS)
    figure = draw(study, made, look, axis, title_of(metric, study.unit), unit.best or min, at_guess)
    return Drawn(f"{_file(metric)}_lines", figure, caption)


def axis_of(study: StudyRecords, metric: str) -> XAxis:
    """Returns the axis of a metric: lengths in tokens, resolutions in pixels or patches, or blocks."""
    if preposition := unit_of(metric).block:
        return XAxis("blocks before the probe" if preposition == "after" else "block")
    ats, unit = study.metrics[metric], study.unit
    title = {"pixel": "resolution (pixels)", "patch": "resolution (patches)"}.get(unit, f"length ({many(unit)})")
    return XAxis(title, study.trained_at if study.trained_at in ats else None, {}, max(ats) >= 6 * min(ats))


def means(study: StudyRecords, metric: str, places: Mapping[float, At], may_be_log: bool) -> dict[str, RowCurve]:
    """Returns the line of each row; geometric means if they span a factor of four, where a band could reach 0.

    Args:
      places: {x: place of the metric}.
    """

    def made(geometric: bool) -> dict[str, RowCurve]:
        cells = {row: {x: study.values(row, metric, at) for x, at in places.items()} for row in study.rows}
        best = _best_of_weights(study, metric, cells)
        return {row: line(by_x, geometric, best[row]) for row, by_x in cells.items()}

    found = {row: curve for row, curve in made(False).items() if len(curve.x)}
    mean = np.concatenate([curve.mean[np.isfinite(curve.mean)] for curve in found.values()] or [np.zeros(0)])
    if may_be_log and len(mean) and mean.min() > 0 and mean.max() > 4 * mean.min():
        return {row: curve for row, curve in made(True).items() if row in found}
    return found


def _best_of_weights(
    study: StudyRecords, metric: str, cells: Mapping[str, Mapping[float, Values]]
) -> dict[str, dict[float, Values]]:
    """Returns, for each row, the values by seed of the best row of the same weights, at the places where that is another."""
    order, found = unit_of(metric).best or min, {row: {} for row in cells}
    runs = {row: term(study, row, metric).runs for row in cells}
    for x in {x for by_x in cells.values() for x in by_x}:
        means_of = {row: np.mean([*by_x[x].values()]) for row, by_x in cells.items() if is_whole(by_x[x])}
        for row in means_of:
            best = order((other for other in means_of if runs[other] == runs[row]), key=means_of.__getitem__)
            found[row] |= {x: cells[best][x]} if best != row else {}
    return found


def draw(
    study: StudyRecords,
    lines: Mapping[str, RowCurve],
    look: Mapping[str, Style],
    axis: XAxis,
    title: str,
    best: Callable,
    dress: Callable[[Axes], None] = lambda axes: None,
) -> Figure:
    """Draws the panels of a study's lines; if there are several, each repeats the reference and the best line in grey."""
    panels = panels_of(study, lines)
    repeated = references(study, lines, best) if len(panels) > 1 else []
    return line_panels(lines, look, panels, axis, title, repeated, dress)


def panels_of(study: StudyRecords, lines: Iterable[str]) -> dict[str, list[str]]:
    """Returns {title: rows}: one panel for few rows, else one for each base with several variants, or for each family."""
    kept = [row for row in study.rows if row in lines]
    bases = {row: study.rows[row][0].base for row in kept}
    if len({base for row, base in bases.items() if base != row}) > 1:
        of_row = bases
        groups: dict[str, list[str]] = {}
    else:
        of_row = {row: family_of(study.rows[row][0].encoding) for row in kept}
        groups = {name: [] for name in FAMILIES}
    for row, name in of_row.items():
        groups.setdefault(name, []).append(row)
    if of_row is not bases and len(kept) <= MOST and all(len(rows) <= ALIKE for rows in groups.values()):
        return {"": kept}
    panels = {name: rows for name, rows in groups.items() if len(rows) > 1}
    if alone := [row for rows in groups.values() if len(rows) == 1 for row in rows]:
        panels["others"] = alone
    return _parted(panels)


def _parted(panels: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Splits panels of many rows; "YaRN" and "YaRN, tuned" stay together."""
    made = {}
    for title, rows in panels.items():
        count = -(-len(rows) // _ROOM)
        names = list(dict.fromkeys(row.partition(",")[0] for row in rows))
        for part in range(count):
            own = [row for row in rows if row.partition(",")[0] in names[part::count]]
            made[title if count == 1 else f"{title}, {part + 1} of {count}"] = own
    return made


def references(study: StudyRecords, lines: Mapping[str, RowCurve], best: Callable) -> list[str]:
    """Returns the rows that every panel repeats: `none`, and the line with the best end if all lines have one."""
    found = [row for row in lines if study.is_none(row)]
    finite = {row: curve.x[np.isfinite(curve.mean)] for row, curve in lines.items()}
    finite = {row: x for row, x in finite.items() if len(x)}
    if finite:
        last = min(x[-1] for x in finite.values())
        at = {row: lines[row].mean[np.searchsorted(lines[row].x, last)] for row in finite if last in lines[row].x}
        top = best(at, key=at.__getitem__)
        found += [top] if top not in found else []
    return found


def line_panels(
    lines: Mapping[str, RowCurve],
    look: Mapping[str, Style],
    panels: Mapping[str, Sequence[str]],
    axis: XAxis,
    title: str,
    repeated: Sequence[str] = (),
    dress: Callable[[Axes], None] = lambda axes: None,
) -> Figure:
    """Draws means with their bands, named at their right ends, in panels below each other that share their axes.

    Args:
      panels: {title: rows}.
      repeated: rows that the other panels repeat in grey.
      dress: function that draws behind the lines of a panel.
    """
    counts = [len({*rows, *repeated}) for rows in panels.values()]
    heights = [max(1.15, 0.45 + 0.145 * count) if len(panels) > 1 else max(2.6, 0.5 + 0.16 * count) for count in counts]
    figure = Figure(figsize=(WIDTH, 0.6 + sum(heights)), layout="constrained")
    grid = figure.subplots(len(panels), 1, squeeze=False, sharex=True, sharey=True, height_ratios=heights)[:, 0]
    for axes, (heading, rows) in zip(grid, panels.items(), strict=True):
        plain_axes(axes)
        axes.grid(axis="y", color="#e4e4e4", linewidth=0.6)
        axes.set_title(heading, fontsize=TYPE, loc="left", pad=3)
        for row in (other for other in repeated if other not in rows):
            draw_line(axes, lines[row], REFERENCE)
        for row in rows:
            draw_line(axes, lines[row], look[row])
    for axes in grid:
        dress(axes)
        _mark_places(axes, axis, sorted({x for curve in lines.values() for x in curve.x}))
        if any(curve.geometric for curve in lines.values()):
            axes.set_yscale("log")
            low, high = limits(lines)
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,)))
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_ylim(*limits(lines))
    for axes, rows, height in zip(grid, panels.values(), heights, strict=True):
        again = {row: REFERENCE for row in repeated if row not in rows}
        _name_lines(axes, {row: lines[row] for row in (*rows, *again)}, {**look, **again}, height - 0.25)
    figure.supxlabel(axis.title, fontsize=TYPE)
    figure.supylabel(title, fontsize=TYPE)
    return figure


def _mark_places(axes: Axes, axis: XAxis, places: Sequence[float]) -> None:
    """Draws ticks at the places that have room for a name, and a dashed line at the place of training."""
    if axis.log:
        axes.set_xscale("log", base=2)
    if axis.trained is not None:
        axes.axvline(axis.trained, color="black", linewidth=0.8, linestyle=(0, (5, 4)), zorder=0)
    if axis.names:
        places = sorted(axis.names)
    if len(places) > 16:
        axes.xaxis.set_major_formatter(lambda place, _: short_place(place))
        return
    at = np.log2(places) if axis.log else np.asarray(places, float)
    named = spaced(at, places.index(axis.trained) if axis.trained in places else 0)
    axes.xaxis.set_major_locator(FixedLocator(places))
    axes.xaxis.set_minor_locator(NullLocator())
    texts = [axis.names.get(place) or short_place(place) for place in places]
    axes.set_xticks(places, [text if index in named else "" for index, text in enumerate(texts)])


def spaced(at: Sequence[float], first: int = 0) -> set[int]:
    """Returns the ticks that have room for a name: index `first`, then from the last tick on all that are not too near."""
    span, found = max(at) - min(at) or 1.0, [first]
    for index in reversed(range(len(at))):
        if all(abs(at[index] - at[other]) >= 0.13 * span for other in found):  # the share that a name takes
            found.append(index)
    return set(found)


def short_place(place: float) -> str:
    """Returns a place as short text: 16k for 16384."""
    return f"{place / 1024:g}k" if place >= 1024 and place % 1024 == 0 else f"{place:g}"


def plain_axes(axes: Axes) -> None:
    """Applies the look that all figures share."""
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=SMALL)


def draw_line(axes: Axes, made: RowCurve, style: Style) -> None:
    """Draws a mean with its band."""
    face = style.color if style.filled else "white"
    marked = style.marker and len(made.x) <= 16
    marks = dict(marker=style.marker, markersize=4.5, markerfacecolor=face) if marked else {}
    grey = style is REFERENCE
    axes.plot(made.x, made.mean, color=style.color, linestyle=style.dash, linewidth=1.1 if grey else 1.5, **marks)
    if not grey:
        axes.fill_between(made.x, made.low, made.high, color=style.color, alpha=0.14, linewidth=0)


def limits(lines: Mapping[str, RowCurve]) -> tuple[float, float]:
    """Returns the limits of the axis of values, which is logarithmic for geometric means.

    Bands add at most a quarter to the span of the means: wide ones would flatten everything else.
    """
    is_log = any(curve.geometric for curve in lines.values())
    there, back = (np.log, np.exp) if is_log else (np.asarray, float)
    mean, bottom, top = there(np.concatenate([[curve.mean, curve.low, curve.high] for curve in lines.values()], axis=1))
    low, high = np.nanmin(mean), np.nanmax(mean)
    span = high - low or 0.1 * abs(high) or 1.0
    bottom, top = max(np.nanmin([*bottom, low]), low - 0.25 * span), min(np.nanmax([*top, high]), high + 0.25 * span)
    return back(bottom - 0.04 * span), back(top + 0.04 * span)


def bands_text(lines: Mapping[str, RowCurve]) -> str:
    """Says what the lines and the bands show."""
    kinds = sorted({kind for curve in lines.values() for kind in curve.kinds})
    return f"Lines are means over seeds, bands 95 % intervals{''.join(f'; {kind}' for kind in kinds)}.{cut_text(lines)}"


def cut_text(lines: Mapping[str, RowCurve]) -> str:
    """Says which bands the frame cuts; "" for none."""
    low, high = limits(lines)
    cut = [row.strip() for row, curve in lines.items() if (curve.low < low).any() or (curve.high > high).any()]
    return f" The frame cuts the bands of {listed(list(dict.fromkeys(cut)))}." if cut else ""


def _name_lines(axes: Axes, lines: Mapping[str, RowCurve], look: Mapping[str, Style], height: float) -> None:
    """Names each line at its right end; names move apart until none overlap, and a thin line in its colour leads back.

    A line that ends long before the others has its name on the spot: a long leader would be taken for more of the line.

    Args:
      height: height of the panel in inches.
    """
    to_axes = axes.transScale + axes.transLimits
    ends = {}
    for row, curve in lines.items():
        known = np.flatnonzero(np.isfinite(curve.mean))
        end = (curve.x[known[-1]], curve.mean[known[-1]]) if len(known) else None
        ends[row] = np.array([1.0, 0.0]) if end is None else to_axes.transform(end)
    last = max((x for x, _ in ends.values()), default=0.0)
    order = sorted((row for row in ends if ends[row][0] >= last - 0.1), key=lambda row: ends[row][1])
    heights = dict(zip(order, spread_apart([ends[row][1] for row in order], 0.145 / height), strict=True))
    for row, end in ends.items():
        text = f"{row} ({note})" if (note := lines[row].note) else row
        ink = dict(parse_math=False, va="center", fontsize=SMALL, color=GREY if look[row] is REFERENCE else INK)
        if row not in heights:
            halo = [withStroke(linewidth=2, foreground="white")]
            near = dict(xytext=(4, 6), textcoords="offset points", path_effects=halo)
            axes.annotate(text, end, xycoords="axes fraction", **near, **ink)
            continue
        leader = dict(arrowstyle="-", color=look[row].color, linewidth=0.8, shrinkA=1, shrinkB=2, relpos=(0, 0.5))
        aside = dict(xytext=(1.05, heights[row]), textcoords="axes fraction", arrowprops=leader)
        axes.annotate(text, end, xycoords="axes fraction", **aside, **ink)


def spread_apart(wanted: Sequence[float], gap: float) -> np.ndarray:
    """Returns heights at least ``gap`` apart, nearest (least squares) to [n] ascending ones, within [0, 1] if they fit."""
    shift = gap * np.arange(len(wanted))
    free = isotonic_regression(np.asarray(wanted) - shift).x
    return np.clip(free, 0, max(0.0, 1 - shift[-1])) + shift


def _of_two_numbers(study: StudyRecords, look: Mapping[str, Style]) -> list[Drawn]:
    """Draws metrics at lengths and depths as maps, and the loss by position as lines for two lengths of windows."""
    drawn = []
    for metric, ats in study.metrics.items():
        if not all(isinstance(at, tuple) for at in ats):
            continue
        if metric.endswith(" by depth"):
            if "exact match" in metric and _is_worth_drawing(study, metric, ats):
                drawn.append(_depth_maps(study, metric))
        else:
            windows = sorted({window for window, _ in ats})
            for window in sorted({windows[len(windows) // 2], windows[-1]}):
                drawn.append(_by_position(study, metric, window, look))
    return drawn


def _by_position(study: StudyRecords, metric: str, window: int, look: Mapping[str, Style]) -> Drawn:
    """Draws the loss of a token by the number of tokens before it, in windows of one length."""
    places = {1 + at[1]: at for at in study.metrics[metric] if at[0] == window}
    trained = study.trained_at if study.trained_at < window else None
    axis = XAxis(f"{many(study.unit)} before, in a window of {window:,}", trained, {}, log=True)
    made = means(study, metric, places, may_be_log=True)
    figure = draw(study, made, look, axis, title_of("loss", study.unit), min)
    caption = f"Loss of each {study.unit} by how many stand before it in its window of {window:,}. {bands_text(made)}"
    return Drawn(f"loss_by_position_{window}", figure, caption, aside=True)


def _depth_maps(study: StudyRecords, metric: str) -> Drawn:
    """Draws a heat map for every row that retrieves anything: the share of correct answers (%), by length and depth."""
    lengths, depths = (sorted({at[axis] for at in study.metrics[metric]}) for axis in (0, 1))
    maps = {}
    for row in study.rows:
        cells = [[study.values(row, metric, (length, depth)) for length in lengths] for depth in depths]
        found = np.array([[100 * np.mean([*v.values()]) if is_whole(v) else np.nan for v in line] for line in cells])
        if np.nanmax(np.nan_to_num(found)) >= 100 * _FEW:
            maps[row] = found
    down = -(-len(maps) // 2)
    figure = Figure(figsize=(WIDTH, 0.5 + down * (0.5 + 0.24 * len(depths))), layout="constrained")
    grid = figure.subplots(down, 2, squeeze=False)
    for axes, (row, found) in zip(grid.flat, maps.items(), strict=False):
        axes.imshow(found, vmin=0, vmax=100, cmap="viridis", aspect="auto")
        for (y, x), value in np.ndenumerate(found):
            if np.isfinite(value):
                shade = "white" if value < 60 else "black"
                axes.text(x, y, f"{value:.0f}", ha="center", va="center", fontsize=SMALL, color=shade)
        axes.set_title(row.replace("$", r"\$"), fontsize=TYPE)
        axes.set_xticks(range(len(lengths)), map(short_place, lengths), fontsize=SMALL)
        axes.set_yticks(range(len(depths)), [f"{depth:g}" for depth in depths], fontsize=SMALL)
    for axes in grid.flat[len(maps) :]:
        axes.set_axis_off()
    figure.supxlabel(f"length ({many(study.unit)})", fontsize=TYPE)
    figure.supylabel("depth (0 start, 1 end)", fontsize=TYPE)
    what = words(metric.removesuffix(" by depth"))
    caption = (
        f"{what.capitalize()} (%) by length and by depth in the text, mean over seeds. Rows without a map find nothing."
    )
    return Drawn(_file(metric), figure, caption)


_STEADY = 1.5  # a cost that rises by less is flat


def _costs(study: StudyRecords, look: Mapping[str, Style]) -> list[Drawn]:
    """Draws costs that depend on the length, the least over seeds; a dotted line is a cost proportional to the length."""
    drawn = []
    for metric in ("seconds per window", "temporary bytes"):
        lines = {}
        for row in study.rows:
            cells = {at: finite_values(study.values(row, metric, at)) for at in study.metrics.get(metric, ())}
            if least := {at: min(values) for at, values in cells.items() if values}:
                x, y = np.array([*least], float), np.array([*least.values()], float)
                lines[row] = RowCurve(x, y, np.zeros(len(y)), "", geometric=True)
        if not any(max(curve.mean) > _STEADY * min(curve.mean) for curve in lines.values()):
            continue
        places = sorted({x for curve in lines.values() for x in curve.x})
        top = float(np.median([curve.mean[-1] for curve in lines.values() if curve.x[-1] == places[-1]]))
        proportional = [top * place / places[-1] for place in places]

        def dotted(axes: Axes, places=places, proportional=proportional) -> None:
            axes.plot(places, proportional, color=GREY, linestyle=":", linewidth=1)

        figure = draw(study, lines, look, axis_of(study, metric)._replace(trained=None), metric, min, dotted)
        caption = (
            f"{metric.capitalize()} by length, the least over seeds. Dotted: a cost that grows as the length does."
        )
        drawn.append(Drawn(_file(metric), figure, caption, aside=True))
    return drawn
