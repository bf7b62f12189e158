"""Measures of additive codes, and of transforms of queries and keys, without their logits."""

import numpy as np

from posjax.describe.probes import Probe, linear_rotation, whole, whole_codes
from posjax.describe.scorecard.measures import NO_CODE, Found, r_squared
from posjax.describe.worlds import places

_WORDS, _PLACES, _SUMS = 1000, 256, 200
_TOKENS = 0.02  # standard deviation of token embeddings, as at the start of training
_TURNS = 1e-7  # radians per position


def linear_relation(probe: Probe, longer: tuple[int, ...]) -> Found:
    """R^2, on held-out places, of the best matrix M_d with code(p + d) = M_d code(p); the mean over some d."""
    extent, code = longer, whole_codes(probe, longer)
    if code is None or not np.isfinite(code).all():  # a table may end before
        extent, code = probe.extent, whole_codes(probe, probe.extent)
    place, found = places(extent), {}  # the last axis runs fastest: p + d lies d tokens on
    for step in [d for d in (1, 7, 32) if d <= extent[-1] // 4]:
        before = np.flatnonzero(place[:, -1] < extent[-1] - step)
        before = np.random.default_rng(5).permutation(before)
        fit, held = before[::2], before[1::2]
        matrix = np.linalg.lstsq(code[fit], code[fit + step], rcond=1e-6)[0]
        found[step] = r_squared(code[held + step], code[held] @ matrix)
    if not found:
        return Found(None, "too few places")
    return Found(float(np.mean([*found.values()])), " ".join(f"d={d}: {r2:.3f}" for d, r2 in found.items()))


def collisions(code: np.ndarray | None) -> Found:
    """Per cent of sums token + code [T, M] whose nearest other sum has another token."""
    if code is None or not np.isfinite(code).all():
        return Found(None, NO_CODE)
    return Found(collision_rate(code[:_PLACES], _TOKENS, seed=6))


def collision_rate(code: np.ndarray, scale: float, seed: int) -> float:
    """Per cent of the sums a + x (token and place drawn at random) that lie nearest to some b + y with b != a.

    Tokens are N(0, scale^2); `code` is [n, M].
    """
    rng = np.random.default_rng(seed)
    words = scale * rng.normal(size=(_WORDS, code.shape[1]))
    own, other = nearest_sums(words, code, rng)
    return 100 * float(np.mean(other < own))


def nearest_sums(words: np.ndarray, code: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Returns squared distances, [2, S], from S random sums a + x to the nearest a + y, y != x, and b + y, b != a.

    Args:
      words: [N, M].
      code: [n, M].
    """
    word_square, code_square = np.sum(words**2, axis=1), np.sum(code**2, axis=1)
    # |b + y|^2 for every sum; with |a + x|^2, |b + y - (a + x)|^2 needs only inner products with one vector each.
    square = word_square[:, None] + code_square[None] + 2 * words @ code.T
    found = []
    for _ in range(_SUMS):
        a, x = rng.integers(len(words)), rng.integers(len(code))
        total = words[a] + code[x]
        distance = square + square[a, x] - 2 * ((words @ total)[:, None] + (code @ total)[None])
        distance[a, x] = np.inf
        found.append((distance[a].min(), np.delete(distance, a, axis=0).min()))
    return np.transpose(found)


def rotation(probe: Probe) -> dict[str, Found]:
    """Group defect, unseen phases, norms and directions of the matrices that turn queries and keys."""
    names = ("R_group", "X_phase", "R_norm", "A_waves")
    matrices, reason = _matrices(probe)
    if matrices is None:
        return {name: Found(None, reason) for name in names}
    q, k = matrices
    stretches = np.linalg.svd(np.stack([q, k]), compute_uv=False)
    found = {"R_norm": Found(float(np.abs(stretches - 1).max()))}
    relative = np.linalg.pinv(q[0]) @ q[1]  # from place (.., 0, 0) to (.., 0, 1)
    turns = np.abs(np.angle(np.linalg.eigvals(relative)))  # [H, D], every frequency twice
    if turns.max() < _TURNS:
        return found | {name: Found(None, "turns nothing") for name in names if name != "R_norm"}
    unseen = (turns > _TURNS) & (turns < 2 * np.pi / probe.extent[-1])
    found["X_phase"] = Found(float(unseen.mean())) if probe.num_axes == 1 else Found(None, "of lines only")
    found["R_group"] = Found(_group_defect(probe, q, k))
    return found | {"A_waves": _directions(probe, q)}


def _matrices(probe: Probe):
    """The matrices of queries and keys, or None and the reason: none depend on places alone."""
    part = whole(probe, probe.extent)
    found = linear_rotation(part, probe.dims)
    if found is None:
        return None, "transforms q and k, but not linearly"
    q, k = found
    if q.shape[-2] != q.shape[-1]:
        return None, "widens the head dim"
    identity = np.eye(q.shape[-1])
    if (q == identity).all() and (k == identity).all():
        return None, "leaves q and k as they are"
    again = linear_rotation(part, probe.dims, seed=1)
    if again is None or np.abs(again[0] - q).max() + np.abs(again[1] - k).max() > 1e-5:
        return None, "turns by content"
    return (q, k), ""


def _group_defect(probe: Probe, q: np.ndarray, k: np.ndarray) -> float:
    """max |R(a)^T R(b) - R(0)^T R(b - a)|_F, relative, over pairs of places with a <= b on every axis."""
    rng, place, worst = np.random.default_rng(7), places(probe.extent), 0.0
    for _ in range(48):
        pair = place[rng.integers(len(place), size=2)]
        a, b = pair.min(axis=0), pair.max(axis=0)
        index = [np.ravel_multi_index(tuple(p), probe.extent) for p in (a, b, b - a)]
        left, right = (np.swapaxes(q[i], -1, -2) @ k[j] for i, j in ((index[0], index[1]), (0, index[2])))
        norms = np.linalg.norm(left - right, axis=(-2, -1)) / np.linalg.norm(right, axis=(-2, -1))
        worst = max(worst, float(norms.max()))
    return worst


def _directions(probe: Probe, q: np.ndarray) -> Found:
    """Counts the directions of the waves of all heads: 2 on the axes of a grid only, H D / 2 if each has its own."""
    if probe.num_axes != 2:
        return Found(None, "of grids only")
    width = probe.extent[1]
    rows, columns, mixed = (np.linalg.pinv(q[0]) @ q[i] for i in (width, 1, 3 * width + 2))
    directions = []
    for head in range(q.shape[1]):
        _, vectors = np.linalg.eig(mixed[head])
        inverse = np.linalg.pinv(vectors)
        turned = [inverse @ m[head] @ vectors for m in (rows, columns)]
        if max(np.abs(t - np.diag(np.diag(t))).max() for t in turned) > 1e-3:
            return Found(None, "turns on grids do not commute")
        waves = np.stack([np.angle(np.diag(t)) for t in turned])
        waves = waves[:, np.hypot(*waves) > _TURNS]
        directions.append(np.mod(np.arctan2(*waves), np.pi))
    directions = np.sort(np.concatenate(directions))
    gaps = np.diff(directions, append=directions[:1] + np.pi)
    return Found(float((gaps > 1e-2).sum()))
