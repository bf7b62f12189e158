"""What an encoding knows of the plane, where its tokens stand on a grid."""

import jax
import numpy as np

from posjax.describe.probes import Operator, Probe, logits
from posjax.describe.scorecard.measures import BLIND, Found, difference, softmax
from posjax.describe.scorecard.parts import rotation
from posjax.describe.worlds import box, places
from posjax.encoding import Params

NEEDS_RASTER = "needs raster"
PLANE = ("A_group", "A_swap", "A_isotropy", "A_wrap", "A_waves")
_LINE = 16  # tokens on a row of the plane


def plane(probe: Probe) -> dict[str, Found]:
    """Measures of an encoding whose tokens stand on a grid."""
    base = logits(probe, box(probe.extent))
    height, width = probe.extent
    turned = rotation(probe)
    return {
        "A_group": turned["R_group"],
        "A_waves": turned["A_waves"],
        "A_swap": _swap(probe, base),
        "A_isotropy": _isotropy(probe, base),
        "A_wrap": wrap(base, height, width),
    }


def _around(probe: Probe, base: Operator) -> tuple[np.ndarray, np.ndarray]:
    """([C, H, T] logits of the query in the middle, [T, 2] offsets of the keys from it)."""
    middle = np.array(probe.extent) // 2
    row = np.ravel_multi_index(tuple(middle), probe.extent)
    hidden = base.value[:, :, base.seen].min() - base.scale
    return np.where(base.seen[row], base.value[:, :, row], hidden), places(probe.extent) - middle


def _swap(probe: Probe, base: Operator) -> Found:
    """The least root mean square of L(dx, dy) - L(dy, dx) over std L: 0 if some offset looks like its mirror image.

    Not of (d, -d), whose mirror image is its opposite as well.
    """
    values, offset = _around(probe, base)
    index = {tuple(o): i for i, o in enumerate(offset)}
    pairs = [(i, index[o[::-1]]) for o, i in index.items() if o[0] < o[1] and o[0] != -o[1] and o[::-1] in index]
    left, right = np.array(pairs).T
    gaps = np.sqrt(np.mean((values[..., left] - values[..., right]) ** 2, axis=(0, 1)))
    return Found(float(gaps.min()) / base.scale)


def _isotropy(probe: Probe, base: Operator) -> Found:
    """Variance of L over the angle at a fixed distance, over its variance within that distance; 0 if only distance counts."""
    values, offset = _around(probe, base)
    square = np.sum(offset**2, axis=1)
    radii = [r for r in (25, 50, 65) if np.count_nonzero(square == r) >= 8]
    if not radii:
        return Found(None, "too small a grid")
    around = np.mean([values[..., square == r].var(axis=-1) for r in radii])
    total = values[..., square <= max(radii)].var(axis=-1).mean()
    return Found(float(around / total)) if total > (1e-5 * base.scale) ** 2 else Found(None, BLIND)


def wrap(base: Operator, height: int, width: int) -> Found:
    """Likeness of the end of a row to the start of the next, over the likeness of neighbours.

    Likeness is the correlation of the attention of their queries; about 1 if an image is a line, small on a plane.
    """
    weights = softmax(base.masked)
    x = np.moveaxis(weights, 2, 0).reshape(height * width, -1)
    x = x - x.mean(axis=0)
    norm = np.linalg.norm(x, axis=1)
    if norm.max() <= 1e-6:
        return Found(None, BLIND)
    x = (x / np.where(norm > 0, norm, 1.0)[:, None]).reshape(height, width, -1)
    ends = np.mean(np.sum(x[:-1, -1] * x[1:, 0], axis=-1))
    neighbours = np.mean(np.sum(x[:, :-1] * x[:, 1:], axis=-1))
    if neighbours < 0.02:
        return Found(None, "neighbours are not alike")
    return Found(float(ends / neighbours))


def reduction(line: Probe, grid_params: Params) -> Found:
    """max |L on a row or column of the plane - L on a line| / std L."""
    if jax.tree.map(np.shape, grid_params) != jax.tree.map(np.shape, line.params):
        return Found(None, "has other parameters on a plane")
    small = line._replace(extent=(_LINE,))
    alone = logits(small, box(small.extent))
    errors = [
        difference(logits(small, box(extent), params=grid_params).value, alone.value) / alone.scale
        for extent in ((1, _LINE), (_LINE, 1))
    ]
    return Found(max(errors))
