"""Images at resolutions that a ViT was not trained at, and its scores there."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from ml_collections import ConfigDict

from posjax import data
from posjax.models import ViT
from posjax.training.classification import scores
from posjax.training.tasks import Task


class Originals:
    """The images of an evaluation split, from which images of each resolution are made, in memory or when they are scored.

    Args:
      config: `data` of a classification run.
      limit: how many images are taken, spread evenly over the split; None takes all.
      channels: of the images that the model takes.
    """

    def __init__(self, config: ConfigDict, limit: int | None = None, channels: int = 3):
        self._config = config
        load = data.load_native_images if config.mode == "native" else data.open_images
        images = load(config.name, config.eval_split, config.data_dir, channels=channels)
        self.images = images if limit is None else data.spread(images, limit)

    def at_size(self, image_size: tuple[int, int]) -> Callable[[ViT, int], "AtSize"]:
        """All of them at one (height, width), preprocessed as the config says: for a model and a batch size."""
        config = self._config
        options = dict(mode=config.mode, crop_fraction=config.get("crop_fraction") or 1.0)
        images = data.images_of_size(self.images, image_size, stream=config.get("stream"), **options)
        frame = data.Frame(image_size, channels=images.channels, **options)
        return lambda model, batch_size: AtSize(model, images, frame, config, batch_size)

    def at_budget(self, patch_size: int, max_patches: int) -> Callable[[ViT, int], "AtBudget"]:
        """Each in its own aspect, of at most `max_patches` patches: for a model and a batch size."""
        source = data.NativePatches(self.images, patch_size, max_patches)
        return lambda model, batch_size: AtBudget(model, source, self._config, batch_size)


class AtSize:
    """Images of one size, for `evaluate`; streamed ones are given it by the frame."""

    def __init__(
        self,
        model: ViT,
        images: data.Images | data.StreamedImages,
        frame: data.Frame,
        config: ConfigDict,
        batch_size: int,
    ):
        self._model, self._images = model, images
        self._site = model.sites(*frame.size)
        self._normal = dict(mean=config.mean, std=config.std)
        is_held = isinstance(images, data.Images)
        self._reading = {} if is_held else {"frame": frame, "workers": config.get("workers") or 0}
        self._reading["batch_size"] = batch_size

    def evaluation(self) -> dict[None, Iterator]:
        return {None: data.image_epoch(self._images, **self._reading)}

    def score(self, params, batch):
        logits = self._model.apply({"params": params}, data.normalise(batch["image"], **self._normal), self._site)
        return scores(logits, batch["label"], batch["weight"])


class AtBudget:
    """Images of their own aspects, one a row, for `evaluate`."""

    def __init__(self, model: ViT, source: data.NativePatches, config: ConfigDict, batch_size: int):
        self._model, self._source, self._batch_size = model, source, batch_size
        self._normal = dict(mean=config.mean, std=config.std)

    def evaluation(self) -> dict[None, Iterator]:
        prefix = self._model.num_prefix
        return {None: data.native_epoch(self._source, batch_size=self._batch_size, prefix=prefix)}

    def score(self, params, batch):
        patches = data.normalise(batch["patches"], **self._normal)
        logits = self._model.apply({"params": params}, patches, data.site_of(batch), num_images=1)
        return scores(logits, batch["label"], batch["weight"])


class BriefEvaluation:
    """A task that scores one batch at the end of training: a measure scores all images later."""

    def __init__(self, task: Task):
        self._task = task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def evaluation(self) -> dict[str | None, Iterator]:
        return {name: itertools.islice(batches, 1) for name, batches in self._task.evaluation().items()}
