"""Pictures of what a model of images learned: codes, filters, what encodings tell, and where attention comes from.

As in `posjax.analysis.report.plots`, figures belong to nobody; `plots.save` writes them.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, UInt8
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from posjax.analysis.report.plots import SMALL
from posjax.analysis.vision.filters import Components

_TILES = 7  # a side, of similarity maps
_LAYERS, _HEADS = 4, 6  # shown at most
_GAP, _SCALE = 3, 8  # between tiles, and of a cell in them
_LEAST = 32  # pixels a side of a filter, at least


def evenly(count: int, most: int) -> list[int]:
    """Up to `most` of the numbers below count, first and last among them, evenly spread."""
    return sorted({round(i) for i in np.linspace(0, count - 1, min(count, most))})


def similarity(maps: Float[np.ndarray, "h w h w"], title: str) -> Figure:
    """Tiles [row, column], each the cosine similarity of the code there to all others."""
    height, width = maps.shape[:2]
    rows, columns = evenly(height, _TILES), evenly(width, _TILES)
    figure = Figure(figsize=(5.6 * width / max(height, width) + 1.4, 5.6 * height / max(height, width) + 0.9))
    figure.set_layout_engine("constrained")
    axes = figure.add_subplot()
    drawn = _tiled([[maps[row, column] for column in columns] for row in rows], _SCALE)
    image = axes.imshow(drawn, cmap="viridis", vmin=-1, vmax=1, interpolation="nearest")
    for axis, side, shown in ((axes.xaxis, width, columns), (axes.yaxis, height, rows)):
        axis.set_ticks([i * (_SCALE * side + _GAP) + (_SCALE * side - 1) / 2 for i in range(len(shown))], shown)
    _bare(axes)
    axes.set_xlabel("column of the patch", fontsize=SMALL + 1)
    axes.set_ylabel("row of the patch", fontsize=SMALL + 1)
    axes.set_title(title, fontsize=SMALL + 3)
    _bar(figure, image, axes, "cosine similarity")
    return figure


def around_the_middle(
    maps: Sequence[Float[np.ndarray, "H h w h w"]], names: Sequence[str], title: str, unit: str
) -> Figure:
    """What the query in the middle sees of each place: a row for each layer (`names`), a column for each head."""
    layers, heads = evenly(len(maps), _LAYERS), evenly(len(maps[0]), _HEADS)
    height, width = maps[0].shape[1:3]
    middle = height // 2, width // 2
    shown = np.array([[maps[layer][head][middle] for head in heads] for layer in layers])
    low, high = float(np.nanmin(shown)), float(np.nanmax(shown))
    norm = TwoSlopeNorm(0, -max(-low, high), max(-low, high)) if low < 0 < high else None
    options = dict(norm=norm, cmap="RdBu_r") if norm else dict(vmin=low, vmax=high, cmap="viridis")
    figure = Figure(figsize=(1.5 * len(heads) + 1.6, 1.5 * len(layers) * height / width + 1.0), layout="constrained")
    panels = figure.subplots(len(layers), len(heads), squeeze=False)
    for row, layer in enumerate(layers):
        for column, head in enumerate(heads):
            panel = panels[row, column]
            image = panel.imshow(shown[row, column], interpolation="nearest", **options)
            panel.plot(middle[1], middle[0], "o", color="black", markersize=2.5, markerfacecolor="white")
            _bare(panel)
            panel.set_xticks([])
            panel.set_yticks([])
            if not row:
                panel.set_title(f"head {head}", fontsize=SMALL + 1)
            if not column:
                panel.set_ylabel(names[layer], fontsize=SMALL + 1)
    figure.suptitle(title, fontsize=SMALL + 3)
    _bar(figure, image, panels, unit)
    return figure


def filters(found: Components, columns: int = 7) -> Figure:
    """The components, each with its own contrast, mid grey for 0; one channel is grey, three are colours."""
    pictures = [_picture(each) for each in found.filters]
    columns = min(columns, len(pictures))
    pictures += [np.full_like(pictures[0], 0.9)] * (-len(pictures) % columns)
    rows = [pictures[first : first + columns] for first in range(0, len(pictures), columns)]
    drawn = _tiled(rows, -(-_LEAST // len(pictures[0])), empty=0.9)
    figure = Figure(figsize=(6.2, 0.9 * 6.2 / 7 * len(rows) + 0.6), layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(drawn, interpolation="nearest", cmap="gray", vmin=0, vmax=1)
    axes.set_axis_off()
    share = 100 * found.share.sum()
    axes.set_title(
        f"first {len(found.share)} principal components of the patch filters ({share:.0f} % of the variance)",
        fontsize=SMALL + 3,
    )
    return figure


def rollouts(
    images: UInt8[np.ndarray, "N h w c"], maps: Float[np.ndarray, "N h2 w2"], names: Sequence[str], title: str
) -> Figure:
    """Images above, below them the same with the shares of attention by which the answer is made of their patches."""
    count, (height, width) = len(images), images.shape[1:3]
    figure = Figure(figsize=(1.35 * count + 0.9, 2.7 * height / width + 1.0), layout="constrained")
    panels = figure.subplots(2, count, squeeze=False)
    ratio = maps * maps[0].size  # 1 where attention is uniform
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    for index in range(count):
        shown = images[index].mean(axis=-1) if images.shape[-1] == 1 else images[index]
        panels[0, index].imshow(shown, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        panels[0, index].set_title(names[index], fontsize=SMALL, parse_math=False)
        panels[1, index].imshow(images[index].mean(axis=-1), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        heat = panels[1, index].imshow(
            ratio[index],
            cmap="magma",
            vmin=ratio.min(),
            vmax=ratio.max(),
            alpha=0.65,
            extent=extent,
            interpolation="nearest",
        )
        for panel in panels[:, index]:
            panel.set_axis_off()
    figure.suptitle(title, fontsize=SMALL + 3)
    _bar(figure, heat, panels[1], "share, times\nnumber of patches")
    return figure


def _picture(component: Float[np.ndarray, "p p2 C"]) -> Float[np.ndarray, "p p2 ..."]:
    if component.shape[-1] not in (1, 3):
        component = component.mean(axis=-1, keepdims=True)
    scaled = 0.5 + 0.5 * component / max(np.abs(component).max(), 1e-12)
    return np.repeat(scaled, 3, axis=-1) if component.shape[-1] == 1 else scaled


def _tiled(tiles: Sequence[Sequence[np.ndarray]], scale: int, empty: float = np.nan) -> np.ndarray:
    """The pictures, enlarged, in rows and columns with a line of nothing between them."""
    edge = ((0, _GAP), (0, _GAP), *[(0, 0)] * (tiles[0][0].ndim - 2))

    def one(tile: np.ndarray) -> np.ndarray:
        return np.pad(tile.repeat(scale, axis=0).repeat(scale, axis=1), edge, constant_values=empty)

    rows = [np.concatenate([one(tile) for tile in row], axis=1) for row in tiles]
    return np.concatenate(rows)[:-_GAP, :-_GAP]


def _bare(axes: Axes) -> None:
    axes.spines[:].set_visible(False)
    axes.tick_params(labelsize=SMALL, length=0)


def _bar(figure: Figure, image, panels, unit: str) -> None:
    bar = figure.colorbar(image, ax=panels, shrink=0.8, pad=0.02)
    bar.set_label(unit, fontsize=SMALL + 1)
    bar.ax.tick_params(labelsize=SMALL)
    bar.ax.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    bar.outline.set_visible(False)
    bar.solids.set_alpha(1)
