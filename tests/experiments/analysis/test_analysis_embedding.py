"""Embeddings of models whose answer is known: bags of words, codes of positions, and tables beyond their rows."""

import jax
import numpy as np
import pytest

from experiments.analysis.embedding import (
    READINGS,
    cosine_distance,
    lengthened,
    moved_embeddings,
    passkey_ranks,
    passkey_set,
    retrieval_rank,
    special_ends,
    text_embedder,
)
from posjax import sites
from posjax.data.tokens import BYTES
from posjax.models import BlockConfig, Encoder

ROWS, WIDTH, VOCABULARY = 16, 8, 256
TEXTS = [np.random.default_rng(i).integers(0, VOCABULARY, 8 + i) for i in range(5)]


def encoder(encoding="learned", **fields):
    block = BlockConfig(width=WIDTH, num_heads=2)
    model = Encoder(VOCABULARY, encoding, length=ROWS, block=block, depth=1, head=None, **fields)
    return model, jax.jit(model.init)(jax.random.key(0), *model.example())


def mean_of(model, params, tokens):
    apply = jax.jit(lambda params, tokens: model.apply(params, tokens, sites(len(tokens[0])), method="features"))
    return np.asarray(apply(params, tokens.astype(np.int32)[None]))[0].mean(axis=0)


def bag_of_words(texts):
    codes = np.random.default_rng(0).standard_normal((VOCABULARY, WIDTH))
    return np.stack([codes[text].mean(axis=0) for text in texts])


def first_words(texts):
    return bag_of_words([text[:3] for text in texts])


def test_an_embedding_is_the_mean_of_the_features_of_the_text_alone():
    """Neither padding nor the other texts of a batch are in it."""
    model, params = encoder()
    found = text_embedder(model, params, ((1,), (2, 3)))(TEXTS)
    mean = mean_of(model, params, np.concatenate([[1], TEXTS[2], [2, 3]]))
    np.testing.assert_allclose(found[2], mean / np.linalg.norm(mean), atol=1e-5)


def test_a_text_within_the_table_is_the_same_under_every_reading():
    model, params = encoder()
    plain = text_embedder(model, params)(TEXTS)
    for reading in READINGS:
        np.testing.assert_allclose(text_embedder(model, params, reading=reading, length=ROWS)(TEXTS), plain, atol=1e-6)


