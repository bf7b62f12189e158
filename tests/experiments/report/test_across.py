"""A paper's table beside ours, and a quantity along an axis."""

import numpy as np
import pytest

from experiments.report.across import Paper, along, along_figures, paper_table, verdicts
from experiments.report.table import to_markdown

PAPER = Paper(
    "Someone (2020), table 8", "accuracy", ("stem", "none"), 0.005,
    {"stem": {"none": 0.614, "a": 0.642, "b": 0.640}, "shared": {"a": 0.643, "b": 0.600}},
)  # fmt: skip


def records(**cells):
    """records(stem__none=[0.4, 0.41]) is study "stem", label "none"."""
    return [
        {"study": cell.split("__")[0], "label": cell.split("__")[1], "encoding": cell.split("__")[1], "seed": seed,
         "metrics": {"accuracy": value}}
        for cell, values in cells.items()
        for seed, value in enumerate(values)
    ]  # fmt: skip


OURS = records(
    stem__none=[0.40, 0.41, 0.42],
    stem__a=[0.50, 0.51, 0.52],  # agrees: more than none
    stem__b=[0.40, 0.45, 0.41],  # not separable from none
    shared__a=[0.30, 0.31, 0.32],  # disagrees: less than none, and than a at the stem, where the paper has a tie
    shared__b=[0.35, 0.36, 0.37],
)


def test_differences_agree_disagree_or_are_not_separable():
    assert {verdict.what: verdict.judgement for verdict in verdicts(OURS, PAPER)} == {
        "a, stem - none, stem": "agrees",
        "b, stem - none, stem": "not separable",
        "a, shared - none, stem": "disagrees",
        "b, shared - none, stem": "agrees",  # -1.4 points in the paper, -5 here
        "a, shared - a, stem": "exploratory: apart",
        "b, shared - b, stem": "not separable",  # among five tests: alone its interval leaves out 0
    }


@pytest.mark.parametrize(
    ("shared", "judgement"),
    [
        ([0.505, 0.51, 0.52], "not separable"),  # an interval of more than the tie on both sides of 0 tells nothing
        ([0.5101, 0.51, 0.5102], "as close to 0"),
        ([0.5121, 0.512, 0.5122], "as close to 0"),  # apart from 0, but by less than the tie
        ([0.5301, 0.53, 0.5302], "apart"),
    ],
)
def test_what_the_paper_calls_equal_is_exploratory(shared, judgement):
    """Few seeds, which separate little, are no agreement."""
    alike = records(stem__none=[0.40, 0.41, 0.42], stem__a=[0.51, 0.5101, 0.5102], shared__a=shared)
    assert {v.what: v.judgement for v in verdicts(alike, PAPER)}["a, shared - a, stem"] == f"exploratory: {judgement}"


def test_a_reference_in_several_columns_is_compared_once_with_each():
    paper = PAPER._replace(values={study: values | {"none": 0.6} for study, values in PAPER.values.items()})
    found = [v.what for v in verdicts([*OURS, *records(shared__none=[0.4, 0.41])], paper)]
    assert sorted(found) == sorted(set(found))
    assert "none, shared - none, stem" in found


def test_pairs_of_labels_are_compared_within_each_column():
    paper = PAPER._replace(reference=None, pairs=[["a", "b"]])  # lists, as in a config that was read back
    assert {v.what: v.judgement for v in verdicts(OURS, paper)} == {
        "a, stem - b, stem": "exploratory: apart",
        "a, shared - b, shared": "disagrees",
    }
    assert paper_table(OURS, paper).notes[1].startswith("a, shared - b, shared: paper +4.30, ours -5.00")


def test_the_table_shows_ours_with_the_papers_in_brackets():
    table = paper_table(OURS, PAPER)
    assert table.columns == ("stem", "shared")
    cells = {row.label: [cell.text for cell in row.cells] for row in table.rows}
    assert cells["none"] == ["41.00 ± 2.48 (61.40)", "-"]
    assert cells["a"] == ["51.00 ± 2.48 (64.20)", "31.00 ± 2.48 (64.30)"]
    assert "a, stem - none, stem: paper +2.80, ours +10.00 ± 2.27: agrees." in table.notes
    assert "64.20" in to_markdown(table)


def test_unfinished_cells_make_no_verdict():
    some = records(stem__a=[0.5, 0.51])
    assert verdicts(some, PAPER) == []
    assert paper_table(some, PAPER).rows[0].cells[0].text.startswith("50.50")


def test_rows_lie_along_the_axis_in_its_order():
    found = records(**{"10%__a": [0.6, 0.7], "1%__a": [0.4, 0.5], "1%__b": [0.3, 0.3]})
    figure = along(found, {"1%": 0.01, "10%": 0.1}, "share")
    lines = {tuple(np.round(line.get_xdata(), 3)): line.get_ydata() for line in figure.axes[0].lines}
    np.testing.assert_allclose(lines[0.01, 0.1], [45, 65])
    np.testing.assert_allclose(lines[(0.01,)], [30])
    with pytest.raises(ValueError, match=r"studies \['10%'\] have no value on the axis 'share'"):
        along(found, {"1%": 0.01}, "share")


def test_a_loss_lies_along_an_axis_and_falls_where_it_gains():
    at = {"heads_2": {"rope": [1.9, 1.91, 1.92], "alibi": [2.3, 2.31, 2.32]}}
    at["heads_8"] = {"rope": [1.8, 1.81, 1.82], "alibi": [1.9, 1.91, 1.92]}
    found = [
        {"study": study, "label": label, "encoding": label, "seed": seed, "metrics": {"loss": {"128": loss}}}
        for study, rows in at.items()
        for label, losses in rows.items()
        for seed, loss in enumerate(losses)
    ]
    figure, caption = along_figures(found, {"heads_2": 2, "heads_8": 8}, "number of heads")["along"]
    drawn = [line.get_ydata() for line in figure.axes[0].lines]
    np.testing.assert_allclose(drawn, [[1.91, 1.81], [2.31, 1.91]])
    assert caption.startswith(
        "loss (nats per byte): mean and 95 % interval over seeds. From heads_2 to heads_8 rope gains"
    )
    assert "how much that others gain more: alibi +0.300 ± 0.0" in caption
    assert "(separated), at 0.05" in caption
    others = [each | {"metrics": {"other": 1.0}} for each in found]
    assert along_figures(others, {"heads_2": 2, "heads_8": 8}, "number of heads") == {}
