import math

import numpy as np
import pytest
from scipy import stats as scipy_stats
from study_records import made, of_metric

from experiments.records import StudyRecords
from experiments.report.statistics import (
    Interval,
    WeightedCell,
    contrast,
    difference_of,
    estimate,
    finite_values,
    holm,
    is_whole,
    judge_family,
    line,
    mean_interval,
    term,
)


def difference_interval(a, b):
    return estimate([(1, a), (-1, b)]).interval()


def test_intervals_by_hand():
    # mean 3, variance 2.5, t(4, 97.5 %) = 2.776445: half-width 2.776445 * sqrt(2.5 / 5) = 1.963243.
    assert mean_interval([1, 2, 3, 4, 5]) == pytest.approx((3, 1.963243), abs=1e-6)
    # t(1, 97.5 %) = 12.7062, variance 0.5: 12.7062 * sqrt(0.5 / 2) = 6.3531.
    assert mean_interval([1, 2]).half_width == pytest.approx(6.3531, abs=1e-4)
    # A constant sample leaves the freedom of the other one.
    assert difference_interval([1, 2, 3, 4, 5], [1, 1, 1]).half_width == pytest.approx(1.963243, abs=1e-6)
    # Equal values have exactly zero width, and a single one has none.
    assert mean_interval([0.1, 0.1, 0.1]) == Interval(0.1, 0.0)
    assert difference_interval([0.3] * 3, [0.1] * 2) == Interval(pytest.approx(0.2), 0.0)
    assert math.isnan(difference_interval([0.3] * 3, [0.1]).half_width)
    assert str(mean_interval([0.97])) == "0.970 ± -"


@pytest.mark.parametrize(("n_a", "n_b", "scale"), [(5, 5, 1.0), (3, 7, 10.0)])
def test_intervals_and_p_values_equal_scipy(n_a, n_b, scale):
    rng = np.random.default_rng(n_b)
    a, b = rng.normal(2.1, 0.02, n_a), rng.normal(2.12, 0.02 * scale, n_b)
    low, high = scipy_stats.t.interval(0.95, n_a - 1, a.mean(), scipy_stats.sem(a))
    assert mean_interval(a) == pytest.approx(((low + high) / 2, (high - low) / 2), rel=1e-9)
    expected = scipy_stats.ttest_ind(a, b, equal_var=False)
    low, high = expected.confidence_interval(0.95)
    assert difference_interval(a, b) == pytest.approx(((low + high) / 2, (high - low) / 2), rel=1e-9)
    assert estimate([(1, a), (-1, b)]).p() == pytest.approx(expected.pvalue, rel=1e-12)
    assert estimate([(1, a)]).p(2.2) == pytest.approx(scipy_stats.ttest_1samp(a, 2.2).pvalue, rel=1e-12)
    pairs = a[:n_b] - b[:n_a]
    assert estimate([(1, pairs)]).p() == pytest.approx(scipy_stats.ttest_rel(a[:n_b], b[:n_a]).pvalue, rel=1e-12)
    high, low = (
        scipy_stats.ttest_1samp(a, bound, alternative=side).pvalue for bound, side in ((3, "less"), (-3, "greater"))
    )
    assert estimate([(1, a)]).p_within(3) == pytest.approx(max(high, low), rel=1e-12)


def test_four_samples_by_hand():
    # ([1 3] - [0 2]) - ([4 4] - [1 1]): 1 - 3 = -2; variances of the means 1, 1, 0, 0, so that the freedom is 2^2 / (1 + 1).
    found = estimate([(1, [1, 3]), (-1, [0, 2]), (-1, [4, 4]), (1, [1, 1])])
    assert found == (pytest.approx(-2), pytest.approx(math.sqrt(2)), pytest.approx(2), 0.0)
    # t(2) has the distribution function 1/2 + t / (2 sqrt(2 + t^2)): at t = sqrt 2 the two tails hold 1 - 1 / sqrt 2.
    assert found.p() == pytest.approx(1 - 1 / math.sqrt(2))
    assert found.scaled(-3).interval() == pytest.approx((6, 3 * found.interval().half_width))


