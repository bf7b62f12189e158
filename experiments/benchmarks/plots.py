"""Time and memory against length, on logarithmic axes."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:  # a machine with an accelerator may lack matplotlib
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INCHES = (5.2, 3.7)  # of a panel


class Panel(NamedTuple):
    """One pair of axes with positive values by name and length; `limit` (value, name) must not be crossed."""

    title: str
    unit: str
    curves: Mapping[str, Mapping[int, float]]
    limit: tuple[float, str] | None = None


def against_length(panels: Sequence[Panel], columns: int = 2) -> "Figure":
    """A figure with the panels side by side in so many columns; a name has the same colour and marker in all of them."""
    from matplotlib.figure import Figure

    from posjax.describe.figures import SMALL

    drawn = [panel for panel in panels if any(panel.curves.values())]
    names = list(dict.fromkeys(name for panel in drawn for name in panel.curves))
    columns = min(columns, len(drawn))
    rows = -(-len(drawn) // columns)
    figure = Figure(figsize=(columns * _INCHES[0], rows * _INCHES[1] + 0.2 * -(-len(names) // 2)), layout="constrained")
    handles = {}
    for index, panel in enumerate(drawn):
        axes = figure.add_subplot(rows, columns, index + 1)
        _draw(axes, panel, names)
        lines, labels = axes.get_legend_handles_labels()
        handles = dict(zip(labels, lines, strict=True)) | handles
    shown = [name for name in names if name in handles]
    options = dict(loc="outside lower center", ncols=3, frameon=False, fontsize=SMALL + 1)
    figure.legend([handles[name] for name in shown], shown, **options)
    return figure


def _draw(axes: "Axes", panel: Panel, names: Sequence[str]) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    from posjax.describe.figures import GREY, HUES, MARKERS, SMALL

    lengths = sorted({n for values in panel.curves.values() for n in values})
    for name, values in panel.curves.items():
        if values:
            index = names.index(name)
            look = dict(color=HUES[index % len(HUES)], marker=MARKERS[index % len(MARKERS)])
            x, y = zip(*sorted(values.items()), strict=True)
            axes.plot(x, y, label=name, markersize=4.5, linewidth=1.4, **look)
    if panel.limit:
        level, name = panel.limit
        axes.axhline(level, color=GREY, linewidth=1.0, linestyle=":")
        axes.annotate(name, (lengths[0], level), xytext=(0, 3), textcoords="offset points", fontsize=SMALL, color=GREY)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    few = np.linspace(0, len(lengths) - 1, min(len(lengths), 6)).round().astype(int)  # labels that do not touch
    axes.xaxis.set_major_locator(FixedLocator([lengths[index] for index in few]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda n, _: f"{n:,.0f}")
    axes.set_title(panel.title, fontsize=SMALL + 2, loc="left")
    axes.set_xlabel("length (tokens)", fontsize=SMALL + 1)
    axes.set_ylabel(panel.unit, fontsize=SMALL + 1)
    axes.tick_params(labelsize=SMALL)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)
