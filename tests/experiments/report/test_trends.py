"""Leads by size: slopes, words and factors of parameters for losses that are known lines."""

import dataclasses
import math

import numpy as np
import pytest
from ml_collections import ConfigDict
from study_records import record

from experiments.records import Records
from experiments.report.trends import along, slope_of, trends, trends_figure, trends_markdown, trends_table, worth

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


def test_three_sizes_weigh_by_their_distance(records):
    again = [dataclasses.replace(each, seed=each.seed + 10) for each in records if each.study == "100k"]
    more = Records([*records, *again])
    found = trends(more, AXIS)[8, "rope"]
    slope = np.polyfit([3, 4, 5], [found.leads[size].estimate.value for size in SIZES.values()], 1)[0]
    assert found.slope.estimate.value == pytest.approx(slope)


def test_the_words_and_the_figure(records):
    found = trends(records, AXIS)
    text = trends_markdown(found, records, AXIS)
    near, far = [line for line in text.splitlines() if line.startswith("| rope | ")][:2]
    assert near.endswith("| lead grows | better at every size |")
    assert far.endswith("| not settled | worse at every size |")
    figure = trends_figure(found, records, AXIS).figure
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["at 8 bytes", "at 64 bytes"]


def test_a_verdict_that_changes_with_size_names_the_sizes(records):
    """The largest has one seed, and no verdict."""
    turned = [
        dataclasses.replace(each, metrics={name: {8: 3.0, 64: value[64]} for name, value in each.metrics.items()})
        if (each.study, each.row) == ("1k", "rope")
        else each
        for each in records
    ]
    _, lines = trends_table(trends(Records(turned), AXIS), AXIS)
    assert "worse at 1k, better at 10k" in {line[-1] for line in lines}


def test_other_pairs_are_a_family_of_their_own(records):
    """`alibi` lags behind `rope` by less and less, and is ahead at the largest size, which has one seed."""
    lag = {"1k": 0.05, "10k": 0.02, "100k": -0.01}
    alibi = [
        dataclasses.replace(
            each,
            row="alibi",
            run=f"{each.study} alibi",
            metrics={
                name: {at: x + lag[each.study] for at, x in value.items()} for name, value in each.metrics.items()
            },
        )
        for each in records
        if each.row == "rope"
    ]
    found = trends(Records([*records, *alibi]), AXIS, others=True)
    assert [*found] == [(8, "alibi over rope"), (64, "alibi over rope")]
    assert found[8, "alibi over rope"].slope.estimate.value == pytest.approx(0.03)
    _, lines = trends_table(found, AXIS)
    assert lines[0][-2:] == ["lag shrinks", "worse at every size"]


def test_the_factor_of_parameters_is_read_off_the_rows_own_line(records):
    found = worth(records, AXIS)
    assert found["rope", 1e3] == "1 (least loss)"
    assert found["none", 1e3].startswith("10 (")  # 0.1 nats are a tenfold size of none
    assert found["none", 1e4] == "> 10"
