import io
import re

import pytest
from rich.console import Console

from experiments.report.table import summarize, to_markdown, to_rich
from posjax.describe.markdown import escape_markdown

DIGITS = {
    "none": [0.905, 0.911, 0.908],
    "learned": [0.957, 0.953, 0.955],
    "rope": [0.972, 0.975, 0.969],
    "alibi": [0.968, 0.973, 0.966],
}


def classification(values=DIGITS, **fields):
    return [
        {"study": "digits", "task": "classification", "encoding": f"{label}()", "label": label, "seed": seed,
         "metrics": {"accuracy": value, "loss": None if value is None else 1 - value}, "parameters": 41234,
         "step_time": 0.0123, "study_hash": "ab12", "versions": {"jax": "0.10.2"}, "device": "cpu",
         "wall_time": 12.5, **fields}
        for label, accuracies in values.items()
        for seed, value in enumerate(accuracies)
    ]  # fmt: skip


def language_model(losses, train_length=64):
    return [
        {"study": "bytes", "task": "language_model", "encoding": f"{label}()", "label": label, "seed": seed,
         "metrics": {"loss": {length: loss + 0.01 * seed for length, loss in by_length.items()}},
         "train_length": train_length}
        for label, by_length in losses.items()
        for seed in range(3)
    ]  # fmt: skip


def column(table, title):
    index = table.columns.index(title)
    return {row.label: row.cells[index] for row in table.rows}


def test_columns_and_rows_of_a_classification_study():
    (table,) = summarize(classification())
    assert table.columns == (
        "accuracy (%)", "Δ accuracy (%) vs none", "loss", "parameters", "step (ms)",
    )  # fmt: skip
    assert [row.label for row in table.rows] == ["none", "learned", "rope", "alibi"]
    # rope: mean 97.2, sd 0.3, t(2) = 4.302653: 4.302653 * 0.3 / sqrt(3) = 0.745
    # effect: none has sd 0.3 too, so t(4) = 2.776445: 2.776445 * sqrt(0.09 / 3 + 0.09 / 3) = 0.680
    assert [cell.text for cell in table.rows[2].cells] == [
        "97.20 ± 0.75", "+6.40 ± 0.68", "0.028 ± 0.007", "41,234", "12.3",
    ]  # fmt: skip


def test_best_is_the_highest_accuracy_and_the_lowest_loss():
    (table,) = summarize(classification())
    expected = {"none": "", "learned": "", "rope": "best", "alibi": "tied"}
    assert {label: cell.mark for label, cell in column(table, "accuracy (%)").items()} == expected
    assert {label: cell.mark for label, cell in column(table, "loss").items()} == expected


def test_ties_are_of_differences_and_the_more_rows_the_more_it_takes():
    """Intervals that overlap may belong to rows that differ; a p-value of .03 is enough alone, and not among eight."""
    values = {"a": [0.90, 0.91, 0.92, 0.93], "b": [0.928, 0.934, 0.944, 0.949]}
    (two,) = summarize([run | {"metrics": {"accuracy": run["metrics"]["accuracy"]}} for run in classification(values)])
    a, b = column(two, "accuracy (%)").values()
    assert a.interval.high > b.interval.low
    assert (a.mark, b.mark) == ("", "best")
    assert "after Holm's correction over all tests of this table (1)" in two.notes[0]
    assert "paired" not in two.notes[0]
    (many,) = summarize(classification(values | {f"c{i}": values["a"] for i in range(3)}))
    assert {cell.mark for cell in column(many, "accuracy (%)").values()} == {"best", "tied"}
    assert (
        "over all tests of this table (8)" in many.notes[0]
    )  # four rows against the best by accuracy, and as many by loss


def test_rows_of_the_same_weights_are_tested_as_pairs():
    values = {"a": [0.90, 0.95, 0.99], "b": [0.91, 0.961, 0.999]}
    (apart,), (paired,) = (summarize(classification(values, **of)) for of in ({}, {"training_hash": "x"}))
    assert [column(table, "accuracy (%)")["a"].mark for table in (apart, paired)] == ["tied", ""]
    assert "paired by seed" in paired.notes[0]


def test_effect_is_row_minus_none():
    losses = {"none": {"64": 2.2, "512": 3.0}, "alibi": {"64": 2.1, "512": 2.0}, "learned": {"64": 2.3, "512": 5.0}}
    (table,) = summarize(language_model(losses))
    at_512 = column(table, "Δ loss @512 vs none")
    assert at_512["alibi"].interval.mean == pytest.approx(-1.0)
    assert at_512["learned"].text.startswith("+2.000")
    assert at_512["none"].text == "-"
    assert column(table, "Δ loss @64 vs none")["alibi"].interval.mean == pytest.approx(-0.1)


def test_lengths_become_columns_in_multiples_of_the_training_length():
    (table,) = summarize(language_model({"rope": {"64": 2.1, "1024": 3.0, "128": 2.2}}))
    assert table.columns[:3] == ("loss @64 (1×)", "loss @128 (2×)", "loss @1024 (16×)")


