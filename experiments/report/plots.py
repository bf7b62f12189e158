"""Figures of one study: accuracy by encoding, loss by evaluated length, learning curves.

Each function takes the records of ONE study and returns a matplotlib ``Figure`` that belongs to nobody (no pyplot, no
global state). An encoding has the colour and mark of its family in every figure of every study
(`experiments.report.families`); members of a family differ in their line. Where there are more than `MOST` lines, each
family has a panel of its own, with `none` and the best line repeated in grey.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, NullFormatter, NullLocator
from scipy.optimize import isotonic_regression

from experiments.report.families import FAMILIES, family_of
from experiments.report.statistics import (
    ACCURACY,
    Interval,
    Line,
    Metric,
    Record,
    Rows,
    all_runs,
    by_block,
    finite_note,
    group,
    is_none,
    line_by_length,
    line_of_curves,
    mean_interval,
    metric_values,
    metrics_of,
    train_length,
    unit_of_text,
    with_unit,
)
from experiments.report.table import unit_of
from posjax.describe.figures import GREY, INK, SMALL

MOST = 8  # lines in a panel, with those in grey
_DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (8, 2, 2, 2)), (0, (3, 1, 1, 1, 1, 1)))
_ACROSS = 3  # panels


class Style(NamedTuple):
    color: str
    marker: str
    dash: object = "-"  # as matplotlib takes it
    filled: bool = True


class Captioned(NamedTuple):
    """A figure, and what it shows in a sentence or two."""

    figure: Figure
    caption: str


REFERENCE = Style("#b4b4b4", "", (0, (2, 1)))  # of a line that is repeated in a panel of others


def styles(records: Sequence[Record]) -> dict[str, Style]:
    """label -> look: the colour and mark of its family; its members differ in dash, and in whether marks are filled."""
    rows = {label: runs for study in group(records).values() for label, runs in study.items()}
    found, seen = {}, dict.fromkeys(FAMILIES, 0)
    for label, runs in rows.items():
        name = family_of(runs[0]["encoding"])
        again, dash = divmod(seen[name], len(_DASHES))
        found[label] = Style(FAMILIES[name].color, FAMILIES[name].marker, _DASHES[dash], (dash + again) % 2 == 0)
        seen[name] += 1
    return found


def by_family(rows: Rows, lines: Iterable[Line] = ()) -> dict[str, list[str]]:
    """The labels of one panel if they are few, else of a panel of each family: title -> labels.

    A panel has `_ALIKE` lines of one colour at most. Few rows of which more are of one family are two panels or three: the
    other families together, and that one. Bands as wide as the lines lie apart hide each other, so that few rows have a
    panel for each family then, too.
    """
    found: dict[str, list[str]] = {name: [] for name in FAMILIES}
    for label, runs in rows.items():
        found[family_of(runs[0]["encoding"])].append(label)
    found = {name: labels for name, labels in found.items() if labels}
    crowded = {name: labels for name, labels in found.items() if len(labels) > _ALIKE}
    if len(rows) > MOST or _hidden([*lines]):
        return split(found, _ALIKE)
    if not crowded:
        return {"": list(rows)}
    others = [name for name in found if name not in crowded]
    together = [label for label in rows if not any(label in labels for labels in crowded.values())]
    return {**({", ".join(others): together} if together else {}), **split(crowded, _ALIKE)}


_ALIKE = 3


def _hidden(lines: Sequence[Line]) -> bool:
    """Whether a quarter of the points have a band wider than half of the range of all means."""
    if len(lines) <= _ALIKE:
        return False
    means = np.concatenate([np.log(line.mean) if line.geometric else line.mean for line in lines])
    widths = 2 * np.concatenate([line.half_width for line in lines])
    known = np.isfinite(means) & np.isfinite(widths)
    return bool(known.any() and np.quantile(widths[known], 0.75) > np.ptp(means[known]) / 2)


def split(panels: Mapping[str, Sequence[str]], room: int = MOST - 2) -> dict[str, list[str]]:
    """The same panels, those of more lines than there is room for in parts."""
    found = {}
    for title, labels in panels.items():
        for part in range(0, len(labels), room):
            found[title if part == 0 else f"{title} ({1 + part // room})"] = list(labels[part : part + room])
    return found


def points_by_encoding(
    records: Sequence[Record], look: Mapping[str, Style] | None = None, metric: Metric = ACCURACY
) -> Figure:
    """Mean of a metric with its 95 % interval, every seed as a dot; one line per encoding, in the order of the table.

    Raises:
      ValueError: the metric is not in the records, or records of several studies.
    """
    rows, look, name = _one_study(records), look or styles(records), metric.name.partition(" by length")[0]
    unit, text = unit_of(name), unit_of_text(records)
    found = {label: metric_values(runs, metric) for label, runs in rows.items()}
    if not any(values for values, _ in found.values()):
        raise ValueError(f"no finite {metric.name!r} in the records; metrics are {metrics_of(rows)}")
    figure = Figure(figsize=(6.8, 1.0 + 0.34 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    for y, (label, (values, n)) in enumerate(found.items()):
        interval = mean_interval(values).scaled(unit.scale) if values else None
        if interval:
            _points_row(axes, y, unit.scale * np.array(values), interval, look[label])
            if is_none(rows[label]):
                axes.axvline(interval.mean, color=GREY, linewidth=0.8, linestyle=":", zorder=0)
        axes.text(
            1.02,
            y,
            _points_text(interval, values, n, unit.digits),
            transform=axes.get_yaxis_transform(),
            va="center",
            fontsize=SMALL + 1,
        )
    finish(axes)
    axes.grid(axis="x", color="#e4e4e4", linewidth=0.6)
    axes.set_yticks(range(len(rows)), list(rows), parse_math=False)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    if unit.best is max:  # shares in per cent
        low, high = axes.get_xlim()
        axes.set_xlim(max(low, -1.0), min(high, 100.5))
    title = f"loss (nats per {text})" if name == "loss" else f"{name}{unit.suffix}"
    at = "" if metric.length is None else f" at {metric.length} {text}s"
    axes.set_xlabel(f"{title}{at}: seeds, mean, 95 % interval")
    return figure


def loss_by_length(records: Sequence[Record], look: Mapping[str, Style] | None = None) -> Figure:
    """Mean loss with its 95 % band over the evaluated length (tokens, log2); the training length is marked.

    Raises:
      ValueError: no loss by length in the records, or records of several studies.
    """
    title = f"loss (nats per {unit_of_text(records)})"
    return _by_length(records, look or styles(records), Metric("loss"), min, 1.0, title, None)


def accuracy_by_length(
    records: Sequence[Record], look: Mapping[str, Style] | None = None, name: str = "accuracy"
) -> Figure:
    """As `loss_by_length`: accuracy, or another share that has this name, in per cent."""

    def scale(axes: Axes) -> None:
        axes.set_ylim(-2, 102)

    title = f"{name.partition(' by length')[0]} (%)"
    return _by_length(records, look or styles(records), Metric(name), max, 100.0, title, scale)


def _by_length(records, look, metric: Metric, order: Callable, factor: float, title: str, scale) -> Figure:
    rows = _one_study(records)
    metrics = [m for m in metrics_of(rows) if m.name == metric.name and m.length is not None]
    if scale is None:
        lines = _means(rows, lambda runs, geometric: line_by_length(runs, metrics, geometric))
    else:
        lines = {label: line_by_length(runs, metrics) for label, runs in rows.items()}
        lines = {
            label: each._replace(mean=factor * each.mean, half_width=factor * each.half_width)
            for label, each in lines.items()
        }
    if not any(np.isfinite(line.mean).any() for line in lines.values()):
        raise ValueError(f"no finite {metric.name!r} by length in the records; metrics are {metrics_of(rows)}")
    lengths, trained = [m.length for m in metrics], train_length(rows)

    def dress(axes: Axes, first: bool) -> None:
        length_axis(axes, lengths, trained, first)

    shown = references(rows, lines, order)
    labels = (f"evaluated length ({unit_of_text(records)}s)", title)
    return line_panels(
        lines, look, by_family(rows, lines.values()), dress, references=shown, labels=labels, scale=scale
    )


def metric_by_block(
    records: Sequence[Record], look: Mapping[str, Style] | None = None, what: str = "", of: str = ""
) -> Figure:
    """Mean with its 95 % band of the metrics "<what> after <block> blocks[, <of>]" over the blocks of the model.

    A dotted line is at what `none` has before the blocks, where nothing tells positions.

    Raises:
      ValueError: no such metric in the records, or records of several studies.
    """
    rows, look = _one_study(records), look or styles(records)
    found = by_block(metrics_of(rows)).get((what, of))
    if not found:
        raise ValueError(f"no metric {what!r} by block, of {of!r}, in the records; metrics are {metrics_of(rows)}")
    lines = {label: line_by_length(runs, list(found.values())) for label, runs in rows.items()}
    lines = {label: line._replace(x=np.array(list(found), float)) for label, line in lines.items()}
    blind = [lines[label].mean[0] for label, runs in rows.items() if is_none(runs) and 0 in found]

    def dress(axes: Axes, first: bool) -> None:
        axes.set_xticks(list(found))
        for level in blind:
            axes.axhline(level, color=INK, linewidth=1, linestyle=":", zorder=0)

    shown, title = references(rows, lines, min), with_unit(what, all_runs(rows))
    labels = ("after block", f"{title}: {of}" if of else title)
    return line_panels(lines, look, by_family(rows), dress, references=shown, labels=labels)


def length_axis(axes: Axes, lengths: Sequence[int], trained: int | None, annotated: bool = True) -> None:
    """Lengths (tokens; log2 where they span three octaves), with the one in training marked."""
    wide = max(lengths) >= 8 * min(lengths)
    axes.set_xscale("log", base=2) if wide else axes.set_xscale("linear")
    at = np.log2(lengths) if wide else np.asarray(lengths, float)
    named = spaced(at, lengths.index(trained) if trained in lengths else 0)
    axes.xaxis.set_major_locator(FixedLocator(lengths))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(lengths, [short_length(n) if index in named else "" for index, n in enumerate(lengths)])
    if trained is None:
        return
    axes.axvline(trained, color="black", linewidth=0.8, linestyle=(0, (5, 4)), zorder=0)
    if annotated:
        middle = (at[0] + at[-1]) / 2
        axes.annotate(
            "training length",
            (trained, 1),
            xycoords=axes.get_xaxis_transform(),
            xytext=(0, 2),
            textcoords="offset points",
            ha="left" if (np.log2(trained) if wide else trained) <= middle else "right",
            fontsize=SMALL - 1,
        )


def spaced(at: Sequence[float], first: int = 0, near: float = 0.12) -> set[int]:
    """Which ticks have room for a name: that of index `first`, then from the last one on those that are not too near.

    Args:
      near: the share of the axis that a name takes.
    """
    span, found = max(at) - min(at) or 1.0, [first]
    for index in reversed(range(len(at))):
        if all(abs(at[index] - at[other]) >= near * span for other in found):
            found.append(index)
    return set(found)


def short_length(length: int) -> str:
    """16384 as 16k."""
    return f"{length // 1024}k" if length % 1024 == 0 else str(length)


def learning_curves(records: Sequence[Record], look: Mapping[str, Style] | None = None) -> Figure:
    """Mean training loss with its 95 % band over the steps that all seeds of a row recorded.

    Raises:
      ValueError: no curve in the records, or records of several studies.
    """
    rows, look = _one_study(records), look or styles(records)
    lines = _means(rows, line_of_curves)
    if not any(np.isfinite(line.mean).any() for line in lines.values()):
        raise ValueError(f"no row of {list(rows)} has a finite 'curve' for every seed: [[step, train_loss], ...]")
    marked = {label: style._replace(marker="") for label, style in look.items()}
    shown = references(rows, lines, min)
    panels = by_family(rows, lines.values())
    return line_panels(lines, marked, panels, references=shown, labels=("training step", "training loss"))


def _means(rows: Rows, line_of: Callable[[Sequence[Record], bool], Line]) -> dict[str, Line]:
    """The line of each row; geometric means where the axis will be logarithmic, on which a band down to 0 has no end."""
    lines = {label: line_of(runs, False) for label, runs in rows.items()}
    return {label: line_of(runs, True) for label, runs in rows.items()} if _spans(lines) else lines


def _spans(lines: Mapping[str, Line]) -> bool:
    """Whether the means span more than a factor of four, and an axis of them could be logarithmic."""
    mean = np.concatenate([line.mean[np.isfinite(line.mean)] for line in lines.values()])
    return bool(len(mean)) and mean.min() > 0 and mean.max() > 4 * mean.min()


def references(rows: Rows, lines: Mapping[str, Line], order: Callable) -> list[str]:
    """What is repeated in every panel: `none`, and the line that ends best where all have their ends."""
    found = [label for label, runs in rows.items() if is_none(runs)]
    finite = {label: line.x[np.isfinite(line.mean)] for label, line in lines.items()}
    finite = {label: x for label, x in finite.items() if len(x)}
    if finite:
        last = min(x[-1] for x in finite.values())
        at = {
            label: lines[label].mean[np.searchsorted(lines[label].x, last)]
            for label in finite
            if last in lines[label].x
        }
        best = order(at, key=at.__getitem__)
        found += [best] if best not in found else []
    return found


def line_panels(
    lines: Mapping[str, Line],
    look: Mapping[str, Style],
    panels: Mapping[str, Sequence[str]],
    dress: Callable[[Axes, bool], None] = lambda axes, first: None,
    *,
    references: Sequence[str] = (),
    labels: tuple[str, str] = ("", ""),
    scale: Callable[[Axes], None] | None = None,
) -> Figure:
    """Means with their 95 % bands, each named at its right end, on axes that all panels share.

    Args:
      panels: title -> labels of its lines; see `by_family`.
      dress: (axes, whether it is the first) -> None: draws what stands behind the lines of a panel.
      references: labels of the lines that panels of others repeat in grey.
      labels: of the two axes.
      scale: sets the limits of the axis upwards; `scale_y` if None.
    """
    across = min(_ACROSS, len(panels))
    down = -(-len(panels) // across)
    most = max(len(shown) + len(references) * (len(panels) > 1) for shown in panels.values())
    height = max(3.8, 1.0 + 0.26 * most) if len(panels) == 1 else max(2.1 if down > 1 else 2.8, 0.8 + 0.2 * most)
    figure = Figure(figsize=(6.8 if across == 1 else 3.5 * across, height * down), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    for axes, (title, shown) in zip(grid.flat, panels.items(), strict=False):
        finish(axes)
        axes.grid(axis="y", color="#e4e4e4", linewidth=0.6)
        axes.set_title(title, fontsize=SMALL + 1, loc="left", pad=2 * SMALL)  # above the name of the training length
        repeated = [label for label in references if label not in shown]
        for label in repeated:
            draw_line(axes, lines[label], REFERENCE)
        for label in shown:
            draw_line(axes, lines[label], look[label])
    for index, axes in enumerate(grid.flat[: len(panels)]):
        dress(axes, index == 0)
        scale(axes) if scale else scale_y(axes, lines)
    for axes, shown in zip(grid.flat, panels.values(), strict=False):
        repeated = {label: REFERENCE for label in references if label not in shown}
        named = {label: lines[label] for label in (*shown, *repeated)}
        label_lines(axes, named, {**look, **repeated}, height if len(panels) == 1 else height - 0.7)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for column in range(across):  # below the lowest panel of a column, which need not be in the last row
        grid[(len(panels) - 1 - column) // across, column].tick_params(labelbottom=True)
    size = SMALL + 2 - (len(panels) > 1)
    figure.supxlabel(labels[0], fontsize=size)
    figure.supylabel(labels[1], fontsize=size)
    return figure


def _one_study(records: Sequence[Record]) -> Rows:
    studies = group(records)
    if len(studies) > 1:
        raise ValueError(f"a figure shows one study; got records of {list(studies)}")
    return next(iter(studies.values()))


def _points_row(axes: Axes, y: int, values: np.ndarray, interval: Interval, style: Style) -> None:
    """Seeds as small dots below the mean and its bar, spread a little by order, so that equal ones can be counted."""
    spread = np.linspace(-0.07, 0.07, len(values)) if len(values) > 1 else np.zeros(1)
    axes.scatter(values, y + 0.22 + spread, s=11, color=style.color, alpha=0.55, linewidths=0)
    half_width = None if math.isnan(interval.half_width) else interval.half_width
    axes.errorbar(
        interval.mean,
        y - 0.08,
        xerr=half_width,
        fmt=style.marker,
        color=style.color,
        markersize=5.5,
        elinewidth=1.6,
        capsize=3,
        capthick=1.2,
    )


def _points_text(interval: Interval | None, values: Sequence[float], n: int, digits: int) -> str:
    text = interval.text(digits) if interval else "-"
    return f"{text} ({note})" if (note := finite_note(values, n)) else text


def finish(axes: Axes) -> None:
    """The look that all figures share."""
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=SMALL + 1)


def draw_line(axes: Axes, line: Line, style: Style) -> None:
    """A mean with its band."""
    face = style.color if style.filled else "white"
    marks = dict(marker=style.marker, markersize=4.5, markerfacecolor=face) if style.marker else {}
    grey = style is REFERENCE
    axes.plot(line.x, line.mean, color=style.color, linestyle=style.dash, linewidth=1.1 if grey else 1.5, **marks)
    if not grey:
        axes.fill_between(line.x, line.low, line.high, color=style.color, alpha=0.16, linewidth=0)


def scale_y(axes: Axes, lines: Mapping[str, Line]) -> None:
    """Limits from the means, and a logarithmic axis for geometric ones.

    Bands add at most a quarter: that of two seeds is 12 standard errors wide and would flatten everything else.
    """
    mean = np.concatenate([line.mean for line in lines.values()])
    low, high = np.nanmin(mean), np.nanmax(mean)
    if any(line.geometric for line in lines.values()):
        axes.set_yscale("log")
        axes.set_ylim(low * (low / high) ** 0.08, high * (high / low) ** 0.04)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
        return
    half_width = np.nan_to_num(np.concatenate([line.half_width for line in lines.values()]))
    span = high - low or 0.1 * abs(high) or 1.0
    bottom = max(np.nanmin(mean - half_width), low - 0.25 * span) - 0.04 * span
    axes.set_ylim(bottom, min(np.nanmax(mean + half_width), high + 0.25 * span) + 0.04 * span)


def label_lines(axes: Axes, lines: Mapping[str, Line], look: Mapping[str, Style], height: float) -> None:
    """Names each line at its right end; names move apart until none overlap, a thin line in its colour leads back.

    Args:
      height: of the panel, inches.
    """
    to_axes = axes.transScale + axes.transLimits
    ends = {}
    for label, line in lines.items():
        finite = np.flatnonzero(np.isfinite(line.mean))
        if len(finite):
            ends[label] = to_axes.transform((line.x[finite[-1]], line.mean[finite[-1]]))
        else:
            ends[label] = np.array([1.0, 0.0])
    order = sorted(ends, key=lambda label: ends[label][1])
    gap = 0.17 / height
    for label, y in zip(order, spread_apart([ends[label][1] for label in order], gap), strict=True):
        color, note = look[label].color, lines[label].note
        axes.annotate(
            f"{label} ({note})" if note else label,
            ends[label],
            xycoords="axes fraction",
            xytext=(1.06, y),
            textcoords="axes fraction",
            parse_math=False,
            va="center",
            fontsize=SMALL,
            color=GREY if look[label] is REFERENCE else INK,
            arrowprops={
                "arrowstyle": "-",
                "color": color,
                "linewidth": 0.8,
                "shrinkA": 1,
                "shrinkB": 2,
                "relpos": (0, 0.5),
            },
        )


def spread_apart(wanted: Sequence[float], gap: float) -> np.ndarray:
    """[n] ascending heights -> the nearest (least squares) ones at least ``gap`` apart, within [0, 1] if they fit."""
    shift = gap * np.arange(len(wanted))
    free = isotonic_regression(np.asarray(wanted) - shift).x
    return np.clip(free, 0, max(0.0, 1 - shift[-1])) + shift
