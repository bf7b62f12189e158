"""papers.bib and the classes name the same papers."""

import re

import pytest

from posjax import cli
from posjax.describe.catalogue import citation, documentation
from posjax.describe.papers import cite, entries, papers_of
from posjax.spec import PATTERNS, REGISTRY

OURS = {name: cls for name, cls in (REGISTRY | PATTERNS).items() if cls.__module__.startswith("posjax.")}
WITHOUT_PAPER = {"compass_rope", "inkling", "token_sink"}  # a poster's abstract, and code of transformers


@pytest.mark.parametrize("name", OURS)
def test_every_source_of_a_class_has_an_entry(name):
    text = documentation(OURS[name])
    assert set(re.findall(r"\b\d{4}\.\d{4,5}\b", text)) <= set(papers_of(OURS[name]))
    assert papers_of(OURS[name]) or citation(text) is None or name in WITHOUT_PAPER


def test_every_entry_is_named_by_a_class():
    named = {key for cls in OURS.values() for key in papers_of(cls)}
    assert set(entries()) - named == set()


def test_entries_are_well_formed():
    keys = list(entries())
    assert keys == [*dict.fromkeys(keys)]
    for key, entry in entries().items():
        fields = dict(re.findall(r"^  (\w+)\s*= \{(.*)\},$", entry, re.MULTILINE))
        assert len(fields) == entry.count("\n") - 1, f"{key}: a field is no line"
        assert {"title", "author", "year"} <= set(fields)
        assert entry.count("{") == entry.count("}")
        assert re.fullmatch(r"\{.*\S\}", fields["title"]), f"{key}: a second pair of braces keeps the title's capitals"
        assert "," not in fields["author"], f"{key}: authors are joined by and"
        if re.fullmatch(r"\d{4}\.\d{4,5}", key):
            assert (fields["eprint"], fields["archivePrefix"], fields["year"]) == (key, "arXiv", f"20{key[:2]}")


def test_the_file_is_its_entries():
    """Text between entries, such as half an entry, would be lost."""
    from posjax.describe import papers

    text = papers.pathlib.Path(papers.__file__).with_name("papers.bib").read_text(encoding="utf-8")
    assert text == "\n\n".join(entries().values()) + "\n"


@pytest.mark.parametrize(
    ("spec", "keys"),
    [
        ("rope + alibi", ["2104.09864", "2403.13298", "2108.12409", "2305.16843"]),
        ("interpolate(factor=2) >> rope(scaling=yarn(factor=2, original_length=64))", ["2104.09864", "2306.15595"]),
        ("rerope(window=3) >> rope", ["kexue.fm/archives/9708"]),  # no masks.Window
        ("swan(window=8)", ["2504.08719", "2104.09864", "2310.06825"]),
        ("tree(depth=2, degree=3)", ["shiv2019novel"]),
    ],
)
def test_every_part_is_cited_once(spec, keys, capsys):
    assert cli.main(["explain", "--cite", spec]) == 0
    out = capsys.readouterr().out
    found = re.findall(r"^@\w+\{(.*),$", out, re.MULTILINE)
    assert set(keys) <= set(found)
    assert len(found) == len(set(found))
    assert ("2310.06825" in found) == ("swan" in spec)


def test_a_part_without_paper_says_so_in_a_comment():
    assert "% inkling: names no paper" in cite("inkling + rope")
    with pytest.raises(ValueError, match="did you mean 'rope'"):
        cite("rop")
