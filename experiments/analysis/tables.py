"""The shape of a learned table of positions: its dimension, its likeness by offset, its grid, its waves, its untrained rows.

A table is an array [*grid, M] without the rows of prefix tokens: [N, M] for text, [h, w, M] for images. Shares of variance
are of the table with its mean row taken off, summed over channels.
"""

import math
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from posjax.encoding import Array
from posjax.encodings.tables import Table

_SPREADS = 3.0  # standard deviations that chance reaches in 1 of 740 rows


def learned_tables(params: Any) -> dict[str, Float[np.ndarray, "..."]]:
    """Returns the `learned` tables [*grid, M] among a model's parameters, without rows of prefix tokens, by their path."""
    leaves = jax.tree_util.tree_leaves_with_path(params, is_leaf=lambda leaf: isinstance(leaf, Table))
    tables = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}
    return {
        path: np.asarray(table.rows)[-math.prod(table.extent) :].reshape(*table.extent, -1)
        for path, table in tables.items()
        if isinstance(table, Table)
    }


def spectrum(table: Float[Array, "*grid M"]) -> Float[np.ndarray, " K"]:
    """Returns the share of variance in each principal component of the table without its mean row."""
    power = np.linalg.svd(_centred(table), compute_uv=False) ** 2
    return power / power.sum()


def mean_by_offset(values: Float[np.ndarray, "*B N N"], place: Int[np.ndarray, "N A"]) -> Float[np.ndarray, "..."]:
    """Returns the mean of the values of all pairs at each offset of places, second minus first.

    Args:
      values: a number for each pair.
      place: the places, whole numbers from 0 on.

    Returns:
      2 n - 1 entries on each axis with n places; the middle one is the offset 0. nan for offsets that no pair has.
    """
    size = place.max(axis=0) + 1
    span = tuple(2 * size - 1)
    offset = place[None] - place[:, None] + size - 1
    index = np.ravel_multi_index(tuple(np.moveaxis(offset, -1, 0)), span).ravel()
    count, length = np.bincount(index, minlength=np.prod(span)), int(np.prod(span))
    flat = np.asarray(values, np.float64).reshape(-1, index.size)
    total = np.stack([np.bincount(index, weights=each, minlength=length) for each in flat])
    return (total / np.where(count, count, np.nan)).reshape(*values.shape[:-2], *span)


def similarity_by_offset(table: Float[Array, "*grid M"]) -> Float[np.ndarray, "*O"]:
    """Returns the mean cosine of two rows by the offset of their places, after Dosovitskiy et al. (2020), figure 7 centre.

    Wang et al. (2021), On Position Embeddings in BERT, plot the same for text. The mean row stays: take it off before if it
    should not count. Rows of zeros are left out.

    Returns:
      2 n - 1 entries on each axis of n places, with the offset 0 in the middle: [2 N - 1] or [2 h - 1, 2 w - 1].
    """
    rows, grid = _rows(table)
    norm = np.linalg.norm(rows, axis=1)
    place = np.stack(np.unravel_index(np.arange(len(rows)), grid), axis=1)[norm > 0]
    unit = rows[norm > 0] / norm[norm > 0, None]
    return mean_by_offset(unit @ unit.T, place)


def row_plus_column(table: Float[Array, "h w M"]) -> tuple[float, float]:
    """Returns the shares of a grid's variance that the codes of rows, and the codes of columns, explain.

    The two-way analysis of variance without interaction: the code of a row is the mean over its columns, less the mean of
    all. The codes are orthogonal; shares that sum to 1 are a table that `learned_factorized(combine="sum")` can hold. Chance,
    for independent rows, is (h - 1) / (h w - 1) for rows and (w - 1) / (h w - 1) for columns.
    """
    centred = _centred(table).reshape(np.shape(table))
    rows, columns = (centred.mean(axis=axis, keepdims=True) for axis in (1, 0))
    total = (centred**2).mean()
    return float((rows**2).mean() / total), float((columns**2).mean() / total)


