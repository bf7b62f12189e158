"""The subject of an analysis: a ViT of a run or a file, its seeds' parameters, and its images."""

import hashlib
import math
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from posjax import data, pretrained
from posjax.hub import local
from posjax.models import ViT
from posjax.models.vit import image_channels
from posjax.spec import layers_text, parse_layers
from posjax.training.runs import is_run, load_run

_METHOD = "torch_bicubic"  # method of resizing tables of models that were trained here


class TrainedViT(NamedTuple):
    """A model with the parameters of each seed, and the scale of its pixels.

    Attributes:
      data: the fields of the run's config that describe its images; None for a file.
      classes: names of the classes; None if unknown.
      method: method of resizing tables.
      about: origin of the model, in a line.
    """

    model: ViT
    params: list[Any]
    seeds: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    data: ConfigDict | None
    classes: tuple[str, ...] | None
    method: str
    about: str

    @property
    def channels(self) -> int:
        return image_channels(self.params[0])

    @property
    def encoding(self) -> str:
        return layers_text(parse_layers(self.model.encoding))

    def normalised(self, images: np.ndarray) -> jax.Array:
        """Scales uint8 pixels for the model; a single mean or std is for all channels, and grey takes the first one."""
        mean, std = (each if len(each) == self.channels else each[:1] * self.channels for each in (self.mean, self.std))
        return data.normalise(images, mean, std)


def load_vit(checkpoint: pathlib.Path, *, data_dir: str | None = None, **options: Any) -> TrainedViT:
    """Loads the subject of a workdir, or of a file of pretrained weights.

    Args:
      checkpoint: the workdir or file.
      data_dir: directory of sets, if it differs from the run's.
      options: arguments of `posjax.pretrained.load` that a file does not show; None is ignored.

    Raises:
      ValueError: the model is not a ViT, `options` is given for a run, or the file cannot be read.
      FileNotFoundError: the checkpoint is missing.
    """
    if not checkpoint.exists():
        raise FileNotFoundError(f"there is no checkpoint {checkpoint}: give a workdir, or a file of weights")
    options = {name: value for name, value in options.items() if value is not None}
    if holds_weights(checkpoint):
        return _of_file(checkpoint, options)
    if options:
        flags = ", ".join(f"--{name}" for name in options)
        raise ValueError(f"{flags}: for files of weights, but the run {checkpoint} knows its own, leave it out")
    return _of_run(checkpoint, data_dir)


def holds_weights(checkpoint: pathlib.Path) -> bool:
    """Whether a checkpoint is a file of weights or a folder with such files, and not a run."""
    return not is_run(checkpoint) and (checkpoint.is_file() or any(local(checkpoint).glob("*.safetensors*")))


def _of_run(workdir: pathlib.Path, data_dir: str | None) -> TrainedViT:
    run = load_run(workdir, data_dir=data_dir)
    if not isinstance(run.model, ViT):
        raise ValueError(f"{workdir} holds a {type(run.model).__name__}: only vision transformers are looked at")
    config, params = run.config.data, [run.of(index) for index in range(len(run.seeds))]
    about = f"{workdir}: step {run.step} of {len(run.seeds)} seeds, {run.model.encoding}"
    classes = run.task.train_data.classes or None
    return TrainedViT(
        run.model, params, run.seeds, tuple(config.mean), tuple(config.std), config, classes, _METHOD, about
    )


def _of_file(path: pathlib.Path, options: dict[str, Any]) -> TrainedViT:
    info = pretrained.info(path, **options)
    model, variables = pretrained.load(path, **options)
    sizes = f"width {model.block.width}, {model.depth} layers of {model.block.num_heads} heads, {model.encoding}"
    about = f"{path.name}: {info.origin}, {sizes}"
    return TrainedViT(model, [variables["params"]], (0,), info.mean, info.std, None, info.labels, info.method, about)


class Pictures(NamedTuple):
    """Images that a subject was not trained on.

    Attributes:
      pixels: [N, h, w, C] uint8.
      labels: labels; None if their classes are not the model's.
      padding: padding of moved images.
      about: name of the images, in a line.
      originals: the first pictures as they are stored, see `choose_pictures`.
      digest: names the images.
    """

    subject: TrainedViT
    pixels: np.ndarray
    labels: np.ndarray | None
    padding: str
    about: str
    originals: Sequence[Any]
    digest: str

    @property
    def size(self) -> tuple[int, int]:
        return self.pixels.shape[1:3]

    @property
    def site(self):
        return self.subject.model.sites(*self.size)

    @property
    def grid(self) -> tuple[int, int]:
        return self.subject.model.patches(*self.size)

    @property
    def patch(self) -> int:
        return self.subject.model.cell


def choose_pictures(
    subject: TrainedViT,
    name: str | None,
    split: str | None,
    directory: str | None,
    count: int,
    padding: str | None = None,
    kept: int = 0,
) -> Pictures:
    """Draws so many images from seed 0, or takes all; None for the run's own evaluation.

    Args:
      name: name of the set; a file of weights has no set of its own.
      kept: number of images that are kept as they are stored, too.

    Raises:
      ValueError: the set is unknown.
    """
    own, size, mode, note = subject.data, tuple(subject.model.image_size), "crop", ""
    if own is not None:
        name, split, padding = name or own.name, split or own.eval_split, padding or own.padding
        directory, mode = own.data_dir, own.mode
    if mode == "native":  # its model.image_size is the size of its tables, not of an image
        size, mode = (subject.model.patch_size * math.isqrt(own.max_patches),) * 2, "crop"
        note = f", squares of as many patches as it was trained on ({own.max_patches} at most)"
    split, channels = split or "test", subject.channels
    found = data.load_native_images(name, split, data_dir=directory, channels=channels)
    chosen = np.random.default_rng(0).permutation(len(found))[:count]
    pixels = np.stack([data.preprocess(found[int(i)], size, mode, channels=channels) for i in chosen])
    labels = np.asarray(found.label)[chosen] if found.num_classes == subject.model.num_classes else None
    about, digest = f"{name}, {split}{note}", hashlib.sha256(pixels.tobytes()).hexdigest()[:24]
    originals = [found[int(index)] for index in chosen[:kept]]
    return Pictures(subject, pixels, labels, padding or "edge", about, originals, digest)
