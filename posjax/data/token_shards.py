"""Shards of tokens: memory-mapped .bin files in the format of llm.c, which GPT-2 speed runs read and write.

Karpathy's dev/data/data_common.py in karpathy/llm.c: 256 int32, of which the first are a magic number, a version and the
number N of tokens, then N tokens, uint16 (as GPT-2's) or uint32 (as Llama 3's). `posjax.data.tokenising` writes such files,
so that other tools can read them, with an INDEX beside them that says the tokenizer, and <shard>.starts.npy, where documents
start [num_documents] int64. In files without it, documents start at the token that llm.c puts before each.
"""

import io
import mmap
import pathlib
import resource
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from posjax.data.archives import kept_beside
from posjax.data.containers import Text, Tokens, digest_of
from posjax.data.tokens import Tokenizer
from posjax.files import HEADER_ERRORS, replace_file
from posjax.jsonl import parse_json

ENDING = ".bin"
INDEX = "index.json"
HEADER_BYTES = 1024
_SCANNED = 2**24  # tokens that are searched for documents at once


class Format(NamedTuple):
    """A format of llm.c: the first two numbers of the header, the type of the tokens, and whose tokens llm.c writes in it."""

    magic: int
    version: int
    dtype: Any
    name: str
    vocab_size: int
    opens: int  # the token before each document


FORMATS = (
    Format(20240520, 1, np.uint16, "GPT-2", 50_257, 50_256),
    Format(20240801, 7, np.uint32, "Llama 3", 128_256, 128_000),
)


def is_shard(path: pathlib.Path) -> bool:
    """Whether a file is named and begins as a shard."""
    return path.suffix == ENDING and _format(path)[0] is not None


def header(count: int, dtype: Any) -> bytes:
    """Returns the first `HEADER_BYTES` of a shard of `count` tokens of a type."""
    found = next(each for each in FORMATS if each.dtype == dtype)
    return np.array([found.magic, found.version, count], "<i4").tobytes().ljust(HEADER_BYTES, b"\0")


def open_shard(path: pathlib.Path) -> tuple[Format, np.ndarray]:
    """Returns the format of a shard and its tokens [N], memory-mapped.

    Raises:
      ValueError: the file is no shard, or its size is not what its header says.
    """
    found, count = _format(path)
    if found is None:
        raise ValueError(f"{path} is not a shard of tokens: it does not begin with a header of llm.c")
    size, needed = path.stat().st_size, HEADER_BYTES + count * np.dtype(found.dtype).itemsize
    if count < 1 or size != needed:
        raise ValueError(f"{path} has {size:,} bytes, and {needed:,} by its header of {count:,} tokens: copy it again")
    with path.open("rb") as file:
        pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    pages.madvise(mmap.MADV_RANDOM)  # to read ahead (8 MiB on some systems) took 300 times as long as a window
    return found, np.frombuffer(pages, found.dtype, count, HEADER_BYTES)


def starts_path(path: pathlib.Path) -> pathlib.Path:
    """Returns the file of the starts of a shard's documents."""
    return path.with_suffix(".starts.npy")


def write_starts(path: pathlib.Path, starts: np.ndarray) -> None:
    """Writes the starts of a shard's documents beside it."""
    buffer = io.BytesIO()
    np.save(buffer, starts, allow_pickle=False)
    replace_file(starts_path(path), buffer.getbuffer())


