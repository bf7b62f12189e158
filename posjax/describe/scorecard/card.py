"""Ideal properties of positional encodings as measurements: uniqueness, determinism, extrapolation, relative awareness,
many dimensions, and properties that are often claimed beside them. `posjax.describe.properties` says what every encoding
must have: compiled logits are eager ones, documents of a packed row are alone, `relative` is as declared.

    scorecard(parse("rope()"))["measures"]["R_group"]                   # {"value": 4e-06, "verdict": "pass", "note": ...}

Every value is scale-free, so that encodings of any size of logits can be compared. `MEASURES` says what each one is and
when it is good. No single one is "extrapolation": ALiBi's logits leave their range and still reach nothing new.
"""

import math
from typing import Any, NamedTuple

import jax
import numpy as np

from posjax.describe.probes import Probe, logits, make_probe, whole_codes
from posjax.describe.scorecard import axes, measures, parts
from posjax.describe.scorecard.measures import Found
from posjax.describe.worlds import axes_taken, box, places
from posjax.encoding import Dims, Encoding, Needs, Params

LENGTH, TIMES = 256, 4  # tokens of the places that are "seen", and how many times as many are tried
EXACT = 1e-5  # equal, in float32, relative to the standard deviation of the logits
_NEAR, _FAR = 8, 24  # queries of a long sequence
_NEVER_CACHED = Needs.WHOLE_DOCUMENT | Needs.BOTH_DIRECTIONS


class Criterion(NamedTuple):
    """The criterion of a measure, which is good at `bound` or below; at `bound` or above where `at_least`."""

    group: str
    title: str
    about: str
    bound: float
    at_least: bool = False

    def verdict(self, value: float) -> str:
        good = value >= self.bound if self.at_least else value <= self.bound
        return "pass" if good else "fail"


_CRITERIA: dict[str, dict[str, tuple]] = {  # by group and name: the fields of a `Criterion` behind its group
    "uniqueness": {
        "U_gap": ("gap", "least distance of two places' attention rows over their mean norm", 1e-3, True),
        "U_coll": ("same %", "pairs of places closer than 0.001 of the norm", 0.0),
        "U_coll_bf16": ("same % bf16", "the same far out, with positions and parameters rounded to bfloat16", 0.0),
        "U_code": ("code gap", "least distance of two codes over their mean norm", 1e-3, True),
    },
    "determinism": {
        "D_prefix": ("prefix", "how far logits of the first n tokens move as the sequence grows", EXACT),
        "D_cache": ("cache", "error of keys that were transformed when the sequence was shorter", EXACT),
    },
    "extrapolation": {
        "X_takes": ("longer", "1 if it says anything of places beyond the length it was made for", 1, True),
        "X_range": ("new logits", "share of logits at new distances outside their range before", 0.05),
        "X_mass": ("new mass", "attention that the last query pays to new distances", 0.1),
        "X_ent": ("entropy", "entropy of the last query's attention over that at the length before", 1.1),
        "X_phase": ("new phase", "share of rotations that do not finish a turn within the length", 0.0),
    },
    "relative": {
        "R_group": ("group", "defect of R(p)^T R(q) = R(0)^T R(q - p)", EXACT),
        "R_linear": ("linear R2", "code(p + d) from code(p) by one matrix, on held-out places", 0.99, True),
        "R_decode": ("decode R2", "the offset from a pair's logits by ridge regression", 0.5, True),
    },
    "dimensions": {
        "A_reduce": ("on a line", "largest difference of a row or column of the plane from a line", EXACT),
        "A_group": ("group 2-D", "the group defect on the plane", EXACT),
        "A_swap": ("swap", "least difference of offsets (x, y) and (y, x)", 1e-3, True),
        "A_isotropy": ("anisotropy", "variance over the angle over variance within the distance", 0.05),
        "A_waves": ("directions", "directions that the waves of all heads run in", 3, True),
        "A_wrap": ("wrap", "likeness of a row's end and the next one's start over that of neighbours", 0.5),
    },
    "decay": {
        "rho_same": ("rho q=k", "rank correlation of logit and distance, like contents", -0.5),
        "rho_other": ("rho q,k", "the same for independent contents, mean of each", -0.5),
        "monotone": ("falls", "share of steps at which the logit of like contents does not grow", 0.99, True),
    },
    "codes, transforms": {
        "C_small": ("a+x=b+y %", "token + code lies nearest to one of another token, tokens of deviation 0.02", 1.0),
        "R_norm": ("norm", "largest change of a query's or key's norm, relative", EXACT),
    },
    "order": {
        "P_tokens": (
            "permute x",
            "change of the output as tokens swap places, over the values: 0 is a bag of tokens",
            1e-3,
            True,
        ),
    },
}
MEASURES = {name: Criterion(group, *row) for group, rows in _CRITERIA.items() for name, row in rows.items()}


