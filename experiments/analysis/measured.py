"""Numbers of an analysis by text, image or seed, and their records: the unit of repetition stands in place of a seed."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.analysis.subject import Pictures, Subject, Texts
from experiments.records import RESULTS, Record, StudyRecords, append_records, finite
from experiments.report.statistics import Interval, is_whole, mean_interval
from posjax.describe.markdown import escape_markdown, grid
from posjax.jsonl import config_hash

Metric = Mapping[Any, np.ndarray] | np.ndarray  # [N], a number for each text, or {at: [N]}
Rows = dict[str, dict[str, Metric]]  # {row: {metric: numbers}}
Cell = tuple[int, float]  # digits and scale of the numbers of a table


class Group(NamedTuple):
    """Rows that are measured on the same units of repetition.

    Attributes:
      each: the unit: text, image, seed, group of channels.
      titles: of the texts or images; "" where a unit has no title.
    """

    each: str
    titles: Sequence[str]
    rows: Rows


class Findings(NamedTuple):
    """The numbers of an analysis: those that repeat, and the arrays of figures by name."""

    groups: list[Group]
    arrays: dict[str, np.ndarray]


def write_records(
    path: pathlib.Path, groups: Sequence[Group], subject: Subject, batch: Texts | Pictures, about: Mapping[str, Any]
) -> StudyRecords:
    """Appends a record for each row and unit to results.jsonl in a folder, and returns the records.

    Args:
      about: name of the data, number of parameters, seconds of the whole analysis, device and versions.
    """

    def of_unit(metric: Metric, index: int) -> Any:
        is_placed = isinstance(metric, Mapping)
        return {at: finite(x[index]) for at, x in metric.items()} if is_placed else finite(metric[index])

    about = dict(about)
    share = about.pop("seconds") / max(1, sum(len(rows) * len(titles) for _, titles, rows in groups))
    same = dict(study=subject.name, encoding=subject.encoding, run=subject.hash, data_digest=batch.digest)
    same["config_hash"] = config_hash({"run": subject.hash, "data": batch.digest})
    same |= dict(steps=0, step_time=None, wall_time=0.0, evaluation_time=share, **about)
    records = [
        Record(
            row=row,
            seed=index,
            base=next(iter(rows)),
            each=each,
            documents=(title,) if title else (),
            metrics={name: of_unit(values, index) for name, values in metrics.items()},
            **same,
        )
        for each, titles, rows in groups
        for row, metrics in rows.items()
        for index, title in enumerate(titles)
    ]
    append_records(path / RESULTS, records)
    return StudyRecords(subject.name, records)


def mean_of(study: StudyRecords, row: str, metric: str, at: Any = None) -> Interval | None:
    """Returns the mean of a metric with its interval; None if it was not measured on all texts."""
    values = study.values(row, metric, at)
    return mean_interval(list(values.values())) if is_whole(values) else None


def mean_text(study: StudyRecords, row: str, metric: str, digits: int, scale: float = 1.0, at: Any = None) -> str:
    """Returns the mean of a metric with its interval, ``0.94 ± 0.03``; "-" if it was not measured on all texts."""
    mean = mean_of(study, row, metric, at)
    return mean.scaled(scale).text(digits) if mean else "-"


def rows_with(study: StudyRecords, metric: str, at: Any = None) -> list[str]:
    """Returns the rows whose metric was measured on all texts."""
    return [row for row in study.rows if is_whole(study.values(row, metric, at))]


def table(study: StudyRecords, rows: Sequence[str], metrics: Mapping[str, Cell], first: str, unit: str = "") -> str:
    """Returns a table in Markdown with the means of some metrics, of rows that have any.

    Args:
      metrics: {metric: (digits, scale)}; a metric that no row has is left out.
      first: header of the rows.
      unit: behind the metrics' names.
    """
    known = [metric for metric in metrics if any(mean_of(study, row, metric) for row in rows)]
    cells = [(escape_markdown(row), *(mean_text(study, row, name, *metrics[name]) for name in known)) for row in rows]
    return grid((first, *(f"{metric}{unit}" for metric in known)), cells)


def array_of(study: StudyRecords, row: str, metric: str) -> np.ndarray:
    """Returns a metric by unit and place, [N, places] or, at places (i, j), [N, I, J]; nan for what is not finite."""
    ats = study.metrics[metric]
    columns = np.array([[*study.values(row, metric, at).values()] for at in ats], np.float64).T
    shape = [len(set(axis)) for axis in zip(*ats, strict=True)] if isinstance(ats[0], tuple) else [len(ats)]
    return columns.reshape(-1, *shape)
