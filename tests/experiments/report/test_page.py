"""Pages of studies: their content, whole and escaped, and equal files for equal records."""

import dataclasses
import json
import pathlib
import re

import numpy as np
import pytest
from ml_collections import ConfigDict
from PIL import Image
from study_records import made, of_metric, record

from experiments.records import Records, StudyRecords, append_records, read_study
from experiments.report import __main__ as report
from experiments.report import figures, paper
from experiments.report.html import to_html
from experiments.report.page import commits, hours_of, hours_text, in_config_order, make_page, regime, write_study_page
from experiments.report.statistics import RowCurve
from experiments.report.studies import study_of

LABELS = ("none", "learned", "rope", "<b>", "a|b")


def runs(study="digits", labels=LABELS, seeds=3):
    """Synthetic records: a classifier if the study is called digits, else a language model."""
    rng, found = np.random.default_rng(0), []
    for i, label in enumerate(labels):
        for seed in range(seeds):
            curve = {step: 2.3 * 0.97**step + 0.02 * i + 0.01 * rng.random() for step in range(0, 60, 10)}
            loss = {64 * 2**k: 2.1 + 0.1 * k * i + 0.01 * rng.random() for k in range(4)}
            own = (
                {"accuracy": 0.9 + 0.01 * i + 0.002 * rng.random(), "loss": 0.3}
                if study == "digits"
                else {"loss": loss}
            )
            about = {} if study == "digits" else {"trained_at": 64, "unit": "byte"}
            found.append(record(label, seed, own | {"training loss": curve}, study=study, **about))
    return found


CONFIG = ConfigDict({"name": "mine", "title": "Digits & <bytes>", "point": "What it is about.", "notes": "a <note>"})


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    directory = tmp_path_factory.mktemp("page") / "deep"
    directory.mkdir()
    for name in ("old.png", "mine.png"):
        (directory / name).write_bytes(b"a picture")
    (directory / "README.md").write_text("![of an earlier page](old.png)")
    records = runs() + runs("bytes decoder", labels=(*LABELS[1:], r"$\x{$"))
    return records, directory, write_study_page(CONFIG, records, directory, "python -m x > 'log'")


def text_of(records, config=CONFIG):
    return make_page(config, records, None).markdown


@pytest.mark.slow
def test_a_page_writes_its_files_removes_figures_of_the_earlier_page_and_leaves_others(written):
    records, directory, page = written
    names = [path.name for path in page.paths]
    assert names == [
        "README.md",
        "digits_accuracy.png",
        "digits_learning_curves.png",
        "bytes_decoder_loss_lines.png",
        "bytes_decoder_learning_curves.png",
    ]
    assert sorted(path.name for path in directory.iterdir()) == sorted([*names, "mine.png"])
    assert [made.title for made in page.tables] == ["Digits", "Bytes decoder, loss"]
    assert make_page(CONFIG, records, "python -m x > 'log'").markdown == page.markdown  # of equal records


def test_figures_are_as_wide_as_a_phone_shows_them(written):
    for path in written[2].paths[1:]:
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("L"))
        assert 800 < pixels.shape[1] < 1100
        assert pixels.min() < 50 < 250 < np.median(pixels)


def test_a_page_says_what_it_is_given_in_order_and_escaped(written):
    text = written[2].paths[0].read_text()
    parts = ["# Digits &amp; &lt;bytes&gt;", "What it is about.", "## Digits", "| a\\|b | **94.", "## Bytes decoder"]
    parts += ["## How it was run", "```\npython -m x > 'log'\n```", "a &lt;note&gt;", "## How to read it"]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert text.count("95 % Student t intervals") == 1
    for link in re.findall(r"\]\(([^)]+)\)", text):
        assert (written[1] / link).exists()