def test_shares_by_length_have_no_best_of_their_own():
    shares = {"accuracy": 0.5, "accuracy by length, sparse": {"8": 0.25, "16": 0.75}, "exact match": 0.1}
    records = [
        {"study": "copy", "encoding": label, "label": label, "seed": seed,
         "metrics": {**shares, "accuracy": (0.5 if label == "none" else 0.9) + seed / 100}}
        for label in ("none", "rope")
        for seed in range(3)
    ]  # fmt: skip
    (table,) = summarize(records)
    by_length = column(table, "accuracy by length, sparse @16 (2×)")
    assert {label: (cell.text, cell.mark) for label, cell in by_length.items()} == {
        "none": ("75.00 ± 0.00", ""), "rope": ("75.00 ± 0.00", ""),
    }  # fmt: skip
    assert column(table, "exact match (%)")["rope"].text == "10.00 ± 0.00"
    assert column(table, "accuracy (%)")["rope"].mark == "best"


def test_no_effect_column_without_a_none_row():
    (table,) = summarize(classification({"rope": [0.97, 0.98], "alibi": [0.95, 0.96]}))
    assert not [title for title in table.columns if "Δ" in title]
    assert "bold differences" not in table.notes[0]


def test_a_row_with_seeds_that_are_not_finite_says_so_and_is_never_best():
    values = {"none": [0.90, 0.91, 0.92], "rope": [0.99, None, 0.99], "fire": [None, None, None]}
    (table,) = summarize(classification(values))
    accuracy, effect = column(table, "accuracy (%)"), column(table, "Δ accuracy (%) vs none")
    assert accuracy["rope"].text == "99.00 ± 0.00 (2/3 finite)"
    assert accuracy["fire"].text == "0/3 finite"
    assert (accuracy["rope"].mark, accuracy["fire"].mark) == ("", "")
    assert effect["rope"].text == effect["fire"].text == "-"
    assert any("not finite" in note for note in table.notes)


def test_a_failing_row_leaves_the_best_to_the_others():
    (table,) = summarize(classification(DIGITS | {"fire": [0.99, 0.99, None]}))
    assert {label: cell.mark for label, cell in column(table, "accuracy (%)").items()} == {
        "none": "", "learned": "", "rope": "best", "alibi": "tied", "fire": "",
    }  # fmt: skip


def test_one_seed_shows_a_dash_for_its_half_width():
    (table,) = summarize(classification({"none": [0.9], "rope": [0.95]}))
    assert column(table, "accuracy (%)")["rope"].text == "95.00 ± -"
    assert column(table, "Δ accuracy (%) vs none")["rope"].text == "+5.00 ± -"


def test_caption_and_notes_tell_what_differs_between_rows():
    records = classification(steps=500)
    (table,) = summarize(records)
    for part in (
        "3 seeds per row",
        "95 % Student t",
        "Δ: difference",
        "500 training steps",
        "device cpu",
        "jax 0.10.2",
    ):
        assert part in table.caption
    assert "wall time 50 s" in table.caption  # four rows of 12.5 s, shared by the seeds of a row
    assert len(table.notes) == 1
    records[-1] |= {"study_hash": "ff00"}
    (table,) = summarize(records[1:])
    assert "Rows differ in their seeds (none: 1, 2; learned: 0, 1, 2" in table.notes[1]
    assert [cell.text for cell in column(table, "seeds").values()] == ["2", "3", "3", "3"]
    assert "alibi: ab12 / ff00" in table.notes[2]


def test_labels_that_abbreviate_are_spelled_out():
    records = [run | {"encoding": "rope(base=500000)"} for run in classification({"rope": [0.97, 0.98]})]
    (table,) = summarize(records)
    assert table.notes == ("Encodings: rope = rope(base=500000).",)


def test_mixed_training_lengths_raise():
    records = language_model({"rope": {"64": 2.0}}) + language_model({"alibi": {"64": 2.0}}, train_length=128)
    with pytest.raises(ValueError, match=r"\[64, 128\]"):
        summarize(records)


def test_markdown_is_a_table_with_the_best_in_bold():
    (table,) = summarize(classification())
    lines = to_markdown(table).splitlines()
    assert lines[0] == "## digits"
    assert lines[2].startswith("- accuracy (%): best is rope with 97.20 ± 0.75, not separable from alibi. ")
    assert lines[2].endswith("Against none, better: learned, rope, alibi.")
    assert {line.count("|") for line in lines[4:10]} == {7}
    assert lines[8].startswith("| rope | **97.20 ± 0.75** | **+6.40 ± 0.68** | **0.028 ± 0.007**")
    assert lines[9].startswith("| alibi | ≈ 96.90")
    assert to_markdown(table).count("**") == 10


@pytest.mark.parametrize("label", ["a|b", "<b>", "*x*", "`x`", "_x_", "[x](y)", "a\nb", "a\\|b", "&lt;"])
def test_nasty_labels_leave_the_markdown_table_whole(label):
    (table,) = summarize(classification({label: [0.97, 0.98]}))
    line = to_markdown(table).splitlines()[4]
    cells = re.split(r"(?<!\\)(?:\\\\)*\|", line)
    assert len(cells) == 2 + 1 + len(table.columns)
    assert "<" not in line


def test_escape_markdown():
    assert escape_markdown("a|b <b> *x* rope_axial _x_") == r"a\|b &lt;b&gt; \*x\* rope_axial \_x\_"


def test_rich_table_shows_labels_as_they_are():
    values = {"none": [0.90, 0.91], "[bold]x[/bold]": [0.97, 0.98]}
    (table,) = summarize(classification(values))
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(to_rich(table))
    text = console.export_text()
    assert "[bold]x[/bold]" in text
    assert "97.50" in text
