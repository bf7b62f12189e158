"""The engine of every study: rows are planned, trained, read, measured, recorded and shown.

A mistake in any row is reported before the first row trains. A study that was killed goes on when it is started again:
finished rows are not run again, and the training under way resumes from its checkpoint.
"""

import contextlib
import dataclasses
import inspect
import itertools
import json
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict
from tqdm import tqdm

from experiments.progress import Progress, StopRequest
from experiments.records import (
    RESULTS,
    TUNING,
    Record,
    Records,
    append_records,
    last_written,
    read_records,
    with_scores,
)
from experiments.studies import environment, images
from experiments.studies.measures import COSTS, MEASURES, Subject, load_documents, place_of, sizes_of
from experiments.studies.plan import (
    AS_LOADED,
    Row,
    check_study,
    chosen_rows,
    copied,
    distinct,
    encoding_of,
    finetune_config,
    measures_of,
    rows_of,
    seeds_of,
    tables_of,
    with_rows,
    with_variants,
)
from experiments.studies.readings import RESIZED, equal_readings, is_searched, read_as, resized, spec_of
from experiments.studies.search import check_search, find_factors
from experiments.studies.tuner import Tuner, with_tune
from experiments.studies.weights import Weights, kept_weights, load_decoder, plain, rate_of, row_fields, row_hash
from posjax import data
from posjax.files import replace_file
from posjax.jsonl import config_hash, parse_json, strict
from posjax.spec import layers_text, nearest, parse_layers
from posjax.training import loop
from posjax.training.algorithmic import Algorithmic
from posjax.training.identity import digest, identity
from posjax.training.initial import initial_params, options_of
from posjax.training.long_task import decoding_task
from posjax.training.loop import Stopped
from posjax.training.runs import Run
from posjax.training.tasks import Task

_USER_ERRORS = (ValueError, OSError, FloatingPointError, ImportError)


@dataclasses.dataclass
class Study:
    """A study's config with its rows.

    Attributes:
      tables: configs by name.
      rows: the rows of all tables, in order.
      loaded: weights that all rows read, if --checkpoint names some; then nothing is trained but fine-tunes.
    """

    config: ConfigDict
    tables: dict[str, ConfigDict]
    rows: list[Row]
    loaded: Weights | None = None

    def seeds(self, row: Row) -> tuple[int, ...]:
        return seeds_of(self.config, self.tables[row.study]) if self.loaded is None else self.loaded.run.seeds


def plan(
    config: ConfigDict,
    *,
    encodings: Sequence[str] = (),
    seeds: str | None = None,
    checkpoint: pathlib.Path | None = None,
    variants: Sequence[str] | None = None,
    finetune: bool = True,
    tune: Sequence[str] = (),
    choose_by: str | None = None,
) -> Study:
    """The study of a config, as the flags of experiments.ablate change it.

    Raises:
      ValueError: names a field or a row that cannot be.
    """
    config = with_rows(config, encodings, seeds)
    check_study(config)
    tables, loaded, restored = tables_of(config), None, None
    if checkpoint is not None:
        if len(tables) > 1:
            raise ValueError(f"--checkpoint reads the rows of one table, and this study has {len(tables)}: {[*tables]}")
        ((name, table),) = tables.items()
        if table.get("init_from") is not None:
            raise ValueError("--checkpoint reads weights, and config.init_from trains from weights: give one of them")
        tables[name] = table = with_variants(copied(table), variants)
        given = table.data
        data.check_text(given.name, given.eval_split, data_dir=given.get("data_dir"), files=given.get("files"))
        loaded = load_decoder(checkpoint, table)
        training = loaded.run.config
        known = {layers_text(parse_layers(text)): label for label, text in (table.get("encodings") or {}).items()}
        spec = layers_text(parse_layers(training.model.encoding))
        restored = {known.get(spec, AS_LOADED if training.steps == 0 else spec): training}
    rows = [row for name, table in tables.items() for row in rows_of(name, table, restored)]
    rows = chosen_rows(distinct(rows) if encodings and loaded is None else rows, variants, finetune)
    if tune or choose_by:
        config = with_tune(config, tune, choose_by, rows[0].training)
    for name, table in tables.items():
        for measure in measures_of(table):
            if measure not in MEASURES:
                raise ValueError(f"no measure is named {measure!r}, in {name!r}; {nearest(measure, list(MEASURES))}")
    return Study(config, tables, rows, loaded)


