"""The tuner: each training of a study at the values of some fields that suit it best.

    config.tune = ConfigDict(dict(learning_rates=(1e-3, 3e-3, 1e-2), seeds=(100,), share=0.1))
    --tune optimizer.weight_decay=0,0.1 --tune optimizer.learning_rate=1e-3,3e-3         # all combinations

Encodings are compared each at its best, not at the rate that suits one of them. A point is a training at one value of each
field with one of the tuning seeds, which are no seeds of the study. It is trained on the training split without a share, or
on all of it where another split is named, and scored on held-out data; the reported split, `config.data.eval_split`, chooses
nothing. Points that differ in the learning rate alone are one ensemble and one program; records of all are in tuning.jsonl.
The final row is trained on the whole split at the values with the best mean.
"""

import ast
import itertools
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from experiments.records import Record, append_records, finite, point_text
from experiments.report.units import unit_of
from experiments.studies.plan import Row, copied, set_fields
from experiments.studies.weights import rate_of, row_hash
from posjax import data
from posjax.spec import nearest
from posjax.training.identity import flat_fields
from posjax.training.tasks import held_out_by

RATE = "optimizer.learning_rate"
Point = dict[str, Any]  # {field: value}


class Tuner:
    """The points of a study's trainings: those that are recorded, those that are missing, and the best of each.

    Args:
      config: `tune` of a study: `learning_rates`, or `fields`, {field: values}; `seeds`; `share` of the training split
        that is held out, or the name of another split.
      seeds: of the study.
      records: of points.

    Raises:
      ValueError: values or seeds are not distinct, or a seed is one of the study.
    """

    def __init__(self, config: ConfigDict | None, seeds: Sequence[int], records: Sequence[Record], path: pathlib.Path):
        self._records, self._path, self.fields, self.seeds, self._share = list(records), path, {}, (), 0.1
        if config is None:
            return
        given = flat_fields((config.get("fields") or ConfigDict()).to_dict())
        fields = {name: tuple(values) for name, values in given.items()}
        if config.get("learning_rates"):
            fields.setdefault(RATE, tuple(sorted(config.learning_rates)))
        self.fields, self.seeds, self._share = fields, tuple(config.seeds), config.share
        for name, values in fields.items():
            if not values or len(set(values)) < len(values):
                raise ValueError(f"tune: the values of {name} must be non-empty and distinct, got {values}")
        if fields and (not self.seeds or len(set(self.seeds)) < len(self.seeds)):
            raise ValueError(f"tune.seeds must be non-empty and distinct, got {self.seeds}")
        if fields and (shared := sorted({*self.seeds} & {*seeds})):
            raise ValueError(f"tune.seeds={self.seeds} must not be seeds of the study, but {shared[0]} is one")

    def missing(self, row: Row) -> list[tuple[Point, int]]:
        """Returns (point, seed) of each training of the row's base that has no record."""
        return [
            (point, seed)
            for point, records in self._points(row)
            for seed in self.seeds
            if seed not in {record.seed for record in records}
        ]

    def ensembles(self, row: Row) -> list[tuple[ConfigDict, list[tuple[Point, int]]]]:
        """Returns the missing trainings: a config for those that differ in their rate alone, with their points and seeds."""
        groups: dict[str, list[tuple[Point, int]]] = {}
        for point, seed in self.missing(row):
            others = str({name: value for name, value in point.items() if name != RATE})
            groups.setdefault(others, []).append((point, seed))
        made = []
        for members in groups.values():
            rates = {RATE: tuple(point[RATE] for point, _ in members)} if RATE in self.fields else {}
            made.append((at_point(held_out(row.training, self._share), members[0][0] | rates), members))
        return made

    def record(self, row: Row, members: Sequence[tuple[Point, int]], scores: Any, metric: str, about: dict) -> None:
        """Writes the records of points that have been trained.

        Args:
          scores: of each member.
          metric: their name.
          about: what records say of the training and the machine.
        """
        held, new = held_out(row.training, self._share), []
        for (point, seed), score in zip(members, scores, strict=True):
            training = at_point(held, point)
            fields = dict(run=row_hash(training), config_hash=row_hash(training), learning_rate=rate_of(training))
            fields |= dict(point=point, on=held.data.choose_split, metrics={metric: finite(score)})
            new.append(Record(**about, row=f"{row.base}, {spelled(point)}", base=row.base, seed=seed, **fields))
        append_records(self._path, new)
        self._records += new

    def best(self, row: Row) -> Point | None:
        """Returns the point with the best mean score of the row's base; None where no mean is finite."""
        means = [(mean, index) for index, mean in enumerate(self._means(row)) if math.isfinite(mean)]
        if not means:
            return None
        order = unit_of(next(iter(self.found(row)[0].metrics))).best or min
        return self._points(row)[order(means, key=lambda pair: pair[0])[1]][0]

    def at_best(self, row: Row) -> Row:
        """Returns the row with its training at the best point; as it is where there is nothing to choose, or not yet."""
        if not self.fields or self.missing(row) or self.best(row) is None:
            return row
        return row._replace(training=at_point(row.training, self.best(row)))

    def tuned(self, row: Row) -> dict[str, Any] | None:
        """Returns the field `tuned` of a row's records; None if nothing was chosen."""
        if not self.fields:
            return None
        texts = [point_text(point) for point, _ in self._points(row)]
        scores, first = map(finite, self._means(row)), self.found(row)[0]
        about = {"metric": next(iter(first.metrics)), "on": first.on, "seeds": list(self.seeds)}
        return {"chosen": self.best(row), "scores": dict(zip(texts, scores, strict=True)), **about}

    def found(self, row: Row) -> list[Record]:
        """Returns the records of all points of a row."""
        return [record for _, records in self._points(row) for record in records]

    def _means(self, row: Row) -> list[float]:
        """Returns the mean score of each point over the tuning seeds; nan where a score is not finite or missing."""
        scores = ([next(iter(record.metrics.values())) for record in records] for _, records in self._points(row))
        return [float(np.mean(np.array(x, float))) if x else math.nan for x in scores]

    def _points(self, row: Row) -> list[tuple[Point, list[Record]]]:
        """Returns every combination of values, the last field changing fastest, with its records; [] if nothing is tuned."""
        points = []
        for values in itertools.product(*self.fields.values()) if self.fields else ():
            point = dict(zip(self.fields, values, strict=True))
            place = row.study, row.base, row_hash(at_point(held_out(row.training, self._share), point))
            own = [r for r in self._records if (r.study, r.base, r.config_hash) == place and r.seed in self.seeds]
            points.append((point, own))
        return points


