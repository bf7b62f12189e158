"""Uniqueness, determinism, extrapolation and relative awareness of an encoding, measured on its logit operator.

Each function returns {measure: Found}; `scorecard.MEASURES` defines the measures and their bounds.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from posjax.describe.probes import Operator, Probe, attention, cached_logits, logits
from posjax.describe.worlds import box, places, with_relation
from posjax.encoding import Params, Site
from posjax.extras import require

BLIND, NO_CODE = "position-blind", "adds no code"
_SAME = 1e-3  # signatures closer than this, relative to their norm, are one


class Found(NamedTuple):
    """A value, or the reason why the measure does not apply."""

    value: float | None
    note: str = ""


def reach(
    probe: Probe, site: Site, rows: np.ndarray | None = None, params: Params | None = None
) -> tuple[Operator | None, str]:
    """The operator at places that the encoding may not have; or None, and the reason."""
    try:
        tile = logits(probe, site, rows, params=params)
    except ValueError as error:
        return None, str(error)
    if np.isfinite(tile.value[:, :, tile.seen]).all():
        return tile, ""
    return None, "has nothing for places beyond its length"  # a table ends before


def uniqueness(probe: Probe, base: Operator, code: np.ndarray | None, longer: tuple[int, ...]) -> dict[str, Found]:
    """Do any two places look alike? The signature of a place is the attention of its queries; `code` is their codes."""
    norm, distance = distance_summary(_signatures(base))
    rough_norm, rough_distance = distance_summary(_signatures(_in_bfloat16(probe, longer)))
    found = {
        "U_gap": Found(distance.min() / norm),
        "U_coll": Found(100 * np.mean(distance < _SAME * norm)),
        "U_coll_bf16": Found(100 * np.mean(rough_distance < _SAME * rough_norm)),
    }
    if code is None:
        return found | {"U_code": Found(None, NO_CODE)}
    norm, distance = distance_summary(code)
    return found | {"U_code": Found(distance.min() / norm)}


def _in_bfloat16(probe: Probe, longer: tuple[int, ...]) -> Operator:
    """The operator with positions and parameters rounded, at the far end of `longer`: bfloat16 counts to 256 only."""
    params = jax.tree.map(_through_bfloat16, probe.params)

    def at(shift) -> Site:
        site = with_relation(probe.encoding, box(probe.extent, shift))  # of places that are not rounded
        return site._replace(position=_through_bfloat16(site.position))

    far, _ = reach(probe, at(tuple(b - a for a, b in zip(probe.extent, longer, strict=True))), params=params)
    return logits(probe, at(0), params=params) if far is None else far


def _signatures(tile: Operator) -> np.ndarray:
    """[T, C H T]"""
    weights = softmax(tile.masked)
    return np.moveaxis(weights, 2, 0).reshape(weights.shape[2], -1)


def softmax(masked: np.ndarray) -> np.ndarray:
    """Softmax over the last axis, in float64; zeros in a row that sees nothing."""
    peak = masked.max(axis=-1, keepdims=True)
    weights = np.exp(masked.astype(np.float64) - np.where(np.isfinite(peak), peak, 0.0))
    total = weights.sum(axis=-1, keepdims=True)
    return weights / np.where(total > 0, total, 1.0)


def distance_summary(x: np.ndarray) -> tuple[float, np.ndarray]:
    """The mean norm of rows [T, F], and their [T (T - 1) / 2] distances."""
    gram = x @ x.T
    square = np.diag(gram)
    pairs = np.triu_indices(len(x), 1)
    distance = np.sqrt(np.maximum(square[:, None] + square[None] - 2 * gram, 0.0))[pairs]
    return float(np.sqrt(square).mean()), distance


def _through_bfloat16(x):
    return np.asarray(jnp.asarray(x).astype(jnp.bfloat16).astype(x.dtype)) if hasattr(x, "dtype") else x


def determinism(
    probe: Probe, base: Operator, long: tuple[int, ...], far: Operator | None, rows: np.ndarray
) -> dict[str, Found]:
    """Does a logit depend on the tokens that come later?"""
    if far is None:
        return dict.fromkeys(("D_prefix", "D_cache"), Found(None, "takes no longer sequence"))
    first = np.ravel_multi_index(tuple(places(probe.extent).T), long)  # indices among the tokens of `long`
    near, later = np.isin(rows, first), rows > first[-1]
    mine = np.searchsorted(first, rows[near])
    cached = cached_logits(probe, long, rows[later])
    return {
        "D_prefix": Found(difference(far.value[:, :, near][..., first], base.value[:, :, mine]) / base.scale),
        "D_cache": Found(difference(far.value[:, :, later][..., first], cached) / base.scale),
    }


def difference(a: np.ndarray, b: np.ndarray) -> float:
    """max |a - b|; entries that are infinite alike do not differ."""
    with np.errstate(invalid="ignore"):
        return float(np.max(np.where(a == b, 0.0, np.abs(a - b))))


def extrapolation(
    probe: Probe, base: Operator, long: tuple[int, ...], far: Operator | None, rows: np.ndarray
) -> dict[str, Found]:
    """Measures logits and attention at distances that no two places of `probe.extent` have."""
    if far is None:
        return {name: Found(None, "takes no longer sequence") for name in ("X_range", "X_mass", "X_ent")}
    here, there = places(probe.extent), places(long)
    offset = np.abs(there[rows][:, None] - there[None])
    unseen = (offset >= np.array(probe.extent)).any(axis=-1) & far.seen
    past = here[:, None].sum(-1) >= here[None].sum(-1) if probe.num_axes == 1 else np.ones((len(here),) * 2, bool)
    if probe.num_axes == 1:
        unseen &= there[rows] >= there[:, 0][None]
    found = {"X_range": Found(0.0, "sees nothing at such distances")}
    if unseen.any():
        seen_values = base.value[:, :, base.seen & past]
        low, high = (f(seen_values, axis=-1)[..., None] for f in (np.min, np.max))
        slack = 1e-5 * np.maximum(high - low, base.scale)
        new = far.value[:, :, unseen]
        found["X_range"] = Found(float(np.mean((new < low - slack) | (new > high + slack))))
    weights, short = softmax(far.masked[:, :, -1]), softmax(base.masked[:, :, -1])
    found["X_mass"] = Found(float(weights[..., unseen[-1]].sum(axis=-1).mean()))
    short_entropy = _entropy(short)
    ratio = _entropy(weights) / short_entropy if short_entropy > 1e-6 else None
    return found | {"X_ent": Found(ratio, "" if ratio is not None else "sees one key only")}


def _entropy(weights: np.ndarray) -> float:
    return float(-np.sum(weights * np.log(np.where(weights > 0, weights, 1.0)), axis=-1).mean())


def decodability(base: Operator, probe: Probe) -> Found:
    """R^2 of a ridge regression of the offset on the [C H] logits of a pair, on other pairs.

    Offsets are of keys before the query along the last axis: a logit that sees only distances tells them too.
    """
    place = places(probe.extent)[:, -1]
    pairs = np.argwhere(base.seen & (place[:, None] >= place[None]))
    pairs = np.random.default_rng(3).choice(pairs, size=4000)
    features = base.value[:, :, pairs[:, 0], pairs[:, 1]].reshape(-1, len(pairs)).T.astype(np.float64)
    spread = features.std(axis=0)
    if not (spread > 1e-5 * base.scale).any():
        return Found(None, BLIND)
    features = (features - features.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    offset = (place[pairs[:, 0]] - place[pairs[:, 1]]).astype(np.float64)
    train, test = slice(0, 2000), slice(2000, None)
    design = features[train]
    weights = np.linalg.solve(
        design.T @ design + 1e-3 * len(design) * np.eye(design.shape[1]),
        design.T @ (offset[train] - offset[train].mean()),
    )
    return Found(r_squared(offset[test], features[test] @ weights + offset[train].mean()))


def r_squared(true: np.ndarray, predicted: np.ndarray) -> float:
    return float(1 - np.sum((true - predicted) ** 2) / np.sum((true - true.mean(axis=0)) ** 2))


def decay(probe: Probe, base: Operator) -> dict[str, Found]:
    """Spearman's correlation of a logit and the distance, for like contents (q = k) and for independent ones."""
    aligned = logits(probe, box(probe.extent), aligned=True)
    profile, independent = _by_distance(probe, aligned).mean(axis=(0, 1)), _by_distance(probe, base)
    if np.ptp(profile) <= 1e-5 * aligned.scale:
        return {name: Found(None, BLIND) for name in ("rho_same", "rho_other", "monotone")}
    falls = np.diff(profile) <= 1e-6 * np.ptp(profile)
    flat = np.ptp(independent, axis=-1) <= 1e-5 * base.scale
    each = np.where(flat, 0.0, [[_spearman(row) for row in content] for content in independent])
    return {
        "rho_same": Found(_spearman(profile)),
        "rho_other": Found(float(each.mean())),
        "monotone": Found(float(falls.mean())),
    }


