"""`python -m experiments.catalogue`, and the page that it writes."""

import re

import pytest

import posjax as pj
from experiments import catalogue as command
from posjax.describe import catalogue
from posjax.describe.catalogue import arxiv_number, citation, declared_meanings, facts, summary
from posjax.encoding import Needs


@pytest.fixture(scope="module")
def rows():
    return catalogue.catalogue()


def test_the_page_is_current_and_has_a_row_for_every_name(rows):
    page = command.PAGE.read_text()
    assert page == command.page(), "run python -m experiments.catalogue --write"
    library = [row.name for row in rows if row.cls.__module__.startswith("posjax.")]
    assert re.findall(r"^\| `(\w+)` \|", page.split("## Arguments of encodings")[0], re.MULTILINE) == library
    assert {line.replace("\\|", "").count("|") for line in page.splitlines() if line.startswith("| `")} <= {9, 5}
    assert f"{len(library)} encodings" in page


def test_editors_know_every_name():
    assert command.STUB.read_text() == command.stub(), "run python -m experiments.catalogue --write"
    assert set(re.findall(r'^    "(\w+)",$', command.stub(), re.MULTILINE)) <= set(pj.encodings.__all__)


def test_every_encoding_says_what_it_is(rows):
    assert {row.name for row in rows} == {*pj.names()}
    assert [row.name for row in rows if not row.summary] == [], "begin the docstring with what it is"
    assert [row.name for row in rows if row.example is None] == [], "see _FILLERS of posjax/describe/catalogue.py"
    assert [row.name for row in rows if row.parameters is None] == [], "init refuses 1024 positions and 14x14 patches"


def test_facts():
    rope, learned, interpolate = facts("rope"), facts("learned"), facts("interpolate")
    assert (rope.hooks, rope.parameters, rope.relative, rope.arxiv) == (("rotate",), {}, True, "2104.09864")
    assert (learned.hooks, learned.count, learned.relative) == (("place", "embed"), 1024 * 384, False)
    assert "whole_positions" in learned.needs
    assert (interpolate.hooks, interpolate.example.factor) == (("place",), 2.0)
    assert facts("raster").dimensions == (2,)


def test_what_a_docstring_says():
    text = "A line of it.\n\nFirst et al. (2019) did not; Su, Lu and Pan (2021), arXiv 2104.09864, did. Others: 2201.00001."
    assert (summary(text), arxiv_number(text), citation(text)) == ("A line of it.", "2104.09864", "Su, Lu and Pan 2021")
    assert (arxiv_number("None."), citation("None.")) == (None, None)
    assert citation("after Smith (1999).") == "Smith 1999"
    meanings = declared_meanings()
    assert set(meanings) == {"relative", "dimensions", "reach", *(need.name.lower() for need in Needs)}
    assert all(meanings.values())


def test_the_terminal(capsys):
    assert command.main(["--family=rotary"]) == 0
    out = capsys.readouterr().out
    assert "rope" in out
    assert "alibi " not in out
    assert max(map(len, out.splitlines())) <= 120
    assert "are relative" in " ".join(out.split())
