"""Image classification, of images of one size, or of their own sizes and aspects."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from posjax import data
from posjax.models.kinds import make_model
from posjax.spec import nearest
from posjax.training.mesh import WHOLE, context_of, mesh_of

_MODES = ["crop", "native", "pad", "stretch"]


def binary_cross_entropy(logits, targets):
    """Returns the mean over classes of the binary cross-entropy, as DeiT III and timm train; big_vision takes the sum.

    Wightman et al. (2021), arXiv 2110.00476: every class is a question of its own, so mixed examples may be two at once.
    """
    return optax.sigmoid_binary_cross_entropy(logits, targets).mean(axis=-1)


# By `config.loss`, of logits and soft targets [..., classes]. Scores have the softmax's, whatever is trained on.
LOSSES = {"softmax": optax.softmax_cross_entropy, "bce": binary_cross_entropy}


class Classification:
    """Labelled images, all of one size: that of the set, or `config.data.image_size`, to which they are preprocessed.

    The set synthetic_images has random ones, of `config.data.classes` classes.
    """

    headline, headline_mode = "accuracy", "max"
    # The fields of `config.data` that say which images `load` returns.
    reads = ("name", "data_dir", "image_size", "mode", "classes")
    tables_fit_images = True  # whether tables have the grid of an image

    def __init__(self, config: ConfigDict, splits: dict | None = None):
        self._config, self._data = config, config.data
        if not 0 <= config.label_smoothing < 1:
            raise ValueError(f"label_smoothing={config.label_smoothing} must lie in [0, 1)")
        if (config.get("loss") or "softmax") not in LOSSES:
            raise ValueError(f"no loss is named {config.loss!r}; {nearest(config.loss, [*LOSSES])}")
        if config.data.get("workers", 0) < 0:
            raise ValueError(f"data.workers={config.data.workers} must not be negative")
        self.recipe = data.parse_augment(self._data.augment)
        if config.data.image_size is not None and len(config.data.image_size) != 2:
            raise ValueError(f"data.image_size={tuple(config.data.image_size)} must be (height, width), as in (48, 32)")
        source = [str(config.data.get(name)) for name in (*self.reads, "channels", "stream")]
        self._crop_fraction = config.data.get("crop_fraction") or 1.0
        whole, self.eval_data = (
            once(splits, (*source, split, fraction), functools.partial(self.load, split, fraction))
            for split, fraction in ((config.data.train_split, 1.0), (config.data.eval_split, self._crop_fraction))
        )
        self.train_data = data.subset(whole, config.data.fraction)
        self.digest = self.train_data.digest + self.eval_data.digest
        self.classes = self.train_data.num_classes
        self.mesh = mesh_of(config)
        context = context_of(self.mesh)
        self.model = make_model(dict(config.model), "images", num_classes=self.classes, context=context)
        self._prepare()
        self.scale = tuple(self._data.mean), tuple(self._data.std)  # of pixels in [0, 1]
        data.normalise(np.zeros((1, self.train_data.channels), np.uint8), *self.scale)
        self.evaluation()  # sizes, means and deviations that do not fit are refused before training, not after it

    @property
    def guess(self) -> dict[str, float]:
        """Returns the scores of one answer for all test images, with the numbers of classes and test images."""
        share = np.bincount(np.asarray(self.eval_data.label), minlength=self.classes) / len(self.eval_data)
        loss = -np.sum(share * np.log(share, where=share > 0, out=np.zeros_like(share)))
        return {
            "accuracy": float(share.max()),
            "loss": float(loss),
            "classes": self.classes,
            "examples": len(self.eval_data),
        }

    def load(self, split: str, crop_fraction: float = 1.0) -> data.Images | data.NativeImages | data.StreamedImages:
        """Returns a split of the images that `config.data` names; those in memory are cropped."""
        name, size, channels = self._data.name, self._data.image_size, self._data.get("channels")
        stream = self._data.get("stream")
        for option in ("stream", "crop_fraction"):
            if size is None and (given := self._data.get(option)):
                raise ValueError(f"data.{option}={given} needs data.image_size, the (height, width) of all images")
        if size is None and (name in ("folder", data.SYNTHETIC_IMAGES) or self._data.mode != "crop" or channels):
            many = f" and data.channels={channels}" if channels else ""
            raise ValueError(f"data.name={name!r} with data.mode={self._data.mode!r}{many} needs data.image_size")
        if name == data.SYNTHETIC_IMAGES:
            count = max(self._config.batch_size, self._config.eval_batch_size)
            kinds = dict(classes=self._data.get("classes") or 1000, channels=channels or 3)
            return data.synthetic_images(tuple(size), count=count, **kinds)
        if size is None:
            return data.load_images(name, split, data_dir=self._data.data_dir)
        opened = data.stream_images if stream else data.open_images
        images = opened(name, split, self._data.data_dir, channels=channels)
        return data.images_of_size(images, tuple(size), self._data.mode, stream=stream, crop_fraction=crop_fraction)

    def _prepare(self) -> None:
        held = [images for images in (self.train_data, self.eval_data) if isinstance(images, data.Images)]
        size = held[0].image.shape[1:3] if held else tuple(self._data.image_size)
        self.recipe = self.recipe.sized(*size)
        self.model = self.model.sized(size)
        self.site = self.model.sites(*size)
        self._frame = data.Frame(size, self._data.mode, self.train_data.channels, self._crop_fraction)

    def _reading(self, images: Any, host: tuple = ()) -> dict[str, Any]:
        """Returns how batches of a split are made: images in memory have their size."""
        has_size = isinstance(images, data.Images) and not host
        return {} if has_size else {"frame": dataclasses.replace(self._frame, host=host)}

    def _workers(self, images: Any) -> int:
        """Returns the number of processes that make batches of a split: streamed images alone are worth them."""
        return self._data.get("workers", 0) if isinstance(images, data.StreamedImages) else 0

    @property
    def workers(self) -> int:
        """Returns the number of processes that make the batches of training."""
        return self._workers(self.train_data)

    def batches(self, seed, share=WHOLE):
        own = dict(process_index=share.index, process_count=share.count, repeats=self.recipe.repeats)
        own |= self._reading(self.train_data, self.recipe.host)
        batches = data.image_batches(self.train_data, batch_size=self._config.batch_size, seed=seed, **own)
        return data.repeated(batches) if self._data.name == data.SYNTHETIC_IMAGES else batches

    def epoch(self, images):
        """Returns batches of all of these images once, without augmentation, as evaluation reads them."""
        own = self._reading(images) | {"workers": self._workers(images)}
        return data.image_epoch(images, batch_size=self._config.eval_batch_size, **own)

    def evaluation(self):
        return {None: self.epoch(self.eval_data)}

    def init(self, key):
        image = jnp.zeros((1, *self._frame.size, self._frame.channels))
        return self.model.init(key, image, self.site)["params"]

    def loss(self, params, batch, key):
        crop_key, mix_key, drop_key, place_key, part_key = jax.random.split(key, 5)
        image = data.normalise(batch["image"])
        for operation in self.recipe.device:
            image = operation({"resized_crop": part_key}.get(operation.spec_name, crop_key), image)
        image, label = data.mix(mix_key, image, self.targets(batch["label"]), self.recipe.mix)
        rngs = {"dropout": drop_key, "place": place_key}
        logits = self.model.apply({"params": params}, self.standardised(image), self.site, train=True, rngs=rngs)
        return self.losses(logits, label).sum(), jnp.float32(len(image))

    def targets(self, label):
        """Returns smoothed labels [..., classes] of labels [...]."""
        return optax.smooth_labels(jax.nn.one_hot(label, self.classes), self._config.label_smoothing)

    def losses(self, logits, targets):
        """Returns the loss of each example [...] by logits and targets [..., classes]."""
        return LOSSES[self._config.get("loss") or "softmax"](logits, targets)

    def outputs(self, model, params, batch, **options):
        """Returns a model's logits of a batch; its features if it has no head."""
        image = self.standardised(data.normalise(batch["image"]))
        return model.apply({"params": params}, image, self.site, **options)

    def score(self, params, batch):
        return scores(self.outputs(self.model, params, batch), batch["label"], batch["weight"])

    # At another resolution than in training: here the height of images (pixels).

    @property
    def resolution(self) -> int:
        """The resolution of training."""
        return self.model.image_size[0]

    @staticmethod
    def side_ratio(resolution: int, trained: int) -> float:
        """Returns the ratio of the sides at a resolution to the sides in training."""
        return resolution / trained

    def times(self, resolution: int) -> float:
        """Returns `side_ratio` to this task's training."""
        return self.side_ratio(resolution, self.resolution)

    @staticmethod
    def data_at(given: ConfigDict, resolution: int) -> dict[str, Any]:
        """Returns the fields of `config.data` that training at another resolution changes."""
        height, width = given.image_size
        return {"image_size": (resolution, round(width * resolution / height))}

    def table_size_at(self, resolution: int) -> tuple[int, int]:
        """Returns the image size that tables are resized to."""
        return tuple(round(side * self.times(resolution)) for side in self.model.image_size)

    def uniform_size(self, resolution: int) -> tuple[int, int] | None:
        """Returns the size of all images; None where each has its own."""
        return self.table_size_at(resolution)

    def patches_at(self, resolution: int) -> int:
        """Returns the largest number of patches of an image."""
        return math.prod(self.model.patches(*self.table_size_at(resolution)))

    def tested_at(self, originals: Any, resolution: int) -> Any:
        """Returns the evaluation of original images (`at_size`, `at_budget`) for a model and a batch size."""
        return originals.at_size(self.table_size_at(resolution))

    def standardised(self, image):
        """Turns images in [-1, 1] (augmentation needs to know black) into images of the config's mean and deviation."""
        mean, std = (np.asarray(value, np.float32) for value in self.scale)
        return image if (mean == 0.5).all() and (std == 0.5).all() else ((image + 1) / 2 - mean) / std


