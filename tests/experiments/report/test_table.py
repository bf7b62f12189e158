"""Tables of a study, by hand-worked numbers."""

import pytest
from study_records import made, record

from experiments.records import StudyRecords
from experiments.report.table import Column, headline_columns, table_markdown, tables

DIGITS = {
    "none": [0.905, 0.911, 0.908],
    "learned": [0.957, 0.953, 0.955],
    "rope": [0.972, 0.975, 0.969],
    "alibi": [0.968, 0.973, 0.966],
}


def table_of(metric, values, **fields):
    return tables(made(metric, values, **fields), "Digits")[0]


def column(table, title):
    index = table.columns.index(title)
    return {row: (cells[index].text, cells[index].bold) for row, cells in table.rows.items()}


def test_columns_and_rows_of_a_single_metric():
    found = table_of("accuracy", DIGITS)
    assert found.columns == ("accuracy (%)", "accuracy (%) against none", "step (ms)")
    # rope: mean 97.2, sd 0.3, t(2) = 4.302653: 4.302653 * 0.3 / sqrt(3) = 0.745
    # effect: none has sd 0.3 too, so t(4) = 2.776445: 2.776445 * sqrt(0.09 / 3 + 0.09 / 3) = 0.680
    assert [cell.text for cell in found.rows["rope"]] == ["97.20 ± 0.75", "6.40 ± 0.68 better", "12.3"]
    assert column(found, "accuracy (%)") == {
        "none": ("90.80 ± 0.75", False),
        "learned": ("95.50 ± 0.50", False),
        "rope": ("97.20 ± 0.75", True),
        "alibi": ("≈ 96.90 ± 0.90", False),
    }
    assert found.finding == (
        "Best accuracy (%): rope, 97.20 ± 0.75, not clearly ahead of alibi. Better than no encoding: learned, rope, alibi."
    )


def test_deviations_of_seeds_stand_beside_intervals():
    values = {**DIGITS, "fire": [0.9], "alibi": [0.9, None]}
    (found,) = tables(made("accuracy", values), "Digits", deviations=True)
    assert found.columns[:3] == ("accuracy (%)", "accuracy (%), sd of seeds", "accuracy (%) against none")
    shown = {row: text for row, (text, _) in column(found, "accuracy (%), sd of seeds").items()}
    assert shown == {"none": "0.300", "learned": "0.200", "rope": "0.300", "fire": "-", "alibi": "-"}


def test_a_lower_loss_is_better_and_unclear_differences_are_not_settled():
    found = table_of("loss", {"none": [1.0, 1.1, 1.2], "rope": [0.5, 0.51, 0.52], "alibi": [0.9, 1.1, 1.25]})
    against = column(found, "loss (nats) against none")
    assert against["rope"] == ("0.590 ± 0.245 better", True)
    assert against["alibi"][0].startswith("not settled (+0.017 ±")
    assert column(found, "loss (nats)")["rope"][1]


def test_the_headline_is_a_single_number_else_the_trained_and_the_longest_length():
    by_length = {"rope": [{32: 2.2, 64: 2.0, 1024: 3.0}]}
    assert headline_columns(made("loss", by_length, trained_at=64)) == [Column("loss", 64), Column("loss", 1024)]
    both = StudyRecords(
        "digits", [record(metrics={"exact match": 0.0, "accuracy": 0.3, "accuracy by length": {8: 0.5, 16: 0.1}})]
    )
    assert headline_columns(both) == [Column("accuracy")]  # nothing is found as a whole
    first, second = tables(both, "Digits")
    assert first.columns[:2] == ("exact match (%)", "accuracy (%)")
    assert second.title == "Digits, accuracy by length"


@pytest.mark.parametrize("best", ["", "0", "best"])
def test_a_row_of_any_label_is_tested(best):
    found = table_of("accuracy", {"none": [0.5, 0.52], best: [0.5, 0.53]})
    assert f"{best}, 51.50 ± 19.06, not clearly ahead of none." in found.finding
    assert column(found, "accuracy (%)")["none"][0].startswith("≈")


def test_seeds_that_are_not_finite_are_counted_and_never_best():
    found = table_of("accuracy", {"none": [0.5, 0.6], "rope": [0.9, None], "alibi": [None, None]})
    texts = column(found, "accuracy (%)")
    assert texts["rope"] == ("90.00 ± - (1/2 finite)", False)
    assert texts["alibi"] == ("0/2 finite", False)
    assert column(found, "accuracy (%) against none")["rope"] == ("-", False)


def test_one_slow_seed_does_not_move_the_time_of_a_step():
    rows = [record(seed=seed, step_time=time) for seed, time in enumerate((0.002, 0.9, 0.003))]
    assert column(tables(StudyRecords("digits", rows), "")[0], "step (ms)")["rope"][0] == "3.0"


def test_markdown_shows_the_cells_escaped():
    found = table_of("accuracy", {"none": [0.5, 0.51, 0.52], "a|b [red]": [0.9, 0.91, 0.92]})
    lines = table_markdown(found).splitlines()
    assert lines[3].startswith("| a\\|b \\[red\\] | **91.00 ± 2.48** | **40.00 ± 2.27 better** |")


def test_numbers_at_two_places_stand_in_no_table():
    assert tables(made("loss by position", {"rope": [{(128, 0.5): 1.0}]}), "") == []
