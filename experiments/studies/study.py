"""The engine of every study: rows are planned, trained, measured, recorded and shown.

    class Mine(Study): ...                 # its rows, and what is measured of each
    run(Mine(config), workdir, allocator="default", command="python -m experiments.mine --config=...")

What is wrong with any row is told before the first one trains. Killed and started again a study goes on: finished rows are
not run again, and the training under way resumes from its checkpoint.
"""

import contextlib
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict
from tqdm import tqdm

from experiments.records import read_study
from experiments.studies import environment
from experiments.studies.records import (
    Record,
    append_records,
    fields_of_environment,
    fields_of_run,
    fields_of_training,
    path_of,
    records_of_parts,
    row_hash,
)
from experiments.studies.running import Progress, StopRequest
from experiments.studies.schema import check_study, check_training
from experiments.studies.tuning import Rates, held_out
from posjax.files import replace_file
from posjax.jsonl import config_hash, strict
from posjax.models.replacing import with_encoding
from posjax.spec import nearest
from posjax.training import loop
from posjax.training.identity import digest, identity
from posjax.training.loop import Stopped
from posjax.training.runs import Run
from posjax.training.tasks import Task, make_task

TRAINED, AT_EVALUATION, FINE_TUNED = "trained", "at evaluation", "fine-tuned"
_USER_ERRORS = (ValueError, OSError, FloatingPointError, ImportError)


class Row(NamedTuple):
    """One line of a table.

    Attributes:
      base: label of the training whose weights it reads; rows of one base stand together.
      training: the configuration of that training.
      encoding: as records and tables call it.
      kind: TRAINED, AT_EVALUATION or FINE_TUNED.
      reading: how the weights are read: a spec or a policy, perhaps with placeholders.
      tuning: what a fine-tune changes; None without one.
      folder: below the workdir, for checkpoints; the study's name where empty.
    """

    study: str
    label: str
    base: str
    training: ConfigDict
    encoding: str
    kind: str = TRAINED
    reading: str = ""
    tuning: ConfigDict | None = None
    folder: str = ""

    def __str__(self) -> str:
        return f"row {self.label!r} of {self.study!r}"


class Weights(NamedTuple):
    """What a row is measured on: an ensemble, with what is known of its training.

    Attributes:
      run: its parameters are shapes while rows are checked.
      hash: names the training.
      metrics: of the end of training, metric -> [R].
      directory: of the run.
    """

    run: Run
    hash: str
    metrics: Mapping[str, Any]
    directory: pathlib.Path


