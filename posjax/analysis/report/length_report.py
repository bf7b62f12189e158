"""The report of `experiments.extrapolate`: a table for each thing measured by length, and its figures."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from posjax.analysis.report import length_plots
from posjax.analysis.report import plots
from posjax.analysis.report.page import write_report
from posjax.analysis.statistics import Record

SLIDING, CHUNKED = "loss in sliding windows", "loss in windows that do not overlap"


def write_length_report(records: Sequence[Record], directory: Path, title: str, **more) -> list[Path]:
    """As `write_report`, of records that hold many lengths.

    Raises:
      ValueError: no records.
    """
    return write_report(list(views(records)), directory, title, drawn=figures(records), **more)


def views(records: Sequence[Record]) -> Iterator[Record]:
    """The records once for everything that was measured, each time as a study of its own with one metric by length."""
    for study, metric in ((SLIDING, "sliding"), (CHUNKED, "chunked")):
        for record in records:
            yield _view(record, study, {"loss": record["metrics"][metric]})
    for task in _tasks(records):
        for record in records:
            if found := record["retrieval"].get(task):
                yield _view(record, task, {"accuracy": {length: _mean(cells) for length, cells in found.items()}})


def figures(records: Sequence[Record]) -> dict[str, Mapping[str, Figure]]:
    """Those that stand beside the tables: {study: {name: figure}}."""
    look = plots.styles(records)
    lengths = sorted({int(length) for record in records for length in record["by_position"]})
    drawn = {SLIDING: {"cost": length_plots.cost_by_length(records, look)}}
    drawn[CHUNKED] = {
        f"by_position_{length}": length_plots.loss_by_position(records, length, look) for length in _shown(lengths)
    }
    return drawn | {task: {"by_depth": length_plots.retrieval_maps(records, task)} for task in _tasks(records)}


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
