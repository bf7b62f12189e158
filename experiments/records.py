"""The records of studies: a line of results.jsonl for each seed of a row, and the table of a study that they make.

    {"study": "addition", "row": "alibi", "encoding": "alibi()", "seed": 0, "run": "0d62921d7669", ...,
     "metrics": {"accuracy": 0.53, "accuracy by length": {"8": 0.98, "16": 0.08}}}

A metric is a name with a place `at`: a length, a resolution, a block or a step, or a length and a depth ("256/0.5"). The
points at which learning rates and other fields are tuned are records too, in tuning.jsonl.
"""

import dataclasses
import math
import pathlib
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from posjax.jsonl import append_jsonl, read_lines
from posjax.remote import publish

RESULTS, TUNING = "results.jsonl", "tuning.jsonl"
At = int | float | tuple[int | float, ...] | None  # None: the metric is a single number


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """One seed of one row.

    Attributes:
      study: the table that the row stands in.
      encoding: spec; "-" for a model that hosts none.
      run: names the trained weights. Rows of one run read the same weights, or fine-tunes of them, and are paired by seed.
      config_hash: of the training and the measures; equal for the seeds of a row.
      base: the row whose training gave the weights; the row itself where it was trained.
      data: name of the data set; `data_digest` is of the bytes trained on.
      steps: of training.
      parameters: of one seed.
      step_time: seconds of a step of all seeds together, divided by their number; None for a row too short to time.
      wall_time: seconds of training, all seeds together, with steps that a kill lost.
      speed: of training, all seeds together: "tokens_per_s" or "images_per_s", "mfu" where the device's peak is known,
        "goodput", the share of wall_time in steps that were kept, "data_wait", the mean seconds that a step waited for its
        batch, and "compile_time", seconds until the first step was compiled; empty for a row that another process trained.
      evaluation_time: seconds of measuring one seed; None if training or another row measured it.
      passes: number of passes over the training split; None if examples are generated or their number is unknown.
      learning_rate: learning rate of training; None if it is not a single number.
      tuned: None if no field was tuned, else "chosen", {field: value}; "scores", {values as text: mean score over the
        tuning seeds}; "metric", "on" (the data of the choice) and "seeds".
      point: {field: value} of a record of tuning.jsonl.
      on: data of the metrics, if it is not the evaluation split of the config.
      trained_at: the length or resolution of training, or None.
      unit: unit of lengths and resolutions: "byte", "token", "symbol", "view", "pixel" or "patch".
      documents: titles of the texts that were read.
      bos: the token before every text, as text; "" for none.
      guess: the scores of one answer for all test examples, {"accuracy": the share of the commonest class, "loss": the loss
        of the classes' shares}, with the numbers of "classes" and "examples"; empty where that is unknown.
      equal_to: the row whose metrics these are, without time and memory: the encodings compute the same at every length that
        is read, so that this one was not measured; "" for a measured row.
      each: the unit that `seed` counts, "text" or "image", where one model is measured on each; "" for seeds.
      metrics: {metric: number, or {at: number}}; None for a number that is not finite.
    """

    study: str
    row: str
    encoding: str
    seed: int
    run: str
    config_hash: str
    base: str
    data: str
    data_digest: str
    steps: int
    parameters: int
    step_time: float | None
    wall_time: float
    device: str
    versions: Mapping[str, Any]
    metrics: Mapping[str, float | Mapping[At, float | None] | None]
    speed: Mapping[str, float] = dataclasses.field(default_factory=dict)
    evaluation_time: float | None = None
    passes: float | None = None
    learning_rate: float | None = None
    tuned: Mapping[str, Any] | None = None
    point: Mapping[str, Any] | None = None
    on: str = ""
    trained_at: int | None = None
    unit: str = ""
    documents: tuple[str, ...] = ()
    bos: str = ""
    guess: Mapping[str, float] = dataclasses.field(default_factory=dict)
    equal_to: str = ""
    each: str = ""

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "Record":
        """Returns the record of a file's line.

        Raises:
          ValueError: a field is missing or unknown, or the place of a metric is no number; the message names it.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        for problem, names in (("lacks", _REQUIRED - fields.keys()), ("has unknown fields", fields.keys() - known)):
            if names:
                where = f"the record of {fields.get('study')!r}, row {fields.get('row')!r}"
                raise ValueError(f"{where}, {problem} {sorted(names)}")
        metrics = {
            name: {_at(text): number for text, number in value.items()} if isinstance(value, Mapping) else value
            for name, value in fields["metrics"].items()
        }
        documents = tuple(fields.get("documents", ()))
        return cls(**{**fields, "metrics": metrics, "documents": documents})

    def fields(self) -> dict[str, Any]:
        """Returns the fields of a file's line; fields at their defaults are left out."""
        written = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        written["metrics"] = {
            name: {"/".join(map(str, at)) if isinstance(at, tuple) else str(at): number for at, number in value.items()}
            if isinstance(value, Mapping)
            else value
            for name, value in self.metrics.items()
        }
        defaults = {f.name: f.default for f in dataclasses.fields(self) if f.name not in _REQUIRED}
        defaults |= {"guess": {}, "speed": {}}
        return {name: value for name, value in written.items() if name not in defaults or value != defaults[name]}