class NativeClassification(Classification):
    """Labelled images in their own aspects, each cut into at most `max_patches` patches.

    Rows hold one image each, or, with `config.data.tokens`, as many as fit into so many tokens.
    """

    reads = ("name", "data_dir", "mode")
    tables_fit_images = False

    def load(self, split, crop_fraction=1.0):
        for name in ("stream", "crop_fraction"):
            if given := self._data.get(name):
                raise ValueError(f"data.{name}={given} is for images of one size: data.mode may be crop or pad")
        given = dict(data_dir=self._data.data_dir, channels=self._data.get("channels"))
        return data.load_native_images(self._data.name, split, **given)

    def _prepare(self):
        if self.model.one_size:
            raise ValueError("a ResNet, also as a stem, sees images of one size: data.mode may be crop, pad or stretch")
        if str(self.recipe) not in ("", "flip()"):
            raise ValueError(f"data.augment={self._data.augment!r} may be flip where data.mode='native'")
        most, least = self._data.max_patches, self._data.min_patches
        size = self.model.patch_size
        self.model = self.model.sized(tuple(self._data.image_size or (size * math.ceil(most**0.5),) * 2))
        self._source = data.NativePatches(self.train_data, size, most if least is None else (least, most))
        self._rows = dict(
            prefix=self.model.num_prefix, tokens=self._data.tokens, images_per_row=self._data.images_per_row
        )
        self._refuse_grids()

    def _refuse_grids(self) -> None:
        """Traces the tallest and the widest image, which encodings with too small tables refuse."""
        grids = np.concatenate(
            [data.native_grids(images.size, self._data.max_patches) for images in (self.train_data, self.eval_data)]
        )
        for rows, columns in {tuple(grids[grids[:, axis].argmax()].tolist()) for axis in (0, 1)}:
            height, width = rows * self.model.patch_size, columns * self.model.patch_size
            image, site = jnp.zeros((1, height, width, self.train_data.channels)), self.model.sites(height, width)
            jax.eval_shape(lambda image=image, site=site: self.model.init(jax.random.key(0), image, site))

    def batches(self, seed, share=WHOLE):
        own = dict(process_index=share.index, process_count=share.count, **self._rows)
        return data.native_batches(self._source, batch_size=self._config.batch_size, seed=seed, **own)

    def epoch(self, images):
        source = data.NativePatches(images, self.model.patch_size, self._data.max_patches)
        return data.native_epoch(source, batch_size=self._config.eval_batch_size, **self._rows)

    def init(self, key):
        size = self.model.patch_size
        image = jnp.zeros((1, size, size, self.train_data.channels))
        return self.model.init(key, image, self.model.sites(size, size))["params"]

    def loss(self, params, batch, key):
        flip_key, drop_key, place_key = jax.random.split(key, 3)
        batch = data.flip_native(flip_key, batch) if self.recipe.device else batch
        rngs = {"dropout": drop_key, "place": place_key}
        logits = self.outputs(self.model, params, batch, train=True, rngs=rngs)
        losses = self.losses(logits, self.targets(batch["label"]))
        return (losses * batch["weight"]).sum(), batch["weight"].sum()

    # A resolution here is the largest number of patches.

    @property
    def resolution(self):
        return self._data.max_patches

    @staticmethod
    def side_ratio(resolution, trained):
        return math.sqrt(resolution / trained)

    @staticmethod
    def data_at(given, resolution):
        del given
        return {"max_patches": resolution}

    def table_size_at(self, resolution):
        return scaled_size(self.model.image_size, self.times(resolution), self.model.patch_size)

    def uniform_size(self, resolution):
        del resolution

    def patches_at(self, resolution):
        return resolution

    def tested_at(self, originals, resolution):
        return originals.at_budget(self.model.patch_size, resolution)

    def outputs(self, model, params, batch, **options):
        patches = self.standardised(data.normalise(batch["patches"]))
        images = batch["label"].shape[1]
        return model.apply({"params": params}, patches, data.site_of(batch), num_images=images, **options)