def run(study: Study, workdir: pathlib.Path, *, command: str, part: tuple[int, int] | None = None) -> Records:
    """Trains and measures the rows without records, writes records and the page with its figures, and prints the tables.

    Returns the records of the page. It shows the rows of this config; records of an earlier one stay in the file.

    Args:
      command: the command line that the page shows.
      part: (I, N) for the I-th of N parts of the rows, which hosts may train at once in one workdir; rows of one training
        stay together. Its records are in results-I-of-N.jsonl until a run of all rows takes them over.

    Raises:
      ValueError: names a row that cannot be trained or measured, or the folder holds another study; nothing has been trained
        or written then.
      Stopped: SIGTERM or Ctrl-C came; the state is saved.
      FloatingPointError: rows that diverged; all others are finished and shown.
    """
    path, name = workdir / "config.json", study.config.get("name")
    before = parse_json(path.read_bytes(), path).get("name") if path.exists() else None
    if before is not None and before != name:
        raise ValueError(f"{workdir} holds the study {before!r}, and this one is {name!r}: use another --workdir")
    engine = Engine(study, workdir, part, environment.recorded())
    environment.compilation_cache(workdir / "compiled")  # a restart, and rows that are alike, reuse programs
    write_json(path, {**study.config.to_dict(), "command": command})
    diverged: dict[tuple[str, str], str] = {}
    with StopRequest() as should_stop, Progress(engine.steps()) as progress:
        for index, row in enumerate(engine.rows, 1):
            if (row.study, row.base) in diverged:
                continue
            try:
                engine.where = f"{index}/{len(engine.rows)}"
                if engine.finish(row, progress, should_stop) and part is None:
                    _print_row(row, engine.shown(), engine.where)
            except Stopped as stopped:
                raise Stopped(stopped.step, f" in {row.study!r}, row {row.label!r}") from None
            except FloatingPointError as error:  # the other rows are worth having all the same
                diverged[row.study, row.base] = f"{row.study}, row {row.label!r}: {error}"
    records = engine.shown()
    if part is not None:
        rows = f"{len(engine.rows)} rows; the same command without --rows shows all of them"
        print(f"part {part[0]} of {part[1]}: {rows}")
    elif records:
        from experiments.report.page import print_page, write_study_page  # figures are slow to import

        print_page(write_study_page(study.config, records, workdir, command))
        print(workdir / RESULTS)
    if diverged:
        raise FloatingPointError("; ".join(diverged.values()))
    return records


