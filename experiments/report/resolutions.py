"""The report of a study of resolutions: tables, figures, and what agrees with RoPE-ViT.

Published accuracies are those of Heo, Park, Han and Yun (2024), "Rotary Position Embedding for Vision Transformer", ECCV,
arXiv 2403.13298. DeiT-III recipe, 400 epochs of ImageNet-1k at 224 pixels, tested at each resolution without fine-tuning;
top-1 (%) on ImageNet-1k. The authors interpolate the learned table ("APE", bicubic); both rotary encodings extrapolate.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from experiments.report import plots
from experiments.report.families import FAMILIES
from experiments.report.page import About, save_figures, write_pages
from experiments.report.plots import Captioned
from experiments.report.statistics import (
    LEVEL,
    Estimate,
    Line,
    Metric,
    Record,
    Rows,
    Verdict,
    all_runs,
    difference,
    estimate,
    group,
    judge,
    mean_interval,
    metric_values,
    whole,
)
from experiments.report.table import (
    Cell,
    Row,
    StudyTable,
    best_row,
    compare,
    finding,
    how_tested,
    metric_cells,
    versions_text,
)
from posjax.describe.figures import SMALL


class Published(NamedTuple):
    """One curve. `exact` are the resolutions whose numbers the README of naver-ai/rope-vit prints; the others were read off
    figures/rope_vit.png there, calibrated on its axes, ± 0.1 (`hidden`: the marker is partly covered, ± 0.3)."""

    label: str
    encoding: str  # here
    accuracy: MappingProxyType[int, float]  # pixels: per cent
    exact: tuple[int, ...] = (224, 384)
    hidden: tuple[int, ...] = ()


TRAINED_AT = 224
_RESOLUTIONS = (144, 192, 224, 256, 320, 384, 512)


def _curve(label: str, encoding: str, values: tuple[float | None, ...], hidden: tuple[int, ...]) -> Published:
    found = {size: value for size, value in zip(_RESOLUTIONS, values, strict=True) if value is not None}
    return Published(label, encoding, MappingProxyType(found), hidden=hidden)


ROPE_VIT = (
    _curve("ViT-S, APE", "learned", (73.6, 79.1, 80.4, 80.9, 80.6, 79.4, 75.4), (144, 192)),
    _curve("ViT-S, axial", "axial_rope", (73.6, 79.2, 80.9, 81.7, 81.5, 80.0, 76.1), (144, 192, 256)),
    _curve("ViT-S, mixed", "rope_mixed", (74.2, 79.6, 80.9, 81.8, 82.2, 81.8, 79.1), ()),
    _curve("ViT-B, APE", "learned", (79.1, 82.7, 83.4, 83.8, 83.5, 82.8, 80.5), (144, 192)),
    _curve("ViT-B, axial", "axial_rope", (78.9, None, 83.6, 84.2, 84.3, 83.9, 82.0), (144, 256)),
    _curve("ViT-B, mixed", "rope_mixed", (79.4, 82.8, 83.8, 84.3, 84.7, 84.4, 82.9), ()),
    _curve("ViT-L, APE", "learned", (80.8, 83.8, 84.6, 84.9, 84.7, 84.2, 82.2), (144, 192, 256)),
    _curve("ViT-L, axial", "axial_rope", (80.9, None, 84.7, 85.1, 85.3, 85.1, 84.0), (144,)),
    _curve("ViT-L, mixed", "rope_mixed", (81.1, 83.9, 84.8, 85.4, 85.7, 85.6, 84.7), ()),
)


def relative(curve: Published) -> list[tuple[float, float]]:
    """(resolution, accuracy), each divided by that of training, ascending."""
    at_1x = curve.accuracy[TRAINED_AT]
    return [(size / TRAINED_AT, value / at_1x) for size, value in sorted(curve.accuracy.items())]


_FAR = 2.0  # the scale at which losses are compared, or the largest measured below it


class Curve(NamedTuple):
    """One row: accuracy [seeds, scales] in [0, 1], over scales [S] ascending, and the resolutions they are [S]."""

    scale: np.ndarray
    accuracy: np.ndarray
    resolution: tuple[int, ...]

    @property
    def at_1x(self) -> int:
        """The index of the resolution of training."""
        return int(np.argmin(np.abs(np.log(self.scale))))

    def relative(self) -> np.ndarray:
        """[seeds, scales], each seed divided by its own accuracy at the resolution of training."""
        return self.accuracy / self.accuracy[:, self.at_1x, None]


class Finding(NamedTuple):
    """One thing that RoPE-ViT's curves show, and what ours say of it."""

    claim: str
    theirs: str
    ours: str
    verdict: str = ""  # "agrees", "disagrees" or "not separable"