def scorecard(
    encoding: Encoding,
    params: Params | None = None,
    *,
    dims: Dims | None = None,
    length: int = LENGTH,
    seed: int = 0,
) -> dict[str, Any]:
    """Every measure of one encoding.

    Args:
      params: its learned parameters; None initialises them by `seed`.
      dims: of the model, by default 8 heads of 32 with tables for 4 `length` positions. With a grid in it the encoding
        is measured on that grid. Needed with `params`.
      length: tokens on a line that count as seen.

    Returns:
      {"encoding": spec, "measured_on": extent, "measures": {name: {"value", "verdict", "note"}}}.
      A verdict is "pass", "fail", "handled" (fails, declares it, and decoding acts on it) or "n/a", with the reason as note.

    Raises:
      ValueError: `params` without `dims`, or an encoding that refuses the places it is to be measured on.
    """
    if params is not None and dims is None:
        raise ValueError("scorecard(params=...) needs the dims of the model that learned them")
    key = jax.random.key(seed)
    extent = _extent(encoding, dims, length)
    own = dims or _roomy(encoding, key, extent)
    probe = make_probe(encoding, encoding.init(key, own) if params is None else params, own, extent, seed)
    code = whole_codes(probe, extent)
    found = _on_its_own_axes(probe, key, code, trained=params is not None)
    found |= _on_a_plane(probe, key, seed, trained=params is not None)
    found["C_small"] = parts.collisions(code)
    return {
        "encoding": str(encoding),
        "measured_on": list(extent),
        "measures": {name: _judged(encoding, name, found[name]) for name in MEASURES},
    }


def _extent(encoding: Encoding, dims: Dims | None, length: int) -> tuple[int, ...]:
    """Returns the grid of its model, a line if the encoding takes one, else a square or cube of that size."""
    if dims is not None and dims.grid is not None and 2 in encoding.dimensions:
        return tuple(dims.grid)
    num_axes = min(axes_taken(encoding))
    return (round(length ** (1 / num_axes)),) * num_axes


def _dims(extent: tuple[int, ...], times: int) -> Dims:
    """8 heads of 32, with tables for `times` the tokens of `extent`."""
    dims = Dims(width=256, num_heads=8, head_dim=32)
    if len(extent) == 2:
        return dims._replace(grid=_longer(extent, times))
    return dims._replace(length=int(np.prod(extent)) * times)


def _roomy(encoding: Encoding, key: jax.Array, extent: tuple[int, ...]) -> Dims:
    """Adds places beyond `extent` to the dims, if the encoding does not set their number itself."""
    try:
        encoding.init(key, _dims(extent, TIMES))
    except ValueError:
        return _dims(extent, 1)
    return _dims(extent, TIMES)


def _longer(extent: tuple[int, ...], times: int = TIMES) -> tuple[int, ...]:
    return tuple(round(e * times ** (1 / len(extent))) for e in extent)


