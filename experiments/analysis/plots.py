"""Pictures of a ViT's parameters and attention, and curves by depth, shuffle and shift.

The first axis R of a curve's values is the seed: means are drawn with their 95 % interval over seeds.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, UInt8
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.analysis.page import finish, layer_axis, line, log_bar
from experiments.report.statistics import Interval, mean_interval
from posjax.describe.figures import GREY, HUES, MARKERS, SMALL
from posjax.describe.worlds import evenly

_TILES = 7  # most tiles on a side of similarity maps, and most filters in a row
_LAYERS, _HEADS = 6, 6  # shown at most
_GAP, _SCALE = 3, 8  # pixels between tiles, and pixels of a cell in them
_LEAST = 32  # least pixels on a side of a filter
_DASHED = dict(color=GREY, linewidth=1.0, linestyle=(0, (5, 4)))


def similarity(maps: Float[np.ndarray, "h w h w"]) -> Figure:
    """Draws tiles [row, column], each the cosine similarity of the code there to all others."""
    height, width = maps.shape[:2]
    rows, columns = evenly(height, _TILES), evenly(width, _TILES)
    figure = Figure(figsize=(5.6 * width / max(height, width) + 1.4, 5.6 * height / max(height, width) + 0.9))
    axes = figure.add_subplot()
    drawn = _tiled([[maps[row, column] for column in columns] for row in rows], _SCALE)
    image = axes.imshow(drawn, cmap="viridis", vmin=-1, vmax=1)
    for axis, side, shown in ((axes.xaxis, width, columns), (axes.yaxis, height, rows)):
        axis.set_ticks([i * (_SCALE * side + _GAP) + (_SCALE * side - 1) / 2 for i in range(len(shown))], shown)
    _bare(axes)
    axes.set(xlabel="column of the patch", ylabel="row of the patch")
    axes.set_title(f"codes of {height}x{width} patches", fontsize=SMALL + 3)
    _bar(figure, image, axes, "cosine similarity")
    return figure


def around_the_middle(maps: Mapping[str, Float[np.ndarray, "H h w h w"]], title: str, unit: str) -> Figure:
    """The attention of the query in the middle to each place: a row for each layer, by its name, a column for each head."""
    names, tiles = [*maps], [*maps.values()]
    layers, heads = evenly(len(tiles), _LAYERS), evenly(len(tiles[0]), _HEADS)
    height, width = tiles[0].shape[1:3]
    middle = height // 2, width // 2
    shown = np.array([[tiles[layer][head][middle] for head in heads] for layer in layers])
    low, high = float(np.nanmin(shown)), float(np.nanmax(shown))
    norm = TwoSlopeNorm(0, -max(-low, high), max(-low, high)) if low < 0 < high else None
    options = dict(norm=norm, cmap="RdBu_r") if norm else dict(vmin=low, vmax=high, cmap="viridis")
    figure, panels = _panels(len(layers), heads, height / width)
    for row, layer in enumerate(layers):
        for column in range(len(heads)):
            image = panels[row, column].imshow(shown[row, column], **options)
            panels[row, column].plot(*middle[::-1], "o", color="black", markersize=2.5, markerfacecolor="white")
        panels[row, 0].set_ylabel(names[layer])
    figure.suptitle(title)
    _bar(figure, image, panels, unit)
    return figure


def _panels(rows: int, heads: Sequence[int], ratio: float, beside: int = 0) -> tuple[Figure, np.ndarray]:
    """Returns bare panels, a column for each head and more columns before them."""
    columns = len(heads) + beside
    figure = Figure(figsize=(1.5 * columns + 1.6, 1.5 * rows * ratio + 1.0))
    panels = figure.subplots(rows, columns, squeeze=False)
    for panel in panels.ravel():
        _bare(panel)
        panel.set(xticks=[], yticks=[])
    for panel, head in zip(panels[0, beside:], heads, strict=True):
        panel.set_title(f"head {head}", fontsize=SMALL + 1)
    return figure, panels


def reading_maps(image: UInt8[np.ndarray, "h w c"], shares: Float[np.ndarray, "L H h2 w2"], name: str) -> Figure:
    """Draws an image, and the attention of a token to its patches: a row for each layer, a column for each head."""
    layers, heads = evenly(len(shares), _LAYERS), evenly(shares.shape[1], _HEADS)
    ratio = np.log2(np.maximum(shares * shares[0, 0].size, 2.0**-5))
    figure, panels = _panels(len(layers), heads, image.shape[0] / image.shape[1], beside=1)
    for row, layer in enumerate(layers):
        for panel, head in zip(panels[row, 1:], heads, strict=True):
            drawn = panel.imshow(ratio[layer, head], cmap="RdBu_r", vmin=-5, vmax=5)
        panels[row, 1].set_ylabel(f"layer {layer + 1}")
        if row:
            panels[row, 0].set_axis_off()
    panels[0, 0].imshow(image[..., 0] if image.shape[-1] == 1 else image, cmap="gray", vmin=0, vmax=255)
    figure.suptitle(f"attention of the {name}")
    log_bar(figure, drawn, panels, "attention, times uniform", shrink=0.8, pad=0.02)
    return figure


def filters(components: Float[np.ndarray, "k p p2 C"], share: Float[np.ndarray, " k"]) -> Figure:
    """Draws components, each with its own contrast, mid grey for 0; one channel is grey, three are colours."""
    pictures = [_picture(component) for component in components]
    columns = min(_TILES, len(pictures))
    pictures += [np.full_like(pictures[0], 0.9)] * (-len(pictures) % columns)
    rows = [pictures[first : first + columns] for first in range(0, len(pictures), columns)]
    drawn = _tiled(rows, -(-_LEAST // len(pictures[0])), empty=0.9)
    figure = Figure(figsize=(6.2, 0.9 * 6.2 / 7 * len(rows) + 0.6))
    axes = figure.add_subplot()
    axes.imshow(drawn, cmap="gray", vmin=0, vmax=1)
    axes.set_axis_off()
    title = f"first {len(share)} principal components of the patch filters"
    axes.set_title(f"{title} ({100 * share.sum():.0f} % of the variance)", fontsize=SMALL + 3)
    return figure


def rollouts(images: UInt8[np.ndarray, "N h w c"], maps: Float[np.ndarray, "N h2 w2"], names: Sequence[str]) -> Figure:
    """Draws images, and below them the same images weighted by their patches' shares in the answer."""
    count, (height, width) = len(images), images.shape[1:3]
    figure = Figure(figsize=(1.35 * count + 0.9, 2.7 * height / width + 1.0))
    panels = figure.subplots(2, count, squeeze=False)
    ratio = maps * maps[0].size  # 1 for uniform attention
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    grey = dict(cmap="gray", vmin=0, vmax=255)
    magma = dict(cmap="magma", vmin=ratio.min(), vmax=ratio.max(), alpha=0.65, extent=extent)
    for index, (upper, lower) in enumerate(panels.T):
        flat = images[index].mean(axis=-1)
        upper.imshow(flat if images.shape[-1] == 1 else images[index], **grey)
        upper.set_title(names[index], fontsize=SMALL, parse_math=False)
        lower.imshow(flat, **grey)
        heat = lower.imshow(ratio[index], **magma)
        upper.set_axis_off()
        lower.set_axis_off()
    figure.suptitle("attention rollout")
    _bar(figure, heat, panels[1], "share, times\nnumber of patches")
    return figure


