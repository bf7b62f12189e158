"""A file of one's own that is cut off, of any format, is refused in a line that names it."""

import gzip
import json
import lzma

import pytest

from posjax.data.text_files import read_texts

TEXT = b"Call me Ishmael. Some years ago, never mind how long precisely.\n" * 8
ROWS = [f"{i} " * 9 if i % 5 else None for i in range(3000)]  # more than a batch, with gaps


def cut_off(path):
    content = path.read_bytes()
    path.unlink()  # a table may still be mapped
    path.write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize("name", ["a.txt.xz", "a.txt.gz", "a.jsonl.xz", "a.jsonl"])
def test_texts(name, tmp_path):
    plain = b"".join(json.dumps({"text": row}).encode() + b"\n" for row in ROWS) if "jsonl" in name else TEXT
    pack = {"xz": lzma.compress, "gz": gzip.compress}.get(name.split(".")[-1], bytes)
    (tmp_path / name).write_bytes(pack(plain[:1000]) + pack(plain[1000:]))  # streams, as xz and gzip append them
    assert len([*read_texts(tmp_path / name, "text")]) == (2400 if "jsonl" in name else 1)
    cut_off(tmp_path / name)
    with pytest.raises(ValueError, match=name):
        list(read_texts(tmp_path / name, "text"))


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_tables(name, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table, path = pyarrow.table({"n": range(3000), "text": pyarrow.array(ROWS).dictionary_encode()}), tmp_path / name
    if name.endswith("parquet"):
        parquet.write_table(table, path, row_group_size=1700)
    else:
        with pyarrow.ipc.new_stream(path, table.schema) as stream:
            stream.write_table(table)
    texts = [(title, text) for title, text, _ in read_texts(path, "text")]
    assert texts == [(f"{name}:{i}", text.encode()) for i, text in enumerate(ROWS, 1) if text]
    cut_off(path)
    with pytest.raises(ValueError, match=name):
        list(read_texts(path, "text"))
