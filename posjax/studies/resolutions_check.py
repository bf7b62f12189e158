"""Refuses what `experiments.resolutions` could not train or evaluate, before anything is trained: models are only traced."""

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from posjax.studies import running
from posjax.studies.resolutions_evaluate import under_policy
from posjax.studies.resolutions_models import Ensemble, tuning_of
from posjax.studies.resolutions_plan import FINE_TUNED, Row, resolutions, training_config
from posjax.training.loop import check
from posjax.studies.resolution import channels_of
from posjax.training.tasks import make_task


def check_study(name: str, study: ConfigDict, rows: list[Row], seeds: tuple[int, ...], splits: dict) -> None:
    """Every row of a study: its data, its training, its fine-tune, and how it sees the smallest and largest resolution.

    Raises:
      ValueError: names the row and what is wrong.
    """
    bases: dict[str, Ensemble] = {}
    for row in rows:
        with running.about(f"row {row.label!r} of {name!r}"):
            if row.base not in bases:
                bases[row.base] = _untrained(training_config(study, study.encodings[row.base]), seeds, splits)
            ensemble = base = bases[row.base]
            if row.kind == FINE_TUNED:
                config, change = tuning_of(row, base, study)
                jax.eval_shape(change, base.params)
                ensemble = _untrained(config, seeds, splits)
            seen = resolutions(study, base.trained.resolution)
            for resolution in {seen[0], seen[-1]}:
                _trace(study, base, row, ensemble, resolution)


def _untrained(config: ConfigDict, seeds: tuple[int, ...], splits: dict) -> Ensemble:
    """A model with the shapes of its parameters [R, ...]."""
    task = make_task(config, splits)
    check(task, config, seeds)
    params = jax.eval_shape(lambda: jax.vmap(task.init)(jax.random.split(jax.random.key(0), len(seeds))))
    return Ensemble(task.model, params, config, {})


def _trace(study: ConfigDict, base: Ensemble, row: Row, ensemble: Ensemble, resolution) -> None:
    def logits(params):
        model, params, size = under_policy(study, base, row, ensemble, resolution)(params)
        if study.data.mode == "native":  # whose images need not have the grid of a square one
            return params
        image, first = jnp.zeros((1, *size, channels_of(params))), jax.tree.map(lambda leaf: leaf[0], params)
        return model.apply({"params": first}, image, model.sites(*size))

    jax.eval_shape(logits, ensemble.params)