def test_html_is_the_markdown_with_one_stylesheet(written):
    tags = to_html("<details>a <b onclick=1>b</b></details>\n\nc <img src=x>\n\n<script>1</script>").split("<body>")[1]
    assert set(re.findall(r"<(\w+)", tags)) == {"details", "p"}
    page = to_html(written[2].markdown)
    assert page.count("<table>") == 2
    assert page.count("<style>") == 1
    assert "<strong>9" in page
    assert not re.search(r"<script|<link|@import", page)


def test_unfinished_and_failed_rows_are_shown():
    records = runs("lm")[:8]
    records[4].metrics["loss"][512] = None
    del records[7].metrics["training loss"]
    text = text_of(records)
    assert "(2/3 finite)" in text
    assert "differ in their seeds" in text
    assert "0/2 finite" in text_of(of_metric("accuracy", {"a": [None, None]}))
    with pytest.raises(ValueError, match="no records"):
        text_of([])


def test_metrics_of_lengths_depths_and_positions_are_drawn():
    metrics = {
        "loss in separate windows": {128: 2.0, 256: 3.0},
        "loss by position": {(n, x): 2.0 + x / 64 for n in (128, 256) for x in (0, 4, 64)},
        "passkey exact match": {128: 0.5, 256: 0.25},
        "passkey exact match by depth": {(128, 0): 1.0, (128, 0.5): 0.0, (256, 0): 0.5, (256, 0.5): 0.0},
        "seconds per window": {128: 0.1, 256: 0.3},
    }
    records = [record(row, seed, metrics, trained_at=128, unit="byte") for row in ("none", "rope") for seed in (0, 1)]
    config = ConfigDict({"title": "Lengths", "page": {"headline": "passkey exact match", "says": "Two sentences."}})
    page = make_page(config, records, None)
    assert {drawn.name for drawn in page.drawn} - {"loss_by_position_128"} == {
        "passkey_exact_match_lines",
        "loss_in_separate_windows_lines",
        "loss_by_position_256",
        "passkey_exact_match_by_depth",
        "seconds_per_window",
    }
    text = page.markdown
    assert text.index("Two sentences.") < text.index("## Pass key exact match") < text.index("Loss in separate windows")


def ablation():
    """Two studies of two rows and two seeds."""
    values = {"none": [0.5, 0.51], "rope": [0.7, 0.71]}
    return [*of_metric("accuracy", values, study="stem"), *of_metric("accuracy", values, study="1%")]


def test_a_paper_beside_and_an_axis_along():
    table = {"source": "Someone (2020)", "metric": "accuracy", "reference": ["stem", "none"], "tie": 0.005}
    table["values"] = {"stem": {"none": 0.6, "rope": 0.8}, "1%": {"rope": 0.8}}
    axis = {"title": "share", "values": {"stem": 1.0, "1%": 0.01}}
    config = ConfigDict({"title": "A study", "paper": table, "axis": axis}, allow_dotted_keys=True)
    page = make_page(config, ablation(), None)
    assert {drawn.name for drawn in page.drawn} >= {"along", "beside_the_paper"}
    text = page.markdown
    assert text.index("Of the paper's 2 differences 2 agree with ours") < text.index("| row |")
    assert "| rope - none, stem | +20.00 | +20.00 ± 3.04 | agrees |" in text
    assert "From 1% to stem none gains least" in text


def test_a_tie_of_the_papers_is_exploratory():
    table = ConfigDict(
        {"source": "S", "metric": "accuracy", "reference": None, "tie": 0.3, "pairs": (("rope", "none"),)}
    )
    table["values"] = ConfigDict({"stem": {"none": 0.6, "rope": 0.8}})
    (found,) = paper.compared(Records(ablation()), table)
    assert (found.tie, found.judgement) == (True, "as close to 0")
    table.tie = 0.1
    assert paper.compared(Records(ablation()), table)[0].judgement == "agrees"


