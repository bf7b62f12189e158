"""Figures and report: what is written, that it is whole, escaped, self-contained and reproducible."""

import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from experiments.report import plots
from experiments.report.families import FAMILIES
from experiments.report.page import About, write_report
from experiments.report.statistics import Line, Metric
from posjax.describe.figures import SMALL

LABELS = ("none", "learned", "rope", "<b>", "a|b")


def runs(study="digits", labels=LABELS, seeds=3):
    """Synthetic runs: a classifier if the study is called digits, else a language model."""
    rng = np.random.default_rng(0)
    records = []
    for i, label in enumerate(labels):
        for seed in range(seeds):
            curve = [[step, 2.3 * 0.97**step + 0.02 * i + 0.01 * rng.random()] for step in range(0, 60, 10)]
            loss = {str(64 * 2**k): 2.1 + 0.1 * k * i + 0.01 * rng.random() for k in range(4)}
            metrics = {"accuracy": 0.9 + 0.01 * i + 0.002 * rng.random(), "loss": 0.3} if study == "digits" else {}
            records.append(
                {"study": study, "encoding": f"{label}()", "label": label, "seed": seed,
                 "metrics": metrics or {"loss": loss}, "curve": curve, "parameters": 1000, "step_time": 0.01,
                 "config_hash": "ab12", "versions": {"jax": "0.10.2"}, "device": "cpu", "wall_time": 9.0}
            )  # fmt: skip
    return records


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.text = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text.append(data)


ABOUT = About("Digits & <bytes>", "seeds = 3  # <five>\n", "a <note>", "python -m x > 'log'")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    directory = tmp_path_factory.mktemp("report") / "deep"
    records = runs() + runs("bytes decoder")
    paths = write_report(records, directory, ABOUT)
    return records, directory, paths


def test_report_writes_every_file_and_leaves_nothing_else(written):
    _, directory, paths = written
    names = [path.name for path in paths]
    assert names == [
        "table.md",
        "digits_accuracy.png",
        "digits_learning_curves.png",
        "bytes_decoder_loss_by_length.png",
        "bytes_decoder_learning_curves.png",
        "report.html",
    ]
    assert sorted(path.name for path in directory.iterdir()) == sorted(names)


def test_pngs_are_whole_sharp_and_not_blank(written):
    for path in written[2]:
        if path.suffix == ".png":
            with Image.open(path) as image:
                pixels = np.asarray(image.convert("L"))
                assert image.info["dpi"][0] == pytest.approx(130, abs=1)
            assert pixels.shape[1] > 800
            assert pixels.min() < 50 < 250 < np.median(pixels)


def test_html_is_self_contained(written):
    text = written[2][-1].read_text(encoding="utf-8")
    tags = Page(text).tags
    links = [value for _, attrs in tags for name, value in attrs.items() if name in ("src", "href", "srcset", "data")]
    images = [link for link in links if not link.startswith("#")]
    assert len(images) == 4
    assert all(link.startswith("data:image/png;base64,") for link in images)
    ids = {attrs["id"] for _, attrs in tags if "id" in attrs}
    assert {link[1:] for link in links if link.startswith("#")} == ids
    assert not {tag for tag, _ in tags} & {"script", "link", "iframe", "object"}
    assert not re.search(r"url\(|@import|https?:", text)


def test_html_escapes_what_it_is_given(written):
    page = Page(written[2][-1].read_text(encoding="utf-8"))
    assert {tag for tag, _ in page.tags}.isdisjoint({"b", "note", "bytes", "five"})
    text = "".join(page.text)
    for part in ("Digits & <bytes>", "a <note>", "seeds = 3  # <five>", "python -m x > 'log'", "jax 0.10.2", "ab12"):
        assert part in text
    assert page.text.count("<b>") == 2  # its row in both tables


def test_html_has_the_best_in_bold(written):
    text = written[2][-1].read_text(encoding="utf-8")
    row = re.search(r"<tr><td[^>]*>a\|b</td>.*</tr>", text).group()
    assert re.search(r"<td><strong>94\.\d\d ± 0\.\d\d</strong></td>", row)


