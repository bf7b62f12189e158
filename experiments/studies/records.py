"""Records: one line of results.jsonl for each seed of a row, with all that a reader would ask of its numbers."""

import dataclasses
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from experiments import records as new
from experiments.studies.old_records import to_fields, to_record
from posjax.checks import (
    COUNT,
    NUMBER,
    maybe,
    several,
)
from posjax.data import Tokenizer
from posjax.jsonl import config_hash, read_jsonl
from posjax.models.kinds import KINDS
from posjax.spec import layers_text, parse_layers
from posjax.training.identity import identity
from posjax.training.runs import Run

_CURVE_POINTS = 100
_LOSSES = several(maybe(NUMBER))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """One seed of one row.

    Attributes:
      task: what was trained, or the kind of study that measured it.
      encoding: canonical spec; "-" for a model that hosts none.
      data_digest: of the bytes trained on.
      parameters: of one seed.
      step_time: seconds of a step of all seeds together, divided by their number; None for a row too short to time.
      wall_time: seconds of training, all seeds together.
      config_hash: of what is computed; equal for the seeds of a row.
      metrics: metric -> value, or metric -> {length or resolution: value}; None where a value is not finite.
      more: what only this kind of study records.
    """

    study: str
    task: str
    label: str
    encoding: str
    seed: int
    data: str
    data_digest: str
    steps: int
    parameters: int
    step_time: float | None
    wall_time: float
    config_hash: str
    device: str
    allocator: str | None
    versions: Mapping[str, Any]
    metrics: Mapping[str, Any]
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "Record":
        """The record with these fields; those that not every study has become `more`.

        Raises:
          ValueError: one is missing.
        """
        names = [field.name for field in dataclasses.fields(cls) if field.name != "more"]
        if missing := [name for name in names if name not in fields]:
            raise ValueError(f"the record of {fields.get('study')!r}, row {fields.get('label')!r}, lacks {missing}")
        more = {name: value for name, value in fields.items() if name not in names}
        return cls(**{name: fields[name] for name in names}, more=more)

    def fields(self) -> dict[str, Any]:
        """All of it, flat, as `of` takes it."""
        flat = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "more"}
        return flat | dict(self.more)


def read_records(path: pathlib.Path) -> list[Record]:
    """The records of a file; none where there is no file.

    A line that is no record is left out with a warning.
    """
    return [Record.of(to_fields(record)) for record in new.read_records(path)]


def path_of(workdir: pathlib.Path, name: str, part: tuple[int, int] | None = None) -> pathlib.Path:
    """Where a run of all rows, or of the I-th of N parts of them, writes its records."""
    return workdir / (f"{name}.jsonl" if part is None else f"{name}-{part[0]}-of-{part[1]}.jsonl")


def newest(records: Sequence[Record]) -> list[Record]:
    """Of a row that was run again, at another learning rate say, what was written last; rows keep their order."""
    rows: dict[tuple[str, str], dict[int, Record]] = {}
    for each in records:
        row = rows.setdefault((each.study, each.label), {})
        if any(other.config_hash != each.config_hash for other in row.values()):
            row.clear()
        row[each.seed] = each
    return [each for row in rows.values() for each in row.values()]


def records_of_parts(workdir: pathlib.Path, name: str, part: tuple[int, int] | None = None) -> list[Record]:
    """All records of a name in a workdir; without a part those of parts are copied to the file of the whole study."""
    whole = path_of(workdir, name)
    records = read_records(whole)
    named = {(each.study, each.label, each.config_hash, each.seed) for each in records}
    others = [each for file in sorted(workdir.glob(f"{name}-*-of-*.jsonl")) for each in read_records(file)]
    new = [each for each in others if (each.study, each.label, each.config_hash, each.seed) not in named]
    if new and part is None:
        append_records(whole, new)
    return records + new


def append_records(path: pathlib.Path, records: Iterable[Record]) -> None:
    """Appends a line for each record, all of them or, after a kill, none."""
    new.append_records(path, [to_record(record.fields()) for record in records])


def row_hash(config: ConfigDict) -> str:
    """Names what is computed: the config without what only says where and how often something is written."""
    return config_hash(identity(config))


def study_hash(config: ConfigDict) -> str:
    """Equal for all rows that differ in nothing but the encoding."""
    return config_hash({**identity(config), "model.encoding": None})


def encoding_of(config: ConfigDict) -> str:
    """The canonical spec of what a config trains; "-" for a model that hosts none."""
    hosts = hasattr(KINDS[config.model.get("kind", "vit")], "encoding")
    return layers_text(parse_layers(config.model.encoding)) if hosts else "-"


def fields_of_run(run: Run) -> dict[str, Any]:
    """What records say of a training run; with a tokenizer.json its sha256, as "tokenizer", and the BOS that was added."""
    seeds = len(run.seeds)
    step_time = finite(run.times["step_time"])
    tokenizer = getattr(run.task, "tokenizer", None)  # of text
    of_tokenizer = {"tokenizer": tokenizer.digest} if tokenizer is not None and tokenizer.digest else {}
    if tokenizer is not None:
        of_tokenizer |= bos_of(tokenizer)
    return of_tokenizer | {
        "data": run.config.data.name,
        "data_digest": run.task.digest,
        "steps": run.step,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(run.params)) // seeds,
        "step_time": None if step_time is None else step_time / seeds,
        "wall_time": run.times["elapsed"],
    }


def bos_of(tokenizer: Tokenizer) -> dict[str, str]:
    """Says in a record what was added before every text, as text: {"bos": "<bos>"}; {} where nothing was."""
    return {"bos": tokenizer.decode(tokenizer.bos)} if tokenizer.bos else {}


def fields_of_environment(described: Mapping[str, Any]) -> dict[str, Any]:
    """What records say of where they were made."""
    versions = {name: value for name, value in described.items() if name not in ("device", "allocator")}
    return {"device": described["device"], "allocator": described["allocator"], "versions": versions}


def fields_of_training(run: Run, metrics: Mapping[str, Any], directory: pathlib.Path) -> list[dict[str, Any]]:
    """What training itself has measured, for each seed.

    Args:
      metrics: metric -> [R], or metric -> {name of an evaluation set: [R]}.
      directory: of the run, which holds metrics.jsonl.
    """
    curve = _curve(directory / "metrics.jsonl")
    common = {"study_hash": study_hash(run.config)}
    if run.config.task == "language_model":
        common["train_length"] = run.config.data.length
    return [
        {**common, "metrics": _of_seed(metrics, index), "curve": [[step, loss[index]] for step, loss in curve]}
        for index in range(len(run.seeds))
    ]


def _of_seed(metrics: Mapping[str, Any], index: int) -> dict[str, Any]:
    """One seed's share; None where a number is not finite, as behind the end of a learned table."""
    return {
        name: _of_seed(values, index) if isinstance(values, Mapping) else finite(values[index])
        for name, values in metrics.items()
    }


def finite(value: float) -> float | None:
    """The number, or None where it is nan or infinite."""
    return float(value) if np.isfinite(value) else None


def _curve(path: pathlib.Path) -> list[tuple[int, list[float]]]:
    """(step, training loss [R]), evenly thinned; the last point is always there."""
    lines = [line for line in read_jsonl(path) if "loss" in line]
    for line in lines:
        if not COUNT.holds(line.get("step")) or not _LOSSES.holds(line["loss"]):
            raise ValueError(f"{path} has a line that is no step and its losses: {str(line)[:80]}")
    every = max(1, -(-len(lines) // _CURVE_POINTS))
    return [(line["step"], line["loss"]) for line in lines[::-1][::every]][::-1]
