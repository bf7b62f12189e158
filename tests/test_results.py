"""The page of results is what its records say, and no number of it or of README.md comes from anywhere else."""

import json
import pathlib
import re

import pytest

import posjax
from experiments.evidence import matrix, numbers, page
from experiments.evidence.verdicts import FAILS
from experiments.report.statistics import train_length
from experiments.studies.results import Results, read_results

REPO = pathlib.Path(__file__).parents[1]
RESULTS = REPO / "results"
MEND = "run python -m experiments.report and commit what it writes"
WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


@pytest.fixture(scope="module")
def results():
    return read_results(RESULTS)


@pytest.fixture(scope="module")
def rendered(results):
    return page.render(*results)


def test_the_page_is_current(rendered):
    assert (RESULTS / page.NAME).read_text() == numbers.plain(rendered), MEND


def test_every_number_of_the_page_comes_from_a_record_or_a_source(rendered):
    assert numbers.loose(rendered) == []
    assert numbers.loose(numbers.plain(rendered)) != [], "else nothing could be found"


def test_links_of_the_page_lead_somewhere(rendered):
    text = numbers.plain(rendered)
    anchors = set(re.findall(r'<a id="([^"]+)">', text))
    anchors |= {
        re.sub(r"[^a-z ]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^## (.+)$", text, re.M)
    }
    for link in re.findall(r"\]\(([^)]+)\)", text):
        there = link[1:] in anchors if link.startswith("#") else (RESULTS / link).exists()
        assert there, link


def test_what_contradicts_a_paper_says_what_was_tried_and_what_is_open(results):
    against = [each.claim for each in page.judge(results[0]) if each.verdict == FAILS]
    assert against
    assert [claim.id for claim in against if not (claim.tried and claim.remains)] == []


def test_claims_that_documents_link_to_are_on_the_page(rendered):
    anchors = set(re.findall(r'<a id="([^"]+)">', numbers.plain(rendered)))
    linked = {}
    for path in (REPO / "README.md", *(REPO / "docs").glob("*.md")):
        for name in re.findall(r"results/README\.md#([\w-]+)", path.read_text()):
            linked[name] = path.name
    assert linked
    assert {name: path for name, path in linked.items() if name not in anchors} == {}


def test_a_page_without_records_is_a_clear_error(tmp_path):
    with pytest.raises(ValueError, match="holds no records"):
        read_results(tmp_path)


def test_records_that_make_no_table_are_a_clear_error(tmp_path):
    one = json.loads((RESULTS / "quickstart" / "results.jsonl").read_text().splitlines()[0])
    lines = [json.dumps(record) for record in (one, one | {"seed": 1, "encoding": "rope()"})]
    (tmp_path / "quickstart").mkdir()
    (tmp_path / "quickstart" / "results.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(ValueError, match=r"quickstart/results.jsonl: .* names two encodings"):
        read_results(tmp_path)


def facts(results: Results):
    """Numbers of README.md, each with what it must say. Words count as numbers where the text counts."""
    folder = results.folders["quickstart"]
    digits, text = folder.tables["digits_vit"], folder.tables["pydoc_decoder"]
    runs = next(iter(text.values()))
    lengths = sorted(map(int, runs[0]["metrics"]["loss"]))
    minutes = sum({(r["study"], r["label"]): r["wall_time"] for r in folder.records}.values()) / 60
    cores = folder.records[0]["versions"]["cpus"]
    return {
        r"posjax holds (\d+) of them": (len(posjax.names()) - 1,),  # none is none
        r"(\w+) encodings in (\w+) models over (\w+) seeds": (
            WORDS[len(digits)],
            WORDS[len(folder.tables)],
            WORDS[len(runs)],
        ),
        r"in under (\w+) minutes on (\w+) CPU cores": (WORDS[5] if minutes < 5 else minutes, WORDS[cores]),
        r"trained on (\d+) tokens and read on (\d+) to (\d+)": (train_length(text), lengths[0], lengths[-1]),
    }


def test_every_number_of_the_readme_comes_from_a_record(results):
    text = (REPO / "README.md").read_text()
    # Alternative texts of images are sentences too: their links are hidden, not they.
    assert numbers.unexplained(text, facts(results)) == []


def test_the_picture_shows_every_cell(results):
    made = matrix.matrix(results.folders, page.judge(results.folders))
    texts = [text.get_text() for text in matrix.figure(made).axes[0].texts]
    shown = sum(not text.startswith("-") for text in texts)
    assert shown == len(made.cells) > 0
