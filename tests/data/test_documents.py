"""Documents come whole, from the split that is asked for."""

import lzma
import os
import pathlib

import numpy as np
import pytest

from posjax import data

RAW_DATA = os.environ.get("POSJAX_RAW_DATA", pathlib.Path(__file__).parents[2].resolve().parent / "shared/data")
BOOKS = pathlib.Path(RAW_DATA, "books_pd")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "a.txt").write_text("a" * 95 + "b" * 10)
    (tmp_path / "below" / "b.md").write_text("ä" * 20)
    (tmp_path / "picture.png").write_bytes(b"\xff")
    return tmp_path


def texts(*arguments, **more):
    return [bytes(text) for text in data.load_documents("mine", *arguments, **more).texts]


def test_the_last_tenth_of_each_file_is_held_out(folder):
    train, held = (texts(split, files=str(folder)) for split in ("train", "validation"))
    assert held == [b"b" * 10, "ä".encode() * 2]
    assert [a + b for a, b in zip(train, held, strict=True)] == [b"a" * 95 + b"b" * 10, "ä".encode() * 20]
    assert texts("train", files=str(folder / "*.txt")) == train[:1]


def test_a_file_whose_name_is_a_pattern_is_read(tmp_path):
    path = tmp_path / "novel[1].txt"
    path.write_text("a" * 9 + "b")
    assert texts("train", files=str(path)) == [b"a" * 9]


def test_files_named_by_split_belong_to_it(folder):
    (folder / "test__x.txt.xz").write_bytes(lzma.compress(b"packed"))
    (folder / "train__y.txt").write_text("plain")
    assert texts("test", files=str(folder)) == [b"packed"]
    assert texts("train", files=str(folder)) == [b"plain"]
    with pytest.raises(ValueError, match="has no split 'valid', only test, train"):
        texts("valid", files=str(folder))


def test_a_split_is_checked_before_any_text_is_read(folder, monkeypatch):
    monkeypatch.setattr("posjax.data.documents.read_texts", lambda *_: pytest.fail("a text was read"))
    data.check_text("mine", "anything", files=str(folder))  # the held-out tenths
    (folder / "train__y.txt").write_text("plain")
    data.check_text("mine", "10% of train", files=str(folder))
    data.check_text("pydoc_topics", "valid")
    for split, files in (("valid", str(folder)), ("10% of tset", str(folder)), ("tset", None)):
        with pytest.raises(ValueError, match="has no split"):
            data.check_text("pydoc_topics", split, files=files)
    with pytest.raises(ValueError, match="names no text file"):
        data.check_text("mine", "train", files=str(folder / "nothing"))


def test_the_stream_is_the_documents_one_after_another(folder):
    documents = data.load_documents("mine", "train", files=str(folder))
    stream = documents.stream
    assert np.array_equal(stream.tokens, np.concatenate(documents.texts))
    assert stream.starts.tolist() == [0, len(documents.texts[0])]
    assert stream.digest != data.load_documents("mine", "test", files=str(folder)).stream.digest


def test_the_longest_documents_are_chosen(folder):
    documents = data.load_documents("mine", "train", files=str(folder))
    assert documents.longest(1, 50).titles == ("a.txt",)
    assert documents.longest(5, 10).titles == ("a.txt", "b.md")
    with pytest.raises(ValueError, match=r"96 bytes are needed"):
        documents.longest(2, 96)


def test_what_is_no_text_is_refused(tmp_path):
    for name, content, message in (
        ("x.txt", b"\xff\xfe", "x.txt is not UTF-8"),
        ("x.txt", b"", "are empty"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=message):
            texts("train", files=str(tmp_path / f"*.{name[-3:]}"))


def test_a_prepared_set_is_taken_apart(tmp_path):
    documents = data.load_documents("pydoc_topics", "validation", data_dir=str(tmp_path))
    text = data.load_text("pydoc_topics", "validation", tmp_path)
    assert len(documents.texts) == len(text.starts) > 10
    assert np.array_equal(np.concatenate(documents.texts), text.tokens)


def test_pg19_that_is_not_prepared_names_the_command(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"'pg19' is not prepared .* experiments\.prepare --name=pg19"):
        data.load_documents("pg19", "test", data_dir=str(tmp_path))


@pytest.mark.skipif(not BOOKS.is_dir(), reason=f"{BOOKS} is no directory of books: POSJAX_RAW_DATA may name another")
def test_the_books_are_sixteen():
    books = {s: data.load_documents("books_pd", s, files=str(BOOKS)) for s in ("train", "valid", "test")}
    assert [len(each.texts) for each in books.values()] == [11, 2, 3]
    assert sum(len(text) for each in books.values() for text in each.texts) == sum(
        int(line.split()[-2])
        for line in (BOOKS / "SOURCE.txt").read_text().splitlines()
        if "gutenberg.org/ebooks/" in line
    )
