"""The report of a study of lengths: a table for each thing measured by length, and figures over length."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator, ScalarFormatter

from posjax.analysis.report import plots
from posjax.analysis.report.page import About, write_report
from posjax.analysis.report.plots import GREY, SMALL, Style, styles
from posjax.analysis.statistics import Record, Rows, all_runs, group, unit_of_text

_MAPS_ACROSS = 4
_MIB = 2**20


def loss_by_position(records: Sequence[Record], length: int, look: Mapping[str, Style] | None = None) -> Figure:
    """Mean loss (nats per byte or token) over the number of them before it in a window of `length` (log2), a line per row.

    Raises:
      ValueError: no record has been read at that length.
    """
    rows, look = _rows(records), look or styles(records)
    lines = {label: _mean_curve([run["by_position"].get(str(length)) for run in runs]) for label, runs in rows.items()}
    lines = {label: line for label, line in lines.items() if line is not None}
    if not lines:
        raise ValueError(f"no record has the loss by position in windows of {length}")
    figure, axes = _figure(0.22 * len(lines))
    for label, (x, y) in lines.items():
        axes.plot(1 + x, y, color=look[label].color, linestyle=look[label].dash, linewidth=1.4, label=_plain(label))
    trained = next((run["train_length"] for run in all_runs(rows) if run.get("train_length")), None)
    if trained is not None:
        axes.axvline(trained, color="black", linewidth=0.8, linestyle=(0, (5, 4)), zorder=0)
    low = min(y.min() for _, y in lines.values())
    ends = [y[-1] for _, y in lines.values()]
    axes.set_ylim(0.92 * low, max(1.15 * max(ends), 1.6 * low))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(ScalarFormatter())
    unit = unit_of_text(records)
    axes.set_xlabel(f"{unit}s before in a window of {length:,}; the dashed line is the training length")
    axes.set_ylabel(f"loss (nats per {unit})")
    _legend(axes)
    return figure


def retrieval_maps(records: Sequence[Record], task: str) -> Figure:
    """A heat map for every row: the share of the answers' bytes that are found (%), by length and depth.

    Raises:
      ValueError: no record has that task.
    """
    rows = {label: [run for run in runs if run["retrieval"].get(task)] for label, runs in _rows(records).items()}
    rows = {label: runs for label, runs in rows.items() if runs}
    if not rows:
        raise ValueError(f"no record has the retrieval task {task!r}")
    lengths = sorted({int(length) for run in all_runs(rows) for length in run["retrieval"][task]})
    depths = sorted(
        {cell["depth"] for run in all_runs(rows) for cells in run["retrieval"][task].values() for cell in cells}
    )
    across = min(_MAPS_ACROSS, len(rows))
    down = -(-len(rows) // across)
    figure = Figure(figsize=(0.6 + across * (0.8 + 0.36 * len(lengths)), 0.9 + down * (0.55 + 0.3 * len(depths))))
    figure.set_layout_engine("constrained")
    grid = figure.subplots(down, across, squeeze=False)
    for axes, (label, runs) in zip(grid.flat, rows.items(), strict=False):
        image = _map(axes, label, _cells(runs, task, lengths, depths), lengths, depths)
    for axes in grid.flat[len(rows) :]:
        axes.set_axis_off()
    for axes in grid[:, 0]:
        axes.set_ylabel("depth", fontsize=SMALL)
    figure.colorbar(image, ax=grid, label=f"{task}: answers' {unit_of_text(records)}s found (%)", shrink=0.6, aspect=30)
    figure.supxlabel(f"length ({unit_of_text(records)}s)", fontsize=SMALL + 1)
    return figure


def cost_by_length(records: Sequence[Record], look: Mapping[str, Style] | None = None) -> Figure:
    """Seconds of reading one window and temporaries (MiB) of a batch, over the window's length, log-log, a line per row.

    Short windows come in batches of as many bytes. A dotted line shows what grows as the length does.

    Raises:
      ValueError: the records have no costs.
    """
    rows, look = _rows(records), look or styles(records)
    if not any(run.get("cost") for run in all_runs(rows)):
        raise ValueError("the records have no costs")
    figure = Figure(figsize=(9.5, max(3.8, 1.0 + 0.22 * len(rows))), layout="constrained")
    panels = figure.subplots(1, 2)
    for axes, (key, unit, title) in zip(
        panels,
        (("seconds", 1.0, "seconds a window"), ("temp_bytes", _MIB, "temporaries of a batch (MiB)")),
        strict=True,
    ):
        _finish(axes)
        points = []
        for label, runs in rows.items():
            x, y = _costs(runs, key, unit)
            if len(x):
                points.append((x, y))
                style = look[label]
                axes.plot(
                    x, y, color=style.color, linestyle=style.dash, marker=style.marker, markersize=3.5, linewidth=1.2
                )
                axes.lines[-1].set_label(_plain(label))
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        lengths = sorted({int(length) for x, _ in points for length in x})
        axes.xaxis.set_major_locator(FixedLocator(lengths))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(lengths, [_short(length) for length in lengths], fontsize=SMALL)
        if lengths:
            last = max(lengths)
            top = float(np.median([y[-1] for x, y in points if x[-1] == last]))
            axes.plot(lengths, [top * length / last for length in lengths], color=GREY, linestyle=":", linewidth=1)
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel(f"length ({unit_of_text(records)}s)")
        axes.set_ylabel(title)
    _legend(panels[-1])
    return figure


def _rows(records: Sequence[Record]) -> Rows:
    studies = group(records)
    if len(studies) > 1:
        raise ValueError(f"a figure shows one study; got records of {list(studies)}")
    return next(iter(studies.values()))


def _mean_curve(curves: Sequence[Sequence | None]) -> tuple[np.ndarray, np.ndarray] | None:
    """(x, mean over runs) of curves with the same x; None where a run has none, or one that is not finite."""
    if not curves or any(curve is None or any(y is None for _, y in curve) for curve in curves):
        return None
    array = np.array(curves, float)
    return array[0, :, 0], array[:, :, 1].mean(axis=0)


def _cells(runs: Sequence[Record], task: str, lengths: Sequence[int], depths: Sequence[float]) -> np.ndarray:
    """[depths, lengths] mean accuracy in per cent; nan where nothing was measured."""
    found = np.full((len(runs), len(depths), len(lengths)), np.nan)
    for r, run in enumerate(runs):
        for length, cells in run["retrieval"][task].items():
            for cell in cells:
                if cell["accuracy"] is not None:
                    found[r, depths.index(cell["depth"]), lengths.index(int(length))] = 100 * cell["accuracy"]
    return found.mean(axis=0)


def _map(axes: Axes, label: str, cells: np.ndarray, lengths: Sequence[int], depths: Sequence[float]):
    image = axes.imshow(cells, vmin=0, vmax=100, cmap="viridis", aspect="auto")
    for (row, column), value in np.ndenumerate(cells):
        if np.isfinite(value):
            shade = "white" if value < 60 else "black"
            axes.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=SMALL - 2, color=shade)
    axes.set_title(_plain(label), fontsize=SMALL)
    axes.set_xticks(range(len(lengths)), [_short(length) for length in lengths], fontsize=SMALL - 2, rotation=90)
    axes.set_yticks(range(len(depths)), [f"{depth:g}" for depth in depths], fontsize=SMALL - 2)
    return image


def _costs(runs: Sequence[Record], key: str, unit: float) -> tuple[np.ndarray, np.ndarray]:
    """(length, the least over runs) of a cost: the seconds of one window of a batch, the temporaries of all of it."""
    found: dict[int, list[float]] = {}
    for run in runs:
        for length, cost in (run.get("cost") or {}).items():
            if cost[key] is not None:
                share = cost["batch"] if key == "seconds" else 1
                found.setdefault(int(length), []).append(cost[key] / share / unit)
    lengths = sorted(found)
    return np.array(lengths, float), np.array([min(found[length]) for length in lengths])


def _short(length: int) -> str:
    return f"{length // 1024}k" if length % 1024 == 0 else str(length)


def _plain(label: str) -> str:
    return label.replace("$", r"\$")


def _figure(more: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7.6, max(4.0, 1.6 + more)), layout="constrained")
    axes = figure.add_subplot()
    _finish(axes)
    return figure, axes


def _finish(axes: Axes) -> None:
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=SMALL + 1)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.6)


def _legend(axes: Axes) -> None:
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=SMALL, frameon=False)


SLIDING, CHUNKED = "loss in sliding windows", "loss in windows that do not overlap"
PERPLEXITY = "perplexity in sliding windows"  # of tokens: exp of their mean loss


def write_length_report(records: Sequence[Record], directory: Path, about: About) -> list[Path]:
    """As `write_report`, of records that hold many lengths.

    Raises:
      ValueError: no records.
    """
    return write_report(list(views(records)), directory, about, drawn=figures(records))


def views(records: Sequence[Record]) -> Iterator[Record]:
    """The records once for everything that was measured, each time as a study of its own with one metric by length."""
    for study, metric in ((SLIDING, "sliding"), (CHUNKED, "chunked")):
        for record in records:
            yield _view(record, study, {"loss": record["metrics"][metric]})
    if unit_of_text(records) == "token":
        for record in records:
            losses = record["metrics"]["sliding"]
            exps = {length: None if loss is None else math.exp(loss) for length, loss in losses.items()}
            yield _view(record, PERPLEXITY, {"perplexity": exps})
    for task in _tasks(records):
        for record in records:
            if found := record["retrieval"].get(task):
                yield _view(record, task, {"accuracy": {length: _mean(cells) for length, cells in found.items()}})


def figures(records: Sequence[Record]) -> dict[str, Mapping[str, Figure]]:
    """Those that stand beside the tables: {study: {name: figure}}."""
    look = plots.styles(records)
    lengths = sorted({int(length) for record in records for length in record["by_position"]})
    drawn = {SLIDING: {"cost": cost_by_length(records, look)}}
    drawn[CHUNKED] = {f"by_position_{length}": loss_by_position(records, length, look) for length in _shown(lengths)}
    return drawn | {task: {"by_depth": retrieval_maps(records, task)} for task in _tasks(records)}


def _view(record: Record, study: str, metrics: Mapping) -> Record:
    # Training curves and times are said once, by the run that was trained.
    hidden = ("curve", "by_position", "retrieval", "cost")
    return {name: value for name, value in record.items() if name not in hidden} | {"study": study, "metrics": metrics}


def _tasks(records: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(task for record in records for task in record["retrieval"]))


def _mean(cells: Sequence[Mapping]) -> float | None:
    values = [cell["accuracy"] for cell in cells]
    return None if None in values else sum(values) / len(values)


def _shown(lengths: Sequence[int]) -> list[int]:
    """The longest length, and the one in the middle."""
    return sorted({lengths[len(lengths) // 2], lengths[-1]}) if lengths else []