def test_published_curves_stand_beside_ours():
    values = {"mixed": [{32: 0.5, 64: 0.4}, {32: 0.6, 64: 0.5}], "learned": [{32: 0.5, 64: 0.3}, {32: 0.5, 64: 0.2}]}
    records = made("accuracy", values, trained_at=32, unit="pixel")
    curves = ConfigDict(
        {"source": "S", "trained": 224, "rows": {"mixed": ("mixed",), "learned": ("learned, resized", "learned")}}
    )
    curves["values"] = ConfigDict({"ViT-S": {"mixed": {"224": 80.0, "448": 60.0}}})
    drawn = paper.beside_curves(records, curves, figures.styles(records.records))
    assert len(drawn.figure.axes) == 2
    assert "as a share" in drawn.caption


def test_many_rows_have_a_panel_for_each_family():
    rows = [f"rope_{i}" for i in range(8)] + [f"alibi_{i}" for i in range(6)]
    records = [record(row, 0, {"loss": {1: 1.0, 2: 2.0}}, encoding=f"{row.split('_')[0]}()") for row in rows]
    panels = figures.panels_of(StudyRecords("digits", records), rows)
    assert [*panels] == ["rotary, 1 of 2", "rotary, 2 of 2", "decay"]
    assert sorted(row for shown in panels.values() for row in shown) == sorted(rows)
    assert figures.panels_of(StudyRecords("digits", records), rows[:3]) == {"": rows[:3]}


def test_names_beside_lines_never_overlap():
    heights = figures.spread_apart([0.5, 0.5, 0.5, 0.1], 0.1)
    assert np.diff(sorted(heights)).min() > 0.099
    assert (heights >= 0).all()
    assert (heights <= 1).all()
    line = RowCurve(np.array([1.0, 2.0]), np.array([1.0, np.nan]), np.zeros(2))
    assert figures.line_panels(
        {"a": line}, {"a": figures.Style("black", "o")}, {"": ["a"]}, figures.XAxis("x"), "y"
    ).axes


GUESS = {"accuracy": 1 / 3, "loss": np.log(3), "classes": 3, "examples": 120}


def test_rows_that_guess_are_not_crowned():
    fields = dict(study="digits", guess=GUESS)
    for values, guessing in (([0.33, 0.34, 0.35], True), ([0.9, 0.91, 0.92], False)):
        rows = [
            record(row, seed, {"accuracy": value, "loss": 1.5 if guessing else 0.4}, **fields)
            for row in ("none", "rope")
            for seed, value in enumerate(values)
        ]
        text = text_of(rows)
        assert ("No row is clearly better than guessing" in text) == ("Best accuracy" not in text) == guessing
        assert ("loss of none, rope in digits is above that of guessing (1.099 nats)" in text) == guessing
        assert ("Black line: one answer for all" in text) == guessing
        assert "3 classes, 120 test examples" in text


def test_pass_keys_that_no_row_finds_are_one_sentence():
    metrics = {
        "loss": {8: 2.0, 16: 3.0},
        "passkey exact match": {8: 0.0, 16: 0.0},
        "passkey accuracy": {8: 0.1, 16: 0.1},
    }
    rows = [record(row, 0, metrics, unit="token") for row in ("none", "rope")]
    page = make_page(CONFIG, rows, None)
    assert [made.title for made in page.tables] == ["loss"]
    assert "No row of digits solves pass key: not learned" in page.markdown


@pytest.mark.parametrize("seeds", [2, 3])
def test_bands_of_the_same_weights_are_of_differences(seeds):
    """Seeds differ by 1, readings of the same weights by 0.1 more or less."""
    plain = [{1: 1.0 + seed, 2: 1.0 + seed} for seed in range(seeds)]
    other = [{at: value + 0.1 for at, value in each.items()} for each in plain]
    study = made("loss", {"rope": plain, "PI": other}, run="x")
    lines = figures.means(study, "loss", {1: 1, 2: 2}, may_be_log=False)
    assert lines["PI"].half_width == pytest.approx([0, 0], abs=1e-9)
    assert lines["rope"].half_width[0] == pytest.approx(0.5 if seeds == 2 else 2.484, abs=1e-3)
    text = figures.bands_text(lines)
    assert "paired by seed" in text
    assert ("their range" in text) == (seeds == 2)
    assert "The frame cuts the bands of rope" in text


