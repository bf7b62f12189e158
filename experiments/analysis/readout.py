"""Positions read off tokens by regression, on sequences that it was not fitted to."""

import numpy as np
from jaxtyping import Float

from posjax.encoding import Array

_HIDDEN = 256  # random units of `position_error`
_STRENGTH = 1e-3  # of the ridge


def ridge(
    fitted: Float[Array, "B T M"], held_out: Float[Array, "B2 T M"], targets: Float[np.ndarray, "T K"]
) -> Float[np.ndarray, "B2 T K"]:
    """Predictions of ridge regression for tokens of other sequences than it was fitted to.

    All sequences share the targets of their places. Features are scaled to mean 0 and variance 1 on the fitted tokens;
    coefficients are (X'X/N + 0.001 I)^-1 X'Y/N.
    """
    x, other = _scaled(np.asarray(fitted, np.float64), np.asarray(held_out, np.float64))
    # Each sequence has every place once, so X'Y needs only the sum over sequences.
    rows = x.reshape(-1, x.shape[-1])
    gram = rows.T @ rows / len(rows)
    cross = x.mean(axis=0).T @ (targets - targets.mean(axis=0)) / len(targets)
    return other @ np.linalg.solve(gram + _STRENGTH * np.eye(len(gram)), cross) + targets.mean(axis=0)


def position_error(fitted: Float[Array, "B T M"], held_out: Float[Array, "B2 T M"], seed: int = 0) -> float:
    """Returns the mean distance between a token's true and predicted place; guessing the middle errs by T/4.

    After Haviv et al. (2022), arXiv 2203.16634, who train a network to read positions off each layer. Here the first layer is
    random (256 rectified units beside the features) and the last is `ridge`: only the draw is random. Predictions are clipped
    to existing places.
    """
    length, width = fitted.shape[1:]
    rng = np.random.default_rng(seed)
    weight, bias = rng.standard_normal((width, _HIDDEN)) / np.sqrt(width), rng.standard_normal(_HIDDEN)
    scaled = _scaled(np.asarray(fitted, np.float64), np.asarray(held_out, np.float64))
    features = [np.concatenate([x, np.maximum(x @ weight + bias, 0)], axis=-1) for x in scaled]
    places = np.arange(length, dtype=np.float64)
    found = ridge(*features, places[:, None])[..., 0]
    return float(np.abs(np.clip(found, 0, length - 1) - places).mean())


def _scaled(
    fitted: Float[np.ndarray, "B T M"], other: Float[np.ndarray, "B2 T M"]
) -> tuple[Float[np.ndarray, "B T M"], Float[np.ndarray, "B2 T M"]]:
    """Scales each feature to mean 0 and variance 1 on the fitted tokens; constant features become 0."""
    mean, deviation = fitted.mean(axis=(0, 1)), fitted.std(axis=(0, 1))
    scale = np.where(deviation > 1e-12 * max(deviation.max(), 1e-300), deviation, np.inf)
    return (fitted - mean) / scale, (other - mean) / scale