def untrained_rows(table: Float[Array, "*grid M"]) -> Bool[np.ndarray, "*grid"]:
    """Tells rows that training never reached.

    A norm alone does not tell: BERT's trained rows are about as long as at initialisation. But rows drawn from
    N(0, 0.02^2) are independent: the mean of k cosines has a standard deviation of 1 / sqrt(k M). Trained rows resemble
    their neighbours far more, or are long (that of a class token). A row is untrained if neither holds, by 3 standard
    deviations. Weight decay may have shortened untrained rows.
    """
    rows, grid = _rows(table)
    width, norm = rows.shape[1], np.linalg.norm(rows, axis=1)
    unit = (rows / np.where(norm > 0, norm, np.nan)[:, None]).reshape(*grid, width)
    cosines = []
    for axis in range(len(grid)):
        gap = np.full((*grid[:axis], 1, *grid[axis + 1 :]), np.nan)
        here, there = (np.take(unit, range(*ends), axis) for ends in ((1, grid[axis]), (0, grid[axis] - 1)))
        beside = (here * there).sum(axis=-1)
        cosines += [np.concatenate(pair, axis) for pair in ((gap, beside), (beside, gap))]
    known = np.isfinite(cosines).sum(axis=0)
    likeness = np.nansum(cosines, axis=0) * np.sqrt(width / np.where(known, known, np.nan))
    longest = 0.02 * (np.sqrt(width) + _SPREADS / np.sqrt(2))
    return ~(likeness > _SPREADS) & (norm.reshape(grid) <= longest)


def radius_spread(table: Float[Array, "N M"]) -> float:
    """Returns the spread of the distance from a helix's axis, over its mean; of the two largest principal components.

    Yedidia (2023), "GPT-2's positional embedding matrix is a helix" (lesswrong.com), saw it in three components. The
    components are scaled to variance 1; a circle has no spread. Beware: components of any smooth table look like waves
    (Antognini & Sohl-Dickstein 2018, arXiv 1806.08805). Read this number beside that of a random walk of the same size.
    """
    scores = _scores(table)[:, :2]
    radius = np.hypot(*(scores / scores.std(axis=0)).T)
    return float(radius.std() / radius.mean())


def sinusoid_share(table: Float[Array, "N M"], count: int = 4) -> float:
    """Returns the share of a table's variance that `count` sinusoids in the position explain, cosine and sine of each.

    Frequencies are taken one by one, the one that explains most of the rest each time (orthogonal matching pursuit); each
    channel has its own amplitude and phase.
    """
    scores = rest = _scores(table)
    position, chosen = np.arange(len(scores), dtype=np.float64), []
    for _ in range(count):
        chosen.append(_best_frequency(rest, position))
        waves = _waves(position, np.array(chosen)).T
        rest = scores - waves @ np.linalg.lstsq(waves, scores, rcond=None)[0]
    return float(1 - (rest**2).sum() / (scores**2).sum())


def _rows(table: Float[Array, "*grid M"]) -> tuple[Float[np.ndarray, "N M"], tuple[int, ...]]:
    table = np.asarray(table, np.float64)
    return table.reshape(-1, table.shape[-1]), table.shape[:-1]


def _centred(table: Float[Array, "*grid M"]) -> Float[np.ndarray, "N M"]:
    rows, _ = _rows(table)
    centred = rows - rows.mean(axis=0)
    if not np.abs(centred).max(initial=0) > 1e-12 * np.abs(rows).max(initial=0):
        raise ValueError(f"all {len(rows)} rows of the table are equal: it says nothing of positions")
    return centred


def _scores(table: Float[Array, "N M"]) -> Float[np.ndarray, "N K"]:
    """Returns each position's scores on the principal components."""
    left, value, _ = np.linalg.svd(_centred(table), full_matrices=False)
    return left * value


def _best_frequency(scores: Float[np.ndarray, "N K"], position: Float[np.ndarray, " N"]) -> float:
    """Returns the frequency in [pi / N, pi] whose sinusoids explain most; a grid, then finer grids around its best point."""
    low, high, step = np.pi / len(position), np.pi, np.pi / (4 * len(position))
    grid = np.arange(low, high + step / 2, step)
    for _ in range(6):
        waves = _waves(position, grid[:, None])
        amounts = (waves.reshape(-1, len(position)) @ scores).reshape(len(grid), 3, -1)  # faster than a batch
        inverse = np.linalg.pinv(np.einsum("fan,fbn->fab", waves, waves), hermitian=True)
        best = grid[int(np.argmax((amounts * (inverse @ amounts)).sum(axis=(1, 2))))]
        grid = np.clip(np.linspace(best - step, best + step, 11), low, high)
        step /= 5
    return float(best)


def _waves(position: Float[np.ndarray, " N"], frequency: Float[np.ndarray, "*F P"]) -> Float[np.ndarray, "*F W N"]:
    """Returns a constant, and cosine and sine of each frequency."""
    angle = position * frequency[..., None]
    return np.concatenate([np.ones((*angle.shape[:-2], 1, len(position))), np.cos(angle), np.sin(angle)], axis=-2)
