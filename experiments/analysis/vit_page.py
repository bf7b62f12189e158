"""The page of a vision transformer: its encoding, filters, attention, robustness, and features at other sizes."""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from experiments.analysis import page, plots, vit
from experiments.analysis.measured import array_of, mean_of, rows_with, table
from experiments.analysis.page import Section
from experiments.analysis.positions import similarity_map
from experiments.analysis.resizing import ALONG, CLS, IN_PLACE, MEAN, OTHER_IMAGES
from experiments.analysis.subject import OWN, Pictures
from experiments.records import StudyRecords
from posjax.describe.figures import HUES

_READERS = 2  # tokens without position that are drawn: a class token and a register
Arrays = Mapping[str, np.ndarray]


def sections(study: StudyRecords, arrays: Arrays, images: Pictures) -> Iterator[Section]:
    """Yields the sections of the page of a vision transformer."""
    yield from _effects(arrays, images)
    if arrays["filters"].shape[1] > 1:  # after a stem, a filter has one pixel and nothing to show
        text = (
            "Principal components of the filters that make tokens of patches, the mean filter taken off (ViT, figure 7 "
            "left); each with its own contrast, grey is 0. First seed."
        )
        yield Section("Patch filters", text, {"filters": plots.filters(arrays["filters"], arrays["filters_share"])})
    yield _distance(study, arrays, images)
    if vit.without_position(images):
        yield _read(study, arrays, images)
    yield _rollout(arrays, images)
    if "use" in arrays:
        yield _frequencies(arrays)
    if vit.PROBES[0] in study.metrics:
        text = (
            "Ridge regression from the tokens of half the images to where they stand, scored on the other half: R² of row "
            f"and column, and the share of patches whose index it names. {_over(images)}"
        )
        scores = np.stack([array_of(study, OWN, name) for name in vit.PROBES], axis=-1)
        figure = plots.position_by_depth(scores, 1 / math.prod(images.grid))
        yield Section("Where tokens know they are", text, {"position_probe": figure})
    if vit.SHUFFLED in study.metrics:
        yield _robustness(study, images)
    yield from _moved(study)


def _over(images: Pictures) -> str:
    count = len(images.subject.seeds)
    return f"Mean and 95 % interval over {count} seeds." if count > 1 else "One seed."


def _effects(arrays: Arrays, images: Pictures) -> Iterator[Section]:
    names = [*vit.hosts(images.subject)]

    def of_hosts(name: str) -> dict[str, np.ndarray]:
        return {host: arrays[f"{name}_{i}"] for i, host in enumerate(names) if f"{name}_{i}" in arrays}

    if maps := {host: similarity_map(codes) for host, codes in of_hosts("codes").items()}:
        first = next(iter(maps))
        figures = {"similarity": plots.similarity(maps[first])}
        if len(maps) > 1:
            title, tiles = "likeness to the code in the middle", {host: each[None] for host, each in maps.items()}
            figures["similarity_by_layer"] = plots.around_the_middle(tiles, title, "cosine similarity")
        text = (
            "Cosine similarity between the code that is added to a patch, at the row and column of the tile, and those of "
            "all others (ViT, arXiv 2010.11929, figure 7 centre and figure 10). The codes of the first seed"
            f"{f', {first}' if len(names) > 1 else ''}."
        )
        yield Section("Position embeddings", text, figures)
    if maps := of_hosts("rotation_agreement"):
        text = (
            "How alike a query in the middle and a key elsewhere are turned: the mean cosine of the angle between them over "
            "pairs of channels, which is what rotation leaves of the product of a word with itself when no channel matters "
            "more than another. First seed."
        )
        title = "what rotation leaves of a word's logit with itself"
        yield Section("Rotation", text, {"rotation": plots.around_the_middle(maps, title, "mean cosine")})
    if maps := of_hosts("bias"):
        text = "What is added to the logits of a query in the middle. First seed; heads share one scale."
        yield Section("Bias", text, {"bias": plots.around_the_middle(maps, "bias of the logits", "added to the logit")})


def _distance(study: StudyRecords, arrays: Arrays, images: Pictures) -> Section:
    text = (
        "How far from a patch its attention goes, for each head (ViT, figure 7 right and appendix D.7), among patches: what "
        f"goes to class token and registers is left out. {_over(images)} "
    )
    prefix = array_of(study, OWN, vit.PREFIX)
    if prefix.any():
        text += "Share that goes to them, by layer: "
        text += ", ".join(f"{100 * share:.0f} %" for share in prefix.mean(axis=(0, 2))) + "."
    text += (
        " Below: the attention of each head of the first seed to patches so far away, over that of uniform attention."
    )
    uniform = study.values(OWN, vit.UNIFORM)[0]
    figures = {"attention_distance": plots.distance_by_depth(array_of(study, OWN, vit.DISTANCE), uniform)}
    ratio, label = math.prod(images.grid) * arrays["attention_by_distance"], "attention, times uniform"
    options = dict(log=True, cmap="RdBu_r", vmin=-5, vmax=5)
    figures["attention_by_distance"], axes = page.by_head(ratio, "distance (patches)", label, **options)
    axes.set_title("attention by distance")
    return Section("Attention distance", text, figures)


