"""Files of text: a plain file is one document, a table holds many."""

import lzma
import pathlib
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from posjax.extras import require
from posjax.jsonl import parse_json

_DICTIONARY = 2**28  # bytes that unpacking an .xz may keep in memory beside the text; xz -9 needs a quarter
_PACKED: dict[str, Callable[[], Any]] = {
    ".xz": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_DICTIONARY),
    ".gz": lambda: zlib.decompressobj(31),
}
FREE_BYTES = 2**26  # bytes that any file may unpack to
_MOST_PACKED = 100  # the largest ratio of unpacked to packed size; text is packed 3 to 5 times
_FEATHER = b"ARROW1"  # the first bytes of Arrow's format with random access
_ROWS = 1024  # of a table, which are read together
_PLAIN = (".md", ".rst", ".text", ".txt")
_COLUMNAR = (".arrow", ".parquet")
_LINES = (".jsonl", ".ndjson")
ENDINGS = (*_PLAIN, ".txt.xz", ".txt.gz", *_LINES, ".jsonl.xz", ".jsonl.gz", *_COLUMNAR)
TABLES = (*_LINES, *_COLUMNAR)


def is_table(path: pathlib.Path) -> bool:
    """Whether a file holds a document per row."""
    return _kind(path) in TABLES


def read_texts(path: pathlib.Path, field: str) -> list[tuple[str, bytes]]:
    """Returns (title, UTF-8) of every document of a file that is not empty.

    Args:
      path: a table (JSON lines, parquet, or Arrow files of `datasets`) or plain text; JSON lines and plain text may be
        packed by xz or gzip.
      field: the column of a table that holds the text.

    Raises:
      ValueError: the file is not UTF-8 or not whole, or a row has no text in that column.
      ImportError: pyarrow is not installed.
    """
    kind = _kind(path)
    if kind in _COLUMNAR:
        rows: Iterator[Any] = _columns(path, field)
    elif kind in _LINES:
        rows = _objects(path, field)
    else:
        return [(path.name, text)] if (text := _content(path)) else []
    try:
        return [(f"{path.name}:{number}", text.encode()) for number, text in enumerate(rows, 1) if text]
    except UnicodeError as error:  # half of a surrogate pair, which JSON can spell, or a damaged column
        raise ValueError(f"{path.name} holds text that is not Unicode: {error}") from None


def _kind(path: pathlib.Path) -> str:
    """Returns the ending of a file's content: .jsonl for x.jsonl.xz."""
    inner = path.with_suffix("") if path.suffix in _PACKED else path
    return inner.suffix


def _content(path: pathlib.Path) -> bytes:
    content = path.read_bytes()
    try:
        content = _unpacked(content, path) if path.suffix in _PACKED else content
        content.decode("utf-8")
    except (lzma.LZMAError, zlib.error, EOFError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path.name} cannot be read as text ({error}): it must be UTF-8, plain or packed by xz or gzip"
        ) from None
    return content


def _unpacked(packed: bytes, path: pathlib.Path) -> bytes:
    """The contents of a packed file, perhaps in several streams one after another.

    Raises:
      ValueError: the content is far larger than packed text can be; raised before it is in memory.
      EOFError, lzma.LZMAError, zlib.error: the file is cut off or damaged.
    """
    most = left = _bound(len(packed))
    pieces = []
    while packed:
        stream = _PACKED[path.suffix]()
        piece = stream.decompress(packed, left + 1)
        left -= len(piece)
        if left < 0:
            raise _bomb(path, most)
        if not stream.eof:
            raise EOFError("it is cut off")
        pieces.append(piece)
        packed = stream.unused_data.lstrip(b"\0")  # both formats may pad their ends
    return b"".join(pieces)


def _bound(size: int) -> int:
    """The largest number of bytes of text in a file of so many bytes."""
    return max(FREE_BYTES, _MOST_PACKED * size)


