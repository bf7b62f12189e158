"""Features of a ViT at other sizes and with shuffled patches, as rows with a number for each image."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, UInt8

from experiments.analysis.measured import Rows
from experiments.analysis.probes import cut
from experiments.analysis.subject import Pictures, Subject
from posjax import data
from posjax.data.preprocess import Source
from posjax.encoding import Site
from posjax.encodings.resize import METHODS
from posjax.models import ViT, resize_params

CLS, MEAN = "cosine of the class token", "cosine of the mean patch"
ALONG, IN_PLACE = "patches shuffled with their positions", "patches shuffled, positions in place"
OTHER_IMAGES = "other images"
# Some presets are one resampling under two names: the first one stands here.
DISTINCT_METHODS = tuple({way: name for name, way in reversed(METHODS.items())}.values())[::-1]
_BATCH_TOKENS = 4096

Features = dict[str, Float[np.ndarray, "N M"]]  # of the class token, if the model has one, and the mean of the patches
Cosines = dict[str, Float[np.ndarray, " N"]]


def not_resized(images: Pictures) -> str | None:
    """The reason that features at other sizes are left out; None if they are measured."""
    model = images.subject.model
    if model.norm_after_pooling or model.distillation_token:
        return "the norm is behind the pooling, or there are two heads"
    if images.patch != model.patch_size or any(side % images.patch for side in images.size):
        return "cells of a convolutional stem, or patches that stick out of the images"
    if min(images.grid) < 2:
        return "the images have one row or column of patches"
    return None


def measure_resized(images: Pictures, tick: Callable[[int], Any]) -> Rows:
    """Returns the rows of the first images, `originals`, at half the height and size, and with their patches shuffled."""
    (height, width), patch, count = images.subject.model.image_size, images.patch, len(images.originals)
    smaller = (height // 2 // patch * patch, width // 2 // patch * patch)
    rows: Rows = {}
    sizes = [smaller, (smaller[0], width)]
    for row, cosines in resized_features(images.subject, images.originals, sizes, (*DISTINCT_METHODS, None)):
        rows[row] = cosines
        tick(count)
    if images.size == (height, width):
        rows |= shuffled_tokens(images.subject, images.pixels[:count])
        tick(count)
    return rows


def resized_features(
    subject: Subject, pictures: Sequence[Source], sizes: Sequence[tuple[int, int]], methods: Sequence[str | None]
) -> Iterator[tuple[str, Cosines]]:
    """Yields ("8x8, METHOD", cosines to the features at the model's own size) for each size and way to resize its tables.

    Pictures are stretched to every size, so that a thing keeps its relative place, as the rows of a resized table do. The
    first cosines, `OTHER_IMAGES`, compare each picture with all others at the own size: a scale for the rest.

    Args:
      subject: its first seed is read.
      pictures: see `posjax.data.read_image`.
      sizes: (height, width) in pixels.
      methods: names of `posjax.encodings.resize.METHODS`; None leaves the table as it is, so that patches read the rows of
        its upper left corner.
    """
    model, params = with_all_tokens(subject.model, subject.params[0])

    def features(model: ViT, params: Any, size: tuple[int, int]) -> Features:
        site = model.sites(*size)
        count = max(1, _BATCH_TOKENS // len(site.segment))
        pixels = [data.preprocess(picture, size, "stretch", channels=subject.channels) for picture in pictures]
        batches = [subject.normalised(np.stack(pixels[at : at + count])) for at in range(0, len(pixels), count)]
        tokens = [np.asarray(_tokens(model, params, images, site)) for images in batches]
        return _pooled(subject, np.concatenate(tokens))

    original = features(model, params, tuple(model.image_size))
    yield OTHER_IMAGES, {name: _to_others(x) for name, x in original.items()}
    for size in sizes:
        for method in methods:
            changed = (model, params) if method is None else resize_params(model, params, size, method)
            yield f"{size[0]}x{size[1]}, {method or 'not resized'}", _cosines(original, features(*changed, size))


@functools.partial(jax.jit, static_argnums=0)
def _tokens(model: ViT, params: Any, images: jax.Array, site: Site) -> jax.Array:
    return model.apply({"params": params}, images, site)


def shuffled_tokens(subject: Subject, images: UInt8[np.ndarray, "N h w c"]) -> dict[str, Cosines]:
    """Measures features with patches in random order, with and without their positions, against those in raster order.

    A transformer with explicit positions does not mind the order of its tokens: with their positions the cosine is 1 but
    for rounding. If positions stay, each patch takes the place of another one, as in Naseer et al. (2021), arXiv 2105.10497:
    features lose as much as the model reads from positions.

    Args:
      subject: its first seed is read.
      images: pixels of the model's own size.
    """
    model, params = with_all_tokens(subject.model, subject.params[0])
    first, count = model.num_prefix, np.prod(model.patches(*images.shape[1:3]))
    order = np.tile(np.arange(first + count), (len(images), 1))
    order[:, first:] = first + np.random.default_rng(0).permuted(np.tile(np.arange(count), (len(images), 1)), axis=1)
    site, outputs = jax.tree.map(np.asarray, model.sites(*images.shape[1:3])), []
    size = max(1, _BATCH_TOKENS // order.shape[1])
    for start in range(0, len(images), size):
        chosen = order[start : start + size]
        patches = cut(np.asarray(subject.normalised(images[start : start + size])), model.patch_size)
        patches = np.pad(patches, ((0, 0), (first, 0), *[(0, 0)] * 3))  # slots of prefix tokens, which are not read
        shuffled = np.take_along_axis(patches, chosen[..., None, None, None], axis=1)
        fixed = jax.tree.map(lambda leaf, like=chosen: np.broadcast_to(leaf, (len(like), *leaf.shape)), site)
        along = jax.tree.map(lambda leaf, chosen=chosen: leaf[chosen], site)
        cases = ((patches, fixed), (shuffled, along), (shuffled, fixed))
        outputs.append([np.asarray(_tokens(model, params, *case)) for case in cases])
    original, *changed = (_pooled(subject, np.concatenate(tokens)) for tokens in zip(*outputs, strict=True))
    return {row: _cosines(original, x) for row, x in zip((ALONG, IN_PLACE), changed, strict=True)}


def with_all_tokens(model: ViT, params: Mapping[str, Any]) -> tuple[ViT, Mapping[str, Any]]:
    """Returns the model without head and pooling, whose output is all tokens; a class token becomes its first register."""
    if model.pooling == "none":
        return model, params
    prefix = [params[name] for name in ("cls", "registers") if name in params]
    changed = {**params, "registers": np.concatenate(prefix)} if prefix else params
    return model.clone(pooling="none", num_classes=0, pre_logits=None, num_registers=model.num_prefix), changed


def _pooled(subject: Subject, tokens: Float[np.ndarray, "N T M"]) -> Features:
    """Returns the mean of the patches, and the class token of a model that has one."""
    model = subject.model
    features = {MEAN: tokens[:, model.num_prefix :].mean(axis=1)}
    has_cls = model.has_cls or (model.pooling == "none" and model.num_prefix)
    return features | ({CLS: tokens[:, 0]} if has_cls else {})


def _cosines(original: Features, changed: Features) -> Cosines:
    return {name: (_unit(x) * _unit(changed[name])).sum(axis=1) for name, x in original.items()}


def _to_others(features: Float[np.ndarray, "N M"]) -> Float[np.ndarray, " N"]:
    """Returns the mean cosine of each image to all others; nan for a single image."""
    near = _unit(features) @ _unit(features).T
    return (near.sum(axis=1) - np.diagonal(near)) / (len(near) - 1 or np.nan)


def _unit(x: Float[np.ndarray, "N M"]) -> Float[np.ndarray, "N M"]:
    x = np.asarray(x, np.float64)
    return x / np.linalg.norm(x, axis=1, keepdims=True)