class Study:
    """One kind of study. A subclass says what its rows are, and what is measured of each beside training's own scores.

    Attributes:
      config: of the whole study.
      task: what records name the kind of study; the task of the training where empty.
      splits: data that are loaded, shared by all rows; see `make_task`.
      where: which row of how many is under way, "3/18", for what shows progress.
    """

    task = ""

    def __init__(self, config: ConfigDict):
        self.config, self.splits, self.where = config, {}, ""

    @property
    def seeds(self) -> tuple[int, ...]:
        """One run of each training for each of these.

        Raises:
          ValueError: none, or one given twice.
        """
        seeds = tuple(self.config.seeds)
        if not seeds or len(set(seeds)) < len(seeds):
            raise ValueError(f"seeds must be given and differ, got {seeds}")
        return seeds

    def rows(self) -> list[Row]:
        """All rows in the order of the table; specs are read now, so that a typo costs no training."""
        raise NotImplementedError

    def make_task(self, config: ConfigDict) -> Task:
        """What a configuration of a training or fine-tune trains."""
        check_training(config)
        return make_task(config, self.splits)

    def held_out(self, training: ConfigDict, share: float) -> ConfigDict:
        """The training without a share of its data, which it ends with the scores of: learning rates are chosen by those."""
        return held_out(training, share)

    def restored(self, row: Row) -> Weights | None:
        """The weights of a base that is not trained here."""
        del row

    def check(self, row: Row, base: Weights, weights: Weights) -> None:
        """Refuses what could not be measured; parameters are shapes.

        Args:
          base: before a fine-tune.

        Raises:
          ValueError: says what is wrong.
        """

    def tuned(self, row: Row, base: Weights) -> tuple[ConfigDict, Callable[[Any], Any]]:
        """The configuration of a fine-tune, and what makes its first parameters of the base's, [R, ...] each."""
        raise NotImplementedError

    def hash_of_tuning(self, config: ConfigDict, start: str) -> str:
        """Names a fine-tune; `start` is the digest of its first parameters."""
        return config_hash({**identity(config), "initial": start})

    def hash_of_row(self, row: Row, training: str, digest: Callable[[], str]) -> str:
        """Names what is measured: `training` names the weights, `digest` the data that they are trained on."""
        del row, digest
        return training

    def is_current(self, row: Row, record: Record) -> bool:
        """Whether a record with the row's hash still says what would be measured now."""
        del row, record
        return True

    def about(self, row: Row, base: Weights, weights: Weights) -> dict[str, Any]:
        """What records of this kind of study say of a row."""
        del row, base, weights
        return {}

    def measure(self, row: Row, base: Weights, weights: Weights, seeds: Sequence[int]) -> list[dict[str, Any]]:
        """For each of these seeds its "metrics" and whatever else is recorded: here what training has measured."""
        del row, base
        found = fields_of_training(weights.run, weights.metrics, weights.directory)
        return [found[weights.run.seeds.index(seed)] for seed in seeds]


def run(
    study: Study,
    workdir: pathlib.Path,
    *,
    allocator: str | None,
    command: str,
    part: tuple[int, int] | None = None,
) -> None:
    """Trains and measures what has not been yet; prints the tables and writes them with plots, report and records.

    Args:
      allocator: what records say of it.
      command: what report and tables say made them.
      part: (I, N) for the I-th of N parts of the rows, which several hosts may train at once in one workdir; rows of one
        training stay together. Its records are in results-I-of-N.jsonl until a run of all rows takes them over, and shows
        them.

    Raises:
      ValueError: names a row that cannot be trained or measured; nothing has been trained or written then.
      Stopped: SIGTERM or Ctrl-C came; the state is saved.
      FloatingPointError: rows that diverged; all others are finished and shown.
    """
    check_study(study.config)
    rows = _Rows(study, workdir, part)
    environment.compilation_cache(workdir / "compiled")  # a restart, and rows that are alike, reuse programs
    write_json(workdir / "config.json", study.config.to_dict())
    described = fields_of_environment(environment.describe(allocator))
    shown, diverged = [], {}
    with StopRequest() as should_stop, Progress(rows.steps()) as progress:
        for index, row in enumerate(rows.plan, 1):
            if (row.study, row.base) in diverged:
                continue
            study.where, is_new = f"{index}/{len(rows.plan)}", rows.missing(row)
            try:
                shown += rows.finish(row, described, progress, should_stop)
                if is_new and part is None:
                    _print_row(study, row, workdir)
            except Stopped as stopped:
                raise Stopped(stopped.step, f" in {row.study!r}, row {row.label!r}") from None
            except FloatingPointError as error:  # the other rows are worth having all the same
                diverged[row.study, row.base] = f"{row.study}, row {row.label!r}: {error}"
    if part is not None:
        print(f"part {part[0]} of {part[1]}: {len(rows.plan)} rows; the same command without --rows shows all of them")
    elif shown:
        from experiments.report.page import print_page, write_page  # figures are slow to import

        planned = {(row.study, row.label) for row in rows.plan}
        records = [record for record in read_study(workdir) if (record.study, record.row) in planned]
        print_page(write_page(study.config, records, workdir, command))
        print(workdir / "results.jsonl")
    if diverged:
        raise FloatingPointError("; ".join(diverged.values()))


