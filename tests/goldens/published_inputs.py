"""The inputs of published weights, for make_published.py and check_published.py."""

import numpy as np

LONG, EVERY, GREEDY = 1500, 50, 64


def tokens_of(vocabulary: int, count: int) -> np.ndarray:
    """Words that are frequent first, so that a model of language has something to say: Zipf's law over its vocabulary."""
    drawn = np.random.RandomState(0).zipf(1.3, 4 * count)
    return (drawn[drawn < vocabulary - 300][:count] + 250).astype(np.int64)


def pixels_of(size: int) -> np.ndarray:
    return np.random.RandomState(1).normal(size=(2, 3, size, size)).astype(np.float32)