def curve_of(runs: Sequence[Record]) -> Curve:
    """The curve of one row.

    Raises:
      ValueError: its seeds were measured at different resolutions, or not at that of training.
    """
    found = [run["metrics"]["accuracy"] for run in runs]
    sizes = sorted(map(int, found[0]))
    if any(sorted(map(int, each)) != sizes for each in found):
        raise ValueError(f"the seeds of row {runs[0]['label']!r} were measured at different resolutions")
    trained = runs[0]["trained_at"]
    if trained not in sizes:
        raise ValueError(f"row {runs[0]['label']!r} was not measured at {trained}, where it was trained")
    accuracy = [[math.nan if each[str(size)] is None else each[str(size)] for size in sizes] for each in found]
    scale = np.array(sizes, float) / trained
    return Curve(np.sqrt(scale) if runs[0].get("native") else scale, np.array(accuracy, float), tuple(sizes))


def peak(curve: Curve) -> float:
    """The scale of the largest mean accuracy."""
    return float(curve.scale[np.nanargmax(curve.accuracy.mean(axis=0))])


def findings(rows: Rows) -> list[Finding]:
    """What is claimed of learned, axial and mixed encodings, checked on the rows that are what RoPE-ViT compares.

    Holm's correction is over these claims.
    """
    ours = compared(rows)
    claims = []
    if {"learned", "axial_rope"} <= ours.keys():
        claims.append(_keeps("axial keeps more than learned", ours, "axial_rope", "learned"))
    if {"axial_rope", "rope_mixed"} <= ours.keys():
        claims.append(_keeps("mixed keeps more than axial", ours, "rope_mixed", "axial_rope"))
    if "learned" in ours:
        claims.append(_peaks("learned peaks near 1x to 1.15x", ours["learned"], "learned", 1.0, 1.2))
    if "rope_mixed" in ours:
        claims.append(_peaks("mixed peaks near 1.4x", ours["rope_mixed"], "rope_mixed", 1.2, 1.6))
    judged = judge({found.claim: tested for found, tested in claims})
    return [_judged(found, judged[found.claim]) for found, _ in claims]


def _judged(found: Finding, verdict: Verdict) -> Finding:
    if not verdict.separated:
        return found._replace(verdict="not separable")
    return found._replace(verdict="agrees" if verdict.estimate.value > 0 else "disagrees")


def sentence(study: str, found: Sequence[Finding]) -> str:
    """The findings of a study in a line."""
    parts = [f"{each.claim} (RoPE-ViT {each.theirs}; here {each.ours}): {each.verdict}" for each in found]
    source = "means of ViT-S, B and L, linear between the resolutions tested, some of them read off its figure"
    return f"{study}, beside RoPE-ViT ({source}): {'; '.join(parts)}." if parts else ""


def rescaled(rows: Rows) -> dict[str, Verdict]:
    """{encoding: points of accuracy that rescaled coordinates are ahead of extrapolated ones at the largest scale}.

    Both read the same weights, so seeds are pairs; Holm's correction is over the encodings.
    """
    metric = Metric("accuracy", curve_of(next(iter(rows.values()))).resolution[-1])
    found = {}
    for label in whole(rows, metric):
        runs = rows[label]
        plain = [r for r in rows.values() if (r[0]["base"], r[0]["policy"]) == (runs[0]["base"], "as trained")]
        base = next((r for r in plain if r[0]["kind"] != "fine-tuned"), None)
        if base and runs[0]["kind"] != "fine-tuned" and runs[0]["policy"].startswith(_RESCALING):
            found[runs[0]["base"]] = difference(runs, base, metric).scaled(100)
    return judge(found)


_RESCALING = ("fit_grid(", "interpolate(")


def rescaled_sentence(rows: Rows) -> str:
    """What `rescaled` finds, in a line; "" where no encoding is read both ways."""
    found = rescaled(rows)
    if not found:
        return ""
    told = ", ".join(f"{base} {v.estimate.interval().text(1, signed=True)} ({v})" for base, v in found.items())
    at = curve_of(next(iter(rows.values()))).scale[-1]
    return (
        f"Rescaled less extrapolated coordinates at {at:.3g}x, points of accuracy, paired by seed: {told}; "
        f"at {LEVEL:g} after Holm's correction over {len(found)} tests."
    )


