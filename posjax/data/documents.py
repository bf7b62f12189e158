"""Long whole documents, from the user's own text files or from a prepared set."""

import glob
import itertools
import logging
import pathlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from posjax.data.archives import is_hidden
from posjax.data.containers import Text, digest_of
from posjax.data.loading import load_text, ready
from posjax.data.sets import source_of
from posjax.data.subsets import SPLITS, parted, split_among, whole_split
from posjax.data.text_files import ENDINGS, is_table, read_texts
from posjax.data.token_shards import ENDING, is_shard, read_shards
from posjax.data.tokens import BYTES, Tokenizer, tokenizer_of
from posjax.remote import local_copy

_HELD_OUT = 10  # the last tenth of a file that belongs to no split is for evaluation
_SHOWN = 4  # names of files in a line
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Documents:
    """A split of text, document by document, as tokens.

    Attributes:
      name: the set's name.
      titles: [num_documents] title of each document.
      texts: [num_documents] arrays [N_i] uint8 (bytes) or int32, none empty, without a BOS.
      tokenizer: the tokenizer that made the tokens.
    """

    name: str
    titles: tuple[str, ...]
    texts: tuple[np.ndarray, ...]
    tokenizer: Tokenizer = BYTES

    @property
    def stream(self) -> Text:
        """Returns the documents one after another, each after the tokenizer's BOS, as training windows read them."""
        bos = self.tokenizer.bos
        texts = [np.append(np.int32(bos), text) for text in self.texts] if bos else self.texts
        tokens = np.concatenate(texts)
        starts = np.cumsum([0, *map(len, texts)], dtype=np.int64)[:-1]
        about = dict(vocab_size=self.tokenizer.vocab_size, tokenizer=self.tokenizer.digest, bos=bos)
        return Text(self.name, tokens, starts, digest_of(tokens, starts), **about)

    def longest(self, count: int, least: int) -> "Documents":
        """Returns the `count` longest documents of `least` tokens or more; fewer if the set has fewer.

        Raises:
          ValueError: no document is that long.
        """
        order = sorted(range(len(self.texts)), key=lambda i: (-len(self.texts[i]), self.titles[i]))
        chosen = [i for i in order[:count] if len(self.texts[i]) >= least]
        if not chosen:
            unit = "tokens" if self.tokenizer.digest else "bytes"
            raise ValueError(f"{least:,} {unit} are needed, no document of {self.name!r} has so many: ask for fewer")
        titles, texts = (tuple(each[i] for i in chosen) for each in (self.titles, self.texts))
        return Documents(self.name, titles, texts, self.tokenizer)


def load_documents(
    name: str,
    split: str,
    *,
    data_dir: str | None = None,
    files: str | None = None,
    field: str = "text",
    tokenizer: Tokenizer = BYTES,
) -> Documents:
    """Loads the documents of a split.

    Args:
      name: a text set as `load_text` takes it, pg19 too where it is prepared; with `files` only what to call them.
      split: of the set. Files named `<split>__<title>.txt` belong to that split. So do files whose name, or a folder above
        them, has the name of a split in it between dots, dashes and underscores (ptb.train.txt, Test/a.txt,
        train-00000-of-00002.parquet): tables always, plain texts where two splits or "train" are named so. Where no file
        names a split, "train" is all of each but its last tenth, and any other split is that tenth: of a table's documents,
        and of the text of a single document. A line of the log says which files a split is read from.
      data_dir: directory of prepared sets; None is TFDS's default.
      files: a directory, read with all folders below it, or a glob, also at an address in a bucket: UTF-8 text or
        JSON lines, both plain or packed by xz or gzip, parquet, or Arrow files of `datasets`. Hidden files and folders are
        passed over. Or shards of tokens, beside which texts are passed over; they are memory-mapped, and the last tenth of
        their tokens is held out where no shard names a split. See `posjax.data.token_shards`.
      field: the column of a table that holds the text.
      tokenizer: makes tokens of the text; see `load_tokenizer`.

    Raises:
      ValueError: the set or split is unknown, `files` hold no text, or a file is not UTF-8 or not whole.
      FileNotFoundError: the set is not prepared; the message is the command that prepares it.
      ImportError: a table needs a library that is not installed.
    """
    if files is not None and _are_shards(files):
        shards = _read_shards(files, name, split, tokenizer)
        starts = [*shards.starts.tolist(), len(shards)]
        texts = [np.asarray(shards.tokens[a + len(shards.bos) : b]) for a, b in itertools.pairwise(starts)]
        titles = tuple(f"{name} {i}" for i, each in enumerate(texts) if len(each))
        return Documents(name, titles, tuple(filter(len, texts)), tokenizer_of(shards, tokenizer))
    if files is None:
        text = load_text(name, split, data_dir)
        texts = np.split(np.asarray(text.tokens), np.asarray(text.starts[1:]))
        titles = [f"{name} {i}" for i in range(len(texts))]
    else:
        titles, texts = _of_files(files, split, field)
    tokens = tokenizer.encode(texts)
    kept = [i for i, each in enumerate(tokens) if len(each)]
    if not kept:
        raise ValueError(f"the texts of {name!r} have no tokens")
    return Documents(name, tuple(titles[i] for i in kept), tuple(tokens[i] for i in kept), tokenizer)


def check_text(name: str, split: str, *, data_dir: str | None = None, files: str | None = None) -> None:
    """Refuses what `load_documents` would refuse of the names of a set, its files and a split, before any text is read.

    Raises:
      ValueError, FileNotFoundError: as `load_documents`.
    """
    split = whole_split(split)
    if files is not None:
        _split_of_files(_found(files), files, split)
    elif source := source_of(name):
        split_among(split, source.splits, repr(name))
    else:
        ready(name, split, data_dir, kind="text", features=())