def test_report_is_a_function_of_its_arguments(written, tmp_path):
    records, _, paths = written
    write_report(records, tmp_path, ABOUT)
    for path in paths:
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name


def test_unfinished_and_failed_runs_are_reported(tmp_path):
    records = runs("lm")[:8]
    records[4]["metrics"]["loss"]["512"] = None
    del records[7]["curve"]
    write_report(records, tmp_path, About("partial"))
    table = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert "(2/3 finite)" in table
    assert "Rows differ in their seeds" in table


def test_labels_are_no_mathematics(tmp_path):
    records = runs(labels=(r"$\x{$",)) + runs("lm", labels=(r"$\x{$",))
    assert len(write_report(records, tmp_path, About("t"))) == 6


def test_study_whose_every_value_failed_still_has_its_table(tmp_path):
    records = [run | {"metrics": {"accuracy": None}, "curve": []} for run in runs()]
    assert [path.name for path in write_report(records, tmp_path, About("t"))] == ["table.md", "report.html"]


def test_no_records_raise(tmp_path):
    with pytest.raises(ValueError, match="no records"):
        write_report([], tmp_path / "none", About("title"))
    assert not (tmp_path / "none").exists()


def test_study_names_stay_inside_the_directory(tmp_path):
    paths = write_report(runs("../up/digits"), tmp_path, About("t"))
    assert {path.parent for path in paths} == {tmp_path}
    with pytest.raises(ValueError, match="share file names"):
        write_report(runs("a b") + runs("a/b"), tmp_path / "unmade", About("t"))
    assert not (tmp_path / "unmade").exists()


def test_findings_come_first_and_the_figure_of_the_headline_before_its_table(written):
    text = written[2][-1].read_text(encoding="utf-8")
    assert re.search(
        r"<li>digits: accuracy \(%\): best is a\|b with 94\.\d\d ± 0\.\d\d, separable from all 4 other rows", text
    )
    order = (
        "Findings</h2>",
        "a &lt;note&gt;",
        "Contents</h2>",
        "<figure>",
        "<figcaption>accuracy (%): best is",
        "<table>",
    )
    order += ("<figcaption>Training loss", "How to reproduce</h2>", "<details>")
    assert sorted(order, key=text.index) == list(order)


def test_looks_are_those_of_families_whatever_the_study():
    look = plots.styles(runs(labels=("rope", "none", "alibi", *(f"e{i}" for i in range(11)))))
    assert look["none"].color == FAMILIES["none"].color
    assert len(set(look.values())) == 14
    again = plots.styles(runs(labels=("t5", "axial_rope", "rope")))
    assert (again["rope"].color, again["rope"].marker) == (look["rope"].color, look["rope"].marker)
    assert again["axial_rope"].color == again["rope"].color != again["t5"].color
    assert again["axial_rope"].dash != again["rope"].dash


@pytest.mark.parametrize("draw", [plots.points_by_encoding, plots.loss_by_length, plots.learning_curves])
def test_figures_of_nothing_raise(draw):
    records = [run | {"metrics": {"other": 1.0}, "curve": []} for run in runs()]
    with pytest.raises(ValueError, match=r"accuracy|loss|curve"):
        draw(records)
    with pytest.raises(ValueError, match="one study"):
        draw(runs("a") + runs("b"))


@pytest.mark.parametrize("draw", [plots.loss_by_length, plots.learning_curves])
def test_names_of_many_lines_stand_in_panels_and_do_not_overlap(draw):
    labels = ["none", "rope", "alibi", *(f"e{i}" for i in range(9))]
    figure = draw(runs("lm", labels=labels))
    panels = [axes for axes in figure.axes if axes.get_visible() and axes.lines]
    assert [axes.get_title(loc="left") for axes in panels] == [
        "none",
        "rotary",
        "decay",
        "other",
        "other (2)",
        "other (3)",
    ]
    named = [[text.get_text() for text in axes.texts if text.get_text() in labels] for axes in panels]
    assert all("none" in names and len(names) <= plots.MOST for names in named)
    assert set().union(*named) == set(labels)
    figure.savefig(io.BytesIO(), format="png")
    for axes in panels:
        # window extents include the line back to the curve, so the spacing of the anchors is what must hold the text
        texts = [text for text in axes.texts if text.get_text() in labels]
        centres = np.sort([axes.transAxes.transform(text.xyann)[1] for text in texts])
        assert np.diff(centres).min(initial=np.inf) > figure.dpi * SMALL / 72