def test_values_that_do_not_vary_and_single_ones():
    assert [estimate([(1, [1.0, 1.0]), (-1, [b, b])]).p() for b in (1.0, 0.9)] == [1.0, 2 / 6]
    # Of the 252 ways to share out ten values one has all large ones on one side, one on the other.
    five = estimate([(1, [1.0] * 5), (-1, [0.0] * 5)])
    assert five.p() == five.scaled(-100).p() == estimate([(1, [1.0] * 5)]).p() == pytest.approx(2 / 252)
    assert (five.p_within(0.5), estimate([(1, [0.1] * 5)]).p_within(0.5)) == (1.0, pytest.approx(2 / 252))
    assert math.isnan(estimate([(1, [1.0]), (-1, [0.5, 0.6])]).p())


@pytest.mark.parametrize("more", range(3))
@pytest.mark.parametrize("runs", [("x", "x"), ("x", "y")])
def test_differences_that_are_equal_but_for_roundings_do_not_vary(runs, more):
    """Counts of 360 that are `more` larger, by seed; of two trainings: two rows whose seeds agree."""
    right = [338, 341, 330] if runs[0] == runs[1] else [338] * 3
    share = [{seed: float(np.float32((n + add) / 360)) for seed, n in enumerate(right)} for add in (more, 0)]
    found = contrast([WeightedCell(w, values, run) for w, values, run in zip((1, -1), share, runs, strict=True)])
    assert found.p() == (pytest.approx(0.1) if more else 1.0)
    assert found.value == pytest.approx(more / 360, abs=1e-6)
    other = contrast([WeightedCell(1, {seed: 1e-3 * seed for seed in range(3)}, "x")])
    assert other.error > 0


def test_holm_by_hand():
    # Sorted .005 .01 .03 .04, times 4 3 2 1: .02 .03 .06 .04, and none is less than the one before it. nan is no test.
    assert holm([0.01, 0.04, math.nan, 0.03, 0.005]) == pytest.approx([0.03, 0.06, math.nan, 0.06, 0.02], nan_ok=True)
    assert holm([0.5, 0.9]) == [1.0, 1.0]


def test_a_family_is_judged_as_a_whole():
    near, far = (estimate([(1, [1.0, 2.0, 3.0, x])]) for x in (6.5, 2.0))
    assert far.p() < near.p() < 0.10
    assert judge_family({"far": far})["far"].separated
    found = judge_family({"far": far, "near": near, "unknown": estimate([(1, [1.0])])})
    assert {name: (verdict.separated, verdict.tests) for name, verdict in found.items()} == {
        "far": (True, 2),
        "near": (False, 2),
        "unknown": (False, 2),
    }
    assert not judge_family(dict.fromkeys(range(9), far))[0].separated


def test_how_often_equal_rows_are_told_apart_from_the_best_of_them():
    """docs/statistics.md: the best row is chosen by the data that test it, so that it is a little more than 5 %."""
    columns = np.random.default_rng(0).normal(size=(300, 6, 5))
    false = 0
    for column in columns:
        best = int(column.mean(axis=1).argmax())
        family = {i: estimate([(1, column[best]), (-1, column[i])]) for i in range(6) if i != best}
        false += any(verdict.separated for verdict in judge_family(family).values())
    assert 0.04 < false / len(columns) < 0.10