def _read(study: StudyRecords, arrays: Arrays, images: Pictures) -> Section:
    names, figures = vit.without_position(images), {}
    text = (
        f"The patches that tokens without position read, for each head, in one image (left), first seed: each patch's share, "
        f"over that of uniform attention to {math.prod(images.grid):,} patches. By layer, the number of patches that are "
        f"read (the exponential of the entropy) and their mean distance from the map's own centre. {_over(images)} "
    )
    for index, name in enumerate(names):
        means = (array_of(study, OWN, f"{name}: {metric}").mean(axis=(0, 2)) for metric in (vit.FAR, vit.ENTROPY))
        layers = (f"{np.exp(entropy):.0f} at {far:.0f} pixels" for far, entropy in zip(*means, strict=True))
        text += f"{'; ' if index else ''}{name}: {', '.join(layers)}"
        if index < _READERS:
            figure = plots.reading_maps(images.pixels[0], arrays["attention_of_prefix"][:, :, index], name)
            figures[f"attention_of_{name.replace(' ', '_')}"] = figure
    return Section("Attention of the class token and registers", f"{text}.", figures)


def _rollout(arrays: Arrays, images: Pictures) -> Section:
    names = [""] * len(arrays["rollout"])
    if "answers" in arrays and images.labels is not None:
        names = [f"{label} → {answer}" for label, answer in zip(images.labels, arrays["answers"], strict=False)]
    read = "the class token" if images.subject.model.pooling.startswith("cls") else "the mean of all patches"
    text = (
        f"From which patches {read} comes by attention rollout (Abnar & Zuidema, arXiv 2005.00928): the product over layers "
        "of half the attention, averaged over heads, and half the identity. It ignores what values and MLPs do. Above "
        "the images: class → answer. First seed."
    )
    figure = plots.rollouts(images.pixels[: len(names)], arrays["rollout"], names)
    return Section("Attention rollout", text, {"rollout": figure})


def _frequencies(arrays: Arrays) -> Section:
    use, waves = arrays["use"][0], np.stack([arrays[f"waves_{layer}"] for layer in range(arrays["use"].shape[1])])
    text = (
        "The mean of |q||k| over each pair of channels that turns together (Barbero et al., arXiv 2410.06205), as a share of "
        "the head's; 1 is an even share. Pairs of short wavelength tell neighbours apart, those of long ones carry content. "
        "First seed: another one may have learned other frequencies."
    )
    figures = {"frequency_use": page.frequency_shares(use, np.linalg.norm(waves, axis=1))}
    if waves.shape[1] == 2:
        figures["wave_vectors"] = plots.wave_vectors(waves, use)
        text += " Below: in which direction each pair turns, and how fast."
    return Section("Rotary frequencies", text, figures)


def _robustness(study: StudyRecords, images: Pictures) -> Section:
    seeds = len(images.subject.seeds)
    over = f"over {seeds} seeds" if seeds > 1 else f"over {len(images.pixels)} images"
    text = (
        "Left: a share of the patches, drawn for each image, stand in each other's places; tokens keep the positions of "
        "their slots. Right: the whole image is moved, right, left, down and up, and what comes in is "
        f"{images.padding!r}. Mean and 95 % interval {over}."
    )
    curves = []
    for row, metric in (("patches shuffled", vit.SHUFFLED), ("images translated", vit.TRANSLATED)):
        curves.append({at: mean_of(study, row, metric, at).scaled(100) for at in study.metrics[metric]})
    figure = plots.robustness(*curves, images.patch, 1 / images.subject.model.num_classes)
    return Section("Patch shuffling and translation", text, {"robustness": figure})


def _moved(study: StudyRecords) -> Iterator[Section]:
    """Yields the parts on the grid inside the table, on images of other sizes, and on shuffled patches."""
    if rows := rows_with(study, vit.BOTH):
        text = (
            "The share of the table's variance that a code of the row plus a code of the column explains, and each alone; "
            "beside it that of the table with its rows shuffled. Means over groups of channels."
        )
        shares = dict.fromkeys((vit.BOTH, vit.ROW, vit.COLUMN), (4, 1))
        grids = table(study, [vit.TABLE, vit.SHUFFLED_TABLE], shares, "row")
        yield Section("A grid in the table", text, table=grids)
    columns = dict.fromkeys((CLS, MEAN), (4, 1))
    if rows := [row for row in rows_with(study, MEAN) if row not in (ALONG, IN_PLACE)]:
        text = (
            "Features of images at other sizes, the table resized by each method or not at all, against those at the model's "
            "own size: mean cosine and 95 % interval over images. Images are stretched, so that things keep their relative "
            f"places. {OTHER_IMAGES.capitalize()}: the cosine of an image to the others, for scale."
        )
        yield Section("Other sizes", text, {"other_sizes": _sizes(study, rows)}, table(study, rows, columns, "row"))
    if rows := [row for row in rows_with(study, MEAN) if row in (ALONG, IN_PLACE)]:
        text = "Features with the patches in another order, with their positions and without, against those in raster order."
        yield Section("Shuffled patches", text, table=table(study, rows, columns, "row"))


def _sizes(study: StudyRecords, rows: Sequence[str]) -> Figure:
    figure = Figure(figsize=(7.0, 0.9 + 0.24 * len(rows)))
    axes = figure.add_subplot()
    for index, (metric, name) in enumerate({CLS: "class token", MEAN: "mean patch"}.items()):
        means = {y + 0.15 * index: mean_of(study, row, metric) for y, row in enumerate(rows)}
        means = {y: mean for y, mean in means.items() if mean}
        middle, half_widths = np.array([*means.values()]).reshape(-1, 2).T
        axes.errorbar(middle, [*means], xerr=half_widths, fmt="o", markersize=4, color=HUES[index], label=name)
    axes.set_yticks(range(len(rows)), rows)
    axes.set(ylim=(len(rows) - 0.4, -0.6), xlabel="cosine to the features at the model's own size")
    page.finish(axes, rows="x")
    return figure