def test_a_band_on_a_logarithmic_axis_ends_above_its_floor():
    """That of a mean less a half-width of 0 or below does not end."""
    records = runs("lm", labels=("none",), seeds=3)
    for run, last in zip(records, (0.001, 0.01, 0.1), strict=True):
        run["curve"] = [[10, 1.0], [20, last]]
    (axes,) = plots.learning_curves(records).axes
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [1.0, 0.01])  # a geometric mean
    low, high = np.sort(axes.collections[0].get_paths()[0].vertices[:, 1])[[0, -1]]
    half_width = 4.3027 * np.log(10) / 3**0.5
    np.testing.assert_allclose([low, high], [0.01 * np.exp(-half_width), 0.01 * np.exp(half_width)], rtol=1e-3)


def test_a_panel_has_three_lines_of_a_family_at_most():
    few = {label: [{"encoding": f"{label}()"}] for label in ("none", "rope", "fox", "cope", "path", "tapa")}
    assert plots.by_family(few) == {
        "none, rotary": ["none", "rope"], "contextual": ["fox", "cope", "path"], "contextual (2)": ["tapa"],
    }  # fmt: skip
    del few["tapa"]
    assert plots.by_family(few) == {"": list(few)}
    apart = np.arange(len(few))  # of means, where a band of half that hides others
    narrow, wide = (
        [Line(np.ones(1), level * np.ones(1), np.array(half), "") for level in apart] for half in ([0.9], [1.1])
    )
    assert plots.by_family(few, narrow) == {"": list(few)}
    assert list(plots.by_family(few, wide)) == ["none", "rotary", "contextual"]
    look = plots.styles(runs(labels=("fox", "cope", "path", "tapa", "repo", "cable", "carope", "grape_m")))
    assert len({(each.dash, each.filled) for each in look.values()}) == 8
    assert look["fox"].filled != look["cope"].filled


@pytest.mark.parametrize("last", [0.2, 1e-3, 1e-6])
def test_marks_of_a_logarithmic_axis_are_told_apart(last):
    records = runs("lm", labels=("none", "rope"))
    for run in records:
        run["curve"] = [[10, 1.0], [20, last**0.5], [30, last]]
    (axes,) = plots.learning_curves(records).axes
    low, high = axes.get_ylim()
    shown = [tick for tick in axes.get_yticks() if low <= tick <= high]
    named = axes.yaxis.get_major_formatter().format_ticks(shown)
    assert 2 <= len(shown) <= 12
    np.testing.assert_allclose([float(name) for name in named], shown)


def test_what_is_measured_after_each_block_is_drawn_over_the_blocks(tmp_path):
    records = runs("lm", labels=("none", "rope"), seeds=2)
    for run in records:
        run["curve"], run["metrics"] = (
            [],
            {f"error after {b} blocks{of}": b + 1.0 for b in (0, 1, 10) for of in ("", ", noise")},
        )
    figure = plots.metric_by_block(records, what="error", of="noise")
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_xydata(), [[0, 1], [1, 2], [10, 11]])
    names = [path.name for path in write_report(records, tmp_path, About("t"))]
    assert names == ["table.md", "lm_error_text.png", "lm_error_noise.png", "report.html"]
    (blind,) = [line for line in figure.axes[0].lines if line.get_linestyle() == ":" and line.get_xdata()[0] == 0]
    assert set(blind.get_ydata()) == {1.0}  # what none has before the blocks
    with pytest.raises(ValueError, match="no metric 'x' by block, of ''"):
        plots.metric_by_block(records, what="x")


