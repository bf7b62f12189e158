"""Figures of one study: accuracy by encoding, loss by evaluated length, learning curves.

Each function takes the records of ONE study and returns a matplotlib ``Figure`` that belongs to nobody (no pyplot, no
global state); `save` writes it. Pass one `styles(...)` to all of them and an encoding keeps its look everywhere.
"""

import io
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, NullFormatter, NullLocator, ScalarFormatter
from scipy.optimize import isotonic_regression

from posjax.analysis.statistics import (
    Interval,
    Line,
    Metric,
    Record,
    Rows,
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
)
from posjax.files import replace_file

GREY = "#7a7a7a"
# After Paul Tol's "muted" scheme, https://personal.sron.nl/~pault/, hues told apart under colour blindness;
# its cyan and sand are darkened, because names are written in these colours on white.
HUES = ("#332288", "#cc6677", "#117733", "#44aa99", "#882255", "#4a9fd0", "#999933", "#aa4499", "#b8922a")
MARKERS = "osD^vPX<>"
SMALL = 8  # points


class Style(NamedTuple):
    color: str
    marker: str
    dash: str


def styles(records: Sequence[Record]) -> dict[str, Style]:
    """label -> look, by the order in which labels first appear; `none` is grey.

    Past nine encodings the hues come again with the next line dash, and markers shift, so every look is unique.
    """
    rows = {label: runs for study in group(records).values() for label, runs in study.items()}
    coloured = [label for label, runs in rows.items() if not is_none(runs)]
    found = {label: Style(GREY, "o", ":") for label in rows}
    for index, label in enumerate(coloured):
        again, hue = divmod(index, len(HUES))
        marker = MARKERS[(index + again) % len(MARKERS)]
        found[label] = Style(HUES[hue], marker, ("-", "--", "-.")[again % 3])
    return found


def accuracy_by_encoding(records: Sequence[Record], look: Mapping[str, Style] | None = None) -> Figure:
    """Mean accuracy (%) with its 95 % interval, every seed as a dot; one line per encoding, in the order of the table.

    Raises:
      ValueError: no accuracy in the records, or records of several studies.
    """
    rows, look = _one_study(records), look or styles(records)
    found = {label: metric_values(runs, Metric("accuracy")) for label, runs in rows.items()}
    if not any(values for values, _ in found.values()):
        raise ValueError(f"no finite 'accuracy' in the records; metrics are {metrics_of(rows)}")
    figure = Figure(figsize=(6.8, 1.0 + 0.34 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    for y, (label, (values, n)) in enumerate(found.items()):
        interval = mean_interval(values).scaled(100) if values else None
        if interval:
            _accuracy_row(axes, y, 100 * np.array(values), interval, look[label])
            if is_none(rows[label]):
                axes.axvline(interval.mean, color=GREY, linewidth=0.8, linestyle=":", zorder=0)
        axes.text(
            1.02,
            y,
            _accuracy_text(interval, values, n),
            transform=axes.get_yaxis_transform(),
            va="center",
            fontsize=SMALL + 1,
        )
    finish(axes)
    axes.grid(axis="x", color="#e4e4e4", linewidth=0.6)
    axes.set_yticks(range(len(rows)), list(rows), parse_math=False)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    low, high = axes.get_xlim()
    axes.set_xlim(max(low, -1.0), min(high, 100.5))
    axes.set_xlabel("accuracy (%): seeds, mean, 95 % interval")
    return figure


def loss_by_length(records: Sequence[Record], look: Mapping[str, Style] | None = None) -> Figure:
    """Mean loss with its 95 % band over the evaluated length (tokens, log2); the training length is marked.

    Raises:
      ValueError: no loss by length in the records, or records of several studies.
    """
    rows, look = _one_study(records), look or styles(records)
    metrics = [m for m in metrics_of(rows) if m.name == "loss" and m.length is not None]
    lines = {label: line_by_length(runs, metrics) for label, runs in rows.items()}
    if not any(np.isfinite(line.mean).any() for line in lines.values()):
        raise ValueError(f"no finite 'loss' by length in the records; metrics are {metrics_of(rows)}")
    figure, axes = _line_figure(len(rows))
    for label, line in lines.items():
        draw_line(axes, line, look[label], marker=look[label].marker)
    lengths = [m.length for m in metrics]
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(lengths))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    trained = train_length(rows)
    axes.axvline(trained, color="black", linewidth=0.8, linestyle=(0, (5, 4)), zorder=0)
    axes.annotate(
        "training length",
        (trained, 1),
        xycoords=axes.get_xaxis_transform(),
        xytext=(0, 3),
        textcoords="offset points",
        fontsize=SMALL,
        ha="center",
    )
    _scale_y(axes, lines)
    axes.set_xlabel("evaluated length (tokens)")
    axes.set_ylabel(f"loss (nats per {unit_of_text(records)})")
    label_lines(axes, lines, look)
    return figure


def learning_curves(records: Sequence[Record], look: Mapping[str, Style] | None = None) -> Figure:
    """Mean training loss with its 95 % band over the steps that all seeds of a row recorded.

    Raises:
      ValueError: no curve in the records, or records of several studies.
    """
    rows, look = _one_study(records), look or styles(records)
    lines = {label: line_of_curves(runs) for label, runs in rows.items()}
    if not any(np.isfinite(line.mean).any() for line in lines.values()):
        raise ValueError(f"no row of {list(rows)} has a finite 'curve' for every seed: [[step, train_loss], ...]")
    figure, axes = _line_figure(len(rows))
    for label, line in lines.items():
        draw_line(axes, line, look[label])
    _scale_y(axes, lines)
    axes.set_xlabel("training step")
    axes.set_ylabel("training loss")
    label_lines(axes, lines, look)
    return figure


def save(figure: Figure, path: str | os.PathLike, dpi: int = 200) -> Path:
    """Writes a PNG, atomically and without a date or version in it."""
    path = Path(path)
    buffer = io.BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(buffer, format="png", dpi=dpi, facecolor="white", bbox_inches="tight", metadata={"Software": None})
    replace_file(path, buffer.getvalue())
    return path


def _one_study(records: Sequence[Record]) -> Rows:
    studies = group(records)
    if len(studies) > 1:
        raise ValueError(f"a figure shows one study; got records of {list(studies)}")
    return next(iter(studies.values()))


def _accuracy_row(axes: Axes, y: int, values: np.ndarray, interval: Interval, style: Style) -> None:
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


def _accuracy_text(interval: Interval | None, values: Sequence[float], n: int) -> str:
    text = interval.text(2) if interval else "-"
    return f"{text} ({note})" if (note := finite_note(values, n)) else text


def _line_figure(count: int) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(6.8, max(3.8, 1.0 + 0.26 * count)), layout="constrained")
    axes = figure.add_subplot()
    finish(axes)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.6)
    return figure, axes