def test_a_row_and_its_tuned_one_share_a_panel():
    rows = [name for i in range(5) for name in (f"rope_{i}", f"rope_{i}, tuned")]
    panels = figures.panels_of(made("loss", {row: [{1: 1.0}] for row in rows}, encoding="rope()"), rows)
    assert len(panels) == 2
    assert all(f"{row}, tuned" in shown for shown in panels.values() for row in shown if "," not in row)


def test_regime_and_hours():
    rows = [record(seed=seed, passes=0.5, learning_rate=0.01) for seed in (0, 1, 2)]
    assert regime(rows) == "41,234 parameters, 500 steps, 0.5 passes, 3 seeds, learning rate 0.01, cpu"
    assert hours_of(rows) == pytest.approx({"cpu": 2.0})  # trained together on two cores for an hour
    assert hours_of(rows[:1], [record(wall_time=1800.0)]) == pytest.approx({"cpu": 3.0})
    lent = dataclasses.replace(rows[0], device="H100", wall_time=1800.0)
    assert hours_text(hours_of([*rows, lent])) == "2.0 core-hours and 0.5 hours of H100"


def test_rows_stand_in_the_order_of_the_config():
    config = ConfigDict(
        {"studies": ConfigDict({"digits": {"encodings": ConfigDict({"b": "b", "a": "a"}, sort_keys=False)}})}
    )
    records = of_metric("accuracy", {"new": [0.1], "a": [0.2], "b": [0.3]})
    assert list(in_config_order(records, config).studies["digits"].rows) == ["b", "a", "new"]


def folder(tmp_path, records, **config):
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "config.json").write_text(json.dumps({"title": "A study", "name": "mine"} | config))
    append_records(tmp_path / "results.jsonl", records)
    return tmp_path


def test_a_finished_study_is_shown_again_with_its_command_and_exported_in_the_order_of_its_rows(tmp_path, capsys):
    rows = ("rope", "none", "50% & more")
    records = of_metric("accuracy", {row: [0.5, 0.6] for row in rows})
    config = {"name": "digits", "encodings": {row: row for row in rows}, "command": "python -m x --a='1'"}
    directory = folder(tmp_path / "s", records[::-1], **config)
    assert report.main([str(directory), "--html", "--latex", "--csv", "--figures=pdf"]) == 0
    assert str(directory / "README.md") in capsys.readouterr().out
    assert "python -m x --a='1'" in (directory / "README.md").read_text()
    assert (directory / "README.html").exists()
    lines = (directory / "tables.tex").read_text().splitlines()
    assert [line.partition(" & ")[0] for line in lines[6:9]] == ["rope", "none", r"50\% \& more"]
    assert r" $\pm$ " in lines[6]
    assert (directory / "records.csv").read_text().count("\n") == 1 + len(records)
    assert (directory / "accuracy.pdf").read_bytes().startswith(b"%PDF")
    assert report.main([str(tmp_path)]) == 2
    assert "has no config.json" in capsys.readouterr().err


def test_a_study_of_ours_names_its_claims():
    known = study_of("heads")
    text = text_of(read_study(pathlib.Path(__file__).parents[3] / "results" / "heads"), known.config)
    assert '- <a id="heads-confound-alibi"></a>**Holds.** ALiBi' in text
    assert text.index("**Holds.**") < text.index("## 2 heads")


def test_commits_are_short_and_code_without_one_is_said_to_be_unknown():
    versions = [{"commit": "0123456789ab-dirty"}, {"commit": "fedcba987654"}, {"commit": None}, {}]
    assert commits([record(versions=each) for each in versions]) == ["0123456-dirty", "fedcba9", "unknown"]
