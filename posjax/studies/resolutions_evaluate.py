"""Evaluates one row of `experiments.resolutions` at every resolution."""

import functools
import math
import time
from collections.abc import Callable
from typing import Any

from ml_collections import ConfigDict

from posjax.studies.resolutions_models import Ensemble
from posjax.studies.resolutions_plan import FINE_TUNED, Resolution, Row, fill, resolutions
from posjax.studies.resolution import AS_TRAINED, RESIZED, Originals, channels_of, measure, scaled_size, under


class Evaluation:
    """The test images of a study, made for each resolution once and kept while its rows are measured."""

    def __init__(self, study: ConfigDict, ensemble: Ensemble):
        self._study, self._base, self._trained = study, ensemble, ensemble.trained
        self.originals = Originals(study.data, study.evaluation.images, channels_of(ensemble.params))
        self._sources = functools.cache(self._source)

    def resolutions(self) -> list[Resolution]:
        return resolutions(self._study, self._trained.resolution)

    def __call__(self, row: Row, ensemble: Ensemble, seeds: tuple[int, ...]) -> list[dict[str, Any]]:
        """What was measured of a row, one for each seed."""
        began = time.perf_counter()
        found = [{"accuracy": {}, "loss": {}} for _ in seeds]
        for resolution in self.resolutions():
            measured = self._measure(row, ensemble, resolution)
            for run, metrics in enumerate(found):
                for name, values in measured.items():
                    value = float(values[run])
                    metrics[name][str(resolution.value)] = value if math.isfinite(value) else None
        elapsed = (time.perf_counter() - began) / len(seeds)
        return [{"seed": s, "metrics": m, "evaluation_time": elapsed} for s, m in zip(seeds, found, strict=True)]

    def _measure(self, row: Row, ensemble: Ensemble, resolution: Resolution) -> dict[str, Any]:
        native, patch = self._study.data.mode == "native", ensemble.model.patch_size
        model, params, size = under_policy(self._study, self._base, row, ensemble, resolution)(ensemble.params)
        images = self._sources(resolution.value, size if not native else None, patch)
        rows, columns = model.patches(*size)
        tokens = model.num_prefix + (resolution.value if native else rows * columns)
        batch = max(1, min(len(self.originals.images), self._study.evaluation.batch_tokens // tokens))
        return measure(images(model, batch), params)

    def _source(self, value: int, size: tuple[int, int] | None, patch: int):
        """What makes the evaluation of a model and a batch size."""
        return self.originals.at_budget(patch, value) if size is None else self.originals.at_size(size)


def under_policy(
    study: ConfigDict, base: Ensemble, row: Row, ensemble: Ensemble, resolution: Resolution
) -> Callable[[Any], tuple[Any, Any, tuple[int, int]]]:
    """params [R, ...] of the ensemble -> (model, params, image size) that see a resolution under the row's policy.

    Args:
      base: the model before a fine-tune, whose grid and size count as 1.
    """
    policy, own, patch = fill(row.policy, resolution.scale, base.trained), base.model.image_size, base.model.patch_size
    if row.kind == FINE_TUNED and policy != RESIZED:
        policy = AS_TRAINED  # under its spec it was trained on
    if study.data.mode == "native":
        size = scaled_size(own, resolution.scale, patch)
    else:
        size = tuple(round(side * resolution.scale) for side in own)
    return lambda params: (*under(ensemble.model, params, policy, size, method=study.evaluation.resize), size)