def read_shards(paths: Sequence[pathlib.Path], name: str, tokenizer: Tokenizer) -> Text:
    """Returns the stream of shards; its tokens are read when they are asked for.

    Args:
      paths: shards of one folder, in order.
      name: the set's name.
      tokenizer: the tokenizer that made the tokens; bytes for shards that others made and whose tokenizer is not at hand.

    Raises:
      ValueError: another tokenizer made the tokens; a file is not a shard, or not as INDEX says.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if len(paths) > soft // 2 and soft != hard:  # each memory map holds a file open
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    index = paths[0].with_name(INDEX)
    opened = [open_shard(path) for path in paths]
    tokens = Tokens([each for _, each in opened])
    offset = np.cumsum([0, *(len(each) for _, each in opened)])
    if index.exists():
        about = _checked(index, tokenizer)
        starts = [_starts_by(about, path, len(each)) for path, (_, each) in zip(paths, opened, strict=True)]
        digest = digest_of(
            np.frombuffer("".join(about["shards"][path.name]["sha256"] for path in paths).encode(), np.uint8)
        )
        own = {"vocab_size": about["vocab_size"], "tokenizer": about["tokenizer"]}
    else:
        own = _by_others(paths[0].parent, {kind for kind, _ in opened}, tokenizer)
        starts = [_found_starts(path, kind, len(each)) for path, (kind, each) in zip(paths, opened, strict=True)]
        digest = None
    joined = np.concatenate([each + first for each, first in zip(starts, offset, strict=False)])
    joined = joined if len(joined) and not joined[0] else np.append(0, joined)  # llm.c cuts documents at ends of shards
    if digest is None:
        sizes = "".join(f"{path.name} {len(each)} " for path, (_, each) in zip(paths, opened, strict=True))
        digest = digest_of(np.frombuffer(sizes.encode(), np.uint8), joined)
    return Text(name, tokens, joined, digest, bos=tokenizer.bos, **own)


def read_index(path: pathlib.Path) -> dict[str, Any]:
    """Returns the contents of an INDEX.

    Raises:
      ValueError: it is not one that `posjax.data.tokenising` wrote.
    """
    about = parse_json(path.read_bytes(), path)
    if missing := {"tokenizer", "name", "vocab_size", "bos", "sources", "shards"} - set(about):
        raise ValueError(f"{path} has no {min(missing)!r}: it is not an index of shards; move it away, or prepare anew")
    return about


def _format(path: pathlib.Path) -> tuple[Format | None, int]:
    """Returns the format of a file, None if it is no shard, and the number of tokens by its header."""
    with path.open("rb") as file:
        begins = np.frombuffer(file.read(HEADER_BYTES)[:12].ljust(12, b"\0"), "<i4").tolist()
    return next((each for each in FORMATS if [each.magic, each.version] == begins[:2]), None), begins[2]


def _checked(path: pathlib.Path, tokenizer: Tokenizer) -> dict[str, Any]:
    """Returns the index of shards that a tokenizer made."""
    about = read_index(path)
    if about["shards"] is None:
        raise ValueError(f"the shards in {path.parent} are not all there: run experiments.prepare --files again")
    if about["tokenizer"] != tokenizer.digest:
        raise ValueError(
            f"the tokens in {path.parent} were made by {about['name']}, not by {tokenizer.name}: set data.tokenizer to it"
            + (f" ({path.parent} holds a copy)" if about["tokenizer"] else "")
        )
    if tuple(about["bos"]) != tokenizer.bos:
        raise ValueError(f"documents in {path.parent} begin with {about['bos']}, so data.bos cannot leave it out")
    return about


def _starts_by(about: dict[str, Any], path: pathlib.Path, count: int) -> np.ndarray:
    """Returns the starts of documents of a shard that the index describes."""
    found = about["shards"].get(path.name, {})
    try:
        starts = np.load(starts_path(path), allow_pickle=False)
    except (OSError, EOFError, *HEADER_ERRORS):
        starts = np.empty(0)
    if starts.dtype != np.int64 or (found.get("tokens"), (found.get("documents"),)) != (count, starts.shape):
        raise ValueError(f"{path} or {starts_path(path).name} is not as {INDEX} says: copy the folder again")
    return starts


def _by_others(folder: pathlib.Path, kinds: set[Format], tokenizer: Tokenizer) -> dict[str, Any]:
    """Returns vocabulary and tokenizer of shards that others made: that of their format, unless one is given."""
    kind, *more = kinds
    if more:
        raise ValueError(f"{folder} mixes shards of {kind.name} and {more[0].name}: name files of one in data.files")
    if tokenizer.digest is not None and tokenizer.vocab_size != kind.vocab_size:
        raise ValueError(
            f"the shards in {folder} hold tokens of {kind.name}, {kind.vocab_size:,}, and {tokenizer.name} has "
            f"{tokenizer.vocab_size:,}: set data.tokenizer to None or to the tokenizer.json of {kind.name}"
        )
    return {"vocab_size": kind.vocab_size, "tokenizer": tokenizer.digest or kind.name}


def _found_starts(path: pathlib.Path, kind: Format, count: int) -> np.ndarray:

    def find() -> np.ndarray:
        found = []
        for first in range(0, count, _SCANNED):
            place = HEADER_BYTES + first * np.dtype(kind.dtype).itemsize
            block = np.fromfile(path, kind.dtype, min(_SCANNED, count - first), offset=place)
            if (most := block.max()) >= kind.vocab_size:
                raise ValueError(f"{path} holds the token {most}, and {kind.name} has {kind.vocab_size:,}")
            found.append(first + np.flatnonzero(block == kind.opens))
        return np.concatenate(found).astype(np.int64)

    return kept_beside([path], f"{path.stem}.starts", find, "finding the documents")