def compared(rows: Rows) -> dict[str, Curve]:
    """{encoding: curve} of learned (resized), axial_rope and rope_mixed (both as trained)."""
    found = {}
    for runs in rows.values():
        name = runs[0]["encoding"].split("(")[0]
        plain = runs[0]["kind"] != "fine-tuned" and (name == "learned" or runs[0]["policy"] == "as trained")
        if name in ("learned", "axial_rope", "rope_mixed") and plain:
            found.setdefault(name, curve_of(runs))
    return found


def _far(curve: Curve) -> int:
    return int(np.flatnonzero(curve.scale <= _FAR + 1e-6)[-1])


def _keeps(claim: str, ours: Mapping[str, Curve], more: str, less: str) -> tuple[Finding, Estimate]:
    """Of its accuracy at 1x one encoding keeps a larger share at 2x than another one; what is tested is by how much."""
    kept = [ours[name].relative()[:, _far(ours[name])].tolist() for name in (more, less)]
    text = " and ".join(f"{100 * i.mean:.0f} ± {100 * i.half_width:.0f} %" for i in map(mean_interval, kept))
    at = ours[more].scale[_far(ours[more])]
    theirs = " and ".join(f"{100 * _published_at(name, at):.1f} %" for name in (more, less))
    return Finding(f"{claim} at {at:.3g}x", theirs, text), estimate([(1.0, kept[0]), (-1.0, kept[1])])


def _peaks(claim: str, curve: Curve, name: str, low: float, high: float) -> tuple[Finding, Estimate]:
    """The mean is largest between two scales, or, by as much less than 0, outside of them.

    Tested is how far the best scale is ahead of the rival that it is least surely ahead of, on the other side of the bounds:
    the claim holds where it is ahead of all of these.
    """
    inside = (curve.scale >= low - 1e-6) & (curve.scale <= high)
    best = int(np.nanargmax(curve.accuracy.mean(axis=0)))
    rivals = np.flatnonzero(inside != inside[best])
    ahead = [estimate([(1.0, (curve.accuracy[:, best] - curve.accuracy[:, r]).tolist())]) for r in rivals]
    peaks = [max(relative(each), key=lambda point: point[1])[0] for each in ROPE_VIT if each.encoding == name]
    found = Finding(claim, f"{min(peaks):.3g}x to {max(peaks):.3g}x", f"{peak(curve):.3g}x")
    least = max(ahead, key=lambda each: each.p(), default=Estimate(0.0, math.nan, 0.0, 0))
    return found, least if inside[best] else least.scaled(-1)


def _published_at(name: str, scale: float) -> float:
    """The mean over model sizes of what is kept at a scale, linear between the scales published."""
    curves = [relative(each) for each in ROPE_VIT if each.encoding == name]
    return float(np.mean([np.interp(scale, *zip(*points, strict=True)) for points in curves]))


_NAMES = {"learned": "learned (APE)", "axial_rope": "axial", "rope_mixed": "mixed"}
_ROTARY = FAMILIES["rotary"]
_LOOK = {
    "learned": plots.Style(FAMILIES["tables"].color, FAMILIES["tables"].marker),
    "axial_rope": plots.Style(_ROTARY.color, _ROTARY.marker, (0, (5, 2)), False),
    "rope_mixed": plots.Style(_ROTARY.color, _ROTARY.marker),
}
_SIZES = ("ViT-S", "ViT-B", "ViT-L")


def accuracy_by_resolution(rows: Rows) -> Figure:
    """Mean accuracy (%) with its 95 % band over the scale of the test images (log2): a panel per encoding, a line per policy.

    In every panel stand, in grey, `none` and the row that is best at the largest scale.
    """
    curves = {label: curve_of(runs) for label, runs in rows.items()}
    lines = {label: _line(curve, 100 * curve.accuracy) for label, curve in curves.items()}
    panels: dict[str, list[str]] = {}
    for label, runs in rows.items():
        panels.setdefault(runs[0]["base"], []).append(label)
    shown = plots.references(rows, lines, max)
    first = next(iter(curves.values()))

    def dress(axes: Axes, is_first: bool) -> None:
        texts = [f"{size}\n{scale:.3g}x" for size, scale in zip(first.resolution, first.scale, strict=True)]
        _decorate(axes, first.scale.tolist(), texts)

    look = plots.styles(all_runs(rows))
    labels = ("resolution of the test images", "accuracy (%)")

    return plots.line_panels(lines, look, plots.split(panels), dress, references=shown, labels=labels)


