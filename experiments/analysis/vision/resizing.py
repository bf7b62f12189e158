"""Features of a ViT at other sizes and with shuffled tokens: one number per image.

subject = load_vit(path, pooling="none")
for size, method, cosines in resized_features(subject, pictures, [(224, 224), (224, 448)], DISTINCT_METHODS): ...
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, UInt8

from experiments.analysis.vision.subject import TrainedViT
from posjax import data
from posjax.data.preprocess import Source
from posjax.encodings.resize import METHODS
from posjax.models import ViT, resize_params

# Some presets are one resampling under two names: the first one stands here.
DISTINCT_METHODS = tuple({way: name for name, way in reversed(METHODS.items())}.values())[::-1]
NOT_RESIZED = "not resized"
OTHER_IMAGES = "other images"
_BATCH_TOKENS = 4096


class FeatureCosines(NamedTuple):
    """The cosine of each image's features to its original ones; `cls` is None for a model without class token."""

    cls: Float[np.ndarray, " N"] | None
    mean: Float[np.ndarray, " N"]  # mean of the patches


class ShuffledCosines(NamedTuple):
    """Cosines after a shuffle of the patches: positions move along, or stay in place."""

    along: FeatureCosines
    in_place: FeatureCosines


def resized_features(
    subject: TrainedViT, pictures: Sequence[Source], sizes: Sequence[tuple[int, int]], methods: Sequence[str | None]
) -> Iterator[tuple[tuple[int, int], str, FeatureCosines]]:
    """Yields (size, method, cosines to the features at the model's own size) for each size and way to resize its tables.

    Pictures are stretched to every size, so that a thing keeps its relative place, as the rows of a resized table do. The
    first cosines, `OTHER_IMAGES`, compare each picture with all others at the own size: a scale for the rest.

    Args:
      subject: its first seed is read.
      pictures: see `posjax.data.read_image`.
      sizes: (height, width) in pixels.
      methods: names of `posjax.encodings.resize.METHODS`; None leaves the table as it is, so that patches read the rows of
        its upper left corner (sizes above the own are refused).

    Raises:
      ValueError: the patches do not tile a size, a method is unknown, or a size is above the own without resizing.
    """
    model, params = with_all_tokens(subject.model, subject.params[0])
    own = tuple(model.image_size)

    @functools.partial(jax.jit, static_argnums=0)
    def tokens_of(model: ViT, params: Any, images: jax.Array) -> jax.Array:
        return model.apply({"params": params}, images, model.sites(*images.shape[1:3]))

    def features(model: ViT, params: Any, size: tuple[int, int]) -> list[np.ndarray | None]:
        count = max(1, _BATCH_TOKENS // len(model.sites(*size).segment))
        pixels = [data.preprocess(picture, size, "stretch", channels=subject.channels) for picture in pictures]
        batches = [np.stack(pixels[first : first + count]) for first in range(0, len(pixels), count)]
        tokens = [np.asarray(tokens_of(model, params, subject.normalised(each))) for each in batches]
        return _pooled(subject, np.concatenate(tokens))

    original = features(model, params, own)
    yield own, OTHER_IMAGES, FeatureCosines(*map(_to_others, original))
    for size in sizes:
        for method in methods:
            changed = (model, params) if method is None else resize_params(model, params, size, method)
            yield tuple(size), method or NOT_RESIZED, _cosines(original, features(*changed, size))


def shuffled_tokens(subject: TrainedViT, images: UInt8[np.ndarray, "N h w c"]) -> ShuffledCosines:
    """Measures features with patches in random order, with and without their positions, against those in raster order.

    A transformer with explicit positions does not mind the order of its tokens: with their positions the cosine is 1 but
    for rounding. If positions stay, each patch takes the place of another one, as in Naseer et al. (2021), arXiv 2105.10497:
    features lose as much as the model reads from positions.

    Args:
      subject: its first seed is read; tables are resized by its own method if the images have another size.
      images: pixels.

    Raises:
      ValueError: the patches do not tile the images, or the model has a convolutional stem.
    """
    model, params = with_all_tokens(subject.model, subject.params[0])
    size, patch = images.shape[1:3], model.patch_size
    if tuple(size) != tuple(model.image_size):
        model, params = resize_params(model, params, size, subject.method)
    rows, columns = model.patches(*size)
    first, rng = model.num_prefix, np.random.default_rng(0)
    order = np.tile(np.arange(first + rows * columns), (len(images), 1))
    order[:, first:] = first + rng.permuted(np.tile(np.arange(rows * columns), (len(images), 1)), axis=1)
    site = jax.tree.map(np.asarray, model.sites(*size))
    apply = jax.jit(lambda params, patches, site: model.apply({"params": params}, patches, site))
    count, found = max(1, _BATCH_TOKENS // order.shape[1]), ([], [], [])
    for start in range(0, len(images), count):
        chosen = order[start : start + count]
        pixels = np.asarray(subject.normalised(images[start : start + count]))
        cut = pixels.reshape(len(pixels), rows, patch, columns, patch, -1).swapaxes(2, 3)
        cut = cut.reshape(len(pixels), rows * columns, patch, patch, -1)
        cut = np.pad(cut, ((0, 0), (first, 0), *[(0, 0)] * 3))  # slots of prefix tokens, which are not read
        shuffled = np.take_along_axis(cut, chosen[..., None, None, None], axis=1)
        fixed = jax.tree.map(lambda leaf, like=chosen: np.broadcast_to(leaf, (len(like), *leaf.shape)), site)
        along = jax.tree.map(lambda leaf, chosen=chosen: leaf[chosen], site)
        for outputs, arguments in zip(found, ((cut, fixed), (shuffled, along), (shuffled, fixed)), strict=True):
            outputs.append(np.asarray(apply(params, *arguments)))
    original, *changed = (_pooled(subject, np.concatenate(outputs)) for outputs in found)
    return ShuffledCosines(*(_cosines(original, each) for each in changed))


def with_all_tokens(model: ViT, params: Mapping[str, Any]) -> tuple[ViT, Mapping[str, Any]]:
    """Returns the model without head and pooling, whose output is all tokens; a class token becomes its first register.

    Raises:
      ValueError: the final norm is behind the pooling, or there is a distillation token.
    """
    if model.pooling == "none":
        return model, params
    if model.norm_after_pooling or model.distillation_token:
        raise ValueError(
            "features are tokens behind the final norm: this model has its norm behind the pooling, or two heads"
        )
    prefix = [params[name] for name in ("cls", "registers") if name in params]
    changed = {**params, "registers": np.concatenate(prefix)} if prefix else params
    return model.clone(pooling="none", num_classes=0, pre_logits=None, num_registers=model.num_prefix), changed


def _pooled(subject: TrainedViT, tokens: Float[np.ndarray, "N T M"]) -> list[np.ndarray | None]:
    """Returns the class token, None for a model without, and the mean of the patches."""
    model = subject.model
    cls = tokens[:, 0] if model.has_cls or (model.pooling == "none" and model.num_prefix) else None
    return [cls, tokens[:, model.num_prefix :].mean(axis=1)]


def _cosines(original: Sequence[np.ndarray | None], changed: Sequence[np.ndarray | None]) -> FeatureCosines:
    pairs = zip(original, changed, strict=True)
    return FeatureCosines(*(None if one is None else (_unit(one) * _unit(other)).sum(axis=1) for one, other in pairs))


def _to_others(features: Float[np.ndarray, "N M"] | None) -> Float[np.ndarray, " N"] | None:
    """Returns the mean cosine of each image to all others; nan for a single image."""
    if features is None:
        return None
    near = _unit(features) @ _unit(features).T
    return (near.sum(axis=1) - np.diagonal(near)) / (len(near) - 1 or np.nan)


def _unit(x: Float[np.ndarray, "N M"]) -> Float[np.ndarray, "N M"]:
    x = np.asarray(x, np.float64)
    return x / np.linalg.norm(x, axis=1, keepdims=True)
