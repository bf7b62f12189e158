"""Positions read off features: found where they are, not where they are not."""

import numpy as np
import pytest

from experiments.analysis.readout import position_error

LENGTH, WIDTH = 16, 6


def features(rng, count, signal):
    """Noise, with the position in a channel, turned so that no channel holds it by itself."""
    x = rng.standard_normal((count, LENGTH, WIDTH))
    x[..., 0] = signal(np.arange(LENGTH)) + 0.01 * x[..., 0]
    return x @ np.linalg.qr(np.random.default_rng(1).standard_normal((WIDTH, WIDTH)))[0]


@pytest.mark.parametrize(
    ("signal", "most"),
    [(lambda t: t / 4, 0.5), (lambda t: 1 / (1 + t), 2.5), (lambda t: 0 * t, np.inf)],
    ids=["linear", "as the mean over earlier tokens falls", "none"],
)
def test_positions_are_found_where_they_are(signal, most):
    rng = np.random.default_rng(0)
    error = position_error(features(rng, 300, signal), features(rng, 100, signal))
    guess = LENGTH / 4
    assert error < most
    assert (error > 0.9 * guess) == (most == np.inf)
