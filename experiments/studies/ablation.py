"""Ablations: one row per encoding, or per change of the config, measured by the scores at the end of its training."""

from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from experiments.studies.records import encoding_of, finite
from experiments.studies.study import Row, Study, Weights, labels_differ, set_fields
from experiments.studies.sweeps import (
    SEEDS,
    Sweep,
    at_point,
    choosing,
    chosen_by,
    has_field,
    parse_sweep,
    points,
    short_names,
    swept_seeds,
)
from experiments.studies.tuning import Tune
from posjax.spec import nearest
from posjax.training.evaluate import evaluate, make_score
from posjax.training.identity import flat_fields

CHOOSING = "choosing "  # before the name of a metric: measured on what a sweep chooses points by
_PARTS = ("encodings", "rows")  # of a study, where its rows are listed


class Ablation(Study):
    """`config.studies`: tables whose rows are `encodings`, {label: spec}, or `rows`, {label: fields}, which set any field.

    Across its tables a config may show `paper`, a published table, and `axis`, a quantity on which the tables lie. The
    config of a single run is a table of one row.

    Args:
      sweeps: "config.a.b=1,2": every row is trained at each of these values, see `experiments.studies.sweeps`.
      choose_by: what the best of a row's points is chosen by: a share of the training split, or another split.

    Raises:
      ValueError: a sweep that cannot be read, or is of no study's field.
    """

    def __init__(self, config: ConfigDict, sweeps: Sequence[str] = (), choose_by: str = "0.1"):
        super().__init__(config if "studies" in config else _of_one(config))
        self._choose_by, parsed = choose_by, [parse_sweep(text) for text in sweeps]
        self._seeds = swept_seeds(parsed)
        self._sweeps = [sweep for sweep in parsed if sweep.field not in SEEDS]
        self._points: dict[tuple[str, str], tuple[str, dict[str, str]]] = {}
        points(parsed)
        if self._sweeps and Tune.of(self.config).learning_rates:
            raise ValueError(
                "learning rates are tuned here: --config.tune.learning_rates='()' lets --sweep choose instead"
            )
        for sweep in self._sweeps:
            if not any(self._of_study(sweep, study) for study in self.config.studies):
                known = list(flat_fields(next(iter(self.config.studies.values())).to_dict()))
                raise ValueError(f"--sweep config.{sweep.field}: no such field; {nearest(sweep.field, known)}")

    @property
    def seeds(self) -> tuple[int, ...]:
        if self._seeds is None:
            return super().seeds
        return self._seeds

    def rows(self) -> list[Row]:
        """Raises ValueError for a spec that cannot be read, or a field that a table does not have."""
        rows = []
        for study, shared in self.config.studies.items():
            found = [(each, self._of_study(each, study)) for each in self._sweeps]
            sweeps = [each._replace(field=field) for each, field in found if field]
            if not sweeps:
                rows += _rows(study, shared, shared)
                continue
            if "encodings" in shared and "model.encoding" in [each.field for each in sweeps]:
                raise ValueError(
                    f"--sweep config.model.encoding: the rows of {study!r} are encodings already: list it there"
                )
            at = [(point, _rows(study, shared, at_point(shared, point))) for point in points(sweeps)]
            for same in zip(*(rows for _, rows in at), strict=True):
                rows += [self._at(row, point) for row, (point, _) in zip(same, at, strict=True)]
        labels_differ(rows)
        return rows

    def measure(self, row: Row, base: Weights, weights: Weights, seeds: Sequence[int]) -> list[dict[str, Any]]:
        """Training's own scores, and of a point of a sweep that on what it is chosen by."""
        measured = super().measure(row, base, weights, seeds)
        if "choose_split" not in row.training.data:
            return measured
        task = self.make_task(choosing(row.training))
        scores = evaluate(task, make_score(task, task.mesh), weights.run.params, task.mesh)[task.headline]
        scores = next(iter(scores.values())) if isinstance(scores, dict) else scores
        of, point = self._points[row.study, row.label]
        about = {"point_of": of, "point": point, "chosen_on": row.training.data.choose_split}
        about |= {"reported_on": row.training.data.eval_split}
        return [
            {**fields, **about, "metrics": {f"{CHOOSING}{task.headline}": finite(scores[index]), **fields["metrics"]}}
            for fields, index in zip(measured, map(weights.run.seeds.index, seeds), strict=True)
        ]

    def check(self, row: Row, base: Weights, weights: Weights) -> None:
        if "choose_split" in row.training.data:
            self.make_task(choosing(row.training))  # a split that is not there is told before training

    def _of_study(self, sweep: Sweep, study: str) -> str | None:
        """The field of this study that a sweep is of: of one study by its name, or of all that have it."""
        own = sweep.field.removeprefix(f"studies.{study}.")
        return own if has_field(self.config.studies[study], own) else None

    def _at(self, row: Row, point: Mapping[str, str]) -> Row:
        names = short_names(list(point))
        told = ", ".join(f"{names[field]}={value}" for field, value in point.items())
        label = told if "model.encoding" in point else f"{row.label}, {told}"
        self._points[row.study, label] = (row.label, {names[field]: value for field, value in point.items()})
        training = chosen_by(row.training, self._choose_by)
        return row._replace(label=label, base=label, training=training, encoding=encoding_of(training))


