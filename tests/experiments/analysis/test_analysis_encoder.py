"""Embeddings of models whose answer is known, codes of positions beyond their rows, and the page of an encoder."""

import jax
import numpy as np
import pytest
from subjects import ROWS, encoder

from experiments.analysis import encoder as findings
from experiments.analysis.embedding import (
    READINGS,
    cosine_distance,
    lengthened,
    moved_embeddings,
    passkey_set,
    retrieval_rank,
    text_embedder,
)
from experiments.analysis.measured import write_records
from experiments.analysis.page import write_page
from experiments.analysis.subject import draw_texts
from experiments.records import read_study
from posjax import data, sites
from posjax.data.tokens import BYTES
from posjax.models import BlockConfig

TEXTS = [np.random.default_rng(i).integers(0, 256, 8 + i) for i in range(5)]


@pytest.fixture(scope="module")
def model():
    subject = encoder()
    return subject.model, subject.params[0]


def bag_of_words(texts):
    codes = np.random.default_rng(0).standard_normal((256, 8))
    return np.stack([codes[text].mean(axis=0) for text in texts])


def first_words(texts):
    return bag_of_words([text[:3] for text in texts])


def test_an_embedding_is_the_mean_of_the_features_of_the_text_alone(model):
    """Neither padding nor the other texts of a batch are in it."""
    found = text_embedder(*model, ((1,), (2, 3)))(TEXTS)
    tokens = np.concatenate([[1], TEXTS[2], [2, 3]]).astype(np.int32)[None]
    apply = jax.jit(lambda params: model[0].apply({"params": params}, tokens, sites(len(tokens[0])), method="features"))
    mean = np.asarray(apply(model[1]))[0].mean(axis=0)
    np.testing.assert_allclose(found[2], mean / np.linalg.norm(mean), atol=1e-5)


def test_a_text_within_the_table_is_the_same_under_every_reading(model):
    plain = text_embedder(*model)(TEXTS)
    for reading in READINGS:
        np.testing.assert_allclose(text_embedder(*model, reading=reading, length=ROWS)(TEXTS), plain, atol=1e-6)


@pytest.mark.slow
def test_a_reading_beyond_the_table_reads_these_rows(model):
    """A model with a longer table, whose rows are written by hand, gives the same."""
    places = {
        "grouped": np.arange(2 * ROWS) // 2,
        "recurrent": np.arange(2 * ROWS) % ROWS,
        "interpolated": np.linspace(0, ROWS - 1, 2 * ROWS),
    }
    texts = [np.tile(text, 32)[: 2 * ROWS] for text in TEXTS]
    table, (longer, _) = model[1]["trunk"]["encoding"], lengthened(*model, 2 * ROWS)
    for reading, rows in places.items():
        by_hand = np.stack([np.interp(rows, np.arange(ROWS), column) for column in np.asarray(table.rows).T], axis=1)
        other = type(table)(by_hand.astype(np.float32), (2 * ROWS,))
        params = {**model[1], "trunk": {**model[1]["trunk"], "encoding": other}}
        found = text_embedder(*model, reading=reading, length=2 * ROWS)(texts)
        np.testing.assert_allclose(found, text_embedder(longer, params)(texts), atol=1e-5)


@pytest.mark.slow
def test_windows_are_embedded_alone_and_cut_texts_end_at_the_table(model):
    ends, text = ((1,), (2,)), np.arange(2 * (ROWS - 2) + 3) % 256
    plain = text_embedder(*model, ends)
    np.testing.assert_array_equal(plain([text]), plain([text[: ROWS - 2]]))
    parts = (text[: ROWS - 2], text[ROWS - 2 : 2 * ROWS - 4], text[2 - ROWS :])  # the last overlaps the one before
    windows = text_embedder(*model, ends, reading="windows", length=300)
    # One program embeds each window alone: the mean of token means, not of embeddings of length 1.
    whole = windows([text, text[:4]])
    assert whole.shape == (2, 8)
    np.testing.assert_allclose(np.linalg.norm(whole, axis=1), 1)
    alone = plain([*parts, text[:4]])
    np.testing.assert_allclose(whole[1], alone[3], atol=1e-6)
    weights, *_ = np.linalg.lstsq(alone[:3].T, whole[0], rcond=None)
    np.testing.assert_allclose(alone[:3].T @ weights, whole[0], atol=1e-5)


