"""Writes the page of an analysis: a table of facts, sections with pictures, and the command; and draws its commonest figures.

Figures are free of pyplot; draw and save them under `matplotlib.rc_context(STYLE)`.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.report.statistics import Interval
from posjax.describe.figures import HUES, MARKERS, SMALL, save
from posjax.describe.markdown import escape_markdown, grid
from posjax.describe.worlds import evenly
from posjax.files import replace_file

_DPI = 110
STYLE = {
    "figure.constrained_layout.use": True,
    "figure.titlesize": SMALL + 3,
    "axes.titlesize": SMALL + 2,
    "axes.labelsize": SMALL + 1,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "image.interpolation": "nearest",
}


class Section(NamedTuple):
    """A heading, its text, the pictures by file name without ".png", and a table in Markdown."""

    heading: str
    text: str
    figures: Mapping[str, Figure] = {}
    table: str = ""


def write_page(
    directory: pathlib.Path, title: str, sections: Sequence[Section], facts: Mapping[str, str], command: str
) -> list[pathlib.Path]:
    """Writes README.md and a PNG per figure; returns the paths, README.md last.

    The page is a function of the arguments: no clock, no host name. Files appear whole or not at all.

    Args:
      facts: {name: fact} about the model and its data.
      command: the command line that makes the page again.
    """
    directory.mkdir(parents=True, exist_ok=True)
    rows = [(escape_markdown(name), escape_markdown(value)) for name, value in facts.items()]
    parts, paths = [f"# {escape_markdown(title)}", grid(("about", "value"), rows, left=2)], []
    for section in sections:
        parts += [f"## {escape_markdown(section.heading)}", escape_markdown(section.text)]
        for name, figure in section.figures.items():
            paths.append(save(figure, directory / f"{name}.png", dpi=_DPI))
            parts.append(f"![{name.replace('_', ' ')}]({name}.png)")
        parts += [section.table] if section.table else []
    parts.append(f"## How to reproduce\n\n```\n{command}\n```")
    replace_file(directory / "README.md", ("\n\n".join(parts) + "\n").encode())
    return [*paths, directory / "README.md"]


def line(
    axes: Axes, x: Sequence[float] | Float[np.ndarray, " N"], means: Sequence[Interval | None], index: int, name: str
) -> None:
    """Draws the means that are known, with their intervals, in the colour and with the mark of an index."""
    middle, half_widths = np.array([mean or (np.nan, np.nan) for mean in means]).reshape(-1, 2).T
    look = dict(color=HUES[index], marker=MARKERS[index], markersize=4, linewidth=1.5, elinewidth=1)
    axes.errorbar(x, middle, yerr=np.nan_to_num(half_widths), label=name, **look)


def finish(axes: Axes, title: str = "", rows: str = "y") -> None:
    """Draws the title, the grid of an axis and the legend, and hides the spines of the upper right."""
    axes.set_title(title)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=rows)
    axes.legend()


def by_head(values: Float[np.ndarray, "L H K"], xlabel: str, label: str, **options: Any) -> tuple[Figure, Axes]:
    """Returns a figure with a line for each head of each layer, and a colour for each value.

    Args:
      xlabel: of the columns.
      label: of the colours.
      options: of imshow; `log=True` draws log2, and vmin and vmax are powers of two.
    """
    layers, heads, columns = values.shape
    log = options.pop("log", False)
    figure = Figure(figsize=(8.0, 1.2 + 0.055 * layers * heads))
    axes = figure.add_subplot()
    flat = values.reshape(-1, columns)
    image = axes.imshow(np.log2(np.maximum(flat, 2.0**-5)) if log else flat, aspect="auto", **options)
    axes.set_yticks(np.arange(layers) * heads + (heads - 1) / 2, range(1, layers + 1), fontsize=SMALL)
    axes.set(ylabel=f"layer ({heads} heads each)", xlabel=xlabel)
    if log:
        log_bar(figure, image, axes, label)
    else:
        figure.colorbar(image, ax=axes, label=label)
    return figure, axes


def log_bar(figure: Figure, image: Any, axes: Any, label: str, **options: Any) -> None:
    """Draws the bar of an image of log2, with the numbers themselves beside it."""
    low, high = image.get_clim()
    bar = figure.colorbar(image, ax=axes, ticks=[-3, 0, 3] if low > -5 else [-5, 0, 5], label=label, **options)
    bar.ax.set_yticklabels(["1/8", "1", "8"] if low > -5 else ["1/32", "1", "32"])


def frequency_shares(use: Float[np.ndarray, "L H P"], magnitude: Float[np.ndarray, "L H P"]) -> Figure:
    """The share of |q_c| |k_c| of each head in each pair of channels, from the fastest turning to the slowest."""
    order, pairs = np.argsort(-magnitude, axis=-1, kind="stable"), use.shape[2]
    share = pairs * use / np.maximum(use.sum(axis=-1, keepdims=True), 1e-30)
    share, magnitude = (np.take_along_axis(x, order, axis=-1) for x in (share, magnitude))
    label = "share of |q||k|, times number of pairs"
    xlabel = "pair of channels, from the fastest to the slowest, by wavelength (mean over heads)"
    figure, axes = by_head(share, xlabel, label, log=True, cmap="magma", vmin=-3, vmax=4)
    mean, shown = magnitude.mean(axis=(0, 1)), evenly(pairs, 8)
    axes.set_xticks(shown, ["∞" if mean[pair] < 1e-6 else f"{2 * np.pi / mean[pair]:.3g}" for pair in shown])
    return figure


def layer_axis(axes: Axes) -> None:
    """Labels the x axis with whole numbers of layers."""
    axes.set_xlabel("layer")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
