"""Leads by size: slopes, words and factors of parameters for losses that are known lines."""

import math

import numpy as np
import pytest
from ml_collections import ConfigDict
from study_records import record

from experiments.records import Records
from experiments.report.trends import along, slope_of, trends, trends_figure, trends_markdown

SIZES = {"1k": 1e3, "10k": 1e4, "100k": 1e5}
AXIS = ConfigDict({"title": "parameters", "against": "none", "at": (8, 64), "values": SIZES})


def loss(row, size, at, seed):
    """`none` falls by 0.1 per tenfold size, `rope` by 0.3; beyond the trained length rope is behind by a constant."""
    away = math.log10(size) - 3
    noise = 1e-3 * np.random.default_rng((seed, int(size), at, len(row))).normal()
    return noise + {"none": 2 - 0.1 * away, "rope": 1.9 - 0.3 * away if at == 8 else 3 - 0.1 * away}[row]


@pytest.fixture(scope="module")
def records():
    return Records(
        record(
            row,
            seed,
            {"loss in sliding windows": {at: loss(row, size, at, seed) for at in (8, 64)}},
            study=study,
            run=f"{study} {row}",
            unit="byte",
        )
        for study, size in SIZES.items()
        for row in ("none", "rope")
        for seed in range(3 if size < 1e5 else 1)
    )


def test_the_slope_is_that_of_the_least_squares_line_over_sizes_with_seeds(records):
    found = trends(records, AXIS)
    near, far = found[8, "rope"], found[64, "rope"]
    assert list(near.leads) == [1e3, 1e4, 1e5]
    means = [near.leads[size].estimate.value for size in (1e3, 1e4)]
    assert near.slope.estimate.value == pytest.approx(np.polyfit([3, 4], means, 1)[0])
    assert near.slope.estimate.value == pytest.approx(0.2, abs=0.01)
    assert near.slope.separated
    assert not far.slope.separated
    assert abs(far.slope.estimate.interval().mean) < far.slope.estimate.interval().half_width
    assert slope_of({}) is None


def test_a_size_with_fewer_seeds_stands_in_the_figure_along_the_axis(records):
    figure = along(records, AXIS).figure
    places = [line.get_xdata().tolist() for line in figure.axes[0].get_lines()]
    assert places.count(list(SIZES.values())) == 2


def test_the_words_and_the_figure(records):
    found = trends(records, AXIS)
    text = trends_markdown(found, records, AXIS)
    near, far = [line for line in text.splitlines() if line.startswith("| rope | ")][:2]
    assert near.endswith("| lead grows | better at every size |")
    assert far.endswith("| not settled | worse at every size |")
    figure = trends_figure(found, records, AXIS).figure
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["at 8 bytes", "at 64 bytes"]