def test_the_same_weights_are_pairs_and_others_are_not():
    values = {"rope": [{64: 1.0, 128: 1.5}, {64: 2.0, 128: 2.6}, {64: 3.0, 128: 3.4}]}
    other = [{64: 1.1}, {64: 2.2}, {64: 3.1}]
    one, apart = of_metric("loss", values, run="x"), of_metric("loss", {"alibi": other}, run="y")
    read_otherwise = of_metric("loss", {"rope, ntk": other}, run="x")[::-1]  # whatever the order of the seeds
    table = StudyRecords("digits", [*one, *apart, *read_otherwise])
    rope = term(table, "rope", "loss", 64)
    found = difference_of(term(table, "rope, ntk", "loss", 64), rope)
    assert found.p() == pytest.approx(scipy_stats.ttest_rel([1.1, 2.2, 3.1], [1, 2, 3]).pvalue)
    found = difference_of(term(table, "alibi", "loss", 64), rope)
    assert found.p() == pytest.approx(scipy_stats.ttest_ind([1.1, 2.2, 3.1], [1, 2, 3], equal_var=False).pvalue)
    found = difference_of(term(table, "rope", "loss", 128), rope)
    assert found.p() == pytest.approx(scipy_stats.ttest_rel([1.5, 2.6, 3.4], [1, 2, 3]).pvalue)


def test_one_model_on_each_text_is_paired_by_text_whatever_its_weights():
    """Differences of 0.1 at every text are sure, though texts differ by ten times as much; as seeds they are not."""
    values = {"plain": [1.0, 2.0, 3.0, 4.0], "tuned": [1.1, 2.1, 3.1, 4.11]}
    p_values = []
    for each in ("text", ""):
        study = made("loss", values, each=each)
        p_values.append(difference_of(term(study, "tuned", "loss"), term(study, "plain", "loss")).p())
    assert p_values[0] < 1e-4 < 0.5 < p_values[1]


def test_the_difference_of_two_gains_pairs_the_seeds_of_each():
    gains = [(1, "x", (1.5, 2.6, 3.4)), (-1, "x", (1, 2, 3)), (-1, "y", (0.9, 1.2, 1.3)), (1, "y", (1, 1.1, 1.3))]
    found = contrast([WeightedCell(weight, dict(enumerate(values)), run) for weight, run, values in gains])
    expected = scipy_stats.ttest_ind([0.5, 0.6, 0.4], [-0.1, 0.1, 0.0], equal_var=False)
    assert (found.value, found.p()) == (pytest.approx(0.5), pytest.approx(expected.pvalue))


def test_pairs_without_a_seed_in_common_are_refused():
    with pytest.raises(ValueError, match=r"no seed in common, \[0\] and \[5\]"):
        contrast([WeightedCell(1.0, {0: 1.0}, "x"), WeightedCell(-1.0, {5: 1.0}, "x")])


def test_interval_text_in_another_unit():
    assert Interval(0.97104, 0.0031).scaled(100).text(2) == "97.10 ± 0.31"
    assert Interval(0.5, 0.25).text(2, signed=True) == "+0.50 ± 0.25"
    assert Interval(0.25, 0.5).scaled(-2) == Interval(-0.5, 1.0)
    texts = {0.0004: "<0.001", 0.0005: "0.001", 0.0007: "0.001", 0.0: "0.000"}
    assert {half: Interval(1.0, half).text(3).removeprefix("1.000 ± ") for half in texts} == texts


def test_values_that_are_not_finite_are_counted_and_unmeasured_ones_are_not():
    table = made("loss", {"rope": [1.0, None, 2.0]})
    assert finite_values(table.values("rope", "loss")) == [1.0, 2.0]
    assert not is_whole(table.values("rope", "loss"))
    assert not is_whole(table.values("rope", "accuracy"))


def test_lines_average_only_points_that_every_seed_has():
    found = line({10: {0: 1.0, 1: None}, 0: {0: 2.0, 1: 4.0}, 20: {0: 0.5}})
    np.testing.assert_array_equal(found.x, [0, 10])
    np.testing.assert_array_equal(found.mean, [3.0, np.nan])
    assert found.note == "1/2 finite"
    geometric = line({0: {0: 1.0, 1: 4.0}}, geometric=True)
    assert geometric.mean == pytest.approx([2.0])
