import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from posjax.analysis.statistics import (
    Interval,
    Metric,
    difference_interval,
    group,
    headline,
    line_of_curves,
    mean_interval,
    metric_values,
    metrics_of,
    separated,
)


def record(label="rope", seed=0, **fields):
    base = {"study": "s", "encoding": f"{label}()", "label": label, "seed": seed, "metrics": {"loss": 1.0}}
    return base | fields


def test_mean_interval_of_one_to_five_by_hand():
    # mean 3, variance 2.5, t(4, 97.5 %) = 2.776445: half-width 2.776445 * sqrt(2.5 / 5) = 1.963243.
    interval = mean_interval([1, 2, 3, 4, 5])
    assert interval.mean == 3
    assert interval.half_width == pytest.approx(1.963243, abs=1e-6)
    assert interval.n == 5
    assert (interval.low, interval.high) == pytest.approx((1.036757, 4.963243), abs=1e-6)


def test_two_values_use_one_degree_of_freedom():
    # t(1, 97.5 %) = 12.7062, variance 0.5: 12.7062 * sqrt(0.5 / 2) = 6.3531.
    assert mean_interval([1, 2]).half_width == pytest.approx(6.3531, abs=1e-4)


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.99])
def test_mean_interval_equals_scipy(confidence):
    values = np.random.default_rng(0).normal(0.97, 0.004, 5)
    low, high = scipy_stats.t.interval(confidence, 4, values.mean(), scipy_stats.sem(values))
    interval = mean_interval(values, confidence)
    assert (interval.low, interval.high) == pytest.approx((low, high), rel=1e-12)


def test_one_value_has_no_half_width():
    interval = mean_interval([0.97])
    assert math.isnan(interval.half_width)
    assert str(interval) == "0.970 ± -"


def test_equal_values_have_exactly_zero_width():
    assert mean_interval([0.1, 0.1, 0.1]) == Interval(0.1, 0.0, 3)
    assert difference_interval([0.3] * 3, [0.1] * 2) == Interval(pytest.approx(0.2), 0.0, 5)
    assert math.isnan(difference_interval([0.3] * 3, [0.1]).half_width)


@pytest.mark.parametrize(("n_a", "n_b", "scale"), [(5, 5, 1.0), (3, 7, 10.0), (2, 5, 0.01)])
def test_difference_interval_equals_scipy_welch(n_a, n_b, scale):
    rng = np.random.default_rng(n_a)
    a, b = rng.normal(2.1, 0.02, n_a), rng.normal(2.3, 0.02 * scale, n_b)
    expected = scipy_stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    interval = difference_interval(a, b)
    assert (interval.low, interval.high) == pytest.approx(tuple(expected), rel=1e-9)
    assert interval.n == n_a + n_b


def test_difference_with_one_constant_sample_has_the_freedom_of_the_other():
    assert difference_interval([1, 2, 3, 4, 5], [1, 1, 1]).half_width == pytest.approx(1.963243, abs=1e-6)


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_what_is_not_finite_raises(values):
    with pytest.raises(ValueError, match=r"at least one value|must be finite"):
        mean_interval(values)


def test_confidence_in_per_cent_raises():
    with pytest.raises(ValueError, match="got 95"):
        mean_interval([1, 2], confidence=95)


def test_separated_means_not_touching():
    assert separated(Interval(1, 0.4, 5), Interval(2, 0.5, 5))
    assert not separated(Interval(1, 0.5, 5), Interval(2, 0.5, 5))
    assert not separated(Interval(1, math.nan, 1), Interval(9, 0.1, 5))


def test_interval_text():
    assert Interval(0.97104, 0.0031, 5).scaled(100).text(2) == "97.10 ± 0.31"
    assert Interval(0.5, 0.25, 5).text(2, signed=True) == "+0.50 ± 0.25"
    assert Interval(2.1, 1e-5, 5).text(3) == "2.100 ± <0.001"
    assert Interval(2.1, 0.0, 5).text(3) == "2.100 ± 0.000"


def test_group_keeps_the_order_of_the_records():
    records = [
        record("rope", study="b"),
        record("alibi", study="a"),
        record("alibi", study="b"),
        record(study="b", seed=1),
    ]
    assert {study: list(rows) for study, rows in group(records).items()} == {"b": ["rope", "alibi"], "a": ["alibi"]}


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([], "no records"),
        ([record(), record()], "seed 0 twice"),
        ([record(), record(seed=1, encoding="rope(base=5)")], "two encodings"),
        ([{"study": "s", "label": "rope"}], "record 0 lacks"),
    ],
)
def test_records_that_cannot_be_compared_raise(records, message):
    with pytest.raises(ValueError, match=message):
        group(records)


def test_null_and_infinite_values_are_counted_and_unmeasured_ones_are_not():
    runs = [record(seed=i, metrics={"loss": value}) for i, value in enumerate([1.0, None, 2.0, math.inf])]
    assert metric_values(runs, Metric("loss")) == ([1.0, 2.0], 4)
    assert metric_values(runs, Metric("accuracy")) == ([], 0)


def test_lengths_sort_as_numbers_and_the_headline_is_at_training_and_longest_length():
    rows = {"rope": [record(metrics={"loss": {"1024": 3.0, "64": 2.0, "128": 2.1, "32": 2.2}}, train_length=64)]}
    assert [metric.length for metric in metrics_of(rows)] == [32, 64, 128, 1024]
    assert headline(rows) == [Metric("loss", 64), Metric("loss", 1024)]


def test_curves_average_only_steps_that_every_seed_has():
    runs = [
        record(seed=0, curve=[[0, 2.0], [10, 1.0], [20, 0.5]]),
        record(seed=1, curve=[[0, 4.0], [10, None]]),
    ]
    line = line_of_curves(runs)
    np.testing.assert_array_equal(line.x, [0, 10])
    np.testing.assert_array_equal(line.mean, [3.0, np.nan])
    assert line.note == "1/2 finite"
    assert line_of_curves([runs[0], record(seed=2)]).note == "1/2 curves"