def _picture(component: Float[np.ndarray, "p p2 C"]) -> Float[np.ndarray, "p p2 ..."]:
    if component.shape[-1] not in (1, 3):
        component = component.mean(axis=-1, keepdims=True)
    scaled = 0.5 + 0.5 * component / max(np.abs(component).max(), 1e-12)
    return np.repeat(scaled, 3, axis=-1) if component.shape[-1] == 1 else scaled


def _tiled(tiles: Sequence[Sequence[np.ndarray]], scale: int, empty: float = np.nan) -> np.ndarray:
    """Returns the pictures, enlarged, in rows and columns with empty lines between them."""
    edge = ((0, _GAP), (0, _GAP), *[(0, 0)] * (tiles[0][0].ndim - 2))

    def one(tile: np.ndarray) -> np.ndarray:
        return np.pad(tile.repeat(scale, axis=0).repeat(scale, axis=1), edge, constant_values=empty)

    rows = [np.concatenate([one(tile) for tile in row], axis=1) for row in tiles]
    return np.concatenate(rows)[:-_GAP, :-_GAP]


def _bare(axes: Axes) -> None:
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def _bar(figure: Figure, image, panels, unit: str) -> None:
    bar = figure.colorbar(image, ax=panels, shrink=0.8, pad=0.02, label=unit)
    bar.ax.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    bar.outline.set_visible(False)
    bar.solids.set_alpha(1)


def distance_by_depth(distances: Float[np.ndarray, "R L H"], uniform: float) -> Figure:
    """Draws the mean attention distance of every head by layer, in pixels; `uniform` is the distance of uniform attention."""
    figure = Figure(figsize=(6.4, 4.0))
    axes = figure.add_subplot()
    seeds, layers, heads = distances.shape
    for layer in range(layers):
        x, label = layer + 1 + np.tile(np.linspace(-0.14, 0.14, heads), seeds), None if layer else "a head"
        axes.scatter(x, distances[:, layer], s=16, color=HUES[5], alpha=0.75, linewidths=0, label=label)
    means = [mean_interval(distances[:, layer].mean(axis=1)) for layer in range(layers)]
    line(axes, range(1, layers + 1), means, 0, "mean over heads")
    axes.axhline(uniform, **_DASHED, label="uniform attention")
    axes.set(ylim=(0, 1.1 * max(float(np.nanmax(distances)), uniform)), ylabel="mean attention distance (pixels)")
    layer_axis(axes)
    finish(axes, "mean attention distance by head and depth")
    return figure


