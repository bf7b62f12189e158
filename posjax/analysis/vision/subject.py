"""What `experiments.analyse` looks at: a model, what its seeds learned, and images that it was not trained on."""

import math
import pathlib
from typing import Any, NamedTuple

import jax
import numpy as np

from posjax import data
from posjax.models import ViT
from posjax.models.vit import image_channels
from posjax.spec import layers_text, parse_layers
from posjax.training.runs import is_run, load_run


class Source(NamedTuple):
    """Which images: a set, a split of it and where sets are; None for what the run was evaluated on."""

    name: str | None = None
    split: str | None = None
    directory: str | None = None


class Subject(NamedTuple):
    """A model with the parameters of each seed, and pixels [N, h, w, C] as they are before `normalised`."""

    model: ViT
    params: list[Any]
    seeds: tuple[int, ...]
    images: np.ndarray
    labels: np.ndarray | None  # None where they are not those that the model answers with
    mean: tuple[float, ...]
    std: tuple[float, ...]
    padding: str  # of what comes in when images are moved
    about: str  # the images
    size: tuple[int, int]  # of them

    def normalised(self, images: np.ndarray) -> jax.Array:
        return data.normalise(images, self.mean, self.std)

    @property
    def site(self):
        return self.model.sites(*self.size)

    @property
    def grid(self) -> tuple[int, int]:
        return self.model.patches(*self.size)

    @property
    def patch(self) -> int:
        return self.model.cell

    @property
    def encoding(self) -> str:
        return layers_text(parse_layers(self.model.encoding))


def load(checkpoint: pathlib.Path, source: Source, count: int, padding: str | None = None) -> Subject:
    """The subject of a workdir, or of a file of pretrained weights, with `count` images drawn from seed 0.

    Raises:
      ValueError: no ViT, or no images for it.
      FileNotFoundError: there is no such checkpoint.
    """
    if not checkpoint.exists():
        raise FileNotFoundError(f"there is no checkpoint {checkpoint}: give a workdir, or a file of weights")
    if is_run(checkpoint) or not (checkpoint.is_file() or any(checkpoint.glob("*.safetensors"))):
        subject = _of_run(checkpoint, source, count)
    else:
        subject = _of_file(checkpoint, source, count)
    return subject if padding is None else subject._replace(padding=padding)


def _of_run(workdir: pathlib.Path, source: Source, count: int) -> Subject:
    run = load_run(workdir, data_dir=source.directory)
    if not isinstance(run.model, ViT):
        raise ValueError(f"{workdir} holds a {type(run.model).__name__}: analyse looks at vision transformers")
    config, model = run.config.data, run.model
    params = [run.of(index) for index in range(len(run.seeds))]
    source = Source(source.name or config.name, source.split or config.eval_split, config.data_dir)
    about, size, mode = f"{source.name}, {source.split}", tuple(model.image_size), config.mode
    if mode == "native":  # whose model.image_size is that of its tables, and no image's
        size, mode = (model.patch_size * math.isqrt(config.max_patches),) * 2, "crop"
        about += f", squares of as many patches as it was trained on ({config.max_patches} at most)"
    pixels, labels = _images(source, model, params[0], count, mode, size)
    scale = tuple(config.mean), tuple(config.std)
    return Subject(model, params, run.seeds, pixels, labels, *scale, config.padding, about, size)


def _of_file(path: pathlib.Path, source: Source, count: int) -> Subject:
    from posjax.models import pretrained

    if source.name is None:
        raise ValueError(f"{path} does not say which images it is for: give --data=NAME (or folder, with --data_dir)")
    model, variables = pretrained.load(path)
    info, params = pretrained.info(path), variables["params"]
    source = source._replace(split=source.split or "test")
    size = tuple(model.image_size)
    pixels, labels = _images(source, model, params, count, "crop", size)
    # Published files are of colours; one for grey images has one value, three times.
    mean, std = (values[: pixels.shape[-1]] for values in (info.mean, info.std))
    about = f"{source.name}, {source.split}"
    return Subject(model, [params], (0,), pixels, labels, mean, std, "edge", about, size)


def _images(
    source: Source, model: ViT, params: Any, count: int, mode: str, size: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray | None]:
    """As many images as asked, or all, of that size and the model's channels."""
    channels = image_channels(params)
    where = dict(data_dir=source.directory)
    found = data.load_native_images(source.name, source.split, **where, channels=channels)
    chosen = np.random.default_rng(0).permutation(len(found))[:count]
    pixels = np.stack([data.preprocess(found[int(i)], size, mode, channels=channels) for i in chosen])
    labels = np.asarray(found.label)[chosen] if found.num_classes == model.num_classes else None
    return pixels, labels
