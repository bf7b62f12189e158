"""Findings in a vision transformer: what its encoding does to patches, where its heads look, and what moving patches costs.

Rows have a number for each seed, or for each image where one model is measured.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from experiments.analysis import patches, positions, probes, resizing, tables
from experiments.analysis.frequencies import Waves, frequency_use, layer_waves
from experiments.analysis.layers import Layers, look
from experiments.analysis.measured import Findings, Group, Rows
from experiments.analysis.subject import OWN, Pictures, Subject
from experiments.progress import bar, caption
from posjax.encoding import Array, Encoding, Params

DISTANCE, UNIFORM = "attention distance (pixels)", "attention distance (pixels), uniform"
PREFIX = "attention on tokens without position"
FAR, ENTROPY = "distance of its patches from their centre (pixels)", "entropy of its patches (nats)"
PROBES = ("R² of the row", "R² of the column", "share of patches named")
SHUFFLED, TRANSLATED = "accuracy by share of shuffled patches", "accuracy by pixels of translation"
ROW, COLUMN, BOTH = "variance in row codes", "variance in column codes", "variance in row + column codes"
TABLE, SHUFFLED_TABLE = "the table", "the table with its rows shuffled"
SHARES = (0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
_FLOATS = 2**26  # most attention weights of a batch
_PREDICTED = 250  # images per batch
_PROFILED = 2  # images whose attention by distance is averaged
_PIXEL_STEPS = 8  # largest number of shifts below a patch

Tick = Callable[[int], Any]
Arrays = dict[str, np.ndarray]


def measure_vit(images: Pictures, look_at: int, show: int) -> Findings:
    """Measures everything: all images are shuffled and moved, `look_at` of them are looked into, `show` are pictured."""
    look_at = min(look_at, len(images.pixels))
    subject, seeds = images.subject, len(images.subject.params)
    passes = 0 if _unmoved(images) else len(SHARES) + 4 * len(_shifts(images)) - 3
    total = seeds * (look_at + passes * len(images.pixels)) + 14 * len(images.originals)
    with bar(total, "image", unit_scale=True) as progress:
        arrays = _effects(images)
        arrays |= filter_components(subject.params[0]["patches_to_tokens"]["kernel"])
        caption(progress, "attention")
        attention = _attention(images, look_at, progress.update)
        arrays |= {"use": attention["use"]} if "use" in attention else {}
        arrays |= _shown(images, show)
        groups = [Group("seed", [""] * seeds, {OWN: _metrics(images, attention)})]
        if not _unmoved(images):
            caption(progress, "patches and images moved")
            groups.append(_robustness(images, progress.update))
        if not resizing.not_resized(images):
            caption(progress, "other sizes")
            titles = [f"image {index}" for index in range(len(images.originals))]
            groups.append(Group("image", titles, resizing.measure_resized(images, progress.update)))
            groups.append(Group("group of channels", [""] * len(titles), _table(subject.params[0], len(titles))))
        progress.total = progress.n
        progress.refresh()
    return Findings(groups, arrays)


def left_out(images: Pictures, look_at: int) -> list[str]:
    """The measures left out, with reasons."""
    parts = [f"patch shuffling and translation: {reason}"] if (reason := _unmoved(images)) else []
    if min(look_at, len(images.pixels)) < 2:
        parts.append("the linear probe: it is fitted to one image and scored on another")
    return parts + ([f"other sizes: {reason}"] if (reason := resizing.not_resized(images)) else [])


def _unmoved(images: Pictures) -> str | None:
    """The reason that patches and images are not moved; None if they are."""
    if images.labels is None:
        return "the images have other classes than the model"
    if any(side % images.patch for side in images.size):
        return f"cells of {images.patch} pixels stick out of the images"
    return None


def without_position(images: Pictures) -> list[str]:
    """Returns the names of the tokens without position, in their order."""
    model = images.subject.model
    return (
        ["class token"] * model.has_cls
        + ["distillation token"] * model.distillation_token
        + [f"register {index + 1}" for index in range(model.num_registers)]
    )


def hosts(subject: Subject) -> dict[str, tuple[Encoding, Params]]:
    """Returns the encodings by the layers that share them and their parameters: "all layers", "layer 1, 3"."""
    shared: dict[str, list[int]] = {}
    for index, (name, _, _) in enumerate(subject.layers):
        shared.setdefault(name, []).append(index)
    every = len(shared) == 1
    names = ["all layers" if every else f"layer {', '.join(str(i + 1) for i in own)}" for own in shared.values()]
    return {name: subject.layers[own[0]][1:] for name, own in zip(names, shared.values(), strict=True)}


def _effects(images: Pictures) -> Arrays:
    """Returns what each host of the first seed does to patches, by its index, and the waves of each layer."""
    subject, site, arrays = images.subject, images.site, {}
    for index, (encoding, params) in enumerate(hosts(subject).values()):
        codes, agreement, bias = positions.effects(encoding, params, subject.dims, site)
        arrays |= {f"codes_{index}": codes} if codes.any() else {}
        arrays |= {f"bias_{index}": bias} if bias.any() else {}
        if agreement is not None and not np.allclose(agreement, 1):
            arrays[f"rotation_agreement_{index}"] = agreement
    waves = layer_waves(subject, site)
    return arrays | {f"waves_{index}": layer.wave for index, layer in enumerate(waves) if layer is not None}


def filter_components(kernel: Float[Array, "p p2 C M"], count: int = 28) -> Arrays:
    """Returns the first principal components of M filters of p x p2 pixels and C channels, and their shares of variance.

    Dosovitskiy et al. (2020), arXiv 2010.11929, figure 7 left, which shows 28 of ViT-L/32. The paper does not say whether the
    mean filter is subtracted first; here it is, so shares are of the variance about it. Components have length 1; the entry
    of largest magnitude is positive.
    """
    filters = np.asarray(kernel, np.float64).reshape(-1, np.shape(kernel)[3]).T
    _, singular, components = np.linalg.svd(filters - filters.mean(axis=0), full_matrices=False)
    largest = np.take_along_axis(components, np.abs(components).argmax(axis=1)[:, None], axis=1)
    components = components * np.where(largest < 0, -1.0, 1.0)  # an SVD does not fix the sign
    variance = singular**2
    share = variance / (variance.sum() or 1.0)
    return {"filters": components[:count].reshape(-1, *np.shape(kernel)[:3]), "filters_share": share[:count]}


def _attention(images: Pictures, count: int, tick: Tick) -> Arrays:
    """Returns the means of `_of_layer` over images, [R, L, H, ...], and the scores of the probe, [R, L + 1, 3]."""
    subject, site, waves = images.subject, images.site, layer_waves(images.subject, images.site)
    # Layers that host other encodings may turn other pairs: without a common table nothing is shown.
    shapes = {layer and layer.wave.shape for layer in waves}
    turning = waves if len(shapes) == 1 else [None] * len(waves)
    weights = subject.model.depth * subject.model.block.num_heads * len(site.segment) ** 2
    size, half = int(np.clip(_FLOATS // weights, 1, 64)), count // 2
    seeds = []
    for params in subject.params:
        batches, tokens = [], []
        for first in range(0, count, size):
            pixels = images.pixels[first : min(first + size, count)]
            layers = look(subject.model, params, subject.normalised(pixels), site)
            by_layer = [_of_layer(images, layers, *each) for each in enumerate(turning)]
            batches.append({name: len(pixels) * np.stack([x[name] for x in by_layer]) for name in by_layer[0]})
            tokens.append([np.asarray(layer, np.float32) for layer in layers.tokens])
            tick(len(pixels))
        means = {name: sum(batch[name] for batch in batches) / count for name in batches[0]}
        if half:
            whole = map(np.concatenate, zip(*tokens, strict=True))
            means["position"] = np.array([probes.position_probe(x[:half], x[half:], site) for x in whole])
        seeds.append(means)
    return {name: np.stack([means[name] for means in seeds]) for name in seeds[0]}


def _of_layer(images: Pictures, layers: Layers, layer: int, waves: Waves | None) -> Arrays:
    """Returns the numbers of a layer: mean distance [H], share of the prefix [H], `patches.spread` of what each of its K
    tokens reads [H, K, 2], and use of the P pairs of channels [H, P]."""
    weights, site = layers.weights[layer], images.site
    numbers = dict(distance=patches.attention_distance(weights, site, images.patch))
    numbers["prefix"] = patches.share_of_prefix(weights, site)
    numbers["read"] = patches.spread(patches.attention_of_prefix(weights, site), images.patch).mean(axis=0)
    if waves is None:
        return numbers
    channels = images.subject.dims.head_dim  # those that turn are a head's last ones
    query, key = (x[layer][..., -channels:] for x in (layers.query, layers.key))
    return numbers | {"use": frequency_use(query, key, waves.pairs, site)}


def _metrics(images: Pictures, attention: Arrays) -> dict[str, Any]:
    """Returns the numbers of the heads by layer (from 1) and head (from 0), and of the probe by layer (0: the embedding)."""
    uniform = patches.distances(images.site, images.patch).mean()
    metrics = {DISTANCE: _by_place(attention["distance"]), UNIFORM: np.full(len(attention["distance"]), uniform)}
    metrics[PREFIX] = _by_place(attention["prefix"])
    for index, name in enumerate(without_position(images)):
        metrics[f"{name}: {FAR}"] = _by_place(attention["read"][..., index, 0])
        metrics[f"{name}: {ENTROPY}"] = _by_place(attention["read"][..., index, 1])
    for index, name in enumerate(PROBES if "position" in attention else ()):
        metrics[name] = dict(enumerate(attention["position"][..., index].T))
    return metrics


def _by_place(values: Float[np.ndarray, "R L H"]) -> dict[tuple[int, int], np.ndarray]:
    return {(layer + 1, head): values[:, layer, head] for layer, head in np.ndindex(values.shape[1:])}


def _shown(images: Pictures, show: int) -> Arrays:
    """Returns the rollout and the answers of the pictured images, and of the first ones the attention by distance and what
    tokens without position read; of the first seed."""
    subject, site = images.subject, images.site
    layers = look(subject.model, subject.params[0], subject.normalised(images.pixels[:show]), site)
    token = 0 if subject.model.pooling.startswith("cls") else None
    arrays = {"rollout": patches.rollout_map(patches.rollout(layers.weights), site, token)}
    profiles = [patches.attention_by_distance(layer[:_PROFILED], site).mean(axis=0) for layer in layers.weights]
    arrays["attention_by_distance"] = np.stack(profiles)
    if subject.model.num_prefix:
        read = [patches.attention_of_prefix(layer[:1], site)[0] for layer in layers.weights]
        arrays["attention_of_prefix"] = np.stack(read)
    if subject.model.num_classes:
        arrays["answers"] = np.asarray(layers.output).argmax(axis=-1)
    return arrays


def _robustness(images: Pictures, tick: Tick) -> Group:
    """Returns the accuracy by share and by shift: of each seed, or of each image if there is one seed."""
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
        mixed = (probes.shuffle_patches(pixels, images.patch, share, rng) for share in SHARES)
        shuffled.append(np.stack([predict(each) == labels for each in mixed]))
        moved = probes.right_when_translated(predict, pixels, labels, shifts, images.padding)
        translated.append(moved.mean(axis=1))
    several = len(subject.params) > 1
    by_place = [np.mean(x, axis=2).T if several else np.array(x[0], float) for x in (shuffled, translated)]
    rows: Rows = {"patches shuffled": {SHUFFLED: dict(zip(SHARES, by_place[0], strict=True))}}
    rows["images translated"] = {TRANSLATED: dict(zip(shifts, by_place[1], strict=True))}
    titles = [""] * len(subject.params) if several else [f"image {index}" for index in range(len(pixels))]
    return Group("seed" if several else "image", titles, rows)


def _shifts(images: Pictures) -> list[int]:
    """Returns the shifts: pixels up to a patch, then whole patches up to half the image, never the whole image."""
    patch, side = images.patch, min(images.size)
    within = {round(i) for i in np.linspace(0, patch, min(patch, _PIXEL_STEPS) + 1)}
    further = range(patch, side // 2 + 1, max(patch, patch * (side // 2 // patch // 4)))
    return [shift for shift in sorted(within | set(further)) if shift < side]


def _table(params: Any, groups: int) -> Rows:
    """Returns the grid in the first learned table, by groups of channels."""
    grids = [table for table in tables.learned_tables(params).values() if table.ndim == 3]
    if not grids or grids[0].shape[-1] < groups:
        return {}
    shuffled = np.random.default_rng(0).permutation(grids[0].reshape(-1, grids[0].shape[-1])).reshape(grids[0].shape)
    rows = {}
    for name, table in ((TABLE, grids[0]), (SHUFFLED_TABLE, shuffled)):
        shares = np.array([tables.row_plus_column(part) for part in np.array_split(table, groups, axis=-1)])
        rows[name] = {BOTH: shares.sum(axis=1), ROW: shares[:, 0], COLUMN: shares[:, 1]}
    return rows
