"""Records of runs -> one table per study, for the terminal (`to_rich`), a file (`to_markdown`) and the report."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rich import box
from rich.table import Table
from rich.text import Text

from posjax.analysis.report.markdown import escape_markdown, grid
from posjax.analysis.statistics import (
    CHOOSING,
    Interval,
    Metric,
    Record,
    Rows,
    all_runs,
    difference_interval,
    finite_note,
    group,
    headline,
    is_none,
    mean_interval,
    metric_values,
    metrics_of,
    separated,
    train_length,
)


class Unit(NamedTuple):
    """How a metric is shown (``scale``, ``digits``, ``suffix``) and which value is best (None: neither)."""

    scale: float = 1.0
    digits: int = 3
    suffix: str = ""
    best: Any = None


UNITS = {"accuracy": Unit(100, 2, " (%)", max), "loss": Unit(best=min), "perplexity": Unit(digits=2, best=min)}
UNITS |= {f"{CHOOSING}{name}": unit for name, unit in UNITS.items()}


@dataclass(frozen=True)
class Cell:
    """What a renderer shows; ``mark`` is "best", "tied" (its interval touches the best one's) or ""."""

    text: str
    mark: str = ""
    interval: Interval | None = None  # in the unit shown; None where there is no value or it is not a mean


@dataclass(frozen=True)
class Row:
    label: str
    encoding: str  # canonical spec
    cells: tuple[Cell, ...]  # one per column


@dataclass(frozen=True)
class StudyTable:
    """One study. ``columns`` are the titles after the label; ``notes`` say what a reader must know to trust it."""

    study: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    caption: str
    notes: tuple[str, ...]


def summarize(records: Sequence[Record]) -> list[StudyTable]:
    """One table per study: each metric with its interval, the effect against `none`, cost and seeds.

    Raises:
      ValueError: as `group`; or runs of one study that were trained at different lengths.
    """
    return [_summarize_study(study, rows) for study, rows in group(records).items()]


def _summarize_study(study: str, rows: Rows) -> StudyTable:
    trained = train_length(rows)
    columns = [(_title(m, trained), _metric_cells(rows, m)) for m in metrics_of(rows)]
    reference = next((runs for runs in rows.values() if is_none(runs)), None)
    if reference:
        columns += [(f"Δ {_title(m, None)} vs none", _effect_cells(rows, reference, m)) for m in headline(rows)]
    if any("tuned" in run for run in all_runs(rows)):
        columns.append(("learning rate", [_rate_cell(runs) for runs in rows.values()]))
    columns.append(("parameters", [_parameters_cell(runs) for runs in rows.values()]))
    columns.append(("step (ms)", [_step_cell(runs) for runs in rows.values()]))
    columns.append(("seeds", [Cell(str(len(runs))) for runs in rows.values()]))
    titles, cells = zip(*columns, strict=True)
    table_rows = tuple(
        Row(label, runs[0]["encoding"], row)
        for (label, runs), row in zip(rows.items(), zip(*cells, strict=True), strict=True)
    )
    return StudyTable(study, titles, table_rows, _caption(rows, reference is not None), _notes(rows))


def _title(metric: Metric, trained: int | None) -> str:
    title = metric.name + UNITS.get(metric.name, Unit()).suffix
    if metric.length is None:
        return title
    times = f" ({metric.length / trained:.3g}×)" if trained else ""
    return f"{title} @{metric.length}{times}"


def _metric_cells(rows: Rows, metric: Metric) -> list[Cell]:
    """Mean and interval of each row. Only rows whose every seed is finite can be best: survivors flatter."""
    unit = UNITS.get(metric.name, Unit())
    found = [metric_values(runs, metric) for runs in rows.values()]
    intervals = [mean_interval(values).scaled(unit.scale) if values else None for values, _ in found]
    whole = [i for i, (values, n) in zip(intervals, found, strict=True) if i and len(values) == n]
    best = unit.best(whole, key=lambda i: i.mean) if unit.best and whole else None
    cells = []
    for interval, (values, n) in zip(intervals, found, strict=True):
        text = interval.text(unit.digits) if interval else "-" if n == 0 else ""
        mark = ""
        if note := finite_note(values, n):
            text = f"{text} ({note})" if text else note
        elif interval and best and len(whole) > 1:
            mark = "best" if interval.mean == best.mean else "" if separated(interval, best) else "tied"
        cells.append(Cell(text, mark, interval))
    return cells


def _effect_cells(rows: Rows, reference: Sequence[Record], metric: Metric) -> list[Cell]:
    """Row minus `none`; a dash where either has a seed without a finite value, since survivors are no fair sample."""
    unit = UNITS.get(metric.name, Unit())
    base, base_n = metric_values(reference, metric)
    cells = []
    for runs in rows.values():
        values, n = metric_values(runs, metric)
        if runs is reference or not values or not base or len(values) < n or len(base) < base_n:
            cells.append(Cell("-"))
            continue
        effect = difference_interval(values, base).scaled(unit.scale)
        cells.append(Cell(effect.text(unit.digits, signed=True), interval=effect))
    return cells


def _parameters_cell(runs: Sequence[Record]) -> Cell:
    return Cell(" / ".join(f"{n:,}" for n in _distinct(runs, "parameters")) or "-")


def _rate_cell(runs: Sequence[Record]) -> Cell:
    """The rate that was chosen for a row's training."""
    return Cell(
        " / ".join(f"{rate:g}" for rate in _distinct([run.get("tuned", {}) for run in runs], "learning_rate")) or "-"
    )


def _step_cell(runs: Sequence[Record]) -> Cell:
    """Median over seeds: one seed that shared its machine must not move the row."""
    times = [run["step_time"] for run in runs if run.get("step_time") is not None]
    if not times:
        return Cell("-")
    milliseconds = 1000 * statistics.median(times)
    return Cell(f"{milliseconds:,.{1 if milliseconds >= 1 else 3}f}")


def _distinct(runs: Sequence[Record], key: str) -> list:
    return list(dict.fromkeys(run[key] for run in runs if run.get(key) is not None))


def _caption(rows: Rows, has_reference: bool) -> str:
    """Everything needed to read the numbers: seeds, interval, training, machine."""
    runs = all_runs(rows)
    counts = sorted({len(row) for row in rows.values()})
    parts = [f"{' / '.join(map(str, counts))} seed{'' if counts == [1] else 's'} per row"]
    parts.append("mean ± half-width of the 95 % Student t interval over seeds")
    parts.append("best mean in bold, ≈ where the interval touches that of the best")
    if has_reference:
        parts.append("Δ: difference of the means with its 95 % Welch interval")
    if _distinct(runs, "step_time"):
        parts.append("step: a step of all seeds together, divided by their number")
    described = {
        "steps": "{} training steps",
        "train_length": "{} tokens per training sequence",
        "device": "device {}",
        "allocator": "allocator {}",
    }
    for key, phrase in described.items():
        if values := _distinct(runs, key):
            parts.append(phrase.format(" / ".join(map(str, values))))
    if versions := versions_text(runs):
        parts.append(versions)
    # Seeds trained together share one wall time: the distinct values of a row add up, not those of its records.
    if wall := sum(time for row in rows.values() for time in _distinct(row, "wall_time")):
        parts.append(f"wall time {wall:,.0f} s")
    return "; ".join(parts) + "."


def versions_text(runs: Sequence[Record]) -> str:
    """``jax 0.10.2, numpy 2.4.6``; versions that differ between runs are joined by a slash."""
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        for package, version in (run.get("versions") or {}).items():
            found.setdefault(package, {})[str(version)] = None
    return ", ".join(f"{package} {' / '.join(versions)}" for package, versions in sorted(found.items()))


def _notes(rows: Rows) -> tuple[str, ...]:
    """What makes rows of one table not quite comparable, and what labels stand for."""
    notes = []
    seeds = {label: sorted(run["seed"] for run in runs) for label, runs in rows.items()}
    if len({tuple(found) for found in seeds.values()}) > 1:
        listed = "; ".join(f"{label}: {', '.join(map(str, found))}" for label, found in seeds.items())
        notes.append(f"Rows differ in their seeds ({listed}).")
    hashes = {label: _distinct(runs, "study_hash") for label, runs in rows.items()}
    if len({found for row in hashes.values() for found in row}) > 1:
        listed = "; ".join(f"{label}: {' / '.join(map(str, found)) or '-'}" for label, found in hashes.items())
        notes.append(f"Rows differ in more of their config than the encoding ({listed}).")
    if len(_distinct(all_runs(rows), "data_digest")) > 1:
        notes.append(f"Rows were run on different data ({' / '.join(_distinct(all_runs(rows), 'data_digest'))}).")
    if any(finite_note(*metric_values(runs, metric)) for metric in metrics_of(rows) for runs in rows.values()):
        notes.append("Where some seeds are not finite, the mean is that of the finite ones; such a row is never best.")
    notes += _tuning_notes(rows)
    specs = {label: runs[0]["encoding"] for label, runs in rows.items()}
    listed = "; ".join(f"{label} = {spec}" for label, spec in specs.items() if spec.removesuffix("()") != label)
    return (*notes, f"Encodings: {listed}.") if listed else tuple(notes)


def _tuning_notes(rows: Rows) -> list[str]:
    """How learning rates were chosen, and which rows might do better at rates that were not tried."""
    tuned = {label: runs[0]["tuned"] for label, runs in rows.items() if "tuned" in runs[0]}
    if not tuned:
        return []
    one = next(iter(tuned.values()))
    notes = [
        f"Each row is trained at the best of its learning rates ({', '.join(one['from'])}) by {one['by']} on {one['on']!r}, "
        f"which those runs are not trained on (seeds {', '.join(map(str, one['seeds']))}); the final runs are."
    ]
    ends = {label: sorted(map(float, each["from"])) for label, each in tuned.items()}
    edge = {
        label: each["learning_rate"]
        for label, each in tuned.items()
        if each["learning_rate"] in ends[label][:: max(1, len(ends[label]) - 1)]
    }
    if edge:
        listed = ", ".join(f"{label} ({rate:g})" for label, rate in edge.items())
        notes.append(f"The best rate is at the edge of those tried, and might be better beyond: {listed}.")
    return notes


def shown(cell: Cell) -> str:
    """A cell's text with the sign for "not separated from the best"; bold is up to the renderer."""
    return f"≈ {cell.text}" if cell.mark == "tied" else cell.text


def to_rich(table: StudyTable, width: int = 120) -> Table:
    """For a terminal of `width` columns; a narrow one gets each interval below its mean.

    Labels are shown as they are: rich's [markup] is not interpreted in them.
    """
    narrow = width < 120
    view = Table(
        title=Text(table.study),
        caption=Text("\n".join((table.caption, *table.notes))),
        caption_justify="left",
        box=box.SIMPLE_HEAD if narrow else box.HEAVY_HEAD,
        padding=(0, 0) if narrow else (0, 1),
    )
    view.add_column("encoding")
    for column in table.columns:
        view.add_column(Text(column), justify="right")
    for row in table.rows:
        texts = [shown(cell).replace(" ± ", "\n±") if narrow else shown(cell) for cell in row.cells]
        cells = [Text(t, style="bold" if c.mark == "best" else "") for t, c in zip(texts, row.cells, strict=True)]
        view.add_row(Text(row.label), *cells)
    return view


def to_markdown(table: StudyTable) -> str:
    """GitHub markdown: heading, table, caption and notes; ends with a newline."""
    rows = []
    for row in table.rows:
        cells = [f"**{shown(cell)}**" if cell.mark == "best" else shown(cell) for cell in row.cells]
        rows.append((escape_markdown(row.label), *cells))
    whole = grid(("encoding", *map(escape_markdown, table.columns)), rows)
    below = "\n\n".join(escape_markdown(text) for text in (table.caption, *table.notes))
    return f"## {escape_markdown(table.study)}\n\n{whole}\n\n{below}\n"
