"""papers.bib and the classes name the same papers."""

import re

import pytest

from posjax import cli
from posjax.describe.catalogue import citation, documentation
from posjax.describe.papers import cite, entries, papers_of
from posjax.spec import PATTERNS, REGISTRY

OURS = {name: cls for name, cls in (REGISTRY | PATTERNS).items() if cls.__module__.startswith("posjax.")}
WITHOUT_PAPER = {"compass_rope", "inkling", "token_sink"}  # a poster's abstract, and code of transformers


def test_classes_and_entries_name_each_other():
    named = {name: papers_of(cls) for name, cls in OURS.items()}
    for name, cls in OURS.items():
        text = documentation(cls)
        assert set(re.findall(r"\b\d{4}\.\d{4,5}\b", text)) <= set(named[name]), name
        assert named[name] or citation(text) is None or name in WITHOUT_PAPER, name
    assert set(entries()) - {key for keys in named.values() for key in keys} == set()


def test_every_part_is_cited_once(capsys):
    for spec, keys in {
        "rope + alibi": {"2104.09864", "2403.13298", "2108.12409", "2305.16843"},
        "interpolate(factor=2) >> rope(scaling=yarn(factor=2, original_length=64))": {"2104.09864", "2306.15595"},
        "rerope(window=3) >> rope": {"kexue.fm/archives/9708"},  # no masks.Window
        "swan(window=8)": {"2504.08719", "2104.09864", "2310.06825"},
    }.items():
        assert cli.main(["explain", "--cite", spec]) == 0
        found = re.findall(r"^@\w+\{(.*),$", capsys.readouterr().out, re.MULTILINE)
        assert keys <= set(found)
        assert len(found) == len(set(found))
        assert ("2310.06825" in found) == ("swan" in spec)
    assert "% inkling: names no paper" in cite("inkling + rope")
    with pytest.raises(ValueError, match="did you mean 'rope'"):
        cite("rop")
