"""The page of bugs: every bug has its row of the errata, and its two pictures differ where they say."""

import numpy as np
import pytest

from experiments.atlas import breaks
from experiments.atlas.breaks import TEXTS, Picture
from experiments.atlas.sources import DOCS


def test_every_bug_has_a_row_and_a_name_of_its_own():
    rows = {row["what"] for row in breaks.errata_rows(DOCS).values()}
    assert {texts["row"] for texts in TEXTS.values()} <= rows
    assert len({texts["name"] for texts in TEXTS.values()}) == len(TEXTS)


def test_a_bug_without_a_row_is_refused(tmp_path):
    table = "## Part\n\n| what | who says what | posjax | pinned by |\n| --- | --- | --- | --- |\n| a | b | c | d |\n"
    (tmp_path / "errata.md").write_text(table)
    with pytest.raises(ValueError, match="no row named 'documents of a packed row: the mask'"):
        breaks.all_bugs(tmp_path)
    assert breaks.errata_rows(tmp_path) == {"a": dict(section="Part", what="a", who="b", posjax="c", pinned="d")}


def test_documents_see_each_other_without_their_mask_alone():
    right, wrong, _ = breaks.no_document_mask()
    segment = np.repeat([1, 2, 3], [12, 12, 8])
    apart = segment[:, None] != segment
    assert not right[apart].any()
    assert wrong[np.tri(32, dtype=bool) & apart].min() > 0
    np.testing.assert_allclose([right.sum(axis=1), wrong.sum(axis=1)], 1, rtol=1e-6)


def test_documents_and_padding_change_nothing_where_positions_are_right():
    packed, run_on, _ = breaks.positions_run_on()
    np.testing.assert_allclose(packed[12:20, 12:20], packed[:8, :8], atol=1e-6)
    assert np.abs(run_on[12:20, 12:20] - run_on[:8, :8]).max() > 0.01
    padded, counted, _ = breaks.padding_counts()
    np.testing.assert_allclose(padded[10:20, 10:20], packed[:10, :10], atol=1e-6)
    assert np.abs(counted - padded).max() > 0.01


@pytest.mark.slow
def test_bugs_are_as_large_as_the_errata_say():
    sizes = {
        "pairs_of_a_prefix": 1.06,
        "rows_of_keys": 1.23,
        "slopes_of_each_rank": 0.456,
        "angles_in_fast_math": 0.0108,
    }
    pictures = {name: getattr(breaks, name)() for name in sizes}
    found = {name: breaks.largest_difference(picture) for name, picture in pictures.items()}
    assert found == pytest.approx(sizes, rel=0.01)
    right, wrong, _ = pictures["slopes_of_each_rank"]
    np.testing.assert_array_equal(right == wrong, np.arange(16) == 15)
    right, wrong, _ = pictures["angles_in_fast_math"]
    assert np.abs(right).max() < 1e-6 < 1e-2 < np.abs(wrong).max()


def test_levels_are_the_numbers():
    picture = Picture(np.array([[0.0, 0.5], [np.nan, 1.0]]), np.array([[0.25, 0.5], [0.5, 2.0]]))
    found = breaks.cells(picture)
    step = (found["high"] - found["low"]) / found["levels"]
    assert found["right"][1][0] is None
    np.testing.assert_allclose(np.array(found["wrong"]) * step + found["low"], picture.wrong, atol=step / 2)
    assert (found["full"], breaks.cells(picture, share=0.5)["full"]) == (2.0, 0.5)
    assert breaks.largest_difference(picture) == 1.0
    assert breaks.largest_difference(picture._replace(refusal="no")) is None
