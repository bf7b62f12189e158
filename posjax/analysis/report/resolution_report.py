"""The report of `experiments.resolutions`: accuracy by resolution, what changes against 1x, and what agrees with RoPE-ViT."""

from collections.abc import Sequence
from pathlib import Path

from posjax.analysis.report import plots
from posjax.analysis.report.page import write_pages
from posjax.analysis.report.resolution_curves import Curve, curve_of, differences, findings, sentence
from posjax.analysis.report.resolution_plots import accuracy_by_resolution, beside_published
from posjax.analysis.statistics import Record, Rows, all_runs, group, mean_interval, separated
from posjax.analysis.report.table import Cell, Row, StudyTable, versions_text


def write_resolution_report(
    records: Sequence[Record],
    directory: Path,
    title: str,
    config_text: str | None = None,
    notes: str = "",
    command: str | None = None,
) -> list[Path]:
    """Writes table.md, the figures of each study and report.html; returns their paths.

    Raises:
      ValueError: no records, or rows of a study that were measured at different resolutions.
    """
    directory.mkdir(parents=True, exist_ok=True)
    figures = {}
    for study, rows in group(records).items():
        drawn = {"by_resolution": accuracy_by_resolution(rows), "beside_rope_vit": beside_published(rows)}
        figures[study] = [
            plots.save(figure, directory / f"{study}_{name}.png", dpi=130)
            for name, figure in drawn.items()
            if figure is not None
        ]
    described = dict(title=title, config_text=config_text, notes=notes, command=command)
    return write_pages(tables(records), figures, records, directory, **described)


def tables(records: Sequence[Record]) -> list[StudyTable]:
    """Two tables of each study: accuracy by resolution, and how far it is from that at 1x."""
    return [table for study, rows in group(records).items() for table in _tables(study, rows)]


def _tables(study: str, rows: Rows) -> list[StudyTable]:
    curves = {label: curve_of(runs) for label, runs in rows.items()}
    first = next(iter(curves.values()))
    if any(curve.resolution != first.resolution for curve in curves.values()):
        raise ValueError(f"the rows of {study!r} were measured at different resolutions")
    unit = "patches" if all_runs(rows)[0].get("native") else "px"
    titles = [f"{size} {unit} ({scale:.3g}×)" for size, scale in zip(first.resolution, first.scale, strict=True)]
    accuracy, change = _accuracy_cells(curves), {label: _change_cells(curve) for label, curve in curves.items()}
    elsewhere = [i for i in range(len(titles)) if i != first.at_1x]

    def table(name: str, titles: Sequence[str], cells, caption: str, notes: tuple[str, ...]) -> StudyTable:
        made = tuple(Row(label, runs[0]["encoding"], tuple(cells[label])) for label, runs in rows.items())
        return StudyTable(name, tuple(titles), made, caption, notes)

    said = tuple(filter(None, [sentence(study, findings(rows))]))
    against = f"{study}: accuracy less that at 1x"
    return [
        table(study, [f"{t}, %" for t in titles], accuracy, _caption(rows), (*said, _encodings(rows))),
        table(against, [titles[i] for i in elsewhere], change, _CHANGE, ()),
    ]


_CHANGE = (
    "Points of accuracy (%), mean ± half-width of the 95 % Student t interval over seeds, each seed less itself at 1x; "
    "bold where the interval does not hold 0."
)


def _accuracy_cells(curves: dict[str, Curve]) -> dict[str, list[Cell]]:
    """Of each row a cell per resolution; in bold the best mean of a resolution, ≈ where the interval touches its."""
    columns = []
    for index in range(len(next(iter(curves.values())).resolution)):
        found = [mean_interval((100 * curve.accuracy[:, index]).tolist()) for curve in curves.values()]
        best = max(found, key=lambda interval: interval.mean)
        marks = ["best" if i.mean == best.mean else "" if separated(i, best) else "tied" for i in found]
        columns.append([Cell(i.text(1), mark, i) for i, mark in zip(found, marks, strict=True)])
    return {label: [column[row] for column in columns] for row, label in enumerate(curves)}


def _change_cells(curve: Curve) -> list[Cell]:
    cells = []
    for index, change in enumerate(differences(curve)):
        if index == curve.at_1x:
            continue
        if change is None:
            cells.append(Cell("-"))
            continue
        points = change.scaled(100)
        apart = points.low > 0 or points.high < 0
        cells.append(Cell(points.text(1, signed=True), "best" if apart else "", points))
    return cells


def _caption(rows: Rows) -> str:
    runs = all_runs(rows)
    seeds = sorted({len(row) for row in rows.values()})
    steps = sorted({run["steps"] for run in runs if run["kind"] != "fine-tuned"})
    parts = [
        f"{' / '.join(map(str, seeds))} seeds per row",
        "mean ± half-width of the 95 % Student t interval over seeds, all on the same images",
        "best mean in bold, ≈ where the interval touches that of the best",
        f"{' / '.join(map(str, steps))} training steps",
        f"{' / '.join(dict.fromkeys(str(run['images']) for run in runs))} test images",
        f"device {' / '.join(dict.fromkeys(run['device'] for run in runs))}",
        versions_text(runs),
        f"wall time {_wall_time(rows):,.0f} s",
    ]
    return "; ".join(part for part in parts if part) + "."


def _wall_time(rows: Rows) -> float:
    """Seconds of training, each model once, and of evaluation."""
    trained = {run["training_hash"]: run["wall_time"] for run in all_runs(rows)}
    return sum(trained.values()) + sum(run["evaluation_time"] for run in all_runs(rows))


def _encodings(rows: Rows) -> str:
    found = {label: (runs[0]["encoding"], runs[0]["policy"]) for label, runs in rows.items()}
    named = [
        f"{label} = {spec}" + (", resized" if policy == "resized" else "") for label, (spec, policy) in found.items()
    ]
    return f"Encodings: {'; '.join(named)}."
