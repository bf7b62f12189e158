"""Of a sweep: the best point of every row, chosen on one split and reported on another."""

from collections.abc import Sequence

from experiments.report.statistics import (
    CHOOSING,
    Metric,
    Record,
    Rows,
    finite_note,
    group,
    mean_interval,
    metric_values,
    metrics_of,
)
from experiments.report.table import UNITS, Cell, Row, StudyTable


def chosen_tables(records: Sequence[Record]) -> list[StudyTable]:
    """A table for every study with a sweep: a line for each row with its best point, by the mean over seeds.

    A point whose seeds have not all a finite score is never chosen.
    """
    tables = []
    for study, rows in group(records).items():
        swept = {label: runs for label, runs in rows.items() if "point_of" in runs[0]}
        if swept:
            tables.append(_table(study, swept))
    return tables


def _table(study: str, rows: Rows) -> StudyTable:
    choosing = next(metric for metric in metrics_of(rows) if metric.name.startswith(CHOOSING))
    reported = [metric for metric in metrics_of(rows) if metric != choosing]
    families: dict[str, dict[str, list[Record]]] = {}
    for label, runs in rows.items():
        families.setdefault(runs[0]["point_of"], {})[label] = runs
    lines = []
    for name, points in families.items():
        if (label := best(points, choosing)) is None:
            lines.append(
                Row(name, next(iter(points.values()))[0]["encoding"], (Cell("none is finite"),) * (2 + len(reported)))
            )
            continue
        runs = points[label]
        told = ", ".join(f"{field}={value}" for field, value in runs[0]["point"].items())
        cells = (Cell(f"{told} (of {len(points)})"), *(_cell(runs, metric) for metric in (choosing, *reported)))
        lines.append(Row(name, runs[0]["encoding"], cells))
    titles = ("point", *(_title(metric) for metric in (choosing, *reported)))
    return StudyTable(f"{study}: the best of the sweep", titles, tuple(lines), _caption(rows, choosing), ())


def best(points: Rows, choosing: Metric) -> str | None:
    """The label of the point with the best mean of a metric; None where no point has only finite ones."""
    means = {}
    for label, runs in points.items():
        values, n = metric_values(runs, choosing)
        if n and len(values) == n:
            means[label] = mean_interval(values).mean
    order = UNITS[choosing.name].best
    return order(means, key=means.__getitem__) if means else None


def _cell(runs: Sequence[Record], metric: Metric) -> Cell:
    unit, (values, n) = UNITS.get(metric.name, UNITS["loss"]), metric_values(runs, metric)
    if not values:
        return Cell(finite_note(values, n) or "-")
    interval = mean_interval(values).scaled(unit.scale)
    note = finite_note(values, n)
    return Cell(interval.text(unit.digits) + (f" ({note})" if note else ""), interval=interval)


def _title(metric: Metric) -> str:
    title = metric.name + UNITS.get(metric.name, UNITS["loss"]).suffix
    return title if metric.length is None else f"{title} @{metric.length}"


def _caption(rows: Rows, choosing: Metric) -> str:
    """Which split chose, and which is reported."""
    runs = [run for each in rows.values() for run in each]
    chose, reported = (" / ".join(dict.fromkeys(run[key] for run in runs)) for key in ("chosen_on", "reported_on"))
    better = "highest" if UNITS[choosing.name].best is max else "lowest"
    return (
        f"Chosen: the point with the {better} mean {choosing.name} over seeds, on {chose!r}, which is not trained on. "
        f"Reported: what this point has on {reported!r}, which chose nothing."
    )