def _line(curve: Curve, values: np.ndarray) -> Line:
    """Mean and interval of values [seeds, scales] over the scales; nan where a seed is not finite."""
    intervals = [mean_interval(each) if np.isfinite(each).all() else None for each in values.T.tolist()]
    mean = np.array([math.nan if each is None else each.mean for each in intervals])
    half_width = np.array([math.nan if each is None else each.half_width for each in intervals])
    return Line(curve.scale, mean, half_width, "")


def beside_published(rows: Rows) -> Figure | None:
    """Accuracy as a share of that at 1x, over the scale: learned, axial and mixed here (95 % bands), and in RoPE-ViT.

    None where the study has none of them.
    """
    ours = compared(rows)
    if not ours:
        return None
    figure = Figure(figsize=(11.0, 3.2), layout="constrained")
    here, *there = figure.subplots(1, 1 + len(_SIZES), sharey=True)
    for name, curve in ours.items():
        plots.draw_line(here, _line(curve, 100 * curve.relative()), _LOOK[name])
    _decorate(here, next(iter(ours.values())).scale.tolist())
    here.set_ylabel("accuracy (% of that at 1x)", fontsize=SMALL + 1)
    here.set_title("here", fontsize=SMALL + 1, loc="left")
    for axes, size in zip(there, _SIZES, strict=True):
        for curve in (each for each in ROPE_VIT if each.label.startswith(size)):
            x, y = map(np.array, zip(*relative(curve), strict=True))
            plots.draw_line(axes, Line(x, 100 * y, np.full(len(y), np.nan), ""), _LOOK[curve.encoding])
        _decorate(axes, [TRAINED_AT / TRAINED_AT, *(size / TRAINED_AT for size in (144, 320, 512))])
        axes.set_title(f"RoPE-ViT, {size}, ImageNet-1k", fontsize=SMALL + 1, loc="left")
    there[0].legend(here.lines[:-1], list(map(_NAMES.get, ours)), fontsize=SMALL, frameon=False, loc="lower center")
    figure.supxlabel("resolution of the test images", fontsize=SMALL + 1)
    return figure


def _decorate(axes: Axes, scales: Sequence[float], texts: Sequence[str] | None = None) -> None:
    """An axis of scales (log2) with the one in training marked."""
    plots.finish(axes)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.6)
    axes.axvline(1.0, color="black", linewidth=0.8, linestyle=(0, (5, 4)), zorder=0)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(scales))
    axes.xaxis.set_minor_locator(NullLocator())
    texts = texts or [f"{scale:.3g}x" for scale in scales]
    named = plots.spaced(np.log2(scales), list(scales).index(1.0) if 1.0 in scales else 0, near=0.17)
    axes.set_xticks(scales, [text if i in named else "" for i, text in enumerate(texts)], fontsize=SMALL - 1.5)


def write_resolution_report(
    records: Sequence[Record],
    directory: Path,
    about: About,
) -> list[Path]:
    """Writes table.md, the figures of each study and report.html; returns their paths.

    Raises:
      ValueError: no records, or rows of a study that were measured at different resolutions.
    """
    directory.mkdir(parents=True, exist_ok=True)
    figures = {}
    for study, rows in group(records).items():
        drawn = {"by_resolution": Captioned(accuracy_by_resolution(rows), _BY_RESOLUTION)}
        if (beside := beside_published(rows)) is not None:
            said = sentence(study, findings(rows))
            drawn["beside_rope_vit"] = Captioned(beside, f"Accuracy as a share of that at 1x, 95 % bands. {said}")
        figures[study] = save_figures(drawn, directory, study)
    return write_pages(tables(records), figures, records, directory, about)


_BY_RESOLUTION = (
    "Accuracy by the resolution of the test images, the dashed one in training: mean and 95 % interval over seeds. A panel "
    "per encoding, a line per policy; grey: none, and the row that is best at the largest scale."
)


def tables(records: Sequence[Record]) -> list[StudyTable]:
    """Two tables of each study: accuracy by resolution, and how far it is from that at 1x."""
    return [table for study, rows in group(records).items() for table in _tables(study, rows)]


