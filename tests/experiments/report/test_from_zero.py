"""docs/from_zero.md is what its template and our code give; tests of the encodings have their formulas in float64."""

import math
import pathlib

import numpy as np
from scipy.spatial.distance import cdist

from experiments.report import from_zero, languages

REPO = pathlib.Path(__file__).parents[3]
RESULTS = REPO / "results"


def test_the_pages_are_current():
    values = from_zero.fields(RESULTS)
    for template, page in languages.pages("from_zero").items():
        assert (REPO / page).read_text() == languages.render(template, values), "run python -m experiments.report"


def test_collisions_by_all_distances():
    rows = from_zero.collisions(RESULTS)["collisions"].splitlines()
    for row, (words, codes) in zip(rows, from_zero.sums(RESULTS).values(), strict=True):
        rng = np.random.default_rng(1)
        drawn = np.array([(rng.integers(len(words)), rng.integers(len(codes))) for _ in range(200)])
        gaps = cdist(words[drawn[:, 0]] + codes[drawn[:, 1]], (words[:, None] + codes).reshape(-1, 80))
        gaps = gaps.reshape(200, len(words), len(codes))
        gaps[np.arange(200), *drawn.T] = np.inf
        own = gaps[np.arange(200), drawn[:, 0]].min()
        gaps[np.arange(200), drawn[:, 0]] = np.inf
        size = math.sqrt(np.square(words).sum(1).mean() + np.square(codes).sum(1).mean())
        found = [float(cell) for cell in row.strip("| ").split(" | ")[1:]]
        np.testing.assert_allclose(found, [own / size, gaps.min() / size], atol=5.1e-4)
