"""The sources of the atlas: tables of the documentation, and configurations of well-known models."""

import pytest

from experiments.atlas import models
from experiments.atlas.sources import DOCS, errata, goldens, names_in, tour
from posjax.hf import from_hf_layers
from posjax.spec import registered_names

NAMES = frozenset(registered_names())


def test_goldens_have_the_pages_numbers():
    found = goldens(DOCS)
    row = next(line for line in (DOCS / "goldens.md").read_text().splitlines() if line.startswith("| `alibi` "))
    alibi = found["alibi"]
    assert (
        row
        == "| `alibi` | "
        + " | ".join(
            [alibi.cases, alibi.formula, "; ".join(alibi.references), alibi.comparisons, alibi.error, alibi.bound]
        )
        + " |"
    )
    assert found["none"].references == ()


def test_errata_are_rows_of_four_cells_under_their_heading():
    found = errata(DOCS)
    assert found[0].section == "Additive"
    assert sum(line.startswith("|") for line in (DOCS / "errata.md").read_text().splitlines()) == len(found) + 2 * len(
        {row.section for row in found}
    )


def test_a_folder_without_the_page_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"goldens\.md is missing"):
        goldens(tmp_path)


def test_the_tour_is_the_documents(tmp_path):
    found = tour(DOCS)
    assert found[0]["question"] == "What does ALiBi do to far tokens?"
    assert [len(each["steps"]) for each in found] == [4, 3, 3]
    assert (
        found[0]["steps"][0] == "Click *Distance*, and take the tick off *rope*. The curve of *alibi* falls for ever."
    )
    with pytest.raises(ValueError, match=r"atlas\.md is missing"):
        tour(tmp_path)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("CoPE's gates and `rope(fraction=...)`", {"cope", "rope"}),
        ("the shape of a window", set()),
        ("M-RoPE of a still image", {"mrope"}),
        ("Shaw's vectors, T5 and Swin v2", {"shaw", "t5", "swin_v2"}),
        ("`rope_parameters`", set()),
    ],
)
def test_names_in_a_text(text, found):
    assert names_in(text, NAMES) == found


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
    with pytest.raises(ValueError, match=r"number of layers|num_hidden_layers"):
        from_hf_layers({"model_type": "llama"})