@parted
def load_stream(
    name: str,
    split: str,
    *,
    data_dir: str | None = None,
    files: str | None = None,
    field: str = "text",
    tokenizer: Tokenizer = BYTES,
) -> Text:
    """Loads the documents of `load_documents` as one stream; shards and the bytes of a prepared set stay memory-mapped."""
    if files is not None and _are_shards(files):
        return _read_shards(files, name, split, tokenizer)
    if files is None and tokenizer == BYTES:
        return load_text(name, split, data_dir)
    options = dict(data_dir=data_dir, files=files, field=field, tokenizer=tokenizer)
    return load_documents(name, split, **options).stream


class _File(NamedTuple):
    path: pathlib.Path
    split: str | None  # the split that its name says


def text_files(files: str) -> list[tuple[pathlib.Path, str | None]]:
    """Returns the files of texts that `files` names, each with the split in its name, in the order of their names.

    Raises:
      ValueError: no file, or shards of tokens.
    """
    found = _found(files)
    if not found:
        raise ValueError(_nothing(files))
    if is_shard(found[0].path):
        raise ValueError(f"files={files!r} names shards of tokens: give texts, or read the shards as they are")
    return [tuple(each) for each in found]


def _chosen(files: str, split: str, share: str) -> tuple[list[pathlib.Path], bool]:
    """Returns the files of a split, and whether their names say so; logs which they are, or which `share` of each."""
    found = _found(files)
    named = _split_of_files(found, files, split)
    read = [each.path for each in found if each.split == named]
    part = "all but the last tenth" if split == "train" else "the last tenth"
    what = f"{len(read)} of {len(found)} files" if named else f"{part} of {share} {len(read)} files"
    shown = ", ".join([*map(str, read[:_SHOWN]), *["..."] * (len(read) > _SHOWN)])
    _log.warning("split %r is %s: %s", split, what, shown)
    return read, named is not None


def _of_files(files: str, split: str, field: str) -> tuple[list[str], list[bytes]]:
    read, named = _chosen(files, split, "each of")
    kept: list[tuple[str, bytes]] = []
    for path in read:
        texts = [(title, text) for title, text, _ in read_texts(path, field)]
        kept += texts if named else _share(texts, split)
    if not kept:
        raise ValueError(f"the files of files={files!r} are empty")
    return [title for title, _ in kept], [text for _, text in kept]


def _are_shards(files: str) -> bool:
    return any(is_shard(each.path) for each in _found(files)[:1])


def _read_shards(files: str, name: str, split: str, tokenizer: Tokenizer) -> Text:
    read, named = _chosen(files, split, "the tokens of")
    text = read_shards(read, name, tokenizer)
    if named:
        return text
    cut = len(text) - len(text) // _HELD_OUT
    return text.part(0, cut) if split == "train" else text.part(cut, len(text))


def _split_of_files(found: Sequence[_File], files: str, split: str) -> str | None:
    """Returns the files' own name for a split; None where no file is named by one."""
    if not found:
        raise ValueError(_nothing(files))
    splits = {each.split for each in found if each.split}  # other files beside files of splits are notes about them
    return split_among(split, sorted(splits), f"data.files={files!r}") if splits else None


def _nothing(files: str) -> str:
    endings = ", ".join((*ENDINGS, ENDING))
    return f"files={files!r} names no text file: give a directory or a glob of {endings} (with a header of llm.c)"


def _found(files: str) -> list[_File]:
    """Returns the files in the order of their names, so the same files always make the same stream."""
    files = local_copy(files)
    root = pathlib.Path(files)
    if root.is_file():
        paths, root = [root], root.parent
    elif root.is_dir():
        paths = [path for path in root.rglob("*") if path.name.endswith((*ENDINGS, ENDING))]
    else:
        paths = [pathlib.Path(path) for path in glob.glob(files, recursive=True)]
        root = pathlib.Path(*itertools.takewhile(lambda part: not glob.has_magic(part), root.parts))
    names = [path.relative_to(root) for path in sorted(paths) if path.is_file()]
    found = [_File(root / name, _split_of(name)) for name in names if not is_hidden(name.parts)]
    shards = [each for each in found if is_shard(each.path)]
    found = shards or [each for each in found if each.path.suffix != ENDING]  # texts beside shards are notes about them
    splits = {each.split for each in found if each.split}
    if "train" not in splits and len(splits) < 2:  # a plain text may have test in its title
        sure = [path for path, _ in found if "__" in path.name or is_table(path) or path.suffix == ENDING]
        found = [each if each.path in sure else each._replace(split=None) for each in found]
    return found


def _split_of(path: pathlib.Path) -> str | None:
    """Returns the split that the name of a file says, or else that of the nearest folder."""
    head, title, _ = path.name.partition("__")
    names = (head, *reversed(path.parts[:-1]))
    parts = (part for name in names for part in re.split("[._-]", name.lower()))
    return next((part for part in parts if part in SPLITS), head if title else None)


def _share(texts: Sequence[tuple[str, bytes]], split: str) -> list[tuple[str, bytes]]:
    """Splits a file that belongs to no split: all but its last tenth, or that tenth."""
    if len(texts) > 1:
        cut = len(texts) - max(1, len(texts) // _HELD_OUT)
        return list(texts[:cut] if split == "train" else texts[cut:])
    shares = []
    for title, text in texts:
        cut = len(text) - len(text) // _HELD_OUT
        shares.append((title, text[:cut] if split == "train" else text[cut:]))
    return [each for each in shares if each[1]]
