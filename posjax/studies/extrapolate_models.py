"""The models of `experiments.extrapolate`: trained here or restored, and fine-tuned, each once and resumed exactly."""

import functools
import operator
import pathlib
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from posjax.studies import running
from posjax.studies import running
from posjax.studies.extrapolate_evaluate import Trained
from posjax.studies.extrapolate_plan import (
    FINE_TUNED,
    Row,
    Sizes,
    fill,
    finetune_config,
    lengths_of,
    plan,
    training_config,
)
from posjax.studies.records import row_hash
from posjax import data
from posjax.encoding import sites
from posjax.spec import layers_text, parse_layers
from posjax.training.checkpoints import Checkpoints
from posjax.studies.long_context import read_tokens, with_encoding
from posjax.training.long_task import Continued, LongDocuments
from posjax.training.loop import Result, check, identity, train
from posjax.training.metrics import config_hash
from posjax.training.optimizer import make_optimizer
from posjax.training.step import init_state
from posjax.training.tasks import LanguageModel, make_task


class Models(NamedTuple):
    """What there is to evaluate."""

    rows: list[tuple[Row, Trained]]
    sizes: Sizes


class Planned(NamedTuple):
    """What is going to be trained and read, checked."""

    rows: list[Row]
    sizes: Sizes
    seeds: tuple[int, ...]
    trainings: dict[str, ConfigDict]  # of each base, by label
    restored: dict[str, Trained]  # bases that are not trained here
    splits: dict  # see `make_task`


def planned(config: ConfigDict, checkpoint: pathlib.Path | None, documents: Any) -> Planned:
    """Reads the config and refuses what could not be trained or read; models are only traced.

    Raises:
      ValueError: as `plan`; a checkpoint that holds no decoder; names a row that cannot be.
    """
    if checkpoint is None:
        if not config.seeds or len(set(config.seeds)) < len(config.seeds):
            raise ValueError(f"seeds must be given and differ, got {tuple(config.seeds)}")
        trainings = {label: training_config(config, spec) for label, spec in config.encodings.items()}
        if not trainings:
            raise ValueError("there is nothing to train: give encodings, {label: spec}, or --checkpoint")
        restored, seeds = {}, tuple(config.seeds)
    else:
        label, training, trained = _restored(config, checkpoint)
        trainings, restored, seeds = {label: training}, {label: trained}, tuple(trained.params)
    sizes = _sizes(next(iter(trainings.values())))
    rows = plan(config, {label: training.model.encoding for label, training in trainings.items()}, sizes)
    made = Planned(rows, sizes, seeds, trainings, restored, {})
    _check(config, made, documents)
    return made


def _check(config: ConfigDict, made: Planned, documents: Any) -> None:
    """Every training and fine-tune, every row at its longest length, and the tasks of retrieval."""
    bases = {label: (trained.model, next(iter(trained.params.values()))) for label, trained in made.restored.items()}
    for row in made.rows:
        with running.about(f"row {row.label!r}"):
            training = made.trainings[row.base]
            if row.base not in bases:
                bases[row.base] = _untrained(training, made)
            model, params = bases[row.base]
            if row.kind == FINE_TUNED:
                with_encoding(model, params, row.spec)
                model, params = _untrained(finetune_config(training, row.finetune, row.spec), made)
            length = lengths_of(row, config.evaluation)[-1]
            model, params = with_encoding(model, params, fill(row.spec, length, made.sizes))
            tokens = jax.ShapeDtypeStruct((1, length), np.int32)
            jax.eval_shape(functools.partial(read_tokens, model, site=sites(length)), params, tokens, tokens)
    for task in config.retrieval.tasks:
        for length in {*config.retrieval.lengths} & {*config.evaluation.lengths}:
            given = dict(length=length, count=1, seed=0, depth=0.0, haystack=documents.texts[0])
            data.retrieval_batch(task, **given)


def _untrained(config: ConfigDict, made: Planned) -> tuple[Any, Any]:
    """A model with the shapes of its parameters."""
    task = LongDocuments(config, made.splits)
    check(task, config, made.seeds)
    return task.model, jax.eval_shape(task.init, jax.random.key(0))


def models(made: Planned, workdir: pathlib.Path, should_stop) -> Models:
    """Every row with its model, trained as far as it has to be.

    Raises:
      Stopped: as `train`.
    """
    rows, trainings, seeds = made.rows, made.trainings, made.seeds
    tunings = [row for row in rows if row.kind == FINE_TUNED]
    steps = sum(training.steps for label, training in trainings.items() if label not in made.restored)
    with running.Progress(steps + len(seeds) * sum(row.finetune.steps for row in tunings)) as progress:
        bases = dict(made.restored)
        for label, training in trainings.items():
            if label not in bases:
                bases[label] = _trained(label, training, made, workdir, progress, should_stop)
        found = []
        for row in rows:
            trained = bases[row.base]
            if row.kind == FINE_TUNED:
                trained = _finetuned(row, trained, made, workdir, progress, should_stop)
            found.append((row, trained))
    return Models(found, made.sizes)