def scores(logits, label, weight) -> dict[str, jax.Array]:
    """Returns sums of accuracy, loss and weight over a batch; labels and weights [...], logits [..., classes]."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, label)
    right = (jnp.argmax(logits, axis=-1) == label).astype(jnp.float32)
    return {"accuracy": (right * weight).sum(), "loss": (losses * weight).sum(), "weight": weight.sum()}


def once(splits: dict | None, key: tuple, load: Callable[[], Any]) -> Any:
    """Returns `load()`, called once for each key of the dictionary; every time without one."""
    if splits is None:
        return load()
    if key not in splits:
        splits[key] = load()
    return splits[key]


def scaled_size(image_size: tuple[int, int], scale: float, patch_size: int) -> tuple[int, int]:
    """Returns (height, width), in whole patches, that covers `scale` times an image size."""
    return tuple(patch_size * math.ceil(scale * side / patch_size - 1e-6) for side in image_size)


def task_class(config: ConfigDict) -> type[Classification]:
    """Returns the class of the task for `config.data.mode`.

    Raises:
      ValueError: unknown mode.
    """
    if config.data.mode not in _MODES:
        raise ValueError(f"no data.mode is named {config.data.mode!r}; {nearest(config.data.mode, _MODES)}")
    return NativeClassification if config.data.mode == "native" else Classification


def make_classification(config: ConfigDict, splits: dict | None = None) -> Classification:
    """Returns the task for `config.data.mode`.

    Raises:
      ValueError: unknown mode, or sizes that do not fit.
    """
    if (made := task_class(config)) is NativeClassification:
        return made(config, splits)
    for name in ("min_patches", "tokens", "images_per_row"):
        if config.data[name] is not None:
            raise ValueError(f"data.{name}={config.data[name]} is for native aspects: set data.mode='native' too")
    return made(config, splits)
