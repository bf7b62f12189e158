"""Resolutions: ViTs trained at one resolution, each encoding tested at many others under each of its policies."""

import re
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from experiments.studies.other_sizes import AS_TRAINED, RESIZED, BriefEvaluation, Originals, measure, under
from experiments.studies.records import finite
from experiments.studies.study import AT_EVALUATION, FINE_TUNED, TRAINED, Row, Study, Weights, labels_differ
from posjax.jsonl import config_hash
from posjax.models.vit import image_channels
from posjax.spec import layers_text, nearest, parse_layers
from posjax.training.classification import task_class
from posjax.training.tasks import Task

_OWN = ("title", "encodings", "policies", "finetune", "evaluation", "seed")
_PLACEHOLDER = re.compile(r"\{(height|width|scale|factor)\}")


class Grid(NamedTuple):
    """What placeholders are filled with: the grid (patches) that a model was trained at."""

    height: int
    width: int


class Resolutions(Study):
    """`config.sets`: studies of a data set each, with `encodings`, `policies` and `finetune` of them, and `evaluation`."""

    task = "resolutions"

    def __init__(self, config: ConfigDict):
        super().__init__(config)
        self._images = (
            "",
            {},
        )  # of the set that is being measured: the originals by None, and those of each resolution

    def rows(self) -> list[Row]:
        return [row for name, study in self.config.sets.items() for row in plan(name, study)]

    def make_task(self, config: ConfigDict) -> Task:
        """Measured afterwards, but for what chooses a learning rate."""
        task = super().make_task(config)
        return task if "choose_split" in config.data else BriefEvaluation(task)

    def tuned(self, row: Row, base: Weights) -> tuple[ConfigDict, Callable[[Any], Any]]:
        """At another resolution, under the row's policy."""
        model, task, method = base.run.model, base.run.task, self.config.sets[row.study].evaluation.resize
        policy = fill(row.reading, task.times(row.tuning.resolution), grid_of(model))
        spec = layers_text(parse_layers(model.encoding if policy in (AS_TRAINED, RESIZED) else policy))
        config = finetune_config(base.run.config, row.tuning, spec)
        size = tuple(config.data.image_size) if task.tables_fit_images else model.image_size
        return config, lambda params: under(model, params, policy, size, method=method)[1]

    def hash_of_row(self, row: Row, training: str, digest: Callable[[], str]) -> str:
        """Names the weights, how they are read, and at which resolutions of which images."""
        study = self.config.sets[row.study]
        asked = {"evaluation": study.evaluation.to_dict(), "policy": row.reading, "training": training}
        return config_hash({**asked, "split": study.data.eval_split, "mode": study.data.mode})

    def check(self, row: Row, base: Weights, weights: Weights) -> None:
        """Traces the model at the smallest and the largest resolution."""
        found = sorted(self.config.sets[row.study].evaluation.resolutions)
        for resolution in {found[0], found[-1]}:

            def logits(params, resolution=resolution):
                model, params, _ = self._under_policy(row, base, weights, resolution, params)
                if (size := base.run.task.uniform_size(resolution)) is None:  # whose images need not have one grid
                    return params
                image, first = jnp.zeros((1, *size, image_channels(params))), jax.tree.map(lambda leaf: leaf[0], params)
                return model.apply({"params": first}, image, model.sites(*size))

            jax.eval_shape(logits, weights.run.params)

    def about(self, row: Row, base: Weights, weights: Weights) -> dict[str, Any]:
        about = {
            "base": row.base,
            "kind": row.kind,
            "policy": row.reading,
            "training_hash": weights.hash,
            # What counts as 1 in tables and plots: the resolution of the first training.
            "trained_at": base.run.task.resolution,
            **base.run.task.recorded,
            "images": len(self._originals(row, base).images),
        }
        return about if row.tuning is None else about | {"finetuned": row.tuning.resolution}

    def measure(self, row: Row, base: Weights, weights: Weights, seeds: Sequence[int]) -> list[dict[str, Any]]:
        """Accuracy and loss by resolution."""
        began = time.perf_counter()
        found = [{"accuracy": {}, "loss": {}} for _ in weights.run.seeds]
        for resolution in sorted(self.config.sets[row.study].evaluation.resolutions):
            for name, values in self._measured(row, base, weights, resolution).items():
                for index, metrics in enumerate(found):
                    metrics[name][str(resolution)] = finite(values[index])
        elapsed = (time.perf_counter() - began) / len(weights.run.seeds)
        chosen = [found[weights.run.seeds.index(seed)] for seed in seeds]
        return [{"metrics": metrics, "evaluation_time": elapsed} for metrics in chosen]

    def _measured(self, row: Row, base: Weights, weights: Weights, resolution: int) -> dict[str, Any]:
        model, params, size = self._under_policy(row, base, weights, resolution, weights.run.params)
        originals = self._originals(row, base)
        tokens = model.num_prefix + base.run.task.patches_at(resolution)
        batch = max(1, min(len(originals.images), self.config.sets[row.study].evaluation.batch_tokens // tokens))
        _, made = self._images
        if resolution not in made:
            made[resolution] = base.run.task.tested_at(originals, resolution)
        return measure(made[resolution](model, batch), params)

    def _under_policy(self, row: Row, base: Weights, weights: Weights, resolution: int, params: Any):
        """(model, params [R, ...], size of its tables) that see a resolution under the row's policy."""
        task = base.run.task
        policy, size = (
            fill(row.reading, task.times(resolution), grid_of(base.run.model)),
            task.table_size_at(resolution),
        )
        if row.kind == FINE_TUNED and policy != RESIZED:
            policy = AS_TRAINED  # under its spec it was trained on
        method = self.config.sets[row.study].evaluation.resize
        return *under(weights.run.model, params, policy, size, method=method), size

    def _originals(self, row: Row, base: Weights) -> Originals:
        """The test images of a set, which are kept while its rows are measured."""
        name, made = self._images
        if name != row.study:
            config = self.config.sets[row.study]
            made = {None: Originals(config.data, config.evaluation.images, image_channels(base.run.params))}
            self._images = (row.study, made)
        return made[None]


def plan(name: str, study: ConfigDict) -> list[Row]:
    """All rows of a set: each encoding under its policies, then fine-tuned; specs are read now, so that typos cost nothing.

    An encoding without policies is seen as it was trained. A policy named "" has its label from the encoding alone.

    Raises:
      ValueError: a spec that cannot be read, policies of an encoding that there is not, a label given twice, no resolutions.
    """
    for section in (study.policies, study.finetune):
        for base in section:
            if base not in study.encodings:
                raise ValueError(f"there is no encoding {base!r} in {name!r}; {nearest(base, list(study.encodings))}")
    rows = []
    for base, spec in study.encodings.items():
        training = training_config(study, spec)

        def row(
            label: str, kind: str, how: str, tuning: ConfigDict | None = None, base=base, spec=spec, training=training
        ):
            encoding = layers_text(parse_layers(spec)) if how in (AS_TRAINED, RESIZED) else how
            return Row(name, label, base, training, encoding, kind, how, tuning)

        for policy, how in study.policies.get(base, {"": AS_TRAINED}).items():
            label = f"{base}, {policy}" if policy else base
            rows.append(row(label, TRAINED if how == AS_TRAINED else AT_EVALUATION, how))
        for policy, tuning in study.finetune.get(base, {}).items():
            label = f"{base}, {policy}"
            if tuning.policy == RESIZED and not task_class(study).tables_fit_images:
                raise ValueError(
                    f"the fine-tune {label!r} of {name!r} would resize tables, which in native aspects are not of "
                    "the size of any image: take policy 'as trained', and an encoding as learned(resize='jax_linear')"
                )
            rows.append(row(label, FINE_TUNED, tuning.policy, tuning))
    labels_differ(rows)
    _check_evaluation(name, study.evaluation)
    for each in rows:
        if each.reading not in (AS_TRAINED, RESIZED):
            parse_layers(fill(each.reading, 1.5, Grid(2, 2)))
    return rows


def _check_evaluation(name: str, evaluation: ConfigDict) -> None:
    if not evaluation.resolutions or min(evaluation.resolutions) < 1:
        raise ValueError(
            f"evaluation.resolutions={tuple(evaluation.resolutions)} of {name!r} must be one or more, each at least 1"
        )
    if evaluation.images is not None and evaluation.images < 1:
        raise ValueError(f"evaluation.images={evaluation.images} of {name!r} must be at least 1; None takes all")


def training_config(study: ConfigDict, spec: str) -> ConfigDict:
    """The configuration of a training run: the set's without what is about evaluating."""
    row = ConfigDict({name: value for name, value in study.to_dict().items() if name not in _OWN})
    row.model.encoding = spec
    return row.lock()


def finetune_config(training: ConfigDict, tuning: ConfigDict, spec: str) -> ConfigDict:
    """The configuration of a fine-tune: the base's, at another resolution."""
    row = ConfigDict(training.to_dict())
    row.model.encoding = spec
    with row.data.ignore_type():
        row.data.update(task_class(training).data_at(training.data, tuning.resolution))
    row.steps, row.eval_every = tuning.steps, 0
    row.optimizer.learning_rate, row.optimizer.warmup_steps = tuning.learning_rate, tuning.steps // 10
    return row.lock()


def grid_of(model: Any) -> Grid:
    """The grid that a model was trained at; of native aspects that of the tables, which no image need have."""
    return Grid(*model.patches(*model.image_size))


def fill(policy: str, scale: float, grid: Grid) -> str:
    """A policy with its placeholders filled for one resolution.

    {height} and {width} are the grid of training, {scale} is how much longer sides are than in training, {factor} the same
    but at least 1.
    """
    values = {"height": grid.height, "width": grid.width, "scale": scale, "factor": max(1.0, scale)}

    def number(match: re.Match) -> str:
        value = values[match[1]]
        return str(int(value)) if value == int(value) else repr(value)

    return _PLACEHOLDER.sub(number, policy)