def test_errors_of_positions_have_a_unit_and_a_finding(tmp_path):
    records = runs("lm", labels=("none", "rope"), seeds=3)
    for run in records:
        start, end = {"none": (32.0, 20.0), "rope": (1.0, 1.0)}[run["label"]]
        run["curve"] = []
        run["metrics"] = {
            f"position error after {b} blocks": x + 0.01 * run["seed"] * b for b, x in ((0, start), (2, end))
        }
    assert plots.metric_by_block(records, what="position error").get_supylabel() == "position error (bytes)"
    write_report(records, tmp_path, About("t"))
    said = (
        "position error (bytes) of text, before the blocks and after 2: none 32.00 to 20.02 (-11.98 ± 0.05, separated)"
    )
    assert said in (tmp_path / "table.md").read_text()
    page = (tmp_path / "report.html").read_text()
    assert re.search(r"<figcaption>position error of text after each block: .* Dotted: none before the blocks", page)
    assert page.count(said) == 3  # a finding, the caption, and the same for who does not see the figure


def test_a_single_length_is_drawn_as_points(tmp_path):
    records = [run | {"metrics": {"loss": {"128": 2.0 + 0.1 * run["seed"]}}} for run in runs("lm")]
    paths = write_report(records, tmp_path, About("t"))
    assert [path.name for path in paths] == ["table.md", "lm_loss.png", "lm_learning_curves.png", "report.html"]
    figure = plots.points_by_encoding(records, metric=Metric("loss", 128))
    assert figure.axes[0].get_xlabel() == "loss (nats per byte) at 128 bytes: seeds, mean, 95 % interval"
    assert "2.100 ± 0.248" in [text.get_text() for text in figure.axes[0].texts]
    shares = [run | {"metrics": {"exact match by length": {"128": 0.5}}} for run in records]
    axes = plots.points_by_encoding(shares, metric=Metric("exact match by length", 128)).axes[0]
    assert axes.get_xlabel().startswith("exact match (%) at 128 bytes")


@pytest.mark.parametrize(("most", "drawn"), [(0.004, False), (0.2, True)])
def test_whole_answers_that_nobody_has_right_are_not_drawn(most, drawn, tmp_path):
    records = [run | {"metrics": {"exact match": {"22": most, "48": 0.0}}, "curve": []} for run in runs("lm")]
    names = [path.name for path in write_report(records, tmp_path, About("t"))]
    assert ("lm_exact_match_by_length.png" in names) == drawn


def test_training_length_is_marked():
    records = [run | {"train_length": 128} for run in runs("lm")]
    axes = plots.loss_by_length(records).axes[0]
    assert any(list(line.get_xdata()) == [128, 128] for line in axes.lines)
    (told,) = [text for text in axes.texts if text.get_text() == "training length"]
    assert told.xy == (128, 1)  # at the top, above all lines


def test_ticks_that_are_near_each_other_have_one_name():
    assert plots.spaced([0.0, 1.0, 2.0, 3.0]) == {0, 1, 2, 3}
    assert plots.spaced([0.0, 5.0, 6.0, 50.0, 99.0, 100.0], first=1) == {1, 3, 5}
    records = [
        run | {"metrics": {"exact match": {"22": 0.5, "24": 0.4, "48": 0.1}}, "train_length": 22} for run in runs("lm")
    ]
    axes = plots.accuracy_by_length(records, name="exact match").axes[0]
    assert axes.get_xscale() == "linear"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["22", "", "48"]


def test_spread_apart_moves_as_little_as_needed():
    np.testing.assert_allclose(plots.spread_apart([0.1, 0.5, 0.9], 0.1), [0.1, 0.5, 0.9])
    np.testing.assert_allclose(plots.spread_apart([0.5, 0.5, 0.5], 0.1), [0.4, 0.5, 0.6])
    np.testing.assert_allclose(plots.spread_apart([1.0, 1.0], 0.1), [0.9, 1.0])
