"""Figures over the resolution of the test images. Records are those of `experiments.resolutions`, of ONE study."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from posjax.analysis.report.plots import GREY, HUES, MARKERS, SMALL, Style
from posjax.analysis.report.published_resolutions import ROPE_VIT, relative
from posjax.analysis.report.resolution_curves import Curve, compared, curve_of
from posjax.analysis.statistics import Record, Rows, mean_interval

_DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (4, 1.5, 1, 1.5)))
_NAMES = {"learned": "learned (APE)", "axial_rope": "axial", "rope_mixed": "mixed"}
_COLORS = dict(zip(_NAMES, (HUES[0], HUES[2], HUES[3]), strict=True))


def accuracy_by_resolution(rows: Rows) -> Figure:
    """Mean accuracy (%) over the scale of the test images (log2), a line per row: colour by encoding, dash by policy.

    The left panel has each encoding under its first policy, the right one all policies of those that have several. Intervals
    are in the table: bands of so many lines would hide each other.
    """
    bases: dict[str, list[str]] = {}
    for label, runs in rows.items():
        bases.setdefault(runs[0]["base"], []).append(label)
    look, curves = _styles(list(bases)), {label: curve_of(runs) for label, runs in rows.items()}
    figure = Figure(figsize=(11.5, 4.6), layout="constrained")
    first, policies = figure.subplots(1, 2, sharey=True)
    handles = []
    for base, labels in bases.items():
        _line(first, curves[labels[0]], look[base], 0)
        for label, number in zip(labels, _dashes([rows[label] for label in labels]), strict=True):
            if len(labels) > 1:
                _line(policies, curves[label], look[base], number)
            handles.append(_handle(label, look[base], number))
    panels = {first: "each encoding under its first policy", policies: "all policies of those that have several"}
    for axes, title in panels.items():
        _scales(axes, next(iter(curves.values())))
        axes.set_title(title, fontsize=SMALL + 2)
    first.set_ylabel("accuracy (%)")
    figure.legend(handles=handles, loc="outside right upper", fontsize=SMALL, frameon=False, handlelength=5)
    return figure


def beside_published(rows: Rows) -> Figure | None:
    """Accuracy as a share of that at 1x, over the scale: learned, axial and mixed here (95 % bands), and in RoPE-ViT.

    None where the study has none of them.
    """
    ours = compared(rows)
    if not ours:
        return None
    figure = Figure(figsize=(10.5, 4.0), layout="constrained")
    here, there = figure.subplots(1, 2)
    for name, curve in ours.items():
        share = [mean_interval(values.tolist()) for values in 100 * curve.relative().T]
        mean, half = (np.array([getattr(each, field) for each in share]) for field in ("mean", "half_width"))
        here.plot(curve.scale, mean, color=_COLORS[name], marker="o", markersize=4, linewidth=1.5, label=_NAMES[name])
        here.fill_between(curve.scale, mean - half, mean + half, color=_COLORS[name], alpha=0.14, linewidth=0)
    _scales(here, next(iter(ours.values())))
    here.set_ylabel("accuracy (% of that at 1x)")
    here.set_title("here", fontsize=SMALL + 2)
    here.legend(fontsize=SMALL, frameon=False)
    for dash, size in zip(_DASHES, ("ViT-S", "ViT-B", "ViT-L"), strict=False):
        for curve in (each for each in ROPE_VIT if each.label.startswith(size)):
            x, y = zip(*relative(curve), strict=True)
            there.plot(
                x, 100 * np.array(y), color=_COLORS[curve.encoding], linestyle=dash, linewidth=1.3, label=curve.label
            )
    _decorate(there, sorted({scale for curve in ROPE_VIT for scale, _ in relative(curve)}), "{:.3g}")
    there.set_title("RoPE-ViT (Heo et al. 2024), ImageNet-1k", fontsize=SMALL + 2)
    there.legend(fontsize=SMALL, frameon=False)
    return figure


def _styles(bases: Sequence[str]) -> Mapping[str, Style]:
    """A colour and a marker for every encoding; `none` is grey."""
    coloured = [base for base in bases if base != "none"]
    found = {base: Style(HUES[i % len(HUES)], MARKERS[i % len(MARKERS)], "-") for i, base in enumerate(coloured)}
    return {"none": Style(GREY, "o", "-"), **found}


def _dashes(policies: Sequence[Sequence[Record]]) -> list[int]:
    """Of the rows of one encoding: the first one's line is whole, those of fine-tunes are dashed and dotted."""
    return [3 if i and runs[0]["kind"] == "fine-tuned" else min(i, 2) for i, runs in enumerate(policies)]


def _handle(label: str, style: Style, number: int) -> Line2D:
    look = dict(color=style.color, linestyle=_DASHES[number % len(_DASHES)], marker=style.marker, markersize=4)
    return Line2D([], [], label=label.replace("$", r"\$"), linewidth=1.4, **look)


def _line(axes: Axes, curve: Curve, style: Style, number: int) -> None:
    mean = 100 * curve.accuracy.mean(axis=0)
    look = dict(color=style.color, linestyle=_DASHES[number % len(_DASHES)], marker=style.marker)
    axes.plot(curve.scale, mean, markersize=4, linewidth=1.4, **look)


def _scales(axes: Axes, curve: Curve) -> None:
    labels = [f"{size}\n{scale:.3g}x" for size, scale in zip(curve.resolution, curve.scale, strict=True)]
    _decorate(axes, curve.scale.tolist(), labels)


def _decorate(axes: Axes, scales: Sequence[float], labels: Sequence[str] | str) -> None:
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.6)
    axes.axvline(1.0, color="black", linewidth=0.8, linestyle=(0, (5, 4)), zorder=0)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(scales))
    axes.xaxis.set_minor_locator(NullLocator())
    texts = [f"{labels.format(scale)}x" for scale in scales] if isinstance(labels, str) else labels
    axes.set_xticks(scales, texts, fontsize=SMALL)
    axes.tick_params(axis="y", labelsize=SMALL + 1)
    axes.set_xlabel("resolution of the test images")