_REQUIRED = {f.name for f in dataclasses.fields(Record) if f.default is f.default_factory is dataclasses.MISSING}


def _at(text: str) -> At:
    """Returns the number or numbers of "256" or "256/0.5"."""
    numbers = tuple(int(part) if part.isdigit() else float(part) for part in text.split("/"))
    return numbers[0] if len(numbers) == 1 else numbers


def read_records(path: pathlib.Path) -> list[Record]:
    """Reads the records of a file; none if the file is missing.

    A line that is no record is left out with a warning that names it: the study measures that seed again.
    """
    records = []
    for number, line in read_lines(path) if path.exists() else ():
        try:
            if isinstance(line, ValueError):
                raise line
            records.append(Record.of(line))
        except ValueError as error:
            logging.warning("%s, line %d is not a record and is left out: %s", path, number, error)
    return records


def append_records(path: pathlib.Path, records: Iterable[Record]) -> None:
    """Appends a line for each record; after a kill, all of them are written or none. A workdir in a bucket gets them, too."""
    append_jsonl(path, [record.fields() for record in records])
    publish(path)


def last_written(records: Iterable[Record]) -> list[Record]:
    """Returns the records that were written last for each row: a repeated row replaces itself. Rows keep their order."""
    rows: dict[tuple[str, str], dict[int, Record]] = {}
    for record in records:
        row = rows.setdefault((record.study, record.row), {})
        if any(other.config_hash != record.config_hash for other in row.values()):
            row.clear()
        row[record.seed] = record
    return [record for row in rows.values() for record in row.values()]


def read_study(directory: pathlib.Path, parts: bool = False) -> "Records":
    """Reads the newest records of a study's folder, with the scores of all tuning points so far.

    Args:
      parts: whether folders in it hold records of the study, too.
    """
    paths = [directory / RESULTS, *(sorted(directory.glob(f"*/{RESULTS}")) if parts else ())]
    points = read_records(directory / TUNING)
    found = [record for path in paths for record in read_records(path)]
    return Records(with_scores(last_written(found), points))


def with_scores(records: Iterable[Record], points: Iterable[Record]) -> list[Record]:
    """Adds the scores of tuning points to the `tuned` of records: values may be added after the rows have run."""
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for point in points:
        score = next(iter(point.metrics.values()))
        scores = found.setdefault((point.study, point.base), {})
        scores.setdefault(point_text(point.point or {}), []).append(math.nan if score is None else score)
    made = []
    for record in records:
        scores = found.get((record.study, record.base))
        if record.tuned and scores:
            means = record.tuned["scores"] | {text: finite(np.mean(values)) for text, values in scores.items()}
            tuned = record.tuned | {"scores": dict(sorted(means.items(), key=_order))}
            record = dataclasses.replace(record, tuned=tuned)
        made.append(record)
    return made


