"""Finished studies shown once more from their folders."""

import json
import pathlib
import shutil

import pytest
from ml_collections import ConfigDict

from experiments import cli
from experiments.report.__main__ import main as report
from experiments.studies.ablation import Ablation
from experiments.studies.again import show_again
from experiments.studies.extrapolation import Extrapolation, plan, training_config
from experiments.studies.records import Record, newest
from experiments.studies.resolutions import Resolutions
from experiments.studies.results import listed

RESULTS = pathlib.Path(__file__).parents[3] / "results"


def folder(tmp_path, records, **config):
    config = {"title": "A study", "notes": "", "name": "s", "seeds": [0, 1], "studies": {"stem": {}, "1%": {}}} | config
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return tmp_path


def ablation(**fields):
    """Two studies of two rows and two seeds."""
    base = json.loads((RESULTS / "quickstart" / "results.jsonl").read_text().splitlines()[0])
    return [
        base | {"study": study, "label": label, "encoding": f"{label}()", "seed": seed, "curve": []}
        | {"metrics": {"accuracy": value + 0.01 * seed}} | fields
        for study in ("stem", "1%")
        for label, value in (("none", 0.5), ("rope", 0.7))
        for seed in (0, 1)
    ]  # fmt: skip


def test_an_ablation_with_its_paper_and_axis(tmp_path, capsys):
    paper = {"source": "Someone (2020)", "metric": "accuracy", "reference": ["stem", "none"], "tie": 0.005}
    paper["values"] = {"stem": {"none": 0.6, "rope": 0.8}, "1%": {"rope": 0.8}}
    axis = {"title": "share", "values": {"stem": 1.0, "1%": 0.01}}
    directory = folder(tmp_path, ablation(), paper=paper, axis=axis, point="What it is about.")
    (directory / "report.html").write_text("<h2>How to reproduce</h2>\n<pre>python -m x --a=&#x27;1&#x27;</pre>")
    assert report([str(directory)]) == 0
    names = {path.name for path in directory.iterdir()}
    assert names - {"config.json", "results.jsonl"} == {
        "table.md", "report.html", "along.png", "beside_the_paper.png", "stem_accuracy.png", "1__accuracy.png",
    }  # fmt: skip
    page = (directory / "report.html").read_text()
    assert "python -m x --a=&#x27;1&#x27;" in page
    assert (
        page.index("What it is about.")
        < page.index("Of the paper&#x27;s 2 differences 2 agree")
        < page.index("<table>")
    )
    assert "From 1% to stem none gains least" in page
    before = {path: path.read_bytes() for path in directory.iterdir()}
    show_again(directory)  # the page that is read for its command is now our own
    assert {path: path.read_bytes() for path in directory.iterdir()} == before
    assert str(directory / "table.md") in capsys.readouterr().out


def test_a_study_with_claims_answers_them_first(tmp_path):
    """Those of the folder's name, as results/README.md judges them; a study of a user's own decides none."""
    heads = RESULTS / "heads"
    records = [json.loads(line) | {"curve": []} for line in (heads / "results.jsonl").read_text().splitlines()]
    (tmp_path / "heads").mkdir()
    page = folder(tmp_path / "heads", records, name="heads") / "report.html"
    assert report([str(page.parent)]) == 0
    assert (page.parent / "along.png").exists()  # by an axis of today's config, which the folder's has not
    said = "gap to RoPE at the training length shrinks with more heads. <strong>holds</strong>: loss, alibi at 128 (heads_8)"
    assert (
        page.read_text().index("Findings</h2>") < page.read_text().index(said) < page.read_text().index("best is rope")
    )
    assert "with more heads. **holds**: loss, alibi at 128" in (tmp_path / "heads" / "table.md").read_text()
    (tmp_path / "heads").rename(tmp_path / "mine")
    show_again(tmp_path / "mine")
    assert "Claims of the literature" not in (tmp_path / "mine" / "report.html").read_text()
    show_again(folder(tmp_path / "mine", ablation()).rename(tmp_path / "heads"))  # has the name alone
    assert "Claims of the literature" not in (tmp_path / "heads" / "report.html").read_text()


