"""What is looked at: a vision transformer, what its seeds learned, and how images come to it, of a run or of a file."""

import math
import pathlib
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from posjax import data, pretrained
from posjax.models import ViT
from posjax.models.vit import image_channels
from posjax.spec import layers_text, parse_layers
from posjax.training.runs import is_run, load_run

_METHOD = "torch_bicubic"  # of resizing tables of models that were trained here


class Subject(NamedTuple):
    """A model with the parameters of each seed, and the scale of its pixels.

    Attributes:
      data: the fields of the run's config that say which images it saw; None for a file.
      classes: their names; None where nobody says.
      method: of resizing tables.
      about: where it comes from, in a line.
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
        """Pixels of uint8 at the model's scale: one number is that of all channels, and grey is scaled as the first."""
        mean, std = (each if len(each) == self.channels else each[:1] * self.channels for each in (self.mean, self.std))
        return data.normalise(images, mean, std)


def load(checkpoint: pathlib.Path, *, data_dir: str | None = None, **told: Any) -> Subject:
    """The subject of a workdir, or of a file of pretrained weights.

    Args:
      data_dir: where sets are, if not where the run found them.
      told: what a file does not say; see `posjax.pretrained.load`. None counts as nothing.

    Raises:
      ValueError: no ViT, something told of a run, and whatever the reader of a file refuses.
      FileNotFoundError: there is no such checkpoint.
    """
    if not checkpoint.exists():
        raise FileNotFoundError(f"there is no checkpoint {checkpoint}: give a workdir, or a file of weights")
    told = {name: value for name, value in told.items() if value is not None}
    if holds_weights(checkpoint):
        return _of_file(checkpoint, told)
    if told:
        flags = ", ".join(f"--{name}" for name in told)
        raise ValueError(f"{flags}: for files of weights, but the run {checkpoint} knows its own, leave it out")
    return _of_run(checkpoint, data_dir)


def holds_weights(checkpoint: pathlib.Path) -> bool:
    """Whether it is a file, or a folder with files, of weights; a run is not."""
    return not is_run(checkpoint) and (checkpoint.is_file() or any(checkpoint.glob("*.safetensors*")))


def _of_run(workdir: pathlib.Path, data_dir: str | None) -> Subject:
    run = load_run(workdir, data_dir=data_dir)
    if not isinstance(run.model, ViT):
        raise ValueError(f"{workdir} holds a {type(run.model).__name__}: only vision transformers are looked at")
    config, params = run.config.data, [run.of(index) for index in range(len(run.seeds))]
    about = f"{workdir}: step {run.step} of {len(run.seeds)} seeds, {run.model.encoding}"
    classes = run.task.train_data.classes or None
    return Subject(run.model, params, run.seeds, tuple(config.mean), tuple(config.std), config, classes, _METHOD, about)


def _of_file(path: pathlib.Path, told: dict[str, Any]) -> Subject:
    info = pretrained.info(path, **told)
    model, variables = pretrained.load(path, **told)
    sizes = f"width {model.block.width}, {model.depth} layers of {model.block.num_heads} heads, {model.encoding}"
    about = f"{path.name}: {info.origin}, {sizes}"
    return Subject(model, [variables["params"]], (0,), info.mean, info.std, None, info.labels, info.method, about)


class Pictures(NamedTuple):
    """Images that a subject was not trained on.

    Attributes:
      pixels: [N, h, w, C] uint8.
      labels: None where they are not those that the model answers with.
      padding: what comes in when they are moved.
      about: which they are.
    """

    subject: Subject
    pixels: np.ndarray
    labels: np.ndarray | None
    padding: str
    about: str

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


def pictures(
    subject: Subject, name: str | None, split: str | None, directory: str | None, count: int, padding: str | None = None
) -> Pictures:
    """As many images as asked, or all there are, drawn from seed 0; None for what the run was evaluated on.

    Args:
      name: of the set; a file of weights knows none of its own.

    Raises:
      ValueError: there is no such set.
    """
    own, size, mode, note = subject.data, tuple(subject.model.image_size), "crop", ""
    if own is not None:
        name, split, directory, padding = (
            name or own.name,
            split or own.eval_split,
            own.data_dir,
            padding or own.padding,
        )
        mode = own.mode
    if mode == "native":  # whose model.image_size is that of its tables, and no image's
        size, mode = (subject.model.patch_size * math.isqrt(own.max_patches),) * 2, "crop"
        note = f", squares of as many patches as it was trained on ({own.max_patches} at most)"
    split, channels = split or "test", subject.channels
    found = data.load_native_images(name, split, data_dir=directory, channels=channels)
    chosen = np.random.default_rng(0).permutation(len(found))[:count]
    pixels = np.stack([data.preprocess(found[int(i)], size, mode, channels=channels) for i in chosen])
    labels = np.asarray(found.label)[chosen] if found.num_classes == subject.model.num_classes else None
    return Pictures(subject, pixels, labels, padding or "edge", f"{name}, {split}{note}")
