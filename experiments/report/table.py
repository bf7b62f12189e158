"""Records of runs -> one table per study, for the terminal (`to_rich`), a file (`to_markdown`) and the report."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rich import box
from rich.table import Table
from rich.text import Text

from experiments.report.statistics import (
    CHOOSING,
    LEVEL,
    Estimate,
    Interval,
    Metric,
    Record,
    Rows,
    Verdict,
    all_runs,
    by_block,
    difference,
    finite_note,
    group,
    headline,
    is_none,
    judge,
    mean_interval,
    metric_values,
    metrics_of,
    share_weights,
    train_length,
    whole,
    with_unit,
)
from posjax.describe.markdown import escape_markdown, grid


class Unit(NamedTuple):
    """How a metric is shown (``scale``, ``digits``, ``suffix``) and which value is best (None: neither)."""

    scale: float = 1.0
    digits: int = 3
    suffix: str = ""
    best: Any = None


UNITS = {"accuracy": Unit(100, 2, " (%)", max), "loss": Unit(best=min), "perplexity": Unit(digits=2, best=min)}
UNITS["exact match"] = UNITS["accuracy"]
UNITS |= {f"{CHOOSING}{name}": unit for name, unit in UNITS.items()}


def unit_of(name: str) -> Unit:
    """How a metric is shown. One "... by length" is shown as the mean over its lengths, by which alone there is a best."""
    own, by_length, _ = name.partition(" by length")
    unit = UNITS.get(own, Unit())
    return unit._replace(best=None, suffix="") if by_length else unit  # the title of the mean says the unit


BOLD = ("best", "apart")  # marks of cells in bold


@dataclass(frozen=True)
class Cell:
    """What a renderer shows; ``mark`` is "best", "tied" (not separable from the best), "apart" (from none) or ""."""

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
    """One study. ``columns`` are the titles after the label; ``notes`` say what a reader must know to trust it, and
    ``findings`` what the tests show, a sentence or two for each thing that encodings are compared by."""

    study: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    caption: str
    notes: tuple[str, ...]
    findings: tuple[str, ...] = ()


def summarize(records: Sequence[Record]) -> list[StudyTable]:
    """One table per study: what rows are compared by with its interval and the effect against `none`, then other metrics,
    cost, and seeds where rows differ in them.

    Raises:
      ValueError: as `group`; or runs of one study that were trained at different lengths.
    """
    return [_summarize_study(study, rows) for study, rows in group(records).items()]


def _summarize_study(study: str, rows: Rows) -> StudyTable:
    trained, metrics, compared = train_length(rows), metrics_of(rows), headline(rows)
    reference = next((label for label, runs in rows.items() if is_none(runs)), None)
    best = {metric: best_row(rows, metric) for metric in metrics}
    judged = judge(_family(rows, best, reference, compared))
    first = [metric for metric in metrics if metric.name in {each.name for each in compared}]
    by_metric = {m: (_title(m, trained), metric_cells(rows, m, best[m], judged)) for m in metrics}
    columns = [by_metric[metric] for metric in first]
    if reference:
        columns += [(f"Δ {_title(m, None)} vs none", _effect_cells(rows, reference, m, judged)) for m in compared]
    columns += [by_metric[metric] for metric in metrics if metric not in first]
    if any("tuned" in run for run in all_runs(rows)):
        columns.append(("learning rate", [_rate_cell(runs) for runs in rows.values()]))
    columns.append(("parameters", [_parameters_cell(runs) for runs in rows.values()]))
    columns.append(("step (ms)", [_step_cell(runs) for runs in rows.values()]))
    if len({len(runs) for runs in rows.values()}) > 1:  # else the caption says it
        columns.append(("seeds", [Cell(str(len(runs))) for runs in rows.values()]))
    titles, cells = zip(*columns, strict=True)
    table_rows = tuple(
        Row(label, runs[0]["encoding"], row)
        for (label, runs), row in zip(rows.items(), zip(*cells, strict=True), strict=True)
    )
    paired = any(share_weights(*(rows[label] for label in pair)) for _, pair in judged)
    notes = filter(None, (how_tested(judged, paired, reference is not None), *_notes(rows)))
    found = [finding(rows, metric, _title(metric, trained), judged, reference) for metric in compared]
    found = filter(None, (*found, *block_findings(rows).values()))
    return StudyTable(study, titles, table_rows, _caption(rows, reference is not None), tuple(notes), tuple(found))


Pair = tuple[Metric, frozenset[str]]  # a metric, and the labels of the two rows that are compared by it


def best_row(rows: Rows, metric: Metric) -> str | None:
    """The label of the best mean, of rows whose every seed is finite: survivors flatter. None where there is no best."""
    order = unit_of(metric.name).best
    means = {label: mean_interval(values).mean for label, values in whole(rows, metric).items()}
    return order(means, key=means.__getitem__) if order and len(means) > 1 else None


def compare(rows: Rows, pairs: Iterable[tuple[Metric, str, str]]) -> dict[Pair, Estimate]:
    """The first row less the second one at each metric, each pair once; those with a value that is not finite left out."""
    found: dict[Pair, Estimate] = {}
    for metric, a, b in pairs:
        if a != b and len(whole({a: rows[a], b: rows[b]}, metric)) == 2:
            found.setdefault((metric, frozenset((a, b))), difference(rows[a], rows[b], metric))
    return found


def _family(rows: Rows, best: Mapping[Metric, str | None], reference: str | None, compared) -> dict[Pair, Estimate]:
    """What a table tests: in each column every row against the best one, and in those of Δ against `none`."""
    pairs = [(metric, label, top) for metric, top in best.items() if top is not None for label in rows]
    if reference:
        pairs += [(metric, label, reference) for metric in compared for label in rows]
    return compare(rows, pairs)


def finding(rows: Rows, metric: Metric, title: str, judged: Mapping[Any, Verdict], reference: str | None = None) -> str:
    """Which row is best by a metric and which are not separable from it, then which are from `none`; "" where none is best.

    Args:
      title: of the metric.
      judged: with the pairs of `compare` among its names.
      reference: the label of `none`.
    """
    unit, best = unit_of(metric.name), best_row(rows, metric)
    if best is None:
        return ""

    def verdict(a: str, b: str) -> Verdict | None:
        return judged.get((metric, frozenset((a, b))))

    values = whole(rows, metric)
    others = [label for label in values if label != best and verdict(label, best)]
    tied = [label for label in others if not verdict(label, best).separated]
    top = mean_interval(values[best]).scaled(unit.scale).text(unit.digits)
    apart = f"not separable from {_listed(tied)}" if tied else f"separable from {_counted(len(others))}"
    text = f"{title}: best is {best} with {top}, {apart}."
    if reference not in values or not any(verdict(label, reference) for label in values):
        return text
    sign = 1 if unit.best is max else -1
    sides: dict[str, list[str]] = {"better": [], "worse": [], "not separable": []}
    for label in values:
        if found := verdict(label, reference):
            gain = sign * (mean_interval(values[label]).mean - mean_interval(values[reference]).mean)
            sides[("better" if gain > 0 else "worse") if found.separated else "not separable"].append(label)
    told = "; ".join(f"{side}: {_listed(labels)}" for side, labels in sides.items() if labels)
    return f"{text} Against {reference}, {told}."


def block_findings(rows: Rows) -> dict[tuple[str, str], str]:
    """How what is measured after each block changes from the first to the last: (what, of), see `by_block` -> a sentence."""
    return {named: _block_finding(rows, *named, blocks) for named, blocks in by_block(metrics_of(rows)).items()}


def _block_finding(rows: Rows, what: str, of: str, blocks: Mapping[int, Metric]) -> str:
    first, last = min(blocks), max(blocks)
    ends = {block: whole(rows, blocks[block]) for block in (first, last)}
    changes = {label: difference(rows[label], rows[label], blocks[last], blocks[first]) for label in ends[last]}
    changes = {label: each for label, each in changes.items() if label in ends[first]}
    told = []
    for label, verdict in judge(changes).items():
        start, end = (mean_interval(ends[block][label]).mean for block in (first, last))
        change = verdict.estimate.interval().text(2, signed=True)
        told.append(f"{label} {start:.2f} to {end:.2f} ({change}, {verdict})")
    if not told:
        return ""
    start = "before the blocks" if first == 0 else f"after {first}"
    title = f"{with_unit(what, all_runs(rows))} of {of or 'text'}"
    return (
        f"{title}, {start} and after {last}: {'; '.join(told)}. Changes are tested paired by seed, at {LEVEL:g} after "
        "Holm's correction over these rows."
    )


_MANY = 6  # rows that a sentence counts instead of naming them


def _listed(labels: Sequence[str]) -> str:
    """The labels, or how many they are; between those that hold commas stands "and"."""
    if len(labels) > _MANY:
        return f"{len(labels)} rows"
    return (" and " if any("," in label for label in labels) else ", ").join(labels)


def _counted(others: int) -> str:
    return "the other row" if others == 1 else f"all {others} other rows"


def how_tested(judged: Mapping[Any, Verdict], paired: bool, of_none: bool, where: str = "this table") -> str:
    """What ≈ and bold differences say, for the line under a table whose cells they mark; "" where nothing is compared."""
    tests = max((verdict.tests for verdict in judged.values()), default=0)
    if not judged:
        return ""
    if not tests:
        return "No row is tested against another one: that takes two rows of two seeds each."
    which = "t tests, paired by seed where rows read the same weights and else Welch's" if paired else "Welch's t tests"
    marked = "≈ marks what is not separable from the best of its column"
    marked += ", bold differences are separable from 0" if of_none else ""
    return (
        f"{marked}: {which}, at {LEVEL:g} after Holm's correction over all tests of {where} ({tests}). Intervals are "
        "not corrected. Both are over seeds and leave out the sampling of the test set."
    )


def _title(metric: Metric, trained: int | None) -> str:
    title = metric.name + unit_of(metric.name).suffix
    if metric.length is None:
        return title
    times = f" ({metric.length / trained:.3g}×)" if trained else ""
    return f"{title} @{metric.length}{times}"


def metric_cells(
    rows: Rows, metric: Metric, best: str | None, judged: Mapping[Any, Verdict], digits: int | None = None
) -> list[Cell]:
    """Mean and interval of each row, and whether it is the best or not separable from it.

    Args:
      best: `best_row` of the metric.
      judged: with the pairs of `compare` among its names.
      digits: behind the point; those of the metric's unit if None.
    """
    unit = unit_of(metric.name)
    unit = unit if digits is None else unit._replace(digits=digits)
    top = mean_interval(metric_values(rows[best], metric)[0]).mean if best is not None else None
    cells = []
    for label, runs in rows.items():
        values, n = metric_values(runs, metric)
        interval = mean_interval(values) if values else None
        text = interval.scaled(unit.scale).text(unit.digits) if interval else "-" if n == 0 else ""
        mark = ""
        if note := finite_note(values, n):
            text = f"{text} ({note})" if text else note
        elif interval and top is not None:
            verdict = judged.get((metric, frozenset((label, best))))
            mark = "best" if interval.mean == top else "" if verdict and verdict.separated else "tied"
        cells.append(Cell(text, mark, interval and interval.scaled(unit.scale)))
    return cells


def _effect_cells(rows: Rows, reference: str, metric: Metric, judged: Mapping[Pair, Verdict]) -> list[Cell]:
    """Row minus `none`; a dash where either has a seed without a finite value, since survivors are no fair sample."""
    unit, cells = unit_of(metric.name), []
    for label, runs in rows.items():
        verdict = judged.get((metric, frozenset((label, reference))))
        if verdict is None:
            cells.append(Cell("-"))
            continue
        effect = difference(runs, rows[reference], metric).scaled(unit.scale).interval()
        text = effect.text(unit.digits, signed=True)
        cells.append(Cell(text, "apart" if verdict.separated else "", effect))
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
    parts.append("best mean in bold")
    if has_reference:
        parts.append("Δ: difference of the means with its 95 % interval")
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
        common = statistics.mode(tuple(found) for found in hashes.values())
        others = {label: found for label, found in hashes.items() if tuple(found) != common}
        listed = "; ".join(f"{label}: {' / '.join(map(str, found)) or '-'}" for label, found in others.items())
        notes.append(f"Rows that differ from the others in more of their config than the encoding ({listed}).")
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
    seeds = f"(seeds {', '.join(map(str, one['seeds']))})"
    held = f"{one['on']!r}, which those runs {seeds} are not trained on; the final runs are"
    where = held if "% of" in one["on"] else f"other problems of {one['on']} {seeds}"
    notes = [
        f"Each row is trained at the best of its learning rates ({', '.join(one['from'])}) by {one['by']} on {where}."
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
        cells = [Text(t, style="bold" if c.mark in BOLD else "") for t, c in zip(texts, row.cells, strict=True)]
        view.add_row(Text(row.label), *cells)
    return view


def to_markdown(table: StudyTable) -> str:
    """GitHub markdown: heading, table, caption and notes; ends with a newline."""
    rows = []
    for row in table.rows:
        cells = [f"**{shown(cell)}**" if cell.mark in BOLD else shown(cell) for cell in row.cells]
        rows.append((escape_markdown(row.label), *cells))
    lines = grid(("encoding", *map(escape_markdown, table.columns)), rows)
    below = "\n\n".join(escape_markdown(text) for text in (table.caption, *table.notes))
    found = "".join(f"- {escape_markdown(text)}\n" for text in table.findings)
    found = f"{found}\n" if found else ""
    return f"## {escape_markdown(table.study)}\n\n{found}{lines}\n\n{below}\n"