class _Rows:
    """The rows of a study, with the weights that are trained for them."""

    def __init__(self, study: Study, workdir: pathlib.Path, part: tuple[int, int] | None = None):
        self.study, self.workdir, self.plan, self.seeds = study, workdir, _part_of(study.rows(), part), study.seeds
        self._tasks, self._programs, self._trained = {}, {}, {}
        self._path = path_of(workdir, "results", part)
        self._records = records_of_parts(workdir, "results", part)
        trained = [row for row in self.plan if not study.restored(row)]
        self._rates = Rates(study.config, self.seeds, trained, study.held_out, workdir, part)
        self.plan = list(map(self._rates.at_best, self.plan))
        shapes: dict[tuple[str, str], Weights] = {}
        for row in self.plan:
            with _about(row):
                if self.missing(row):
                    self._check(row, shapes)

    def steps(self) -> int:
        """Of the trainings and fine-tunes of all rows that are not finished."""
        left = [row for row in self.plan if self.missing(row)]
        bases = {(row.study, row.base): row.training.steps for row in left if not self.study.restored(row)}
        bases |= {("rates", *base): steps for base, steps in bases.items() if self._rates.missing(*base)}
        return sum(bases.values()) + sum(row.tuning.steps for row in left if row.tuning)

    def missing(self, row: Row) -> tuple[int, ...]:
        """The seeds that have no record; all of them for a fine-tune, whose hash is not known before it begins, and for a
        training whose learning rate is not chosen yet."""
        training = None if self._rates.missing(row.study, row.base) else self._hash_of_training(row)
        return self.seeds if training is None else self._unrecorded(row, training)

    def finish(self, row: Row, described: Mapping[str, Any], progress: Progress, should_stop) -> list[dict[str, Any]]:
        """The records of a row, those that are missing made now; in the order of the seeds.

        Raises:
          Stopped: as `train`, or between two rows.
          FloatingPointError: as `train`.
        """
        row = self._at_best_rate(row, described, progress, should_stop)
        training = self._hash_of_training(row)
        if training is None or self._unrecorded(row, training):
            base = weights = self._base(row, progress, should_stop)
            if row.tuning:
                weights = self._fine_tuned(row, base, progress, should_stop)
            training = weights.hash
            if left := [seed for seed in self._unrecorded(row, training) if seed in weights.run.seeds]:
                if should_stop():
                    raise Stopped(weights.run.step)
                self._measure(row, base, weights, left, described)
        found = self._rates.told(self._recorded(row, training))
        return [record.fields() for seed in self.seeds for record in found if record.seed == seed]

    def _at_best_rate(self, row: Row, described, progress: Progress, should_stop) -> Row:
        """The row at the learning rate that is best for its base, whose points are trained now if they have not been."""
        if members := self._rates.missing(row.study, row.base):
            config, seeds = self._rates.ensemble(row, members)
            label = f"{row.base}-rates"
            weights = self._train(row, label, config, seeds, None, row_hash(config), progress, should_stop)
            self._rates.record(row, members, weights, described)
            self.plan = list(map(self._rates.at_best, self.plan))
        self._rates.refuse_diverged(row)
        return self._rates.at_best(row)

    def _measure(self, row: Row, base: Weights, weights: Weights, seeds: Sequence[int], described) -> None:
        about = {
            "study": row.study,
            "task": self.study.task or weights.run.config.task,
            "label": row.label,
            "encoding": row.encoding,
            **fields_of_run(weights.run),
            "config_hash": self.study.hash_of_row(row, weights.hash, lambda: weights.run.task.digest),
            **described,
            **self.study.about(row, base, weights),
        }
        measured = self.study.measure(row, base, weights, seeds)
        about_rate = self._rates.fields(row)
        new = [
            Record.of(about | {"seed": seed} | fields | about_rate)
            for seed, fields in zip(seeds, measured, strict=True)
        ]
        append_records(self._path, new)
        self._records += new

    def _hash_of_training(self, row: Row) -> str | None:
        if row.tuning:
            return None
        given = self.study.restored(row)
        return given.hash if given else row_hash(row.training)

    def _unrecorded(self, row: Row, training: str) -> tuple[int, ...]:
        there = {record.seed for record in self._recorded(row, training)}
        return tuple(seed for seed in self.seeds if seed not in there)

    def _recorded(self, row: Row, training: str) -> list[Record]:
        wanted = (row.study, row.label, self.study.hash_of_row(row, training, lambda: self._digest(row)))
        return [
            each
            for each in self._records
            if (each.study, each.label, each.config_hash) == wanted and self.study.is_current(row, each)
        ]

    def _check(self, row: Row, shapes: dict[tuple[str, str], Weights]) -> None:
        """Refuses a row that could not be trained or measured; models are only traced.

        Args:
          shapes: of the weights of bases, which it adds to.
        """
        key = row.study, row.base
        if key not in shapes:
            shapes[key] = self.study.restored(row) or self._untrained(row.training, self._missing_of_base(row))
            self._refuse_other_data(row, shapes[key].run.task)
            if self._rates.missing(*key):
                self._task(self._rates.points[key])  # what is held out is refused before training, too
        base = weights = shapes[key]
        if row.tuning:
            config, change = self.study.tuned(row, base)
            jax.eval_shape(change, base.run.params)
            weights = self._untrained(config, base.run.seeds)
        self.study.check(row, base, weights)

    def _untrained(self, config: ConfigDict, seeds: tuple[int, ...]) -> Weights:
        task = self._task(config)
        programs = self._programs[row_hash(config), seeds] = loop.check(task, config, seeds)
        run = Run(task, task.model, programs.shapes().params, seeds, config, 0, {})
        return Weights(run, row_hash(config), {}, self.workdir)

    def _refuse_other_data(self, row: Row, task: Task) -> None:
        """Rows of one table are trained on the same bytes, also when Python or a prepared set was replaced in between."""
        name = row.training.data.name
        # Fine-tunes may see another size.
        trained = [r for r in self._records if r.more.get("base", r.label) == r.label or "point_of" in r.more]
        found = {each.data_digest for each in trained if (each.study, each.data) == (row.study, name)}
        if found - {task.digest}:
            raise ValueError(
                f"the data set {name!r} is not what the finished rows of {row.study!r} in {self.workdir} were trained on "
                f"(digest {task.digest}, theirs {', '.join(found)}): use another --workdir"
            )

    def _digest(self, row: Row) -> str:
        given = self.study.restored(row)
        return (given.run.task if given else self._task(row.training)).digest

    def _task(self, config: ConfigDict) -> Task:
        """Made once for each configuration; the data are shared by all."""
        key = row_hash(config)
        if key not in self._tasks:
            self._tasks[key] = self.study.make_task(config)
        return self._tasks[key]

    def _missing_of_base(self, row: Row) -> tuple[int, ...]:
        """The seeds that are trained: all of them where that has begun, else those that a row of this base lacks."""
        if (row_directory(self.workdir, row, row.base, row.training, self.seeds) / "checkpoints").exists():
            return self.seeds
        rows = [each for each in self.plan if (each.study, each.base) == (row.study, row.base)]
        missing = {seed for each in rows for seed in self.missing(each)}
        return tuple(seed for seed in self.seeds if seed in missing)

    def _base(self, row: Row, progress: Progress, should_stop) -> Weights:
        """The weights that a row starts from; those of the last base are kept."""
        key = row.study, row.base
        if key not in self._trained:
            found = self.study.restored(row)
            if found is None:
                seeds, named = self._missing_of_base(row), row_hash(row.training)
                found = self._train(row, row.base, row.training, seeds, None, named, progress, should_stop)
            self._trained = {key: found}
        return self._trained[key]

    def _fine_tuned(self, row: Row, base: Weights, progress: Progress, should_stop) -> Weights:
        """The base's weights trained on."""
        config, change = self.study.tuned(row, base)
        start = jax.tree.map(np.asarray, change(base.run.params))
        start_digest = digest(start)
        label, named = f"{row.label}-{start_digest}", self.study.hash_of_tuning(config, start_digest)
        return self._train(row, label, config, base.run.seeds, start, named, progress, should_stop)

    def _train(
        self, row: Row, label: str, config: ConfigDict, seeds, initial, named: str, progress: Progress, should_stop
    ) -> Weights:
        task, directory = self._task(config), row_directory(self.workdir, row, label, config, seeds)
        told = dict(on_step=progress.row(f"{self.study.where} {row.study} {row.label}"), should_stop=should_stop)
        programs = self._programs.pop((row_hash(config), seeds), None)
        result = loop.train(task, config, seeds, directory, initial=initial, programs=programs, **told)
        return Weights(Run.of_result(task, config, seeds, result), named, result.metrics, directory)


