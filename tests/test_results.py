"""The committed pages are what their records say, and the numbers of README.md come from records too."""

import pathlib
import re

import pytest

from experiments.records import TUNING, read_records, read_study
from experiments.report import languages, overview, page, vit_and_llm
from experiments.report.overview import read_results
from experiments.report.studies import studies

REPO = pathlib.Path(__file__).parents[1]
RESULTS = REPO / "results"
MEND = "run python -m experiments.report results/NAME, then without a folder, and commit what it writes"
STUDIES = [study.name for study in studies() if (RESULTS / study.name).exists()]


@pytest.fixture(scope="module")
def results():
    return read_results(RESULTS)


@pytest.fixture(scope="module")
def rendered(results):
    return overview.render(results)


def test_the_page_over_all_studies_is_current(rendered):
    assert (RESULTS / page.NAME).read_text() == rendered, MEND


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_the_page_of_a_study_is_current(name, results):
    study = next(study for study in results.studies if study.name == name)
    points = read_records(RESULTS / name / TUNING)
    text = page.make_page(study.config, read_study(RESULTS / name, study.has_parts), study.command, points).markdown
    assert (RESULTS / name / page.NAME).read_text() == text, MEND


@pytest.mark.parametrize("template", languages.pages("vit_and_llm"))
def test_the_page_of_a_vit_and_a_language_model_is_current(template, results):
    values = vit_and_llm.fields(results.folders["real_models"])
    assert (REPO / languages.pages("vit_and_llm")[template]).read_text() == languages.render(template, values), MEND


@pytest.mark.parametrize("name", [".", *STUDIES])
def test_links_of_pages_lead_somewhere(name):
    text = (RESULTS / name / page.NAME).read_text()
    for link in re.findall(r"\]\(([^)]+)\)", text):
        path, _, anchor = link.partition("#")
        target = RESULTS / name / path
        assert target.exists(), link
        assert not anchor or f'<a id="{anchor}">' in target.read_text(), link


def test_a_folder_holds_what_its_page_shows_and_nothing_of_earlier_pages():
    for name in STUDIES:
        text = (RESULTS / name / page.NAME).read_text()
        shown = set(re.findall(r"\]\((\w[^)]*\.png)\)", text))
        assert {path.name for path in (RESULTS / name).glob("*.png")} == shown
        assert not list((RESULTS / name).glob("*.html")) + list((RESULTS / name).glob("table.md"))


def test_claims_that_documents_link_to_are_on_the_page(rendered):
    anchors = set(re.findall(r'<a id="([^"]+)">', rendered))
    linked = {}
    for path in (REPO / "README.md", *(REPO / "docs").glob("*.md")):
        for name in re.findall(r"results/README\.md#([\w-]+)", path.read_text()):
            linked[name] = path.name
    assert linked
    assert {name: path for name, path in linked.items() if name not in anchors} == {}


def test_a_page_without_records_is_a_clear_error(tmp_path):
    with pytest.raises(ValueError, match="holds no records"):
        read_results(tmp_path)


def facts(results):
    """Numbers of README.md, each with the text that it must be."""
    records = results.folders["quickstart"]
    decoder = records.studies["pydoc_decoder"]
    text, rows, lengths = decoder.records, decoder.rows, decoder.metrics["loss"]
    minutes = sum({(r.study, r.row): r.wall_time for r in records}.values()) / 60
    return {
        r"(\d+) encodings in (\d+) models over (\d+) seeds": (
            len(rows),
            len(records.studies),
            len({record.seed for record in text}),
        ),
        r"in under (\d+) minutes on (\d+) CPU cores": (5 if minutes < 5 else minutes, text[0].versions["cpus"]),
        r"trained on (\d+) tokens and read on (\d+) to (\d+)": (decoder.trained_at, lengths[0], lengths[-1]),
    }


def test_numbers_of_the_readme_are_those_of_the_records(results):
    text = (REPO / "README.md").read_text()
    for pattern, values in facts(results).items():
        found = re.search(pattern, text)
        assert found, pattern
        assert found.groups() == tuple(map(str, values))