def test_rows_stand_in_the_order_of_todays_config(tmp_path):
    """Records of several hosts are in the order in which rows were finished, and config.json is sorted."""
    encodings = ConfigDict({"rope": "rope", "none": "none"}, sort_keys=False)
    today = ConfigDict({"name": "s", "studies": {"1%": {"encodings": encodings}, "stem": {"encodings": {}}}})
    show_again(folder(tmp_path, [*ablation(), *(each | {"label": "other"} for each in ablation())]), today)
    lines = (tmp_path / "table.md").read_text().splitlines()
    shown = [line.split(" | ")[0].strip("#| ") for line in lines if line.startswith(("##", "| "))]
    assert [name for name in shown if name not in ("encoding", "---")] == [
        "1%", "rope", "none", "other", "stem", "none", "rope", "other",
    ]  # fmt: skip
    show_again(tmp_path, ConfigDict({"name": "of another kind"}))


@pytest.mark.parametrize("name", ["context_extension", "resolutions", "length_generalization"])
def test_labels_are_those_of_the_rows(name):
    study = listed(name)
    config = cli.load(study.config)
    kind = {"extrapolate": Extrapolation, "resolutions": Resolutions, "ablate": Ablation}[study.module]
    if kind is Extrapolation:  # whose documents need not be there
        rows = plan(config, {label: training_config(config, spec) for label, spec in config.encodings.items()})
    else:
        rows = kind(config).rows()
    assert kind.to_show(config).labels() == [(row.study, row.label) for row in rows]


def test_a_page_that_names_no_command_names_that_of_the_folder(tmp_path):
    directory = tmp_path / "results" / "quickstart"
    directory.mkdir(parents=True)
    command = "<pre>python -m experiments.ablate --config=configs/quickstart.py --workdir=results/quickstart</pre>"
    show_again(folder(directory, ablation()))
    assert command in (directory / "report.html").read_text()
    (directory / "report.html").write_text("<h2>How to reproduce</h2>\n<pre>python -m x --a=1</pre>")
    show_again(directory)
    assert "<pre>python -m x --a=1 --workdir=results/quickstart</pre>" in (directory / "report.html").read_text()


@pytest.mark.parametrize("name", ["retrieval", "resolutions"])
def test_other_kinds_are_known_by_their_records(name, tmp_path):
    shutil.copytree(RESULTS / name, tmp_path / name, ignore=shutil.ignore_patterns("*.png", "*.html", "results.jsonl"))
    lines = (RESULTS / name / "results.jsonl").read_text().splitlines()[:3]
    # As many figures as tell the kind: these take a second each.
    records = [json.loads(line) | {"by_position": {}, "retrieval": {}, "cost": {}} for line in lines]
    (tmp_path / name / "results.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert any(path.suffix == ".png" for path in show_again(tmp_path / name))


def test_what_cannot_be_shown_says_why(tmp_path, capsys):
    with pytest.raises(ValueError, match=r"has no config\.json: a study's folder"):
        show_again(tmp_path)
    unknown = folder(tmp_path, ablation(task="mine"))
    config = json.loads((unknown / "config.json").read_text())
    del config["studies"]
    (unknown / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"no kind of study has records of \['mine'\] and a config without studies"):
        show_again(unknown)
    other, *rest = ablation()
    two = folder(tmp_path, [other | {"encoding": "rope()"}, *rest])
    assert report([str(two)]) == 2
    assert f"{two} cannot be shown again: study 'stem', label 'none' names two encodings" in capsys.readouterr().err


def test_of_a_row_that_was_run_again_the_last_records_count(tmp_path):
    """As after a study whose rates were extended."""
    old = [Record.of(record | {"config_hash": "of another rate"}) for record in ablation()]
    new = [Record.of(record) for record in ablation()]
    assert newest([*old, *new]) == new
    assert newest([*old, new[0]]) == [new[0], *old[2:]]  # a row is of one rate