def _sizes(training: ConfigDict) -> Sizes:
    width, heads = training.model.width, training.model.num_heads
    if heads < 1 or width % heads:
        raise ValueError(f"model.width={width} is not divisible by model.num_heads={heads}")
    return Sizes(training.data.length, width // heads // 2)


def _trained(label: str, training: ConfigDict, made: Planned, workdir: pathlib.Path, progress, should_stop) -> Trained:
    task, seeds = LongDocuments(training, made.splits), made.seeds
    directory = running.row_directory(workdir, "models", label, training, seeds)
    if not (directory / "checkpoints").exists():
        running.write_config(training, directory)
    result = train(task, training, seeds, directory, on_step=progress.row(label), should_stop=should_stop)
    return Trained(task.model, _by_seed(result.state.params, seeds), _about(task, training, result, len(seeds)))


def _finetuned(row: Row, base: Trained, made: Planned, workdir: pathlib.Path, progress, should_stop) -> Trained:
    """The base's weights trained on under the row's encoding, one seed after the other."""
    training = made.trainings[row.base]
    tuning = finetune_config(training, row.finetune, row.spec)
    task, params, about = LongDocuments(tuning, made.splits), {}, {}
    for seed, before in base.params.items():
        _, start = with_encoding(base.model, before, row.spec)
        study = f"finetuned-{config_hash({**identity(training), 'seeds': tuple(base.params)})}"
        directory = running.row_directory(workdir, study, f"{row.label}-{seed}", tuning, (seed,))
        on_step = progress.row(f"{row.label}, seed {seed}")
        result = train(Continued(task, start), tuning, (seed,), directory, on_step=on_step, should_stop=should_stop)
        params |= _by_seed(result.state.params, (seed,))
        about = _about(task, tuning, result, 1)
    # The table says of all rows how long the sequences were that the weights first learned from.
    return Trained(task.model, params, about | {"train_length": training.data.length})


def _restored(config: ConfigDict, workdir: pathlib.Path) -> tuple[str, ConfigDict, Trained]:
    """(label, config, model) of a training run: what its seeds have in the newest checkpoint."""
    checkpoints = Checkpoints(workdir / "checkpoints")
    if not checkpoints.steps():
        raise ValueError(f"there is no checkpoint in {workdir}: give the workdir of a run, or the folder of its row")
    about = checkpoints.record(checkpoints.steps()[-1])["metadata"]
    training, seeds = ConfigDict(about["config"]), tuple(about["seeds"])
    task = LongDocuments(training) if "retrieval" in training.data else make_task(training)
    if not isinstance(task, LanguageModel):
        raise ValueError(f"{workdir} holds no decoder but the task {training.task!r}")
    optimizer, _ = make_optimizer(total_steps=training.steps, **training.optimizer)
    abstract = jax.eval_shape(lambda: init_state(task, optimizer, seeds))
    step, found = checkpoints.restore({"state": abstract, "times": {"elapsed": 0.0, "step_time": 0.0}})
    state, times = found["state"], found["times"]
    if "retrieval" not in training.data:  # a fine-tune then is on text alone
        training.data.update(files=None, retrieval=ConfigDict(dict(share=0.0, weight=0.0, tasks=())))
    spec = layers_text(parse_layers(training.model.encoding))
    known = {layers_text(parse_layers(text)): label for label, text in config.encodings.items()}
    result = Result(state, {}, times["step_time"], times["elapsed"])
    training.steps = step
    return (
        known.get(spec, spec),
        training,
        Trained(task.model, _by_seed(state.params, seeds), _about(task, training, result, len(seeds))),
    )


def _by_seed(params: Any, seeds: tuple[int, ...]) -> dict[int, Any]:
    whole = jax.tree.map(np.asarray, params)
    return {seed: jax.tree.map(operator.itemgetter(run), whole) for run, seed in enumerate(seeds)}


def _about(task: LanguageModel, training: ConfigDict, result: Result, num_seeds: int) -> dict[str, Any]:
    leaves = jax.tree.leaves(result.state.params)
    return {
        "data_digest": task.digest,
        "steps": training.steps,
        "parameters": sum(leaf.size for leaf in leaves) // num_seeds,
        "step_time": result.step_time / num_seeds if np.isfinite(result.step_time) else None,
        "wall_time": result.wall_time,
        "train_length": training.data.length,
        "training_hash": row_hash(training),
    }


def record(
    config: ConfigDict, row: Row, trained: Trained, seed: int, documents: Any, environment: dict[str, Any]
) -> dict[str, Any]:
    """What is known of a row and a seed before it is measured."""
    return {
        "study": config.name,
        "task": "extrapolate",
        "label": row.label,
        "base": row.base,
        "kind": row.kind,
        "encoding": row.spec if "{" in row.spec else layers_text(parse_layers(row.spec)),
        "seed": seed,
        "data": config.data.name,
        "documents": list(documents.titles),
        **trained.about,
        "config_hash": evaluation_hash(config, row, trained),
        "device": environment["device"],
        "allocator": environment["allocator"],
        "versions": {key: value for key, value in environment.items() if key not in ("device", "allocator")},
    }


def evaluation_hash(config: ConfigDict, row: Row, trained: Trained) -> str:
    """Names what is measured: the weights, the encoding that they are read under, and where."""
    long = row.label in config.evaluation.long_rows
    evaluation = {**config.evaluation.to_dict(), "long_rows": long}
    asked = {"evaluation": evaluation, "retrieval": config.retrieval.to_dict(), "spec": row.spec, "kind": row.kind}
    return config_hash({**asked, "training": trained.about["training_hash"], "data": trained.about["data_digest"]})
