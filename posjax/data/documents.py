"""Long documents, each one whole: a person's own text files, or a prepared set."""

import glob
import lzma
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from posjax.data.containers import Text, digest_of
from posjax.data.loading import load_text

_HELD_OUT = 10  # the last tenth of a file that belongs to no split is for evaluation
_ENDINGS = (".txt", ".txt.xz", ".md", ".rst", ".text")


@dataclass(frozen=True)
class Documents:
    """A split of text, document by document, as UTF-8 bytes.

    Attributes:
      name: the set's name.
      titles: [num_documents] what to call each.
      texts: [num_documents] arrays [N_i] uint8, none empty.
    """

    name: str
    titles: tuple[str, ...]
    texts: tuple[np.ndarray, ...]

    @property
    def stream(self) -> Text:
        """The documents one after another, as training windows read them."""
        tokens = np.concatenate(self.texts)
        starts = np.cumsum([0, *map(len, self.texts)], dtype=np.int64)[:-1]
        return Text(self.name, tokens, starts, digest_of(tokens, starts))

    def longest(self, count: int, least: int) -> "Documents":
        """The `count` longest documents, or as many as there are, of `least` bytes or more.

        Raises:
          ValueError: none is that long.
        """
        order = sorted(range(len(self.texts)), key=lambda i: (-len(self.texts[i]), self.titles[i]))
        chosen = [i for i in order[:count] if len(self.texts[i]) >= least]
        if not chosen:
            raise ValueError(
                f"the longest of the {len(self.texts)} documents of {self.name!r} has {len(self.texts[order[0]]):,} bytes, "
                f"{least:,} are needed: evaluate shorter lengths or fewer bytes, or give longer documents"
            )
        return Documents(self.name, tuple(self.titles[i] for i in chosen), tuple(self.texts[i] for i in chosen))


def load_documents(name: str, split: str, *, data_dir: str | None = None, files: str | None = None) -> Documents:
    """The documents of a split.

    Args:
      name: a text set as `load_text` takes it, pg19 too where it is prepared; with `files` only what to call them.
      split: of the set. Files named `<split>__<title>.txt` belong to that split; where no file is named so, "train" is
        all of each but its last tenth, and any other split is that tenth.
      data_dir: directory of prepared sets; None is TFDS's default.
      files: a directory, read with all below it, or a glob, of UTF-8 text: plain, or packed by xz.

    Raises:
      ValueError: an unknown set or split, no text in `files`, or a file that is not UTF-8 or not whole.
      FileNotFoundError: the set is not prepared; the message is the command that does it.
    """
    if files is None:
        text = load_text(name, split, data_dir)
        texts = tuple(np.split(np.asarray(text.tokens), np.asarray(text.starts[1:])))
        return Documents(name, tuple(f"{name} {i}" for i in range(len(texts))), texts)
    paths = list(_paths(files))
    if not paths:
        raise ValueError(f"files={files!r} names no text file: give a directory or a glob of {', '.join(_ENDINGS)}")
    splits = {path.name.partition("__")[0] for path in paths if "__" in path.name}
    if not splits:
        texts = [_share(_read(path), split) for path in paths]
        kept = [(path.name, text) for path, text in zip(paths, texts, strict=True) if len(text)]
    elif split in splits:
        kept = [(path.name, _read(path)) for path in paths if path.name.startswith(f"{split}__")]
    else:
        raise ValueError(f"files={files!r} have no split {split!r}, only {', '.join(sorted(splits))}")
    if not kept:
        raise ValueError(f"the files of files={files!r} are empty")
    return Documents(name, tuple(title for title, _ in kept), tuple(text for _, text in kept))


def _paths(files: str) -> Iterator[pathlib.Path]:
    """The files, in the order of their names, so that the same ones are always the same stream."""
    if pathlib.Path(files).is_dir():
        found = [path for path in pathlib.Path(files).rglob("*") if path.name.endswith(_ENDINGS)]
        # A note on where packed documents are from is none of them.
        packed = [path for path in found if "__" in path.name]
        found = packed or found
    else:
        found = [pathlib.Path(path) for path in glob.glob(files, recursive=True)]
    yield from sorted(path for path in found if path.is_file())


def _read(path: pathlib.Path) -> np.ndarray:
    content = path.read_bytes()
    try:
        content = lzma.decompress(content) if path.suffix == ".xz" else content
        content.decode("utf-8")
    except (lzma.LZMAError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path.name} cannot be read as text ({error}): it must be UTF-8, plain or packed by xz"
        ) from None
    return np.frombuffer(content, np.uint8)


def _share(text: np.ndarray, split: str) -> np.ndarray:
    cut = len(text) - len(text) // _HELD_OUT
    return text[:cut] if split == "train" else text[cut:]
