"""Features of a ViT at other sizes and with shuffled patches, and the grid in its table, as rows with a number per image."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.analysis import tables
from experiments.analysis.measured import Rows, mean_text
from experiments.analysis.page import Section
from experiments.analysis.vision.resizing import (
    DISTINCT_METHODS,
    OTHER_IMAGES,
    FeatureCosines,
    resized_features,
    shuffled_tokens,
)
from experiments.analysis.vision.subject import Pictures
from experiments.progress import bar
from experiments.records import StudyRecords
from experiments.report.statistics import is_whole, mean_interval
from posjax.describe.figures import HUES
from posjax.describe.markdown import escape_markdown, grid

CLS, MEAN = "cosine of the class token", "cosine of the mean patch"
BOTH, ROW, COLUMN = "variance in row + column codes", "variance in row codes", "variance in column codes"
TABLE, SHUFFLED = "the table", "the table with its rows shuffled"
ALONG, IN_PLACE = "patches shuffled with their positions", "patches shuffled, positions in place"


def unmoved(images: Pictures) -> str | None:
    """The reason that features at other sizes are left out; None if they are measured."""
    model = images.subject.model
    if model.norm_after_pooling or model.distillation_token:
        return "the norm is behind the pooling, or there are two heads"
    if images.patch != model.patch_size or any(side % images.patch for side in images.size):
        return "cells of a convolutional stem, or patches that stick out of the images"
    if min(images.grid) < 2:
        return "the images have one row or column of patches"
    return None


def measure_moved(images: Pictures) -> tuple[Rows, Rows]:
    """Returns the rows by image, of the `originals`, and facts of the table by group of channels."""
    subject, pictures = images.subject, images.originals
    count = len(pictures)
    model, patch = subject.model, images.patch
    rows: Rows = {}
    height, width = model.image_size
    smaller = (height // 2 // patch * patch, width // 2 // patch * patch)
    sizes, methods = [smaller, (smaller[0], width)], (*DISTINCT_METHODS, None)
    with bar((len(sizes) * len(methods) + 2) * count, "image") as progress:
        for (h, w), method, cosines in resized_features(subject, pictures, sizes, methods):
            rows[method if method == OTHER_IMAGES else f"{h}x{w}, {method}"] = _metrics(cosines)
            progress.update(count)
        if images.size == tuple(model.image_size):
            shuffles = shuffled_tokens(subject, images.pixels[:count])
            rows |= {ALONG: _metrics(shuffles.along), IN_PLACE: _metrics(shuffles.in_place)}
            progress.update(count)
    return rows, _table(subject.params[0], count)


def _metrics(cosines: FeatureCosines) -> dict[str, np.ndarray]:
    return {MEAN: cosines.mean} | ({} if cosines.cls is None else {CLS: cosines.cls})


def _table(params: Any, groups: int) -> Rows:
    """Returns the grid in the table, by groups of channels."""
    found = [table for table in tables.learned_tables(params).values() if table.ndim == 3]
    if not found or found[0].shape[-1] < groups:
        return {}
    table = found[0]
    shuffled = np.random.default_rng(0).permutation(table.reshape(-1, table.shape[-1])).reshape(table.shape)
    rows = {}
    for row, given in ((TABLE, table), (SHUFFLED, shuffled)):
        shares = [tables.row_plus_column(each) for each in np.array_split(given, groups, axis=-1)]
        rows[row] = {BOTH: np.array([each.both for each in shares]), ROW: np.array([each.row for each in shares])}
        rows[row][COLUMN] = np.array([each.column for each in shares])
    return rows


def sections_of(study: StudyRecords) -> Iterator[Section]:
    """Yields the sections of a page: the grid in the table, other sizes, shuffles."""
    metrics = (BOTH, ROW, COLUMN)
    if rows := [row for row in (TABLE, SHUFFLED) if is_whole(study.values(row, BOTH))]:
        text = (
            "The share of the table's variance that a code of the row plus a code of the column explains, and each alone; "
            "beside it that of the table with its rows shuffled. Means over groups of channels."
        )
        yield Section("A grid in the table", text, table=_grid(study, rows, metrics))
    if not study.rows:
        return
    sizes = [row for row in study.rows if is_whole(study.values(row, MEAN)) and row not in (ALONG, IN_PLACE)]
    text = (
        "Features of images at other sizes, the table resized by each method or not at all, against those at the model's own "
        "size: mean cosine and 95 % interval over images. Images are stretched, so that things keep their relative places. "
        f"{OTHER_IMAGES.capitalize()}: the cosine of an image to the others, for scale."
    )
    yield Section("Other sizes", text, {"other_sizes": _sizes(study, sizes)}, _grid(study, sizes, (CLS, MEAN)))
    if rows := [row for row in (ALONG, IN_PLACE) if is_whole(study.values(row, MEAN))]:
        text = "Features with the patches in another order, with their positions and without, against those in raster order."
        yield Section("Shuffled patches", text, table=_grid(study, rows, (CLS, MEAN)))


def _grid(study: StudyRecords, rows: Sequence[str], metrics: Sequence[str]) -> str:
    known = [metric for metric in metrics if is_whole(study.values(rows[0], metric))]
    cells = [(escape_markdown(row), *(mean_text(study, row, metric, 4) for metric in known)) for row in rows]
    return grid(("row", *known), cells)


def _sizes(study: StudyRecords, rows: Sequence[str]) -> Figure:
    figure = Figure(figsize=(7.0, 0.9 + 0.24 * len(rows)))
    axes = figure.add_subplot()
    named: Mapping[str, str] = {CLS: "class token", MEAN: "mean patch"}
    for index, (metric, name) in enumerate(named.items()):
        found = {y: study.values(row, metric) for y, row in enumerate(rows)}
        found = {y: mean_interval(list(values.values())) for y, values in found.items() if is_whole(values)}
        mean, half = np.array([*found.values()]).T if found else np.zeros((2, 0))
        y = np.array([*found]) + 0.15 * index
        axes.errorbar(mean, y, xerr=half, fmt="o", markersize=4, color=HUES[index], label=name)
    axes.set_yticks(range(len(rows)), rows)
    axes.set(ylim=(len(rows) - 0.4, -0.6), xlabel="cosine to the features at the model's own size")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x")
    axes.legend()
    return figure
