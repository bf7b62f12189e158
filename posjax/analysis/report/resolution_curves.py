"""From the records of `experiments.resolutions` to curves over the scale, and to what they say beside published ones."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from posjax.analysis.report.published_resolutions import ROPE_VIT, relative
from posjax.analysis.statistics import Interval, Record, Rows, difference_interval, mean_interval

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
    verdict: str  # "agrees", "disagrees" or "not separated"


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


def differences(curve: Curve) -> list[Interval | None]:
    """Of every resolution, accuracy less that at 1x, each seed for itself; None at 1x and where a seed is not finite."""
    change = curve.accuracy - curve.accuracy[:, curve.at_1x, None]
    return [
        None if index == curve.at_1x or not np.isfinite(values).all() else mean_interval(values.tolist())
        for index, values in enumerate(change.T)
    ]


def peak(curve: Curve) -> float:
    """The scale of the largest mean accuracy."""
    return float(curve.scale[np.nanargmax(curve.accuracy.mean(axis=0))])


def findings(rows: Rows) -> list[Finding]:
    """What is claimed of learned, axial and mixed encodings, checked on the rows that are what RoPE-ViT compares."""
    ours = compared(rows)
    found = []
    if {"learned", "axial_rope"} <= ours.keys():
        found.append(_keeps("axial keeps more than learned", ours, "axial_rope", "learned"))
    if {"axial_rope", "rope_mixed"} <= ours.keys():
        found.append(_keeps("mixed keeps more than axial", ours, "rope_mixed", "axial_rope"))
    if "learned" in ours:
        found.append(_peaks("learned peaks near 1x to 1.15x", ours["learned"], "learned", 1.0, 1.2))
    if "rope_mixed" in ours:
        found.append(_peaks("mixed peaks near 1.4x", ours["rope_mixed"], "rope_mixed", 1.2, 1.6))
    return found


def sentence(study: str, found: Sequence[Finding]) -> str:
    """The findings of a study in a line."""
    parts = [f"{each.claim} (RoPE-ViT {each.theirs}; here {each.ours}): {each.verdict}" for each in found]
    source = "means of ViT-S, B and L, linear between the resolutions tested, some of them read off its figure"
    return f"{study}, beside RoPE-ViT ({source}): {'; '.join(parts)}." if parts else ""


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


def _keeps(claim: str, ours: Mapping[str, Curve], more: str, less: str) -> Finding:
    """Of its accuracy at 1x one encoding keeps a larger share at 2x than another one: by Welch's interval."""
    kept = [ours[name].relative()[:, _far(ours[name])].tolist() for name in (more, less)]
    intervals, change = [mean_interval(values) for values in kept], difference_interval(*kept)
    text = " and ".join(f"{100 * i.mean:.0f} ± {100 * i.half_width:.0f} %" for i in intervals)
    at = ours[more].scale[_far(ours[more])]
    theirs = " and ".join(f"{100 * _published_at(name, at):.1f} %" for name in (more, less))
    verdict = "agrees" if change.low > 0 else "disagrees" if change.high < 0 else "not separated"
    return Finding(f"{claim} at {at:.3g}x", theirs, text, verdict)


def _peaks(claim: str, curve: Curve, name: str, low: float, high: float) -> Finding:
    """The mean is largest between two scales; separated where every scale outside of them is surely lower."""
    inside = (curve.scale >= low - 1e-6) & (curve.scale <= high)
    best = int(np.nanargmax(curve.accuracy.mean(axis=0)))
    rivals = np.flatnonzero(inside != inside[best])
    behind = [mean_interval((curve.accuracy[:, best] - curve.accuracy[:, r]).tolist()).low > 0 for r in rivals]
    verdict = ("agrees" if inside[best] else "disagrees") if all(behind) else "not separated"
    peaks = [max(relative(each), key=lambda point: point[1])[0] for each in ROPE_VIT if each.encoding == name]
    return Finding(claim, f"{min(peaks):.3g}x to {max(peaks):.3g}x", f"{peak(curve):.3g}x", verdict)


def _published_at(name: str, scale: float) -> float:
    """The mean over model sizes of what is kept at a scale, linear between the scales published."""
    curves = [relative(each) for each in ROPE_VIT if each.encoding == name]
    return float(np.mean([np.interp(scale, *zip(*points, strict=True)) for points in curves]))