def _tables(study: str, rows: Rows) -> list[StudyTable]:
    curves = {label: curve_of(runs) for label, runs in rows.items()}
    first = next(iter(curves.values()))
    if any(curve.resolution != first.resolution for curve in curves.values()):
        raise ValueError(f"the rows of {study!r} were measured at different resolutions")
    unit = "patches" if all_runs(rows)[0].get("native") else "px"
    titles = [f"{size} {unit} ({scale:.3g}×)" for size, scale in zip(first.resolution, first.scale, strict=True)]
    metrics = [Metric("accuracy", size) for size in first.resolution]
    best = {metric: best_row(rows, metric) for metric in metrics}
    columns = compare(rows, [(m, label, top) for m, top in best.items() if top is not None for label in rows])
    changes = _changes(rows, metrics, first.at_1x)
    judged = judge(columns | changes)
    by_metric = [metric_cells(rows, metric, top, judged, digits=1) for metric, top in best.items()]
    accuracy = dict(zip(rows, zip(*by_metric, strict=True), strict=True))
    change = _change_cells(rows, metrics, first.at_1x, judged)
    elsewhere = [i for i in range(len(titles)) if i != first.at_1x]
    notes = [how_tested(judged, paired=True, of_none=True, where="both tables"), _encodings(rows)]
    found = [finding(rows, metrics[i], f"accuracy (%) at {titles[i]}", judged) for i in (first.at_1x, -1)]
    said = tuple(filter(None, (*found, rescaled_sentence(rows), sentence(study, findings(rows)))))

    def table(name: str, titles: Sequence[str], cells, caption: str, notes=(), findings=()) -> StudyTable:
        made = tuple(Row(label, runs[0]["encoding"], tuple(cells[label])) for label, runs in rows.items())
        return StudyTable(name, tuple(titles), made, caption, notes, findings)

    found = [finding(rows, metrics[i], f"accuracy (%) at {titles[i]}", judged) for i in (first.at_1x, -1)]

    against = f"{study}: accuracy less that at 1x"
    return [
        table(study, [f"{t}, %" for t in titles], accuracy, _caption(rows), tuple(filter(None, notes)), said),
        table(against, [titles[i] for i in elsewhere], change, _CHANGE),
    ]


_CHANGE = (
    "Points of accuracy (%), mean ± half-width of the 95 % Student t interval over seeds, each seed less itself at 1x; "
    "bold where that is separable from 0, after Holm's correction over the tests of both tables."
)


def _changes(rows: Rows, metrics: Sequence[Metric], at_1x: int) -> dict[tuple[str, Metric], Estimate]:
    """Of every row and resolution but 1x, accuracy less that at 1x, each seed for itself; where all seeds are finite."""
    found = {}
    for label, runs in rows.items():
        whole = [m for m in metrics if len(metric_values(runs, m)[0]) == len(runs)]
        if metrics[at_1x] in whole:
            found |= {(label, m): difference(runs, runs, m, metrics[at_1x]) for m in whole if m != metrics[at_1x]}
    return found


def _change_cells(rows: Rows, metrics: Sequence[Metric], at_1x: int, judged: Mapping[Any, Verdict]):
    """Of each row a cell per resolution but 1x."""
    cells: dict[str, list[Cell]] = {label: [] for label in rows}
    for label in rows:
        for metric in (each for each in metrics if each != metrics[at_1x]):
            if (verdict := judged.get((label, metric))) is None:
                cells[label].append(Cell("-"))
                continue
            points = verdict.estimate.scaled(100).interval()
            cells[label].append(Cell(points.text(1, signed=True), "apart" if verdict.separated else "", points))
    return cells


def _caption(rows: Rows) -> str:
    runs = all_runs(rows)
    seeds = sorted({len(row) for row in rows.values()})
    steps = sorted({run["steps"] for run in runs if run["kind"] != "fine-tuned"})
    parts = [
        f"{' / '.join(map(str, seeds))} seeds per row",
        "mean ± half-width of the 95 % Student t interval over seeds, all on the same images",
        "best mean in bold",
        f"{' / '.join(map(str, steps))} training steps",
        f"{' / '.join(dict.fromkeys(str(run['images']) for run in runs))} test images",
        f"device {' / '.join(dict.fromkeys(run['device'] for run in runs))}",
        versions_text(runs),
        f"wall time {_wall_time(rows):,.0f} s",
    ]
    return "; ".join(part for part in parts if part) + "."


def _wall_time(rows: Rows) -> float:
    """Seconds of training, each model once, and of evaluation."""
    trained = {run["training_hash"]: run["wall_time"] for run in all_runs(rows)}
    return sum(trained.values()) + sum(run["evaluation_time"] for run in all_runs(rows))


def _encodings(rows: Rows) -> str:
    found = {label: (runs[0]["encoding"], runs[0]["policy"]) for label, runs in rows.items()}
    named = [
        f"{label} = {spec}" + (", resized" if policy == "resized" else "") for label, (spec, policy) in found.items()
    ]
    return f"Encodings: {'; '.join(named)}."
