"""Archives, texts and pictures that are damaged, or unpack to more than a memory holds: read, or refused by name."""

import gzip
import io
import json
import lzma
import tracemalloc
import zipfile

import numpy as np
import pytest
from fuzzing import counts, damaged, fuzz
from hypothesis import strategies as st
from PIL import Image

from posjax import data
from posjax.data.folders import pictures
from posjax.data.text_files import read_texts
from posjax.data.tokens import load_tokenizer

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 9, 3), np.uint8)
TEXT = "Call me Ishmael. Some years ago, never mind how long precisely.\n" * 8
ROWS = "".join(json.dumps({"text": TEXT[:n], "n": n}) + "\n" for n in (10, 40, 90)).encode()


def encoded(kind, **options):
    buffer = io.BytesIO()
    Image.fromarray(PIXELS).save(buffer, kind, **options)
    return buffer.getvalue()


def zipped(method=zipfile.ZIP_DEFLATED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name in ("cat/a.png", "cat/b.png", "dog/c.jpg"):
            archive.writestr(name, encoded("png" if name.endswith("png") else "jpeg"))
    return buffer.getvalue()


@counts(40, 300)
def test_pictures(count):
    kinds = ("png", "jpeg", "gif", "bmp", "tiff", "webp", "ppm")
    strategy = st.sampled_from([encoded(kind) for kind in kinds]).flatmap(damaged)

    def once(content):
        image = data.read_image(content)
        assert (image.ndim, image.shape[2], image.dtype) == (3, 3, np.uint8)

    fuzz(count, strategy, once)


@counts(40, 300)
@pytest.mark.parametrize("method", ["stored", "deflated"])
def test_zips_of_pictures(method, count, tmp_path):
    content = zipped(zipfile.ZIP_STORED if method == "stored" else zipfile.ZIP_DEFLATED)

    def once(changed):
        (tmp_path / "train.zip").write_bytes(changed)
        for picture in pictures(tmp_path, "train"):
            assert picture.name

    fuzz(count, damaged(content), once)


@counts(40, 300)
@pytest.mark.parametrize("name", ["a.txt.xz", "a.txt.gz", "a.jsonl", "a.jsonl.xz", "a.txt"])
def test_texts(name, count, tmp_path):
    plain = ROWS if "jsonl" in name else TEXT.encode()
    content = {"xz": lzma.compress, "gz": gzip.compress}.get(name.split(".")[-1], bytes)(plain)

    def once(changed):
        (tmp_path / name).write_bytes(changed)
        assert all(isinstance(text, bytes) for _, text in read_texts(tmp_path / name, "text"))

    fuzz(count, damaged(content), once)


@counts(40, 300)
@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_tables(name, count, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table, path = pyarrow.table({"text": ["one", "two", "three" * 9], "n": [1, 2, 3]}), tmp_path / name
    if name.endswith("parquet"):
        parquet.write_table(table, path)
    else:
        with pyarrow.ipc.new_stream(path, table.schema) as stream:
            stream.write_table(table)

    def once(changed):
        path.unlink()  # the table before may still be mapped
        path.write_bytes(changed)
        assert all(isinstance(text, bytes) for _, text in read_texts(path, "text"))

    fuzz(count, damaged(path.read_bytes()), once)


@counts(30, 300)
def test_tokenizers(count, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    path = tmp_path / "tokenizer.json"

    def once(changed):
        path.write_bytes(changed)
        load_tokenizer(path).encode([b"abba"])

    fuzz(count, damaged(model.to_str().encode()), once)


@pytest.mark.parametrize("name", ["bomb.txt.xz", "bomb.txt.gz", "bomb.jsonl.xz"])
def test_what_unpacks_to_far_more_than_text_is_not_unpacked(name, tmp_path, monkeypatch):
    monkeypatch.setattr("posjax.data.text_files.FREE_BYTES", 2**20)
    pack = (lambda content: lzma.compress(content, preset=0)) if name.endswith("xz") else gzip.compress
    (tmp_path / name).write_bytes(pack(bytes(2**24)))
    tracemalloc.start()
    with pytest.raises(
        ValueError, match=rf"{name} unpacks to more than [\d,]+ bytes, more than text would: unpack it by hand"
    ):
        read_texts(tmp_path / name, "text")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2**23
    (tmp_path / name).write_bytes(pack(b"a") + pack(b"b" * 2**10))  # several streams, as xz and gzip append them
    if "jsonl" not in name:
        assert read_texts(tmp_path / name, "text") == [(name, b"a" + b"b" * 2**10)]


@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("rows", [1, 200])
def test_a_parquet_that_unpacks_to_far_more_is_not_unpacked(tmp_path, dictionary, rows, monkeypatch):
    """A text that stands in every row of a file of some hundred bytes, once in a dictionary or packed by zstd."""
    pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    monkeypatch.setattr("posjax.data.text_files.FREE_BYTES", 2**20)
    table = pyarrow.table({"text": pyarrow.array(["a" * (2**27 // rows)] * rows)})
    parquet.write_table(table, tmp_path / "bomb.parquet", compression="zstd", use_dictionary=dictionary)
    assert (tmp_path / "bomb.parquet").stat().st_size < 2**15
    pool, before = pyarrow.default_memory_pool(), pyarrow.default_memory_pool().bytes_allocated()
    with pytest.raises(ValueError, match=r"bomb\.parquet unpacks to more than [\d,]+ bytes, more than text would"):
        read_texts(tmp_path / "bomb.parquet", "text")
    assert pool.bytes_allocated() - before < 2**22
    some = [f"{i} " * 9 if i % 5 else None for i in range(3000)]  # more than a batch, with gaps
    table = pyarrow.table({"n": range(3000), "text": pyarrow.array(some).dictionary_encode()})
    parquet.write_table(table, tmp_path / "many.parquet", use_dictionary=dictionary, row_group_size=1700)
    texts = read_texts(tmp_path / "many.parquet", "text")
    assert texts == [(f"many.parquet:{i}", text.encode()) for i, text in enumerate(some, 1) if text]


def test_an_xz_whose_header_asks_for_gigabytes_is_refused(tmp_path):
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 2**29}]
    (tmp_path / "a.txt.xz").write_bytes(lzma.compress(b"text", filters=filters))
    with pytest.raises(ValueError, match=r"a\.txt\.xz cannot be read as text \(Memory usage limit exceeded\)"):
        read_texts(tmp_path / "a.txt.xz", "text")


def test_a_zip_is_packed_by_deflate(tmp_path):
    (tmp_path / "train.zip").write_bytes(zipped(zipfile.ZIP_LZMA))
    with pytest.raises(ValueError, match=r"cat/a.png in .*train.zip is packed in a way .*: pack it by deflate"):
        list(pictures(tmp_path, "train"))