@pytest.mark.parametrize(
    ("reading", "rows"),
    [
        ("grouped", np.arange(2 * ROWS) // 2),
        ("recurrent", np.arange(2 * ROWS) % ROWS),
        ("interpolated", np.linspace(0, ROWS - 1, 2 * ROWS)),
    ],
)
def test_a_reading_beyond_the_table_reads_these_rows(reading, rows):
    """A model with a longer table, whose rows are written by hand, gives the same."""
    model, params = encoder()
    longer, other = lengthened(model, params, 2 * ROWS)
    table = np.asarray(params["params"]["trunk"]["encoding"].rows)
    by_hand = np.stack([np.interp(rows, np.arange(ROWS), column) for column in table.T], axis=1)
    shape = other["params"]["trunk"]["encoding"]
    other["params"]["trunk"]["encoding"] = type(shape)(by_hand.astype(np.float32), shape.extent)
    texts = [np.tile(text, 5)[: 2 * ROWS] for text in TEXTS]
    found = text_embedder(model, params, reading=reading, length=2 * ROWS)(texts)
    np.testing.assert_allclose(found, text_embedder(longer, other)(texts), atol=1e-5)


def test_windows_are_embedded_alone_and_cut_texts_end_at_the_table():
    model, params = encoder()
    ends, text = ((1,), (2,)), np.arange(2 * (ROWS - 2) + 3)
    plain = text_embedder(model, params, ends)
    np.testing.assert_array_equal(plain([text]), plain([text[: ROWS - 2]]))
    whole = text_embedder(model, params, ends, reading="windows", length=64)([text, text[:4]])
    parts = (text[:14], text[14:28], text[-14:])  # the last window overlaps the one before
    mean = np.mean([mean_of(model, params, np.concatenate([[1], part, [2]])) for part in parts], axis=0)
    np.testing.assert_allclose(whole[0], mean / np.linalg.norm(mean), atol=1e-5)
    np.testing.assert_allclose(whole[1], plain([text[:4]])[0], atol=1e-6)


def test_readings_that_cannot_be_are_refused():
    model, params = encoder()
    with pytest.raises(ValueError, match="no reading is named 'group'; did you mean 'grouped'"):
        text_embedder(model, params, reading="group", length=32)
    with pytest.raises(ValueError, match="reading='grouped' needs length="):
        text_embedder(model, params, reading="grouped")
    with pytest.raises(ValueError, match="length=2 leaves no room for a text beside 2 special tokens"):
        text_embedder(model, params, ((1,), (2,)), length=2)
    with pytest.raises(ValueError, match="rope has no table of 16 rows"):
        text_embedder(*encoder("rope"), reading="interpolated", length=32)


def test_a_bag_of_words_moves_equally_wherever_words_stand():
    texts = [np.full(20, i) for i in range(5)]
    found = moved_embeddings(bag_of_words, texts, np.arange(100, 103), share=0.25)
    assert found.inserted.shape == found.removed.shape == (3, 5)
    np.testing.assert_allclose(found.inserted, found.inserted[:1].repeat(3, axis=0), atol=1e-12)
    assert found.inserted.min() > 0
    np.testing.assert_allclose(found.removed, 0, atol=1e-12)
    longer = [np.concatenate([text, np.resize(np.arange(100, 103), 5)]) for text in texts]
    np.testing.assert_allclose(found.inserted[0], cosine_distance(bag_of_words(texts), bag_of_words(longer)))


def test_a_reader_of_first_words_moves_at_the_start_alone():
    found = moved_embeddings(first_words, TEXTS, np.arange(200, 210), share=0.3)
    assert found.inserted[0].min() > 0
    assert found.removed[0].min() > 0
    assert found.inserted[1:].max() < 1e-12
    assert found.removed[1:].max() < 1e-12


@pytest.mark.parametrize(("encoding", "stays"), [("none", True), ("learned(stddev=1)", False)])
def test_an_encoder_without_positions_moves_equally(encoding, stays):
    model, params = encoder(encoding)
    texts = [text[:8] for text in TEXTS]
    found = moved_embeddings(text_embedder(model, params), texts, np.arange(200, 210), share=0.5)
    assert np.allclose(found.inserted, found.inserted[0], atol=1e-5) == stays


def test_changes_out_of_range_are_refused():
    with pytest.raises(ValueError, match="share=1 must lie between 0 and 1"):
        moved_embeddings(bag_of_words, TEXTS, np.arange(3), share=1)


def test_documents_hold_their_own_pass_key_at_any_depth():
    made = passkey_set(BYTES, size=200, count=30, seed=1)
    assert {len(document) for document in made.documents} == {200}
    names = [bytes(query).decode().removeprefix("what is the pass key for ")[:-1] for query in made.queries]
    assert len(set(names)) == 30
    for name, document, depth in zip(names, made.documents, made.depth, strict=True):
        text = bytes(document).decode()
        assert text.count(name) == 2
        start, end = text.index(f" {name}'s pass key is "), text.index(f"for {name}. ") + len(f"for {name}. ")
        assert start == round(depth * (200 - (end - start)))
        assert text.startswith("The grass is green."[:start])
    again = passkey_set(BYTES, size=200, count=30, seed=1)
    assert all((a == b).all() for a, b in zip(made.documents, again.documents, strict=True))
    own = passkey_set(BYTES, size=200, count=2, filler=np.frombuffer(b"xyz", np.uint8))
    assert b"xyzxyz" in bytes(own.documents[0])
    with pytest.raises(ValueError, match=r"a pass key of \d+ tokens does not fit into a document of size=20"):
        passkey_set(BYTES, size=20, count=2)
    with pytest.raises(ValueError, match="count=1000 documents need as many names"):
        passkey_set(BYTES, size=200, count=1000)


def test_the_rank_counts_documents_as_near_or_nearer():
    documents = np.array([[1.0, 0], [0, 1], [0, 1]])
    queries = np.array([[1.0, 0.5], [1, 2], [3, 1]])
    assert retrieval_rank(documents, queries).tolist() == [0, 1, 2]


def test_ranks_by_length_and_reading_are_one_number_for_each_document():
    model, params = encoder()
    model, params = lengthened(model, params, 128)
    readings = ("truncated", "windows")
    found = list(passkey_ranks(model, params, BYTES, lengths=[128, 256], readings=readings, count=3))
    assert [(reading, length) for reading, length, _ in found] == [(r, n) for n in (128, 256) for r in readings]
    assert all(rank.shape == (3,) for *_, rank in found)
    assert (found[0][2] == found[1][2]).all()


def test_bytes_have_no_special_tokens():
    assert special_ends(BYTES) == ((), ())