def point_text(point: Mapping[str, Any]) -> str:
    """Returns the values of a tuning point as text, "0.001" or "0.001, 0.1"."""
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in point.values())


def _order(item: tuple[str, Any]) -> tuple:
    try:
        return 0, *map(float, item[0].split(", "))
    except ValueError:
        return 1, item[0]


def finite(value: float) -> float | None:
    """Returns the number, or None if it is nan or infinite."""
    return float(value) if np.isfinite(value) else None


class StudyRecords:
    """The records of one study; rows and metrics keep the order of the records.

    Attributes:
      name: the study.
      rows: {row: its records}.
      metrics: {metric: ascending places of all rows}; [None] for a single number.

    Raises:
      ValueError: a row names two encodings, or has a seed twice.
    """

    def __init__(self, name: str, records: Iterable[Record]):
        self.name = name
        self.rows: dict[str, list[Record]] = {}
        self._cells: dict[tuple[str, At], dict[str, dict[int, float | None]]] = {}
        for record in records:
            row = self.rows.setdefault(record.row, [])
            where = f"row {record.row!r} of {name!r}"
            if row and row[0].encoding != record.encoding:
                raise ValueError(f"{where} names two encodings, {row[0].encoding!r} and {record.encoding!r}")
            if any(other.seed == record.seed for other in row):
                raise ValueError(f"{where} has seed {record.seed} twice: keep one record per seed")
            row.append(record)
            for metric, found in record.metrics.items():
                for at, value in found.items() if isinstance(found, Mapping) else ((None, found),):
                    self._cells.setdefault((metric, at), {}).setdefault(record.row, {})[record.seed] = value
        metrics: dict[str, list[At]] = {}
        for metric, at in self._cells:
            metrics.setdefault(metric, []).append(at)
        self.metrics = {
            metric: sorted(ats, key=lambda at: () if at is None else at if isinstance(at, tuple) else (at,))
            for metric, ats in metrics.items()
        }

    def values(self, row: str, metric: str, at: At = None) -> dict[int, float | None]:
        """Returns {seed: value} of a cell; empty if it was not measured."""
        return self._cells.get((metric, at), {}).get(row, {})

    def cells(self) -> list[dict[int, float | None]]:
        """Returns {seed: value} of all cells."""
        return [cell for rows in self._cells.values() for cell in rows.values()]

    @property
    def records(self) -> list[Record]:
        return [record for row in self.rows.values() for record in row]

    @property
    def unit(self) -> str:
        """The unit of lengths and resolutions."""
        return self.records[0].unit

    @property
    def guess(self) -> Mapping[str, float]:
        """The scores of one answer for all test examples; see `Record`."""
        return self.records[0].guess

    @property
    def trained_at(self) -> int | None:
        """The length or resolution at which most rows were trained, shown as 1×; None if no metric is by length."""
        sizes = [record.trained_at for record in self.records if record.trained_at]
        return statistics.mode(sizes) if sizes else None

    def is_none(self, row: str) -> bool:
        """Whether a row is the reference without positions."""
        return row == "none" or self.rows[row][0].encoding in ("none", "none()")


class Records(Sequence[Record]):
    """All records of a folder of results, in their order.

    Attributes:
      studies: {name: records of the study}.

    Raises:
      ValueError: the records of a study make no table; see `StudyRecords`.
    """

    def __init__(self, records: Iterable[Record]):
        self._records = tuple(records)
        studies: dict[str, list[Record]] = {}
        for record in self._records:
            studies.setdefault(record.study, []).append(record)
        self.studies = {name: StudyRecords(name, found) for name, found in studies.items()}

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index):
        return self._records[index]

    @property
    def rows(self) -> list[list[Record]]:
        """The records of each row of all studies."""
        return [row for study in self.studies.values() for row in study.rows.values()]