def _by_distance(probe: Probe, tile: Operator) -> np.ndarray:
    """[C, H, distances]: mean logits of a query and the keys before it; on grids, at whole Euclidean distances."""
    place = places(probe.extent)
    distance = np.rint(np.sqrt(np.sum((place[:, None] - place[None]) ** 2, axis=-1))).astype(int)
    if probe.num_axes == 1:
        distance = np.where(place >= place.T, distance, -1)
    # A hidden key counts as one with less than the smallest logit.
    values = np.where(tile.seen, tile.value, tile.value[:, :, tile.seen].min() - tile.scale)
    kept = distance >= 0
    index = distance[kept]
    count = np.bincount(index)
    means = [np.bincount(index, row[kept]) / count for row in values.reshape(-1, *distance.shape)]
    return np.array(means).reshape(*values.shape[:2], -1)


def _spearman(profile: np.ndarray) -> float:
    require("the scorecard", "scipy")
    from scipy.stats import rankdata

    ranks = rankdata(np.round(profile / (np.ptp(profile) or 1.0), 6))
    if np.ptp(ranks) == 0:
        return 0.0
    return float(np.corrcoef(np.arange(len(ranks)), ranks)[0, 1])


def order(probe: Probe) -> Found:
    """The change of a bidirectional layer's output as tokens swap places: without an encoding it permutes with them."""
    site, rng = box(probe.extent), np.random.default_rng(4)
    x = rng.normal(size=(probe.num_tokens, probe.dims.width)).astype(np.float32)
    swapped = rng.permutation(probe.num_tokens)
    return Found(difference(attention(probe, x[swapped], site), attention(probe, x, site)[swapped]))