class Engine:
    """The rows of a study, with the weights that are trained for them; made, all rows are checked."""

    def __init__(self, study: Study, workdir: pathlib.Path, part: tuple[int, int] | None, machine: Mapping[str, Any]):
        self.study, self.workdir, self.where, self._machine = study, workdir, "", machine
        self.rows = study.rows
        if part is not None:  # the rows of every N-th training, from the I-th on
            own = list(dict.fromkeys((row.study, row.base) for row in study.rows))[part[0] :: part[1]]
            self.rows = [row for row in study.rows if (row.study, row.base) in own]
        self._path, self._records = _records_of(workdir, RESULTS, part)
        points, recorded = _records_of(workdir, TUNING, part)
        self._tuners = {}
        for row in self.rows:
            tune = None if study.loaded else study.tables[row.study].get("tune") or study.config.get("tune")
            if row.study not in self._tuners:
                self._tuners[row.study] = Tuner(tune, study.seeds(row), recorded, points)
        self._splits, self._tasks, self._programs, self._factors = {}, {}, {}, {}
        self._kept: dict[tuple[str, str], Weights] = {}  # of the base under way
        self._restored: dict[tuple[str, str], Weights] = {}
        self._documents: dict[str, data.Documents] = {}
        self._shared: tuple[str, dict[Any, Any]] = ("", {})  # what the rows of the table under way share
        self._named: dict[tuple[str, str], str] = {}  # the config_hash of each finished row
        self._twins: dict[tuple[str, str], dict[str, str]] = {}  # of a base: rows with an equal row before them
        shapes: dict[tuple[str, str], Weights] = {}
        for row in self.rows:  # before any is traced
            with _about(row):
                self._prepare(row)
                if self.missing(row) and self._given(row) is None:
                    self._programs_of(self._at_best(row).training, self._missing_of_base(row), row)
        for row in self.rows:
            with _about(row):
                if self.missing(row):
                    self._check(row, shapes)

    # The checks before anything is trained.

    def _prepare(self, row: Row) -> None:
        table, key = self.study.tables[row.study], (row.study, row.base)
        if table.get("checkpoints") and key not in self._restored:
            seeds = self.study.seeds(row)
            self._restored[key] = kept_weights(row, pathlib.Path(table.checkpoints), seeds)
        if "lengths" in measures_of(table) and row.study not in self._documents:
            tokenizer = None if self.study.loaded is None else self.study.loaded.run.task.tokenizer
            self._documents[row.study] = load_documents(table, tokenizer)

    def _is_tuned(self, row: Row) -> bool:
        return self._given(row) is None and bool(self._tuners[row.study].fields)

    def _given(self, row: Row) -> Weights | None:
        """The weights of a base that is not trained here."""
        return self.study.loaded or self._restored.get((row.study, row.base))

    def _at_best(self, row: Row) -> Row:
        return self._tuners[row.study].at_best(row) if self._is_tuned(row) else row

    def steps(self) -> int:
        """The steps of all trainings and fine-tunes of rows that are not finished."""
        left = [row for row in self.rows if self.missing(row)]
        bases = {(row.study, row.base): row for row in left if self._given(row) is None}
        total = sum(row.training.steps for row in bases.values())
        tuned = [row for row in bases.values() if self._is_tuned(row)]
        total += sum(config.steps for row in tuned for config, _ in self._tuners[row.study].ensembles(row))
        return total + sum(row.finetune.steps for row in left if row.finetune)

    def missing(self, row: Row) -> tuple[int, ...]:
        """The seeds without a record; all of them for a fine-tune, whose hash is not known before it begins, and for a
        training that is not tuned yet."""
        seeds = self.study.seeds(row)
        if row.finetune is not None or (self._is_tuned(row) and self._tuners[row.study].missing(row)):
            return seeds
        row = self._at_best(row)
        recorded = self._recorded(row, self._training_hash(row))
        return tuple(seed for seed in seeds if seed not in recorded)

    def _training_hash(self, row: Row) -> str:
        """Returns the hash of the weights of a row at its best point that is no fine-tune."""
        given = self._given(row)
        return given.hash if given else row_hash(row.training)

    def _recorded(self, row: Row, training: str) -> dict[int, Record]:
        where = row.study, row.label, self._hash(row, training)
        return {r.seed: r for r in self._records if (r.study, r.row, r.config_hash) == where}

    def _hash(self, row: Row, training: str) -> str:
        """Returns the hash of a row: of its weights, its reading, and the options of the measures."""
        table = self.study.tables[row.study]
        if [*measures_of(table)] == ["scores"] and row.read is None:
            return training
        given = self._given(row)
        task = given.run.task if given else self._task(row.training, row)
        own = task.model.encoding
        specs = {
            size: RESIZED if row.read == RESIZED else spec_of(row.read, own, place_of(row.training, task, size, table))
            for size in sizes_of(table)
        }
        fields = {"training": training, "data": task.digest, "read": specs, "finetune": row.finetune is not None}
        fields["measures"] = {name: options.to_dict() for name, options in measures_of(table).items()}
        if documents := self._documents.get(row.study):
            fields |= {"documents": list(documents.titles), "bos": documents.tokenizer.bos}
        if is_searched(row.read):
            fields["search"] = table.search.to_dict()
        return config_hash(strict(fields))

    def _task(self, config: ConfigDict, row: Row) -> Task:
        """Made once for each configuration; the data are shared by all."""
        key = row_hash(config)
        if key not in self._tasks:
            made = decoding_task(config, self._splits)
            measured = "resolutions" in measures_of(self.study.tables[row.study])
            brief = measured and "choose_split" not in config.data  # the measure scores all images later
            self._tasks[key] = images.BriefEvaluation(made) if brief else made
        return self._tasks[key]

    def _check(self, row: Row, shapes: dict[tuple[str, str], Weights]) -> None:
        """Refuses a row that could not be trained or measured; models are only traced."""
        key, table = (row.study, row.base), self.study.tables[row.study]
        row = self._at_best(row)
        if key not in shapes:
            shapes[key] = self._given(row) or self._untrained(row.training, self._missing_of_base(row), row)
            self._refuse_other_data(row, shapes[key].run.task)
            if row.start is not None:  # a head is not computed yet
                self._initial(row, row.training, self._missing_of_base(row), head="new")
            if self._is_tuned(row):
                for config, members in self._tuners[row.study].ensembles(row):
                    self._untrained(config, tuple(seed for _, seed in members), row)
        if is_searched(row.read):
            check_search(row, table, self._documents[row.study])
        base = weights = shapes[key]
        if row.finetune:
            config, spec = self._finetune(row, base)
            params = jax.eval_shape(lambda params: self._start(row, base, params, spec), base.run.params)
            weights = self._untrained(config, base.run.seeds, row)
            weights = weights._replace(run=weights.run._replace(params=params))
        subject = Subject(row, table, base, weights, self.study.seeds(row), documents=self._documents.get(row.study))
        for name, options in measures_of(table).items():
            if (check := MEASURES[name].check) is not None:
                check(subject, options)

    def _untrained(self, config: ConfigDict, seeds: tuple[int, ...], row: Row) -> Weights:
        programs, task = self._programs_of(config, seeds, row), self._task(config, row)
        programs.trace()
        made = Run(task, task.model, programs.shapes().params, seeds, config, 0, {})
        return Weights(made, row_hash(config), {}, self.workdir)

    def _programs_of(self, config: ConfigDict, seeds: tuple[int, ...], row: Row) -> loop.Programs:
        """Made once for a training; refuses its data, sizes, optimizer and logger."""
        key = row_hash(config), seeds
        if key not in self._programs:
            self._programs[key] = loop.Programs(self._task(config, row), config, seeds)
        return self._programs[key]

    def _initial(self, row: Row, config: ConfigDict, seeds: tuple[int, ...], **options: str) -> Any:
        """Returns the parameters [R, ...] that a base starts from; None for random ones."""
        if row.start is None:
            return None
        return initial_params(row.start, self._task(config, row), seeds, **options_of(config) | options)

    def _refuse_other_data(self, row: Row, task: Task) -> None:
        """Rows of one table are trained on the same bytes, also when Python or a prepared set was replaced in between."""
        name = row.training.data.name
        trained = [record for record in self._records if record.row == record.base]  # fine-tunes may see another size
        found = {record.data_digest for record in trained if (record.study, record.data) == (row.study, name)}
        if found - {task.digest}:
            raise ValueError(
                f"the data set {name!r} is not what the finished rows of {row.study!r} in {self.workdir} were trained on "
                f"(digest {task.digest}, theirs {', '.join(found)}): use another --workdir"
            )

    def _missing_of_base(self, row: Row) -> tuple[int, ...]:
        """The seeds that are trained: all of them where that has begun, else those that a row of this base lacks."""
        seeds = self.study.seeds(row)
        if (self._directory(row, row.base, row.training, seeds) / "checkpoints").exists():
            return seeds
        rows = [other for other in self.rows if (other.study, other.base) == (row.study, row.base)]
        missing = {seed for other in rows for seed in self.missing(other)}
        return tuple(seed for seed in seeds if seed in missing)

    # Training and measuring.

    def finish(self, row: Row, progress: Progress, should_stop) -> bool:
        """Measures the seeds of a row without records; returns whether there were any."""
        row = self._tune(row, progress, should_stop) if self.missing(row) else self._at_best(row)
        if not self.missing(row):  # it may be recorded at the point that is best
            self._named[row.study, row.label] = self._hash(row, self._training_hash(row))
            return False
        base = weights = self._base(row, progress, should_stop)
        if row.finetune:
            config, spec = self._finetune(row, base)
            start = jax.tree.map(np.asarray, self._start(row, base, base.run.params, spec))
            label = f"{row.label}-{digest(start)}"
            weights = self._train(row, label, config, base.run.seeds, start, progress, should_stop)
        recorded = self._recorded(row, weights.hash)
        left = [seed for seed in self.study.seeds(row) if seed not in recorded and seed in weights.run.seeds]
        if left and should_stop():
            raise Stopped(weights.run.step)
        if left:
            self._measure(row, base, weights, left)
        self._named[row.study, row.label] = self._hash(row, weights.hash)
        return bool(left)

    def shown(self) -> Records:
        """Returns the records of the rows, with the scores of their tuning points; the newest ones of a row that diverged."""
        rows = {(row.study, row.label): self._named.get((row.study, row.label)) for row in self.rows}
        own = [r for r in self._records if rows.get((r.study, r.row), "") in (None, r.config_hash)]
        tuned = {(row.study, row.base): self._tuners[row.study].found(row) for row in self.rows if self._is_tuned(row)}
        return Records(with_scores(last_written(own), itertools.chain(*tuned.values())))

    def _tune(self, row: Row, progress: Progress, should_stop) -> Row:
        """The row at the best point of its base, whose points are trained now if they have not been."""
        if not self._is_tuned(row):
            return row
        for config, members in self._tuners[row.study].ensembles(row):
            seeds = tuple(seed for _, seed in members)
            weights = self._train(row, f"{row.base}-rates", config, seeds, None, progress, should_stop)
            task, metrics = weights.run.task, weights.metrics[weights.run.task.headline]
            scores = next(iter(metrics.values())) if isinstance(metrics, Mapping) else metrics
            about = {"study": row.study, "encoding": encoding_of(config)} | about_run(weights.run) | {**self._machine}
            about |= {"unit": unit_of_lengths(row, task, measures_of(self.study.tables[row.study]))}
            self._tuners[row.study].record(row, members, scores, task.headline, about)
        if self._tuners[row.study].best(row) is None:
            values = self._tuners[row.study].fields
            raise FloatingPointError(f"each of the values {values} diverges: give lower learning rates")
        return self._tuners[row.study].at_best(row)

    def _base(self, row: Row, progress: Progress, should_stop) -> Weights:
        """Returns the weights that a row starts from, and keeps the last ones."""
        key = row.study, row.base
        if key not in self._kept:
            found = self._given(row)
            if found is None:
                seeds, self._kept = self._missing_of_base(row), {}  # two large ensembles need not fit
                found = self._train(row, row.base, row.training, seeds, None, progress, should_stop)
            self._kept = {key: found}
        return self._kept[key]

    def _finetune(self, row: Row, base: Weights) -> tuple[ConfigDict, str]:
        """The configuration of a fine-tune, and the spec that it starts under, or `RESIZED`."""
        subject = Subject(row, self.study.tables[row.study], base, base, factors=self._found_factors(row, base))
        spec = subject.spec(row.finetune.size)
        own = layers_text(parse_layers(base.run.model.encoding))
        return finetune_config(base.run.config, row.finetune, own if spec == RESIZED else spec), spec

    def _start(self, row: Row, base: Weights, params: Any, spec: str) -> Any:
        """The first parameters [R, ...] of a fine-tune."""
        table, model = self.study.tables[row.study], base.run.model
        if spec != RESIZED:
            return read_as(model, params, spec, anew=table.get("init_encoding") == "new")[1]
        size = base.run.task.table_size_at(row.finetune.size)
        return resized(model, params, size, table.measures.resolutions.resize)[1]

    def _found_factors(self, row: Row, base: Weights) -> tuple[float, ...]:
        """Returns the rotary factors of a base by search, cached on disk; () while rows are checked."""
        leaves = jax.tree.leaves(base.run.params)
        if not is_searched(row.read) or any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves):
            return ()
        if base.hash not in self._factors:
            search = self.study.tables[row.study].search
            path = base.directory / f"factors-{config_hash({**search.to_dict(), 'training': base.hash})}.json"
            if not path.exists():
                found = find_factors(base.run, search, row, self._documents[row.study])
                write_json(path, {"factors": found})
            self._factors[base.hash] = tuple(parse_json(path.read_bytes(), path)["factors"])
        return self._factors[base.hash]

    def _train(
        self, row: Row, label: str, config: ConfigDict, seeds, initial, progress: Progress, should_stop
    ) -> Weights:
        task, directory = self._task(config, row), self._directory(row, label, config, seeds)
        own = initial is None  # the start of its base, or none
        initial = self._initial(row, config, seeds) if own else initial
        calls = dict(on_step=progress.row(f"{self.where} {row.study} {row.label}"), should_stop=should_stop)
        programs = self._programs.pop((row_hash(config), seeds), None)
        result = loop.train(task, config, seeds, directory, initial=initial, programs=programs, **calls)
        named = row_hash(config) if own else config_hash(identity(config) | {"initial": digest(initial)})
        return Weights(Run.of_result(task, config, seeds, result), named, result.metrics, directory)

    def _directory(self, row: Row, label: str, config: ConfigDict, seeds: tuple[int, ...]) -> pathlib.Path:
        """Returns the folder of a training; another config or other seeds have another folder."""
        named = config_hash({**row_fields(config), "seeds": seeds})
        return self.workdir / plain(row.study) / f"{plain(label)}-{named}"

    def _twins_of(self, row: Row, base: Weights) -> dict[str, str]:
        """Returns `equal_readings` of a base's rows that read it as it was trained; says once which they are."""
        key, table = (row.study, row.base), self.study.tables[row.study]
        if key in self._twins:
            return self._twins[key]
        lengths = sizes_of(table)[::-1] if row.training.task == "language_model" else []  # long ones differ first
        rows = [other for other in self.rows if (other.study, other.base) == key and other.finetune is None]
        subjects = {other.label: Subject(other, table, base, base) for other in rows if not is_searched(other.read)}
        twins = equal_readings({label: subject.at for label, subject in subjects.items()}, lengths)
        for twin in dict.fromkeys(twins.values()):
            same = ", ".join(label for label, other in twins.items() if other == twin)
            spans = " to ".join(f"{length:,}" for length in dict.fromkeys((lengths[-1], lengths[0])))
            tqdm.write(
                f"{row.study}: {same} must equal {twin}: at lengths of {spans}, trained at {row.training.data.length:,}, "
                "their encodings compute the same at every position; they are not measured"
            )
        self._twins[key] = twins
        return twins

    def _left_to_read(self, row: Row, seconds: float) -> None:
        """Says how long the other readings of a base will take, once its first one has been measured."""
        key = row.study, row.base
        others = [other for other in self.rows if (other.study, other.base) == key and other.finetune is None]
        left = [other for other in others if other.label not in self._twins[key] and self.missing(other)]
        if left and len(left) + 1 + len(self._twins[key]) == len(others):
            more = f"{len(left)} more row{'s' * (len(left) > 1)}: about {len(left) * seconds:,.0f} s"
            tqdm.write(f"{row.study}: {row.label} took {seconds:,.0f} s to read; {more}")

    def _measure(self, row: Row, base: Weights, weights: Weights, seeds: Sequence[int]) -> None:
        table = self.study.tables[row.study]
        if self._shared[0] != row.study:
            self._shared = row.study, {}
        documents, factors = self._documents.get(row.study), self._found_factors(row, base)
        subject = Subject(row, table, base, weights, seeds, factors, documents, self._shared[1], self.where)
        twin = self._twins_of(row, base).get(row.label, "")
        where = row.study, twin, self._named.get((row.study, twin))
        known = {r.seed: r for r in self._records if (r.study, r.row, r.config_hash) == where}
        twin, began = twin if {*seeds} <= {*known} else "", time.perf_counter()
        measured = {} if twin else {name: MEASURES[name].function(subject, x) for name, x in measures_of(table).items()}
        elapsed = (time.perf_counter() - began) / len(seeds)
        sizes, measures = sizes_of(table), measures_of(table)
        spec = subject.spec(sizes[-1]) if sizes else None
        about = fields_of(row, base, weights, measures) | self._machine
        about |= {
            "config_hash": self._hash(row, weights.hash),
            "tuned": self._tuners[row.study].tuned(row) if self._is_tuned(row) and row.finetune is None else None,
            "evaluation_time": None if twin or [*measures] == ["scores"] else elapsed,
            "equal_to": twin,
        }
        if spec not in (None, RESIZED):
            about["encoding"] = spec
        if documents is not None:
            about |= {"documents": tuple(documents.titles), "bos": bos_text(documents.tokenizer)}
        new = []
        for index, seed in enumerate(seeds):
            metrics = {name: x for name, x in known[seed].metrics.items() if name not in COSTS} if twin else {}
            for found in measured.values():
                metrics |= found[index]
            new.append(Record(**about, seed=seed, metrics=metrics))
        append_records(self._path, new)
        self._records += new
        if sizes and row.finetune is None:
            self._left_to_read(row, elapsed * len(seeds))


