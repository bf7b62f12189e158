"""The models of `experiments.resolutions`: trained and fine-tuned, all seeds at once, each once and resumed exactly."""

import itertools
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from posjax.studies import running
from posjax.studies.records import row_hash
from posjax.studies.resolutions_plan import Row, Trained, fill, finetune_config, training_config
from posjax.spec import layers_text, parse_layers
from posjax.training.loop import digest, identity, train
from posjax.training.metrics import config_hash
from posjax.studies.resolution import AS_TRAINED, RESIZED, under
from posjax.training.tasks import Task, make_task


class Ensemble(NamedTuple):
    """What is evaluated: a model with the parameters [R, ...] of its seeds, and what records say of how it was trained."""

    model: Any
    params: Any
    config: ConfigDict
    about: dict[str, Any]

    @property
    def trained(self) -> Trained:
        """What it was trained at. Of native aspects the grid is that of the tables, which no image need have."""
        native = self.config.data.mode == "native"
        resolution = self.config.data.max_patches if native else self.model.image_size[0]
        return Trained(*self.model.patches(*self.model.image_size), resolution)


class Session(NamedTuple):
    """What all trainings of a process share."""

    seeds: tuple[int, ...]
    workdir: pathlib.Path
    progress: running.Progress
    should_stop: Callable[[], bool]
    splits: dict  # see `make_task`


def trained(study: str, label: str, shared: ConfigDict, session: Session) -> Ensemble:
    """The model of one encoding.

    Raises:
      ValueError: as `make_task` and `train`.
      Stopped: as `train`.
    """
    config = training_config(shared, shared.encodings[label])
    return _train(study, label, config, None, row_hash(config), session)


def tuning_of(row: Row, base: Ensemble, study: ConfigDict) -> tuple[ConfigDict, Callable[[Any], Any]]:
    """The configuration of a fine-tune, and what makes the parameters that it starts from of the base's."""
    tuning, before = row.finetune, base.trained
    native = base.config.data.mode == "native"
    scale = (tuning.resolution / before.resolution) ** (0.5 if native else 1.0)
    policy = fill(row.policy, scale, before)
    spec = layers_text(parse_layers(base.model.encoding if policy in (AS_TRAINED, RESIZED) else policy))
    config = finetune_config(base.config, tuning, spec)
    size = base.model.image_size if native else tuple(config.data.image_size)
    return config, lambda params: under(base.model, params, policy, size, method=study.evaluation.resize)[1]


def finetuned(row: Row, base: Ensemble, study: ConfigDict, session: Session) -> Ensemble:
    """The base's weights trained on at another resolution, under the row's policy."""
    config, change = tuning_of(row, base, study)
    params = change(base.params)
    start = digest(params)
    named = config_hash({**identity(config), "initial": start})
    label = f"{row.label}-{start}"
    found = _train(row.study, label, config, params, named, session)
    # Tables tell what resolution counts as 1: that of the first training, also in the plots.
    about = {"finetuned": row.finetune.resolution, "trained_at": base.trained.resolution}
    return found._replace(about=found.about | about)


def _train(study: str, label: str, config: ConfigDict, initial: Any, named: str, session: Session) -> Ensemble:
    task, seeds = _BriefEvaluation(make_task(config, session.splits)), session.seeds
    directory = running.row_directory(session.workdir, study, label, config, seeds)
    if not (directory / "checkpoints").exists():
        running.write_config(config, directory)
    told = dict(on_step=session.progress.row(f"{study} {label}"), should_stop=session.should_stop)
    result = train(task, config, seeds, directory, initial=initial, **told)
    params = jax.tree.map(np.asarray, result.state.params)
    about = {
        "data": config.data.name,
        "data_digest": task.digest,
        "steps": config.steps,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)) // len(seeds),
        "step_time": result.step_time / len(seeds) if np.isfinite(result.step_time) else None,
        "wall_time": result.wall_time,
        "training_hash": named,
    }
    ensemble = Ensemble(task.model, params, config, about)
    return ensemble._replace(about=about | {"trained_at": ensemble.trained.resolution})


class _BriefEvaluation:
    """A task whose training ends with the scores of one batch: what is reported is measured afterwards."""

    def __init__(self, task: Task):
        self._task = task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def evaluation(self) -> dict[str | None, Iterator]:
        return {name: itertools.islice(batches, 1) for name, batches in self._task.evaluation().items()}


def record(
    row: Row, ensemble: Ensemble, spec: str, named: str, images: int, environment: Mapping[str, Any]
) -> dict[str, Any]:
    """What is known of a row before it is measured, on so many images."""
    return {
        "study": row.study,
        "task": "resolutions",
        "label": row.label,
        "base": row.base,
        "kind": row.kind,
        "policy": row.policy,
        "encoding": spec,
        **ensemble.about,
        "native": ensemble.config.data.mode == "native",
        "images": images,
        "config_hash": named,
        "device": environment["device"],
        "allocator": environment["allocator"],
        "versions": {key: value for key, value in environment.items() if key not in ("device", "allocator")},
    }


def evaluation_hash(study: ConfigDict, row: Row, ensemble_hash: str) -> str:
    """Names what is measured: the weights, how they are read, and at which resolutions of which images."""
    asked = {"evaluation": study.evaluation.to_dict(), "policy": row.policy, "training": ensemble_hash}
    return config_hash({**asked, "split": study.data.eval_split, "mode": study.data.mode})