def _bomb(path: pathlib.Path, most: int) -> ValueError:
    return ValueError(
        f"{path.name} unpacks to more than {most:,} bytes, more than text would: unpack it by hand if it is meant so"
    )


def _objects(path: pathlib.Path, field: str) -> Iterator[str]:
    # Not splitlines: JSON may hold a line separator of Unicode as it is.
    for number, line in enumerate(_content(path).split(b"\n"), 1):
        if not line.strip():
            continue
        where = f"{path.name}, line {number}"
        row = parse_json(line, where)
        if field not in row:
            raise ValueError(
                f"{where} has no text {field!r} but {', '.join(row)}: set data.text_field to the one that is read"
            )
        if not isinstance(row[field], str | None):
            raise ValueError(f"{where}: {field!r} holds {type(row[field]).__name__}, not text")
        yield row[field] or ""


def _columns(path: pathlib.Path, field: str) -> Iterator[str]:
    require(path.name, "pyarrow")
    import pyarrow
    import pyarrow.ipc
    import pyarrow.parquet

    most = left = _bound(path.stat().st_size)
    try:
        for size, texts in (_parquet if path.suffix == ".parquet" else _arrow)(path, field, most):
            left -= size
            if left < 0:
                raise _bomb(path, most)
            yield from (text or "" for text in texts())
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path.name} cannot be read as a table: {error}") from None


Batches = Iterator[tuple[int, Callable[[], Iterable[str | None]]]]  # (bytes of the texts of some rows, the texts)


def _parquet(path: pathlib.Path, field: str, most: int) -> Batches:
    import pyarrow.compute
    import pyarrow.parquet

    _check_column(path, pyarrow.parquet.read_schema(path), field)
    # A repeated text is kept once: a few bytes of a file can repeat it in millions of rows.
    file = pyarrow.parquet.ParquetFile(path, read_dictionary=[field])
    groups = (file.metadata.row_group(index) for index in range(file.metadata.num_row_groups))
    columns = (group.column(index) for group in groups for index in range(group.num_columns))
    if sum(each.total_uncompressed_size for each in columns if each.path_in_schema == field) > most:
        raise _bomb(path, most)
    for batch in file.iter_batches(_ROWS, columns=[field]):
        batch.validate(full=True)  # offsets and text: a damaged column would end in errors of the interpreter
        column, lengths = batch.column(0), pyarrow.compute.binary_length(batch.column(0).dictionary)
        values = column.dictionary.to_pylist()
        size = pyarrow.compute.sum(lengths.take(column.indices)).as_py() or 0
        yield (
            size,
            lambda column=column, values=values: (
                None if index is None else values[index] for index in column.indices.to_pylist()
            ),
        )


def _arrow(path: pathlib.Path, field: str, most: int) -> Batches:
    """Reads a file as `datasets` saves it: the texts are memory-mapped."""
    del most
    import pyarrow.ipc

    file = pyarrow.memory_map(str(path))
    if file.read(len(_FEATHER)) == _FEATHER:
        raise ValueError(f"{path.name} is an Arrow file with random access (Feather), not a stream: save it as parquet")
    file.seek(0)
    schema = pyarrow.ipc.open_stream(file).schema
    _check_column(path, schema, field)
    file.seek(0)
    options = pyarrow.ipc.IpcReadOptions(included_fields=[schema.get_field_index(field)])
    for batch in pyarrow.ipc.open_stream(file, options=options):
        batch.validate(full=True)
        yield batch.nbytes, batch.column(0).to_pylist


def _check_column(path: pathlib.Path, schema: Any, field: str) -> None:
    import pyarrow

    if field not in schema.names:
        raise ValueError(
            f"{path.name} has no column {field!r} but {', '.join(schema.names)}: set data.text_field to the one that is read"
        )
    kind = schema.field(field).type
    kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
    if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
        raise ValueError(f"{path.name}: column {field!r} holds {kind}, not text")