def position_by_depth(scores: Float[np.ndarray, "R L1 3"], chance: float) -> Figure:
    """The score of a linear probe for positions before and behind every layer: R^2 of row, of column, share of patches."""
    figure = Figure(figsize=(8.4, 3.6))
    left, right = figure.subplots(1, 2)
    layers = range(scores.shape[1])
    for index, name in enumerate(("row", "column")):
        if np.isfinite(scores[..., index]).all():
            line(left, layers, [mean_interval(scores[:, layer, index]) for layer in layers], index, name)
    line(right, layers, [mean_interval(100 * scores[:, layer, 2]) for layer in layers], 2, "linear probe")
    right.axhline(100 * chance, **_DASHED, label="chance")
    lowest = min(-0.05, np.nanmin(scores[..., :2]) - 0.05)
    left.set(ylim=(lowest, 1.05), ylabel="R² of the position, held-out images")
    right.set(ylim=(0, 103), ylabel="patches named right (%)")
    for axes, title in ((left, "row and column"), (right, "index of the patch")):
        shown = evenly(len(layers), 9)
        axes.set_xticks(shown, ["embedding" if not layer else str(layer) for layer in shown])
        axes.set_xlabel("tokens behind layer")
        finish(axes, title)
    figure.suptitle("absolute position in the tokens")
    return figure


def robustness(
    shuffled: Mapping[float, Interval], translated: Mapping[int, Interval], patch_size: int, chance: float
) -> Figure:
    """Draws accuracy in per cent by share of shuffled patches, and by pixels; lines mark shifts by whole patches."""
    figure = Figure(figsize=(8.4, 3.7))
    left, right = figure.subplots(1, 2, sharey=True)
    line(left, [100 * share for share in shuffled], [*shuffled.values()], 0, "accuracy")
    line(right, [*translated], [*translated.values()], 2, "accuracy")
    for whole in range(patch_size, max(translated) + 1, patch_size):
        label = "whole patches" if whole == patch_size else None
        right.axvline(whole, color="#d0d0d0", linewidth=0.8, zorder=0, label=label)
    right.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.set(ylim=(0, 103), ylabel="accuracy (%)", xlabel="patches shuffled (%)")
    right.set(xlabel="translation (pixels, mean of four directions)")
    for axes, title in ((left, "patches in each other's places"), (right, "images moved")):
        axes.axhline(100 * chance, **_DASHED, label="chance")
        finish(axes, title)
    right.tick_params(labelleft=True)
    figure.suptitle("accuracy when patches or images move")
    return figure


def wave_vectors(wave: Float[np.ndarray, "L 2 H P"], use: Float[np.ndarray, "L H P"]) -> Figure:
    """The frequencies of each head's pairs on the plane of (column, row); larger dots are used more."""
    layers, heads = evenly(len(wave), 4), wave.shape[2]
    columns = min(2, len(layers))
    rows = -(-len(layers) // columns)
    figure = Figure(figsize=(3.5 * columns + 1.0, 3.4 * rows + 0.6))
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    share = use / np.maximum(use.sum(axis=-1, keepdims=True), 1e-30)
    limit = 1.08 * max(float(np.abs(wave).max()), 1e-6)
    for panel, layer in zip(panels, layers, strict=False):
        for head, (y, x) in enumerate(wave[layer].swapaxes(0, 1)):
            look = dict(color=HUES[head % len(HUES)], marker=MARKERS[head // len(HUES) % len(MARKERS)], alpha=0.75)
            size = 8 + 60 * share[layer, head] / share.max()
            panel.scatter(x, y, s=size, linewidths=0, label=f"head {head}", **look)
        panel.axhline(0, color=GREY, linewidth=0.6, zorder=0)
        panel.axvline(0, color=GREY, linewidth=0.6, zorder=0)
        panel.set(xlim=(-limit, limit), ylim=(limit, -limit), aspect="equal")  # rows count downwards
        panel.set(title=f"layer {layer + 1}", xlabel="along columns (radians per patch)")
        panel.set(ylabel="along rows (radians per patch)")
        panel.spines[["top", "right"]].set_visible(False)
    for panel in panels[len(layers) :]:
        panel.remove()
    if heads <= 2 * len(HUES):
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", handletextpad=0.2)
    figure.suptitle("wave vectors of the heads; the larger, the more used")
    return figure
