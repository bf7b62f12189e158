"""The sources of the atlas: tables of the documentation, and configurations of well-known models."""

import pytest

from experiments.atlas import models
from experiments.atlas.sources import DOCS, errata, goldens, names_in, tour
from posjax.spec import registered_names

NAMES = frozenset(registered_names())


def test_tables_of_the_documentation(tmp_path):
    found, text = goldens(DOCS), (DOCS / "goldens.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith("| `alibi` "))
    cases, formula, references, *rest = found["alibi"]
    assert row == f"| {' | '.join(['`alibi`', cases, formula, '; '.join(references), *rest])} |"
    assert found["none"].references == ()
    found, text = errata(DOCS), (DOCS / "errata.md").read_text()
    assert found[0].section == "Additive"
    rows = sum(line.startswith("|") for line in text.splitlines())
    assert rows == len(found) + 2 * len({row.section for row in found})
    found = tour(DOCS)
    assert found[0]["question"] == "What does ALiBi do to far tokens?"
    assert [len(each["steps"]) for each in found] == [4, 3, 3]
    first = "Click *Distance*, and take the tick off *rope*. The curve of *alibi* falls for ever."
    assert found[0]["steps"][0] == first
    with pytest.raises(ValueError, match=r"atlas\.md is missing"):
        tour(tmp_path)


def test_names_in_a_text():
    for text, names in {
        "CoPE's gates and `rope(fraction=...)`": {"cope", "rope"},
        "the shape of a window": set(),
        "M-RoPE of a still image": {"mrope"},
        "Shaw's vectors, T5 and Swin v2": {"shaw", "t5", "swin_v2"},
        "`rope_parameters`": set(),
    }.items():
        assert names_in(text, NAMES) == names


def test_layers_of_a_model_are_those_of_its_configuration():
    uses = list(models.layers_of_models())
    gemma = [use for use in uses if use.model == "Gemma3TextConfig"]
    assert [use.layers[:6] for use in gemma] == [(0, 1, 2, 3, 4, 6), (5, 11, 17, 23)]
    assert sorted(layer for use in gemma for layer in use.layers) == list(range(gemma[0].depth))
    assert gemma[0].names == ("rope", "window")
    biased = [use["after"] for use in models.models()["layers"] if "alibi" in use["names"]]
    assert biased == ["bigscience/bloom", "mosaicml/mpt-7b"]
    assert str(gemma[1]) == "4 of 26 layers: 5, 11, 17, 23"
    assert str(gemma[0]._replace(layers=(0, 1, 2, 5), depth=8)) == "4 of 8 layers: 0-2, 5"
    assert {name for use in uses for name in use.names} <= NAMES
    assert "llama3" in {name for use in uses for name in use.names}