def spelled(point: Point) -> str:
    """A point as text, "learning_rate=0.001"."""
    return ", ".join(f"{name.rpartition('.')[2]}={point_text({name: value})}" for name, value in point.items())


def at_point(training: ConfigDict, point: Mapping[str, Any]) -> ConfigDict:
    """Returns the training at other values of some fields, which it must have."""
    made = ConfigDict(training.to_dict())
    for name, value in point.items():
        *groups, last = name.split(".")
        fields: Any = {last: value}
        for group in reversed(groups):
            fields = {group: fields}
        set_fields(made, fields, "tune")
    return made.lock()


def held_out(training: ConfigDict, share: float | str) -> ConfigDict:
    """Returns the training of a point, scored on held-out data in place of the reported split.

    A task with drawn data defines its own held-out data: `posjax.training.tasks.held_out_by`.

    Args:
      share: of the training split, which is then not trained on; or another split.

    Raises:
      ValueError: a share outside (0, 1), a split that is trained on or reported, or data without a split.
    """
    if own := held_out_by(training.task):
        return own(training, share)
    if "train_split" not in training.data:
        raise ValueError(f"task {training.task!r} has no data.train_split of which a share could be held out for tune")
    made, split = ConfigDict(training.to_dict()), share
    if isinstance(share, str):
        if share in (training.data.train_split, training.data.eval_split):
            used = "trained on" if share == training.data.train_split else "reported"
            raise ValueError(f"tune.share={share!r}: this split is {used}; name another one, or a share as 0.1")
    else:
        made.data.train_split, split = data.held_out_names(training.data.train_split, share)
    made.data.choose_split = made.data.eval_split = split
    if "eval_lengths" in made:
        made.eval_lengths = (min(made.eval_lengths),)
    made.eval_every = 0
    return made.lock()


def with_tune(config: ConfigDict, texts: Sequence[str], share: str | None, known: ConfigDict) -> ConfigDict:
    """The config with the fields and values of `--tune FIELD=V1,V2`, and the share or split that chooses.

    Args:
      known: the training of a row, whose fields these are.

    Raises:
      ValueError: a text that cannot be read, or a field that rows do not have.
    """
    tune = ConfigDict(dict(seeds=(10**6,), share=0.1) | (config.get("tune") or ConfigDict()).to_dict())
    chosen = {}
    for text in texts:
        name, equals, values = text.removeprefix("config.").partition("=")
        try:
            found = ast.literal_eval(f"[{values}]") if equals else []
        except (ValueError, SyntaxError):
            found = [word.strip() for word in values.split(",")]
        if not found:
            raise ValueError(f"--tune {text}: expected a field and its values, as in optimizer.learning_rate=1e-3,3e-3")
        if name not in (fields := flat_fields(known.to_dict())):
            raise ValueError(f"--tune {text}: there is no field {name!r}; {nearest(name, list(fields))}")
        kind = type(fields[name])
        chosen[name] = tuple(float(value) if kind is float else value for value in found)
    if chosen:
        tune.learning_rates, tune.fields = (), ConfigDict(chosen, allow_dotted_keys=True)
    if share is not None:
        with tune.ignore_type():
            tune.share = float(share) if share.replace(".", "", 1).isdigit() else share
    made = copied(config)
    with made.unlocked(), made.ignore_type():
        made.tune = tune
    return made
