"""Files of text: a plain file is one document, a table holds many."""

import gzip
import lzma
import pathlib
import zlib
from collections.abc import Iterator
from typing import Any

from posjax.extras import require
from posjax.jsonl import parse_json

_PACKED = {".xz": lzma.open, ".gz": gzip.open}
_ROWS = 256  # of a table, which are read together
_PLAIN = (".md", ".rst", ".text", ".txt")
_COLUMNAR = (".arrow", ".parquet")
_LINES = (".jsonl", ".ndjson", ".json")
ENDINGS = (*_PLAIN, ".txt.xz", ".txt.gz", *_LINES[:2], ".jsonl.xz", ".jsonl.gz", ".json.gz", *_COLUMNAR)
TABLES = (*_LINES, *_COLUMNAR)


def is_table(path: pathlib.Path) -> bool:
    """Whether a file holds a document per row."""
    return _kind(path) in TABLES


def read_texts(path: pathlib.Path, field: str) -> Iterator[tuple[str, bytes, int]]:
    """Yields (title, UTF-8, bytes of the file that were read up to there) of every document of a file that is not empty.

    A table is read row by row, and never held.

    Args:
      path: a table (JSON lines, parquet, or Arrow files of `datasets`) or plain text; JSON lines and plain text may be
        packed by xz or gzip.
      field: the column of a table that holds the text.

    Raises:
      ValueError: the file is not UTF-8 or not whole, or a row has no text in that column.
      ImportError: pyarrow is not installed.
    """
    kind = _kind(path)
    if kind not in TABLES:
        if text := b"".join(line for line, _ in _lines(path)):
            yield path.name, text, path.stat().st_size
        return
    for number, (text, read) in enumerate((_columns if kind in _COLUMNAR else _objects)(path, field), 1):
        if not text:
            continue
        try:
            encoded = text.encode()
        except UnicodeError as error:  # half of a surrogate pair, which JSON can spell, or a damaged column
            raise ValueError(f"{path.name} holds text that is not Unicode: {error}") from None
        yield f"{path.name}:{number}", encoded, read


def _kind(path: pathlib.Path) -> str:
    """Returns the ending of a file's content: .jsonl for x.jsonl.xz."""
    inner = path.with_suffix("") if path.suffix in _PACKED else path
    return inner.suffix


def _lines(path: pathlib.Path) -> Iterator[tuple[bytes, int]]:
    """Yields each line, with its end, and the bytes of the file that were read up to there."""
    with path.open("rb") as file:
        try:
            # Binary files end lines by \n alone. JSON may hold a line separator of Unicode as it is.
            for line in _PACKED[path.suffix](file) if path.suffix in _PACKED else file:
                line.decode("utf-8")
                yield line, file.tell()
        except (lzma.LZMAError, zlib.error, EOFError, OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{path.name} is not UTF-8, plain or packed by xz or gzip: {error}") from None


def _objects(path: pathlib.Path, field: str) -> Iterator[tuple[str, int]]:
    for number, (line, read) in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        where = f"{path.name}, line {number}"
        row = parse_json(line, where)
        if field not in row:
            raise ValueError(f"{where} has no text {field!r} but {', '.join(row)}: set data.text_field to one")
        if not isinstance(row[field], str | None):
            raise ValueError(f"{where}: {field!r} holds {type(row[field]).__name__}, not text")
        yield row[field] or "", read


def _columns(path: pathlib.Path, field: str) -> Iterator[tuple[str, int]]:
    require(path.name, "pyarrow")
    import pyarrow

    try:
        for batch, read in (_parquet if path.suffix == ".parquet" else _arrow)(path, field):
            batch.validate(full=True)  # offsets and text: a damaged column would end in errors of the interpreter
            yield from ((text or "", read) for text in batch.column(0).to_pylist())
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path.name} cannot be read as a table: {error}") from None


def _parquet(path: pathlib.Path, field: str) -> Iterator[tuple[Any, int]]:
    import pyarrow.parquet

    _check_column(path, pyarrow.parquet.read_schema(path), field)
    size, rows = path.stat().st_size, 0
    with pyarrow.parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(_ROWS, columns=[field]):
            rows += len(batch)
            yield batch, size * rows // file.metadata.num_rows


def _arrow(path: pathlib.Path, field: str) -> Iterator[tuple[Any, int]]:
    """Reads a file as `datasets` saves it: the texts are memory-mapped."""
    import pyarrow.ipc

    file = pyarrow.memory_map(str(path))
    schema = pyarrow.ipc.open_stream(file).schema
    _check_column(path, schema, field)
    file.seek(0)
    options = pyarrow.ipc.IpcReadOptions(included_fields=[schema.get_field_index(field)])
    for batch in pyarrow.ipc.open_stream(file, options=options):
        yield batch, file.tell()


def _check_column(path: pathlib.Path, schema: Any, field: str) -> None:
    import pyarrow

    if field not in schema.names:
        raise ValueError(f"{path.name} has no {field!r} but {', '.join(schema.names)}: set data.text_field to one")
    kind = schema.field(field).type
    kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
    if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
        raise ValueError(f"{path.name}: column {field!r} holds {kind}, not text")
