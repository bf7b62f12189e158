"""Sites of text with images, and of sentences. Layouts beside their authors': tests/test_goldens.py."""

import numpy as np
import pytest
from goldens.check import load

import posjax as pj
from posjax.encodings.layouts import Circle, Diagonal, Offset, bilevel, lattice, multimodal, standing_at

FULL_STOP, LINE_BREAK = 869, 13  # of Llama's tokens, as in BiPE's code


def sentences():
    """The authors' example: (tokens, numbers and places)."""
    file = load("multimodal")
    return file["tokens"].astype(np.int32), file["bilevel"]


def test_a_video_longer_than_wide_does_not_run_into_the_text_behind_it():
    """transformers 5.23.0 goes on at s + max(rows, columns), where later frames stand; Qwen2-VL's code behind all of them."""
    site = multimodal([2, (5, 2, 3), 1])
    assert site.position[-1].tolist() == [7, 7, 7]
    assert site.position[:-1].max() == 6
    assert site.position.dtype == np.int32


def test_seconds_of_a_video_are_floored_as_in_qwen2_5_vl():
    """1.5 positions a frame: (arange(4) * 1.5).long() + 2 in transformers' get_vision_position_ids."""
    site = multimodal([2, (4, 1, 1), 1], Offset(stride=1.5, floored=True))
    assert site.position[2:, 0].tolist() == [2, 3, 5, 6, 7]
    assert multimodal([2, (4, 1, 1)], Offset(stride=1.5)).position[2:, 0].tolist() == [2, 3.5, 5, 6.5]


def test_text_goes_on_after_a_diagonal_as_time_does():
    position = multimodal([1, (2, 7, 9), 1], Diagonal()).position
    assert position[-1].tolist() == [4, 4, 4]  # frames at 1 and 3
    assert position[:, 2].max() == 3 + 4


def test_all_of_a_circle_is_as_far_from_a_token_of_text():
    position = np.float64(multimodal([4, (1, 3, 5)], Circle(radius=2.0)).position)
    for token in position[:4]:
        distance = np.linalg.norm(position[4:] - token, axis=1)
        np.testing.assert_allclose(distance, distance[0], rtol=1e-6)
    assert len(np.unique(position[4:].round(4), axis=0)) == 15


def test_sentences_are_counted_as_by_their_authors():
    tokens, theirs = sentences()
    np.testing.assert_array_equal(bilevel(tokens, (FULL_STOP, LINE_BREAK), longest=4).position, theirs)
    segment = np.repeat(np.int32([1, 2]), 11)
    again = bilevel(np.tile(tokens, 2), (FULL_STOP, LINE_BREAK), segment, longest=4)
    np.testing.assert_array_equal(again.position, np.tile(theirs, (2, 1)))
    np.testing.assert_array_equal(again.segment, segment)


def test_a_lattice_of_whole_numbers_is_a_grid():
    ours, grid = standing_at(lattice(range(3), range(4)), prefix=2), pj.grid(3, 4, prefix=2)
    assert all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(ours[:3], grid[:3], strict=True))
    assert standing_at(lattice([0.5], [2])).position.dtype == np.float32


@pytest.mark.parametrize(
    ("parts", "options", "message"),
    [
        ([], {}, "needs parts"),
        ([2, (1, 2)], {}, r"all at least 1; got \(1, 2\)"),
        ([(2, 2, 2)], {"layout": Circle(radius=4)}, "lays out still images"),
    ],
)
def test_parts_that_cannot_be(parts, options, message):
    with pytest.raises(ValueError, match=message):
        multimodal(parts, **options)