def _part_of(rows: list[Row], part: tuple[int, int] | None) -> list[Row]:
    """The rows of every N-th training, from the I-th on."""
    if part is None:
        return rows
    own = set(list(dict.fromkeys((row.study, row.base) for row in rows))[part[0] :: part[1]])
    return [row for row in rows if (row.study, row.base) in own]


@contextlib.contextmanager
def _about(row: Row) -> Iterator[None]:
    """Says of a user's error which row it is about."""
    try:
        yield
    except _USER_ERRORS as error:
        raise ValueError(f"{row}: {error}") from error


def row_directory(
    workdir: pathlib.Path, row: Row, label: str, config: ConfigDict, seeds: tuple[int, ...]
) -> pathlib.Path:
    """Where a row trains: another configuration is another row, other seeds are another ensemble."""
    named = config_hash({**identity(config), "seeds": seeds})
    return workdir / (row.folder or row.study) / f"{plain(label)}-{named}"


def plain(label: str) -> str:
    """A label as the name of a folder."""
    return "".join(character if character.isalnum() or character in "-_." else "-" for character in label)


def write_json(path: pathlib.Path, value: Any) -> None:
    """Writes a readable JSON file whose keys are in order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(strict(value), indent=2, sort_keys=True).encode() + b"\n")


def labels_differ(rows: Sequence[Row]) -> None:
    """Refuses two rows of one label.

    Raises:
      ValueError: names it.
    """
    labels = [(row.study, row.label) for row in rows]
    if twice := {label for label in labels if labels.count(label) > 1}:
        study, label = min(twice)
        raise ValueError(f"two rows of {study!r} are labelled {label!r}: give each a label of its own")


def set_fields(group: ConfigDict, fields: Mapping[str, Any], whose: str) -> None:
    """Sets fields of a config, those of groups too, {"model": {"width": 8}}.

    Raises:
      ValueError: there is no such field; says `whose`.
    """
    for name, value in fields.items():
        if name not in group:
            raise ValueError(f"{whose} sets {name!r}: there is no such field; {nearest(name, list(group))}")
        if isinstance(value, dict):
            set_fields(group[name], value, whose)
        else:
            with group.ignore_type():
                group[name] = value


def read_under(model: Any, params: Any, spec: str, init: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    """`posjax.models.replacing.with_encoding` of an ensemble: the same weights [R, ...] under another encoding.

    Args:
      init: (model, key) -> parameters of one seed.
    """
    keys = jax.random.split(jax.random.key(0), len(jax.tree.leaves(params)[0]))
    return with_encoding(model, params, spec, lambda changed: jax.vmap(lambda key: init(changed, key))(keys))


def _print_row(study: Study, row: Row, workdir: pathlib.Path) -> None:
    """Prints a finished row beside the progress, as its table will have it."""
    from experiments.report.table import tables

    for table in tables(read_study(workdir), row.study, ""):
        cells = zip(table.columns, table.rows.get(row.label, ()), strict=False)
        told = ", ".join(f"{title} {cell.text}" for title, cell in cells if cell.text not in ("", "-"))
        if told:
            tqdm.write(f"{study.where} {row.study}, {row.label}: {told}")