def finish(axes: Axes) -> None:
    """The look that all figures share."""
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=SMALL + 1)


def draw_line(axes: Axes, line: Line, style: Style, marker: str | None = None) -> None:
    """A mean with its band."""
    axes.plot(line.x, line.mean, color=style.color, linestyle=style.dash, marker=marker, markersize=4.5, linewidth=1.5)
    low, high = line.mean - line.half_width, line.mean + line.half_width
    axes.fill_between(line.x, low, high, color=style.color, alpha=0.14, linewidth=0)


def _scale_y(axes: Axes, lines: Mapping[str, Line]) -> None:
    """Limits from the means, and a log axis where they span a factor of four.

    Bands add at most a quarter: that of two seeds is 12 standard errors wide and would flatten everything else.
    """
    mean = np.concatenate([line.mean for line in lines.values()])
    half_width = np.nan_to_num(np.concatenate([line.half_width for line in lines.values()]))
    low, high = np.nanmin(mean), np.nanmax(mean)
    span = high - low or 0.1 * abs(high) or 1.0
    bottom = max(np.nanmin(mean - half_width), low - 0.25 * span) - 0.04 * span
    top = min(np.nanmax(mean + half_width), high + 0.25 * span) + 0.04 * span
    if low > 0 and high > 4 * low:
        axes.set_yscale("log")
        axes.set_ylim(low * (low / high) ** 0.08, high * (high / low) ** 0.04)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(ScalarFormatter())
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(bottom, top)


def label_lines(axes: Axes, lines: Mapping[str, Line], look: Mapping[str, Style]) -> None:
    """Names each line at its right end, in its colour; names move apart until none overlap, a thin line leads back."""
    to_axes = axes.transScale + axes.transLimits
    ends = {}
    for label, line in lines.items():
        finite = np.flatnonzero(np.isfinite(line.mean))
        if len(finite):
            ends[label] = to_axes.transform((line.x[finite[-1]], line.mean[finite[-1]]))
        else:
            ends[label] = np.array([1.0, 0.0])
    order = sorted(ends, key=lambda label: ends[label][1])
    gap = 0.19 / axes.figure.get_size_inches()[1]
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
            fontsize=SMALL + 1,
            color=color,
            arrowprops={
                "arrowstyle": "-",
                "color": color,
                "linewidth": 0.6,
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
