"""The report of a study of lengths: a table for each thing measured by length, and figures over length."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from experiments.report import plots
from experiments.report.page import About, write_report
from experiments.report.plots import Style, styles
from experiments.report.statistics import Line, Record, Rows, all_runs, group, mean_interval, unit_of_text
from posjax.describe.figures import GREY, SMALL

_MAPS_ACROSS = 4


def loss_by_position(records: Sequence[Record], length: int, look: Mapping[str, Style] | None = None) -> Figure:
    """Mean loss (nats per byte or token) with its 95 % band over the number of them before it in a window of `length`.

    Raises:
      ValueError: no record has been read at that length.
    """
    rows, look = _rows(records), look or styles(records)
    lines = {label: _mean_curve([run["by_position"].get(str(length)) for run in runs]) for label, runs in rows.items()}
    lines = {label: line for label, line in lines.items() if line is not None}
    if not lines:
        raise ValueError(f"no record has the loss by position in windows of {length}")
    trained = next((run["train_length"] for run in all_runs(rows) if run.get("train_length")), None)
    ticks = [2**power for power in range(0, length.bit_length(), 2 if length < 2**12 else 4)]

    def dress(axes: Axes, first: bool) -> None:
        plots.length_axis(axes, ticks, trained, first)

    rows, unit = {label: rows[label] for label in lines}, unit_of_text(records)
    return plots.line_panels(
        lines,
        {label: style._replace(marker="") for label, style in look.items()},
        plots.by_family(rows),
        dress,
        references=plots.references(rows, lines, min),
        labels=(f"{unit}s before in a window of {length:,}", f"loss (nats per {unit})"),
    )


def retrieval_maps(records: Sequence[Record], task: str) -> Figure:
    """A heat map for every row that finds anything: the share of examples whose answer is found (%), by length and depth.

    Where no row finds a whole answer, it is the share of the answers' bytes or tokens.

    Raises:
      ValueError: no record has that task.
    """
    rows = {label: [run for run in runs if run["retrieval"].get(task)] for label, runs in _rows(records).items()}
    rows = {label: runs for label, runs in rows.items() if runs}
    if not rows:
        raise ValueError(f"no record has the retrieval task {task!r}")
    shares = {key: [label for label, runs in rows.items() if _finds(runs, task, key)] for key in SHARES.values()}
    key = "exact" if shares["exact"] else "accuracy"
    rows = {label: rows[label] for label in shares[key] or rows}
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
        image = _map(axes, label, _cells(runs, task, key, lengths, depths), lengths, depths)
    for axes in grid.flat[len(rows) :]:
        axes.set_axis_off()
    for axes in grid[:, 0]:
        axes.set_ylabel("depth", fontsize=SMALL)
    figure.colorbar(image, ax=grid, label=f"{task}: {_FOUND[key]} found (%)", shrink=0.6, aspect=30)
    figure.supxlabel(f"length ({unit_of_text(records)}s)", fontsize=SMALL + 1)
    return figure


def cost_by_length(records: Sequence[Record], key: str = "seconds", look: Mapping[str, Style] | None = None) -> Figure:
    """Seconds of reading one window, or temporaries (MiB) of a batch, over the window's length, log-log.

    Short windows come in batches of as many bytes. A dotted line shows what grows as the length does.

    Args:
      key: of `COSTS`.

    Raises:
      ValueError: the records have no costs.
    """
    rows, look = _rows(records), look or styles(records)
    lines = {label: _costs(runs, key) for label, runs in rows.items()}
    lines = {label: line for label, line in lines.items() if len(line.x)}
    if not lines:
        raise ValueError("the records have no costs")
    lengths = sorted({int(length) for line in lines.values() for length in line.x})
    top = float(np.median([line.mean[-1] for line in lines.values() if line.x[-1] == lengths[-1]]))

    def dress(axes: Axes, first: bool) -> None:
        plots.length_axis(axes, lengths, None)
        axes.plot(lengths, [top * length / lengths[-1] for length in lengths], color=GREY, linestyle=":", linewidth=1)

    def scale(axes: Axes) -> None:
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(NullFormatter())

    labels = (f"length ({unit_of_text(records)}s)", COSTS[key].title)
    panels = plots.by_family({label: rows[label] for label in lines})
    shown = plots.references({label: rows[label] for label in lines}, lines, min)
    return plots.line_panels(lines, look, panels, dress, references=shown, labels=labels, scale=scale)


class Cost(NamedTuple):
    title: str
    unit: float  # what a record has, in that of the title


COSTS = {"seconds": Cost("seconds a window", 1.0), "temp_bytes": Cost("temporaries of a batch (MiB)", 2**20)}


_FOUND = {"exact": "answers", "accuracy": "parts of answers"}


def _finds(runs: Sequence[Record], task: str, key: str) -> bool:
    return any(cell[key] for run in runs for cells in run["retrieval"][task].values() for cell in cells)


def _rows(records: Sequence[Record]) -> Rows:
    studies = group(records)
    if len(studies) > 1:
        raise ValueError(f"a figure shows one study; got records of {list(studies)}")
    return next(iter(studies.values()))


def _mean_curve(curves: Sequence[Sequence | None]) -> Line | None:
    """The mean over runs of curves with the same x, from 1; None where a run has none, or one that is not finite."""
    if not curves or any(curve is None or any(y is None for _, y in curve) for curve in curves):
        return None
    array = np.array(curves, float)
    intervals = [mean_interval(values) for values in array[:, :, 1].T]
    mean, half_width = (np.array([getattr(each, name) for each in intervals]) for name in ("mean", "half_width"))
    return Line(1 + array[0, :, 0], mean, half_width, "")


def _cells(runs: Sequence[Record], task: str, key: str, lengths: Sequence[int], depths: Sequence[float]) -> np.ndarray:
    """[depths, lengths] mean share in per cent; nan where nothing was measured."""
    found = np.full((len(runs), len(depths), len(lengths)), np.nan)
    for r, run in enumerate(runs):
        for length, cells in run["retrieval"][task].items():
            for cell in cells:
                if cell[key] is not None:
                    found[r, depths.index(cell["depth"]), lengths.index(int(length))] = 100 * cell[key]
    return found.mean(axis=0)


def _map(axes: Axes, label: str, cells: np.ndarray, lengths: Sequence[int], depths: Sequence[float]):
    image = axes.imshow(cells, vmin=0, vmax=100, cmap="viridis", aspect="auto")
    for (row, column), value in np.ndenumerate(cells):
        if np.isfinite(value):
            shade = "white" if value < 60 else "black"
            axes.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=SMALL - 2, color=shade)
    axes.set_title(_plain(label), fontsize=SMALL)
    axes.set_xticks(
        range(len(lengths)), [plots.short_length(length) for length in lengths], fontsize=SMALL - 2, rotation=90
    )
    axes.set_yticks(range(len(depths)), [f"{depth:g}" for depth in depths], fontsize=SMALL - 2)
    return image


def _costs(runs: Sequence[Record], key: str) -> Line:
    """The least over runs of a cost: the seconds of one window of a batch, the temporaries of all of it. No intervals."""
    found: dict[int, list[float]] = {}
    for run in runs:
        for length, cost in (run.get("cost") or {}).items():
            if cost[key] is not None:
                share = cost["batch"] if key == "seconds" else 1
                found.setdefault(int(length), []).append(cost[key] / share / COSTS[key].unit)
    lengths = sorted(found)
    least = np.array([min(found[length]) for length in lengths])
    return Line(np.array(lengths, float), least, np.zeros(len(lengths)), "")


def _plain(label: str) -> str:
    return label.replace("$", r"\$")


SLIDING, CHUNKED = "loss in sliding windows", "loss in windows that do not overlap"
PERPLEXITY = "perplexity in sliding windows"  # of tokens: exp of their mean loss


def write_length_report(
    records: Sequence[Record], directory: Path, about: About, tasks_first: bool = False
) -> list[Path]:
    """As `write_report`, of records that hold many lengths.

    Raises:
      ValueError: no records.
    """
    return write_report(list(views(records, tasks_first)), directory, about, drawn=figures(records))


def views(records: Sequence[Record], tasks_first: bool = False) -> Iterator[Record]:
    """The records once for everything that was measured, each time as a study of its own with one metric by length.

    Args:
      tasks_first: whether retrieval comes before the loss, as of models that were trained on nothing else.
    """
    parts = (_retrieved, _losses) if tasks_first else (_losses, _retrieved)
    for part in parts:
        yield from part(records)


def _losses(records: Sequence[Record]) -> Iterator[Record]:
    for study, metric in ((SLIDING, "sliding"), (CHUNKED, "chunked")):
        for record in records:
            yield _view(record, study, {"loss": record["metrics"][metric]})
    if unit_of_text(records) == "token":
        for record in records:
            losses = record["metrics"]["sliding"]
            exps = {length: None if loss is None else math.exp(loss) for length, loss in losses.items()}
            yield _view(record, PERPLEXITY, {"perplexity": exps})


def _retrieved(records: Sequence[Record]) -> Iterator[Record]:
    for task in _tasks(records):
        for record in records:
            if found := record["retrieval"].get(task):
                shares = {
                    name: {length: _mean(cells, key) for length, cells in found.items()} for name, key in SHARES.items()
                }
                yield _view(record, task, shares)


def figures(records: Sequence[Record]) -> dict[str, Mapping[str, plots.Captioned]]:
    """Those that stand beside the tables: {study: {name: figure}}."""
    look, unit = plots.styles(records), unit_of_text(records)
    lengths = sorted({int(length) for record in records for length in record["by_position"]})
    drawn: dict[str, dict[str, plots.Captioned]] = {SLIDING: {}, CHUNKED: {}}
    for key, cost in COSTS.items():
        if not _varies(records, key):
            continue
        told = f"The {cost.title} by length, the least over seeds; dotted: what grows as the length does."
        drawn[SLIDING][f"cost_{key}"] = plots.Captioned(cost_by_length(records, key, look), told)
    for length in _shown(lengths):
        told = f"Loss of each {unit} by how many stand before it in its window: mean and 95 % interval over seeds."
        drawn[CHUNKED][f"by_position_{length}"] = plots.Captioned(loss_by_position(records, length, look), told)
    for task in _tasks(records):
        told = f"{task}: what is found (%), mean over seeds, by length and depth. Rows without a map find nothing."
        drawn[task] = {"by_depth": plots.Captioned(retrieval_maps(records, task), told)}
    return drawn


def _varies(records: Sequence[Record], key: str) -> bool:
    """Whether a row's cost depends on the length: the temporaries of batches of as many bytes need not."""
    costs = [_costs(runs, key).mean for runs in _rows(records).values()]
    return any(len(each) and max(each) > _STEADY * min(each) for each in costs)


_STEADY = 1.5  # a cost that rises by no more is flat


def _view(record: Record, study: str, metrics: Mapping) -> Record:
    # Training curves and times are said once, by the run that was trained.
    hidden = ("curve", "by_position", "retrieval", "cost")
    return {name: value for name, value in record.items() if name not in hidden} | {"study": study, "metrics": metrics}


def _tasks(records: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(task for record in records for task in record["retrieval"]))


SHARES = {
    "exact match": "exact",
    "accuracy": "accuracy",
}  # of examples that are all right, and of single bytes or tokens


def _mean(cells: Sequence[Mapping], key: str) -> float | None:
    values = [cell[key] for cell in cells]
    return None if None in values else sum(values) / len(values)


def _shown(lengths: Sequence[int]) -> list[int]:
    """The longest length, and the one in the middle."""
    return sorted({lengths[len(lengths) // 2], lengths[-1]}) if lengths else []
