"""Evaluates one row of `experiments.resolutions` at every resolution."""

import functools
import math
import time
from typing import Any

from ml_collections import ConfigDict

from experiments._resolutions_models import Ensemble
from experiments._resolutions_plan import FINE_TUNED, Resolution, Row, fill, resolutions
from posjax.training.resolution import AS_TRAINED, RESIZED, Originals, channels_of, measure, scaled_size, under


class Evaluation:
    """The test images of a study, made for each resolution once and kept while its rows are measured."""

    def __init__(self, study: ConfigDict, ensemble: Ensemble):
        self._study, self._trained = study, ensemble.trained
        self._image_size = ensemble.model.image_size
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
        policy, native = fill(row.policy, resolution.scale, self._trained), self._study.data.mode == "native"
        if row.kind == FINE_TUNED and policy != RESIZED:
            policy = AS_TRAINED  # under its spec it was trained on
        patch = ensemble.model.patch_size
        size = (
            scaled_size(self._image_size, resolution.scale, patch)
            if native
            else tuple(round(side * resolution.scale) for side in self._image_size)
        )
        method = self._study.evaluation.resize
        model, params = under(ensemble.model, ensemble.params, policy, size, method=method)
        images = self._sources(resolution.value, size if not native else None, patch)
        rows, columns = model.patches(*size)
        tokens = model.num_prefix + (resolution.value if native else rows * columns)
        batch = max(1, min(len(self.originals.images), self._study.evaluation.batch_tokens // tokens))
        return measure(images(model, batch), params)

    def _source(self, value: int, size: tuple[int, int] | None, patch: int):
        """What makes the evaluation of a model and a batch size."""
        return self.originals.at_budget(patch, value) if size is None else self.originals.at_size(size)
