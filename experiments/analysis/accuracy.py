"""The subject of `experiments.evaluate`: a model with the parameters of each seed, on images of any size."""

import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from scipy.stats import binomtest

from experiments.analysis.subject import Subject, load_subject
from experiments.report.statistics import mean_interval
from posjax import data
from posjax.data.folders import pictures_in
from posjax.encodings.resize import resampling
from posjax.models import ViT, resize_params


def load_classifier(checkpoint: pathlib.Path, method: str | None, **options: Any) -> Subject:
    """Loads a model with a head, as `load_subject` does; `method` resizes its tables, None by its own.

    Raises:
      ValueError: the model has no head, or the method is unknown.
    """
    if method is not None:
        resampling(method)  # raises now, not behind the first batch
    subject = load_subject(checkpoint, **options)
    model = subject.model
    if not isinstance(model, ViT) or not model.num_classes or model.pooling == "none":
        raise ValueError(
            f"{checkpoint} has no head, so it knows no classes: train one on it, or look at experiments.analyse"
        )
    return subject if method is None else dataclasses.replace(subject, method=method)


def read_set(subject: Subject, name: str | None, split: str | None, directory: str | None, limit: int | None):
    """Loads the images of a set whose labels are the model's classes.

    Raises:
      ValueError: no set is named, or its number of classes is not the model's.
    """
    own = subject.data
    if name is None and own is None:
        raise ValueError("a file of weights does not say which images it is for: give --data=NAME, or --images=DIR")
    split = split or (own.eval_split if own and name in (None, own.name) else "test")
    directory = directory or (own.data_dir if own else None)
    images = data.open_images(name or own.name, split, directory, channels=subject.channels)
    if images.num_classes != subject.model.num_classes:
        raise ValueError(
            f"{images.name} has {images.num_classes} classes, the model {subject.model.num_classes}: its head was trained "
            "on others"
        )
    return images if limit is None else data.spread(images, limit)


def accuracy(
    subject: Subject, images, size: tuple[int, int], mode: str | None, fraction: float, batch_size: int
) -> tuple[str, str]:
    """Returns top-1 and top-5 accuracy in per cent, with their 95 % intervals, as text."""
    hits = np.zeros((len(subject.params), 2))
    models = _at(subject, size)
    for start in range(0, len(images), batch_size):
        chosen = range(start, min(start + batch_size, len(images)))
        pixels = [_preprocessed(images[index], subject, size, mode, fraction) for index in chosen]
        label = np.asarray(images.label)[chosen.start : chosen.stop]
        for seed, logits in enumerate(models(np.stack(pixels), batch_size)):
            rank = rank_of(logits, label)
            hits[seed] += (rank < 1).sum(), (rank < 5).sum()
    return tuple(_interval(hits[:, column] / len(images), len(images)) for column in (0, 1))


def rank_of(logits: np.ndarray, label: np.ndarray) -> np.ndarray:
    """The number of classes likelier than the labelled one; of equals the first, as for argmax, and NaN last."""
    own = np.take_along_axis(logits, label[:, None], axis=1)
    before = (logits == own) & (np.arange(logits.shape[1]) < label[:, None])
    return np.where(np.isnan(own[:, 0]), np.inf, ((logits > own) | before).sum(axis=1))


def likeliest(
    subject: Subject, folder: pathlib.Path, size: tuple[int, int], mode: str | None, fraction: float, top: int
) -> Iterator[tuple[str, list[tuple[int, float]]]]:
    """Yields the path of each picture in a folder and below, and its likeliest classes (index, probability) over all seeds.

    Raises:
      ValueError: the folder has no pictures, or a picture cannot be read.
    """
    pictures = pictures_in(folder)
    models = _at(subject, size)
    for picture in pictures:
        pixels = _preprocessed(picture, subject, size, mode, fraction)[None]
        chance = np.mean([jax.nn.softmax(logits[0]) for logits in models(pixels, 1)], axis=0)
        order = np.argsort(-chance, kind="stable")[:top]
        yield picture.relative_to(folder).as_posix(), [(int(index), float(chance[index])) for index in order]


def label_names(subject: Subject, path: str | None) -> tuple[str, ...]:
    """Returns the names of the model's classes: from a file (one a line), its configuration or its data, or else numbers.

    Raises:
      ValueError: the file has another number of names.
    """
    count = subject.model.num_classes
    if path is None:
        return subject.classes or tuple(f"class {index}" for index in range(count))
    names = tuple(line.strip() for line in pathlib.Path(path).read_text().splitlines() if line.strip())
    if len(names) != count:
        raise ValueError(f"{path} names {len(names)} classes, the model has {count}")
    return names


def _at(subject: Subject, size: tuple[int, int]):
    """Returns a function (pixels [n, h, w, C], batch size) -> logits [n, classes] of each seed; it fills up batches."""
    changed = [resize_params(subject.model, params, size, subject.method) for params in subject.params]
    model, site = changed[0][0], changed[0][0].sites(*size)
    apply = jax.jit(lambda params, images: model.apply({"params": params}, images, site))

    def logits(pixels: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
        filled = np.concatenate([pixels, np.zeros((batch_size - len(pixels), *pixels.shape[1:]), pixels.dtype)])
        images = subject.normalised(filled)
        for _, params in changed:
            yield np.asarray(apply(params, images))[: len(pixels)]

    return logits


def _preprocessed(
    picture: Any, subject: Subject, size: tuple[int, int], mode: str | None, fraction: float
) -> np.ndarray:
    own = subject.data.mode if subject.data and subject.data.mode != "native" else "crop"
    return data.preprocess(picture, size, mode or own, channels=subject.channels, crop_fraction=fraction)


def _interval(values: np.ndarray, count: int) -> str:
    if len(values) > 1:
        return mean_interval(values.tolist()).scaled(100).text(2)
    low, high = binomtest(round(values[0] * count), count).proportion_ci(method="wilson")
    return f"{100 * values[0]:.2f} ({100 * low:.2f} to {100 * high:.2f})"