def fields_of(row: Row, base: Weights, weights: Weights, measures: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a row's records that its plan and its training decide.

    Args:
      base: the weights as they were trained.
      weights: the weights that are measured, fine-tuned ones or `base`.
    """
    by_length = row.training.data.length if row.training.task == "language_model" else None
    return {
        "study": row.study,
        "row": row.label,
        "base": row.base,
        "run": base.hash,
        "encoding": encoding_of(row.training),
        "config_hash": weights.hash,
        "learning_rate": rate_of(weights.run.config),
        "unit": unit_of_lengths(row, base.run.task, measures),
        "trained_at": base.run.task.resolution if "resolutions" in measures else by_length,
        **about_run(weights.run),
    }


def about_run(run: Run) -> dict[str, Any]:
    """Returns the fields of records about a training run."""
    step_time, tokenizer = run.times["step_time"], getattr(run.task, "tokenizer", None)
    seen, train = run.step * run.config.batch_size, getattr(run.task, "train_data", None)
    # None if examples are drawn, or nothing was trained.
    passes = seen * run.config.data.get("length", 1) / len(train) if seen and hasattr(train, "__len__") else None
    return {
        "data": run.config.data.name,
        "data_digest": run.task.digest,
        "steps": run.step,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(run.params)) // len(run.seeds),
        "step_time": step_time / len(run.seeds) if np.isfinite(step_time) else None,
        "wall_time": run.times["elapsed"],
        "speed": dict(run.speed),
        "passes": passes,
        "guess": getattr(run.task, "guess", {}),
        "bos": bos_text(tokenizer) if tokenizer is not None else "",
    }


def bos_text(tokenizer: Any) -> str:
    """The token that is put before every text, as text; "" for none."""
    return tokenizer.decode(tokenizer.bos) if tokenizer.bos else ""


def unit_of_lengths(row: Row, task: Task, measures: Mapping[str, Any]) -> str:
    """The unit of lengths and resolutions: "byte", "token", "symbol", "view", "pixel", "patch", or "" for none."""
    if row.training.task == "classification":
        return ("pixel" if task.tables_fit_images else "patch") if "resolutions" in measures else ""
    if isinstance(task, Algorithmic):
        return "view" if row.training.data.positions == "views" else "symbol"
    tokenizer = getattr(task, "tokenizer", None)
    return "" if tokenizer is None else "token" if tokenizer.digest else "byte"


def _records_of(workdir: pathlib.Path, name: str, part: tuple[int, int] | None) -> tuple[pathlib.Path, list[Record]]:
    """Returns the file that a run (or a part of it) writes, and all records; a whole run takes over the records of parts."""
    whole = workdir / name
    stem = name.removesuffix(".jsonl")
    path = whole if part is None else workdir / f"{stem}-{part[0]}-of-{part[1]}.jsonl"
    records = read_records(whole)
    known = {(r.study, r.row, r.config_hash, r.seed) for r in records}
    others = [r for file in sorted(workdir.glob(f"{stem}-*-of-*.jsonl")) for r in read_records(file)]
    new = [r for r in others if (r.study, r.row, r.config_hash, r.seed) not in known]
    if new and part is None:
        append_records(whole, new)
    return path, records + new


@contextlib.contextmanager
def _about(row: Row) -> Iterator[None]:
    """Says of a user's error which row it is about."""
    try:
        yield
    except _USER_ERRORS as error:
        raise ValueError(f"{row}: {error}") from error


def write_json(path: pathlib.Path, value: Any) -> None:
    """Writes a readable JSON file; a function is written as its source and closed-over values."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(strict(_plain(value)), indent=2).encode() + b"\n")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if not callable(value):
        return value
    closed = inspect.getclosurevars(value).nonlocals
    return f"{inspect.getsource(value).strip()}  # {closed}" if closed else inspect.getsource(value).strip()


def _print_row(row: Row, records: Records, where: str) -> None:
    """Prints a finished row beside the progress, as its table will have it."""
    from experiments.report.table import tables

    for table in tables(records.studies[row.study], ""):
        cells = zip(table.columns, table.rows.get(row.label, ()), strict=False)
        shown = ", ".join(f"{title} {cell.text}" for title, cell in cells if cell.text not in ("", "-"))
        if shown:
            tqdm.write(f"{where} {row.study}, {row.label}: {shown}")