def test_a_bag_of_words_moves_equally_wherever_words_stand():
    texts = [np.full(20, i) for i in range(5)]
    moved = moved_embeddings(bag_of_words, texts, np.arange(100, 103), share=0.25)
    longer = [np.concatenate([text, np.resize(np.arange(100, 103), 5)]) for text in texts]
    for place in ("start", "middle", "end"):
        distance = cosine_distance(bag_of_words(texts), bag_of_words(longer))
        np.testing.assert_allclose(moved[f"words inserted at the {place}"], distance, atol=1e-12)
        np.testing.assert_allclose(moved[f"words removed at the {place}"], 0, atol=1e-12)


def test_a_reader_of_first_words_moves_at_the_start_alone():
    moved = moved_embeddings(first_words, TEXTS, np.arange(200, 210), share=0.3)
    assert all((distance.min() > 0) == row.endswith("start") for row, distance in moved.items())
    assert all(distance.max() < 1e-12 for row, distance in moved.items() if not row.endswith("start"))


def test_documents_hold_their_own_pass_key_at_any_depth():
    documents, queries = passkey_set(BYTES, size=200, count=30)
    assert {len(document) for document in documents} == {200}
    names = [bytes(query).decode().removeprefix("what is the pass key for ")[:-1] for query in queries]
    assert len(set(names)) == 30
    starts = []
    for name, document in zip(names, documents, strict=True):
        text = bytes(document).decode()
        assert text.count(name) == 2
        starts.append(text.index(f" {name}'s pass key is "))
        assert text.startswith("The grass is green."[: starts[-1]])
    assert min(starts) < 20
    assert max(starts) > 80
    with pytest.raises(ValueError, match="--num_texts=1000"):
        passkey_set(BYTES, size=200, count=1000)


def test_the_rank_counts_documents_as_near_or_nearer():
    documents = np.array([[1.0, 0], [0, 1], [0, 1]])
    queries = np.array([[1.0, 0.5], [1, 2], [3, 1]])
    assert retrieval_rank(documents, queries).tolist() == [0, 1, 2]


@pytest.mark.slow
def test_a_page_of_an_encoder(tmp_path, monkeypatch):
    """A table moves with its positions."""
    monkeypatch.setattr(findings, "LENGTHS", (128, 384))
    subject, rng = encoder(length=256, block=BlockConfig(width=32, num_heads=2)), np.random.default_rng(0)
    texts = draw_texts(data.Documents("books", ("a",), (rng.integers(0, 256, 900).astype(np.uint8),)), 2, 128)
    groups, arrays = findings.measure_encoder(subject, texts)
    rows = groups[0].rows
    assert (rows["positions + 64"][findings.MOVED] > 1e-4).all()
    assert ((rows["as loaded"][f"{findings.FIRST}, all layers"] > 0) & (rows["as loaded"][findings.SINKS] <= 1)).all()
    assert set(rows["truncated"][findings.FOUND]) == {128, 384}
    assert set(arrays) == {"table", "walk"}
    about = dict(data="books", unit="token", parameters=1, seconds=1.0, device="cpu", versions={"cpus": 2})
    study = write_records(tmp_path, groups, subject, texts, about)
    write_page(tmp_path, "A page", [*findings.sections(study, arrays)], {}, "a command")
    assert set(read_study(tmp_path).studies["tiny"].rows) == {row for group in groups for row in group.rows}
    page = (tmp_path / "README.md").read_text()
    assert "## The table of positions" in page
    assert "| positions + 64 |" in page
    assert [path.name for path in sorted(tmp_path.glob("*.png"))] == ["pass_keys.png", "table.png"]


@pytest.mark.slow
def test_an_encoding_of_differences_does_not_move_and_has_no_table(monkeypatch):
    monkeypatch.setattr(findings, "LENGTHS", (128,))
    subject, rng = encoder("rope"), np.random.default_rng(0)
    texts = draw_texts(data.Documents("books", ("a",), (rng.integers(0, 256, 900).astype(np.uint8),)), 2, 64)
    (group,), arrays = findings.measure_encoder(subject, texts)
    assert (group.rows["positions + 64"][findings.MOVED] < 1e-6).all()
    assert not arrays