def with_rows(config: ConfigDict, encodings: Sequence[str] = (), seeds: str | None = None) -> ConfigDict:
    """The study of a config, with a row for each of these encodings and these seeds where they are given.

    Args:
      config: of studies, or of a single run.
      encodings: specs, which are also the labels of their rows; they take the place of all rows that the config lists.
      seeds: "0,1,2".

    Raises:
      ValueError: seeds that are no whole numbers.
    """
    if not encodings and seeds is None:
        return config
    made = ConfigDict(config) if "studies" in config else _of_one(config)
    if seeds is not None:
        with made.ignore_type():
            made.seeds = swept_seeds([Sweep("seeds", tuple(each.strip() for each in seeds.strip("()").split(",")))])
    for study in made.studies.values() if encodings else ():
        with study.unlocked():
            study.encodings = ConfigDict({spec: spec for spec in encodings}, allow_dotted_keys=True, sort_keys=False)
            study.rows = ConfigDict()
    return made


def _of_one(config: ConfigDict) -> ConfigDict:
    """The study whose only row is what a config of a single run trains."""
    if "task" not in config:
        raise ValueError("an ablation takes a config with studies, or that of a single run")
    name = f"{config.data.name}_{config.model.get('kind', config.task)}"
    label = config.model.get("encoding") or "model"
    made = ConfigDict(dict(name=name, title=f"Encodings on {config.data.name}", seeds=(config.seed,), studies={}))
    made.studies[name] = study = ConfigDict(config)
    with study.unlocked():
        study.rows = ConfigDict({label: {}}, allow_dotted_keys=True)
    return made


def _rows(study: str, listed: ConfigDict, fields: ConfigDict) -> list[Row]:
    """The rows that a study lists, with these fields, which may be those of a point of a sweep."""
    common = {name: value for name, value in fields.to_dict().items() if name not in (*_PARTS, "seed")}
    changes = {label: {"model": {"encoding": spec}} for label, spec in listed.get("encodings", {}).items()}
    changes |= {label: own.to_dict() for label, own in listed.get("rows", {}).items()}
    if not changes:
        raise ValueError(f"study {study!r} has no rows: give encodings, {{label: spec}}, or rows, {{label: fields}}")
    return [_row(study, label, ConfigDict(common), change) for label, change in changes.items()]


def _row(study: str, label: str, config: ConfigDict, change: Mapping[str, Any]) -> Row:
    set_fields(config, change, f"row {label!r} of {study!r}")
    if config.get("init_from") is not None:
        raise ValueError(
            f"row {label!r} of {study!r} sets init_from: an ablation starts at random, fine-tune by experiments.train"
        )
    return Row(study, label, label, config.lock(), encoding_of(config))
