"""Numbers of an analysis by text or image, and their records: the unit of repetition stands in place of a seed."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.records import RESULTS, Record, StudyRecords, append_records, finite
from experiments.report.statistics import is_whole, mean_interval
from posjax.jsonl import config_hash

Metric = Mapping[Any, np.ndarray] | np.ndarray  # [N], a number for each text, or {at: [N]}
Rows = dict[str, dict[str, Metric]]  # {row: {metric: numbers}}


class About(NamedTuple):
    """The fields of records that say which weights were measured on which data.

    Attributes:
      study: name of the model.
      run: names the weights.
      unit: of the model's positions: token or patch.
      each: the unit of repetition: text or image.
      titles: of the texts or images.
    """

    study: str
    encoding: str
    run: str
    parameters: int
    data: str
    data_digest: str
    unit: str
    each: str
    titles: Sequence[str]


def write_records(
    path: pathlib.Path, rows: Rows, about: About, seconds: float, machine: Mapping[str, Any]
) -> list[Record]:
    """Appends a record for each row and text to results.jsonl in a folder, and returns the records.

    Args:
      seconds: of the whole analysis.
      machine: device and versions.
    """
    count = len(about.titles)
    if not rows:
        return []
    share = seconds / (len(rows) * count)
    same = dict(study=about.study, encoding=about.encoding, run=about.run, base=next(iter(rows)))
    same["config_hash"] = config_hash({"run": about.run, "data": about.data_digest})
    same |= dict(data=about.data, data_digest=about.data_digest, parameters=about.parameters, unit=about.unit)
    same |= dict(each=about.each, steps=0, step_time=None, wall_time=0.0, evaluation_time=share, **machine)
    records = [
        Record(
            row=row, seed=i, documents=(title,), metrics={name: _of_text(x, i) for name, x in metrics.items()}, **same
        )
        for row, metrics in rows.items()
        for i, title in enumerate(about.titles)
    ]
    append_records(path / RESULTS, records)
    return records


def _of_text(metric: Metric, index: int) -> Any:
    if isinstance(metric, Mapping):
        return {at: finite(values[index]) for at, values in metric.items()}
    return finite(metric[index])


def mean_text(
    study: StudyRecords, row: str, metric: str, digits: int, scale: float = 1.0, at: int | None = None
) -> str:
    """Returns the mean of a metric with its interval, ``0.94 ± 0.03``; "-" if it was not measured on all texts."""
    values = study.values(row, metric, at)
    return mean_interval(list(values.values())).scaled(scale).text(digits) if is_whole(values) else "-"
