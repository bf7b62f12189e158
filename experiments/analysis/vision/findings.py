"""Measures the numbers of `experiments.analyse`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.analysis.frequencies import Waves, frequency_use
from experiments.analysis.frequencies import waves as waves_of
from experiments.analysis.vision import attention as maps
from experiments.analysis.vision import positions
from experiments.analysis.vision.filters import Components, filter_components
from experiments.analysis.vision.intermediates import Intermediates, dims_of, intermediates_of, layer_encodings, turning
from experiments.analysis.vision.probes import position_probe, right_when_shuffled, right_when_translated
from experiments.analysis.vision.subject import Pictures

SHARES = (0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
_FLOATS = 2**26  # most attention weights of a batch
_PREDICTED = 250  # images per batch
_PROFILED = 2  # images whose attention by distance is averaged
_PIXEL_STEPS = 8  # largest number of shifts below a patch

Tick = Callable[[int], Any]


class AttentionFindings(NamedTuple):
    """Measurements by seed R and layer L; `use` is None if no pairs of channels turn."""

    distance: np.ndarray  # [R, L, H] pixels
    uniform: float
    prefix: np.ndarray  # [R, L, H] share
    read: np.ndarray  # [R, L, H, K, 2] `maps.spread` of what each of the K tokens without position reads
    use: np.ndarray | None  # [R, L, H, P] mean of |q_c| |k_c|
    query: np.ndarray | None  # [R, L, H, P] mean of |q_c|
    key: np.ndarray | None
    position: np.ndarray | None  # [R, L + 1, 3]: R^2 of row and column, share of patches named; None for one image


class Host(NamedTuple):
    """The probes of an encoding of the first seed, None where it has none; layers that share parameters are one host."""

    name: str
    codes: np.ndarray | None  # [h, w, M]
    agreement: np.ndarray | None  # [H, h, w, h, w]
    bias: np.ndarray | None


class Robustness(NamedTuple):
    """Marks of the images that are classified right, with `SHARES` of their patches shuffled and moved by `shifts` pixels."""

    shuffled: np.ndarray  # [R, S, N] bool
    shifts: list[int]
    translated: np.ndarray  # [R, S, 4, N] bool


class Findings(NamedTuple):
    """All measurements; `robustness` is None if the images cannot be classified or moved."""

    attention: AttentionFindings
    hosts: list[Host]
    waves: list[Waves | None]  # of each layer of the first seed
    filters: Components
    rollout: np.ndarray  # [N, h, w] of the first seed
    answers: np.ndarray | None  # [N] of the first seed
    profile: np.ndarray  # [L, H, K] of the first seed: mean attention of a patch to a patch K patches away
    read: np.ndarray  # [L, H, K, h, w] of the first seed and image: `maps.attention_of_prefix`
    robustness: Robustness | None


def measure_all(images: Pictures, look_at: int, show: int, tick: Tick) -> Findings:
    """Measures everything: all images are shuffled and moved, `look_at` of them give intermediates, `show` are pictured.

    Args:
      images: the pictures.
      look_at: number of images whose intermediates are measured.
      show: number of images shown.
      tick: called with the number of images read so far, of `work(images, look_at)`.
    """
    hosts, waves = _hosts(images)
    attention = _attention(images, min(look_at, len(images.pixels)), waves, tick)
    rollout, answers, profile, read = _shown(images, show)
    robustness = None if _unmoved(images) else _robustness(images, tick)
    kernel = images.subject.params[0]["patches_to_tokens"]["kernel"]
    return Findings(attention, hosts, waves, filter_components(kernel), rollout, answers, profile, read, robustness)


def work(images: Pictures, look_at: int) -> int:
    """Returns the number of images that `measure_all` will read."""
    passes = 0 if _unmoved(images) else len(SHARES) + 4 * len(_shifts(images)) - 3
    return len(images.subject.params) * (min(look_at, len(images.pixels)) + passes * len(images.pixels))


def unmeasured(images: Pictures, look_at: int) -> list[str]:
    """The measures left out, with reasons."""
    parts = [f"patch shuffling and translation: {reason}"] if (reason := _unmoved(images)) else []
    if min(look_at, len(images.pixels)) < 2:
        parts.append("the linear probe: it is fitted to one image and scored on another")
    return parts


def _unmoved(images: Pictures) -> str | None:
    """The reason that patches and images are not moved; None if they are."""
    if images.labels is None:
        return "the images have other classes than the model"
    if any(side % images.patch for side in images.size):
        return f"cells of {images.patch} pixels stick out of the images"
    return None


def _hosts(images: Pictures) -> tuple[list[Host], list[Waves | None]]:
    model, site, dims = images.subject.model, images.site, dims_of(images.subject.model)
    layers = layer_encodings(model, images.subject.params[0])
    hosts, waves = [], {}
    for layer in {layer.name: layer for layer in layers}.values():
        arguments = layer.encoding, layer.params, dims, site
        codes, bias = positions.code_table(*arguments), positions.bias_map(*arguments)
        agreement = positions.rotation_agreement(*arguments)
        turns = agreement is not None and not np.allclose(agreement, 1)
        waves[layer.name] = waves_of(*arguments)
        own = [str(i + 1) for i, other in enumerate(layers) if other.name == layer.name]
        name = "all layers" if len(own) == len(layers) else f"layer {', '.join(own)}"
        found = codes if codes.any() else None, agreement if turns else None, bias if bias.any() else None
        hosts.append(Host(name, *found))
    return hosts, [waves[layer.name] for layer in layers]


def _attention(images: Pictures, count: int, waves: list[Waves | None], tick: Tick) -> AttentionFindings:
    model, site = images.subject.model, images.site
    look, batch = intermediates_of(model, site), _batch(images)
    # Layers that host other encodings may turn other pairs: without a common table nothing is shown.
    shapes = {layer and layer.wave.shape for layer in waves}
    turns = len(shapes) == 1 and None not in shapes
    found = []
    for params in images.subject.params:
        sums, tokens = 0.0, []
        for first in range(0, count, batch):
            pixels = images.pixels[first : min(first + batch, count)]
            seen = look(params, images.subject.normalised(pixels))
            sums = sums + len(pixels) * _of_batch(seen, images, waves if turns else None)
            tokens.append([np.asarray(layer, np.float32) for layer in seen.tokens])
            tick(len(pixels))
        half = count // 2
        by_layer = (np.concatenate(layer) for layer in zip(*tokens, strict=True))
        found.append((sums / count, np.array([position_probe(x[:half], x[half:], site) for x in by_layer if half])))
    means, position = (np.stack(each) for each in zip(*found, strict=True))
    uniform = maps.uniform_distance(site, images.patch)
    read, used = np.split(means[..., 2:], [2 * model.num_prefix], axis=-1)
    used = np.split(used, 3, axis=-1) if turns else [None] * 3
    read = read.reshape(*read.shape[:-1], model.num_prefix, 2)
    return AttentionFindings(means[..., 0], uniform, means[..., 1], read, *used, position if half else None)


def _of_batch(seen: Intermediates, images: Pictures, waves: list[Waves] | None) -> np.ndarray:
    """Returns [L, H, 2 + 2 K + 3 P]: mean distance, share of the prefix, spread and entropy of what its K tokens read, and
    use, |q| and |k| of the P pairs of channels."""
    layers = []
    for layer, weights in enumerate(seen.weights):
        distance = maps.attention_distance(weights, images.site, images.patch)
        read = maps.spread(maps.attention_of_prefix(weights, images.site), images.patch).mean(axis=0)
        columns = [distance, maps.share_of_prefix(weights, images.site), *read.reshape(len(read), -1).T]
        if waves is not None:
            q, k = (turning(images.subject.model, each[layer]) for each in (seen.query, seen.key))
            used = frequency_use(q, k, waves[layer].pairs, images.site)
            columns += [*used.product.T, *used.query.T, *used.key.T]
        layers.append(np.stack(columns, axis=-1))
    return np.stack(layers)


def _shown(images: Pictures, show: int) -> tuple[np.ndarray, np.ndarray | None, np.ndarray, np.ndarray]:
    """Returns the rollout and the answers of the pictured images, and of the first ones the attention by distance and what
    tokens without position read."""
    model = images.subject.model
    seen = intermediates_of(model, images.site)(
        images.subject.params[0], images.subject.normalised(images.pixels[:show])
    )
    flow = maps.rollout(seen.weights)
    found = maps.rollout_map(flow, images.site, token=0 if model.pooling.startswith("cls") else None)
    profiles = [maps.attention_by_distance(layer[:_PROFILED], images.site).mean(axis=0) for layer in seen.weights]
    read = np.stack([maps.attention_of_prefix(layer[:1], images.site)[0] for layer in seen.weights])
    answers = np.asarray(seen.output).argmax(axis=-1) if model.num_classes else None
    return found, answers, np.stack(profiles), read


def _robustness(images: Pictures, tick: Tick) -> Robustness:
    subject, site, pixels, labels = images.subject, images.site, images.pixels, images.labels
    answer = jax.jit(lambda params, batch: subject.model.apply({"params": params}, batch, site).argmax(axis=-1))
    shifts, shuffled, translated = _shifts(images), [], []
    for params in subject.params:

        def predict(pixels: np.ndarray, params=params) -> np.ndarray:
            answers = []
            for first in range(0, len(pixels), _PREDICTED):
                part = pixels[first : first + _PREDICTED]
                filled = np.pad(part, [(0, min(_PREDICTED, len(pixels)) - len(part)), *[(0, 0)] * 3])
                answers.append(np.asarray(answer(params, subject.normalised(filled)))[: len(part)])
                tick(len(part))
            return np.concatenate(answers)

        rng = np.random.default_rng(0)  # the same shuffles for every seed
        shuffled.append(right_when_shuffled(predict, pixels, labels, images.patch, SHARES, rng))
        translated.append(right_when_translated(predict, pixels, labels, shifts, images.padding))
    return Robustness(np.stack(shuffled), shifts, np.stack(translated))


def _shifts(images: Pictures) -> list[int]:
    """Returns the shifts: pixels up to a patch, then whole patches up to half the image, never the whole image."""
    patch, side = images.patch, min(images.size)
    within = {round(i) for i in np.linspace(0, patch, min(patch, _PIXEL_STEPS) + 1)}
    further = range(patch, side // 2 + 1, max(patch, patch * (side // 2 // patch // 4)))
    return [shift for shift in sorted(within | set(further)) if shift < side]


def _batch(images: Pictures) -> int:
    tokens = len(images.site.segment)
    return int(
        np.clip(_FLOATS // (images.subject.model.depth * images.subject.model.block.num_heads * tokens**2), 1, 64)
    )