def _on_its_own_axes(probe: Probe, key: jax.Array, code, trained: bool) -> dict[str, Found]:
    longer = _longer(probe.extent)
    rows = _rows(probe.extent, longer)
    base = logits(probe, box(probe.extent))
    far, _ = measures.reach(probe, box(longer), rows)
    found = measures.uniqueness(probe, base, code, longer)
    found |= measures.determinism(probe, base, longer, far, rows)
    found |= measures.extrapolation(probe, base, longer, far, rows)
    found["X_takes"] = _takes_longer(probe, key, longer, rows, far, trained)
    found["R_linear"] = Found(None, measures.NO_CODE) if code is None else parts.linear_relation(probe, longer)
    found["R_decode"] = measures.decodability(base, probe)
    found |= {name: value for name, value in parts.rotation(probe).items() if name != "A_waves"}
    return found | measures.decay(probe, base) | {"P_tokens": measures.order(probe)}


def _rows(extent: tuple[int, ...], longer: tuple[int, ...]) -> np.ndarray:
    """Some queries of the longer box: within `extent`, and beyond it with the very last one."""
    inside = (places(longer) < np.array(extent)).all(axis=1)
    near, far = np.flatnonzero(inside), np.flatnonzero(~inside)
    chosen = [
        tokens[np.linspace(0, len(tokens) - 1, count).astype(int)] for tokens, count in ((near, _NEAR), (far, _FAR))
    ]
    return np.unique(np.concatenate(chosen))


def _takes_longer(probe: Probe, key: jax.Array, longer, rows, far, trained: bool) -> Found:
    """Tries longer sequences, with parameters for `extent` only if their shapes depend on it."""
    if trained or far is None:
        return Found(float(far is not None), "" if far is not None else "takes no longer sequence")
    short = probe.encoding.init(key, _dims(probe.extent, 1))
    if jax.tree.map(np.shape, short) == jax.tree.map(np.shape, probe.params):
        return Found(1.0)
    there, reason = measures.reach(probe, box(longer), rows, short)
    return Found(float(there is not None), reason)


def _on_a_plane(probe: Probe, key: jax.Array, seed: int, trained: bool) -> dict[str, Found]:
    names, reason = (*axes.PLANE, "A_reduce"), ""
    if trained and probe.num_axes != 2:
        reason = f"parameters are of {probe.num_axes} axes"
    elif 2 not in probe.encoding.dimensions:
        reason = axes.NEEDS_RASTER if probe.encoding.dimensions == (1,) else "takes no plane"
    if reason:
        return dict.fromkeys(names, Found(None, reason))
    side, grid = round(probe.num_tokens**0.5), probe
    try:
        if probe.num_axes != 2:  # with places to move to
            dims = probe.dims._replace(length=None, grid=(2 * side, 2 * side))
            grid = make_probe(probe.encoding, probe.encoding.init(key, dims), dims, (side, side), seed)
        reduced = axes.reduction(probe, grid.params) if probe.num_axes == 1 else Found(None, "does not take both")
        return axes.plane(grid) | {"A_reduce": reduced}
    except ValueError as error:
        return dict.fromkeys(names, Found(None, str(error)))


def _judged(encoding: Encoding, name: str, found: Found) -> dict[str, Any]:
    if found.value is None:
        return {"value": None, "verdict": "n/a", "note": found.note}
    verdict, note = MEASURES[name].verdict(found.value), found.note
    if math.isnan(found.value):
        note = note or "not a number"
    if name == "D_cache" and verdict == "fail" and Needs.DOCUMENT_LENGTH in encoding.needs:
        verdict, note = "handled", "declared: caches keep keys as they were before the transform"
    elif name == "D_cache" and verdict == "fail" and encoding.needs & _NEVER_CACHED:
        verdict, note = "handled", "declared: it is not decoded from a cache"
    return {"value": float(found.value), "verdict": verdict, "note": note}
