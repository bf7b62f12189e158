"""Figures and tables of what was measured by length."""

import numpy as np
import pytest

from experiments.report import lengths
from experiments.report.lengths import CHUNKED, PERPLEXITY, SLIDING, views, write_length_report
from experiments.report.page import About
from experiments.report.table import summarize


def record(label, seed, loss=2.0, **more):
    cells = [{"depth": d, "accuracy": 0.5 + 0.1 * seed, "exact": 0.25 * d, "log_prob": -1.0} for d in (0.0, 1.0)]
    lengths = {"64": loss, "128": loss + 0.5}
    return {
        "study": "lengths",
        "label": label,
        "encoding": f"{label}()",
        "seed": seed,
        "train_length": 64,
        "metrics": {"sliding": lengths, "chunked": {n: 1.5 * x for n, x in lengths.items()}},
        "by_position": {n: [[0.0, 3.0 + seed], [8.0, 2.0]] for n in lengths},
        "retrieval": {"passkey": dict.fromkeys(lengths, cells)},
        "cost": {
            n: {"seconds": int(n) / 128, "temp_bytes": 2**21, "peak_rss_bytes": 2**30, "batch": 2} for n in lengths
        },
        **more,
    }


@pytest.fixture
def records():
    return [record(label, seed, loss) for label, loss in (("none", 2.0), ("rope", 1.0)) for seed in (0, 1)]


def test_every_thing_measured_is_a_table_of_its_own(records):
    tables = {table.study: table for table in summarize(list(views(records)))}
    assert list(tables) == [SLIDING, CHUNKED, "passkey"]
    assert tables[SLIDING].columns[:2] == ("loss @64 (1×)", "loss @128 (2×)")
    assert tables[SLIDING].rows[1].cells[0].text == "1.000 ± 0.000"
    assert tables[CHUNKED].rows[1].cells[1].text == "2.250 ± 0.000"
    assert tables["passkey"].columns[:5] == (
        "exact match (%) @64 (1×)",
        "exact match (%) @128 (2×)",
        "Δ exact match (%) @64 vs none",
        "Δ exact match (%) @128 vs none",
        "accuracy (%) @64 (1×)",
    )
    assert [tables["passkey"].rows[0].cells[i].interval.mean for i in (0, 4)] == pytest.approx([12.5, 55])


def test_exact_matches_that_are_nowhere_are_not_compared(records):
    for record in records:
        for cell in record["retrieval"]["passkey"]["64"]:
            cell["exact"] = 0.0
    (table,) = [table for table in summarize(list(views(records))) if table.study == "passkey"]
    assert "Δ accuracy (%) @128 vs none" in table.columns


def test_a_cell_that_is_not_finite_leaves_no_mean(records):
    records[0]["retrieval"]["passkey"]["64"][0]["accuracy"] = None
    (table,) = [table for table in summarize(list(views(records))) if table.study == "passkey"]
    assert "1/2 finite" in table.rows[0].cells[table.columns.index("accuracy (%) @64 (1×)")].text


def test_the_report_has_a_figure_for_each(records, tmp_path):
    paths = write_length_report(records, tmp_path, About("Lengths", command="python -m x"))
    assert {path.name.removesuffix(".png") for path in paths if path.suffix == ".png"} == {
        "loss_in_sliding_windows_loss_by_length",
        "loss_in_sliding_windows_cost_seconds",
        "loss_in_windows_that_do_not_overlap_loss_by_length",
        "loss_in_windows_that_do_not_overlap_by_position_128",
        "passkey_exact_match_by_length",
        "passkey_accuracy_by_length",
        "passkey_by_depth",
    }
    page = (tmp_path / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 7


def test_models_that_are_trained_on_retrieval_alone_show_it_first(records):
    tables = summarize(list(views(records, tasks_first=True)))
    assert [table.study for table in tables] == ["passkey", SLIDING, CHUNKED]


def test_maps_hold_the_mean_over_seeds(records):
    figure = lengths.retrieval_maps(records, "passkey")
    image = figure.axes[0].images[0].get_array()
    np.testing.assert_allclose(image, [[0.0, 0.0], [25.0, 25.0]])
    assert [axes.get_title() for axes in figure.axes[:2]] == ["none", "rope"]


def test_positions_are_drawn_as_means_and_costs_for_one_window(records):
    (line, *_) = lengths.loss_by_position(records, 128).axes[0].lines
    np.testing.assert_allclose(line.get_ydata(), [3.5, 2.0])
    for key, expected in (("seconds", [0.25, 0.5]), ("temp_bytes", 2.0)):
        np.testing.assert_allclose(lengths.cost_by_length(records, key).axes[0].lines[0].get_ydata(), expected)


def test_no_peak_of_the_loss_by_position_is_cut_off(records):
    for run in records:
        run["by_position"]["128"] = [[0.0, 9.0], [8.0, 2.0 + 0.1 * run["seed"]]]
    assert lengths.loss_by_position(records, 128).axes[0].get_ylim()[1] > 9.0


def test_what_was_not_measured_is_said(records):
    with pytest.raises(ValueError, match="no record has the loss by position in windows of 99"):
        lengths.loss_by_position(records, 99)
    with pytest.raises(ValueError, match="no record has the retrieval task 'copy'"):
        lengths.retrieval_maps(records, "copy")
    with pytest.raises(ValueError, match="the records have no costs"):
        lengths.cost_by_length([each | {"cost": {}} for each in records])


def test_tokens_have_a_perplexity_and_bytes_have_none(records):
    assert PERPLEXITY not in {view["study"] for view in views(records)}
    records = [each | {"tokenizer": "ab12"} for each in records]
    tables = {table.study: table for table in summarize(list(views(records)))}
    assert tables[PERPLEXITY].rows[1].cells[0].text == f"{np.exp(1):.2f} ± 0.00"
    records[0]["metrics"]["sliding"]["64"] = None
    first = next(view for view in views(records) if view["study"] == PERPLEXITY)
    assert first["metrics"]["perplexity"] == {"64": None, "128": pytest.approx(np.exp(2.5))}
