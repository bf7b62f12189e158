"""The tokens of text: its UTF-8 bytes, or the tokens of a tokenizer.json."""

import hashlib
import itertools
import json
import os
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from posjax.data import gguf_tokens
from posjax.data.containers import Text
from posjax.extras import require
from posjax.gguf import GGUF, SUFFIX
from posjax.jsonl import parse_json
from posjax.remote import local_copy

FILE = "tokenizer.json"
_UNKNOWN = "\U0010fffd"  # a character that no vocabulary has


@dataclass(frozen=True)
class Tokenizer:
    """A vocabulary with encoding and decoding. Without `rust`, tokens are bytes, or numbers that no text is known of.

    Attributes:
      name: "bytes", or the file.
      vocab_size: the largest token plus one.
      digest: sha256 of the file, 64 hex digits; None for bytes; a name for numbers.
      bos: tokens that the file's template puts before every text, usually one BOS; () for none.
      rust: a `tokenizers.Tokenizer`.

    >>> tokens = BYTES.encode([b"Hi!"])[0]
    >>> tokens.tolist(), BYTES.decode(tokens)
    ([72, 105, 33], 'Hi!')
    """

    name: str
    vocab_size: int
    digest: str | None = None
    bos: tuple[int, ...] = ()
    rust: Any = field(default=None, repr=False, compare=False)

    def encode(self, texts: Sequence[bytes | np.ndarray]) -> list[np.ndarray]:
        """Returns the tokens of each text without `bos`: [N_i] uint8 for bytes, int32 from a file; adds no special token.

        Half a character at an end (where a file was cut in two) is dropped, and so is a `bos` that the text spells out.

        Args:
          texts: UTF-8, as bytes or arrays [n_i] uint8.

        Raises:
          ValueError: the tokenizer has no token for some text, not even an unknown token.
        """
        self.check_text()
        if self.rust is None:
            return [text if isinstance(text, np.ndarray) else np.frombuffer(text, np.uint8) for text in texts]
        written = [bytes(text).decode("utf-8", "ignore") for text in texts]
        with _RustErrors(self.name):
            found = self.rust.encode_batch(written, add_special_tokens=False)
        ids = [np.asarray(each.ids, np.int32) for each in found]
        return [each[len(self.bos) :] if tuple(each[: len(self.bos)]) == self.bos else each for each in ids]

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        """Returns the text of tokens; bytes that are not UTF-8 become U+FFFD."""
        self.check_text()
        if self.rust is None:
            return bytes(np.asarray(tokens, np.uint8)).decode("utf-8", "replace")
        return self.rust.decode(np.asarray(tokens).tolist(), skip_special_tokens=False)

    def continuation(self, before: Sequence[int] | np.ndarray, tokens: Sequence[int] | np.ndarray) -> str:
        """Returns the text of tokens behind others; alone, `decode` may drop the space before their first word."""
        begins = self.decode(before).rstrip("\ufffd")  # the first bytes of a character
        return self.decode([*before, *tokens]).removeprefix(begins)

    def check_text(self) -> None:
        """Refuses numbers that no text is known of.

        Raises:
          ValueError: names them.
        """
        if self.rust is None and self.digest is not None:
            mend = "give its tokenizer.json, as data.tokenizer or --tokenizer"
            raise ValueError(f"the text of {self.name}'s tokens is not known: {mend}")


BYTES = Tokenizer("bytes", 256)


def tokenizer_of(text: Text, given: Tokenizer) -> Tokenizer:
    """Returns the tokenizer `given` of a text, or one that knows no text for tokens that came without one."""
    if text.tokenizer == given.digest:
        return given
    return Tokenizer(text.tokenizer, text.vocab_size, text.tokenizer)


class _RustErrors:
    """Makes errors of Rust name the file: a panic, which has no importable class, a ValueError, or a bare `Exception`."""

    def __init__(self, path: str):
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type | None, error: BaseException | None, trace: Any) -> None:
        if kind in (Exception, ValueError) or (kind is not None and kind.__name__ == "PanicException"):
            raise ValueError(f"{self._path} is not a readable tokenizer.json: {error}") from None


def load_tokenizer(path: str | os.PathLike | None, bos: bool | None = None) -> Tokenizer:
    """Loads a tokenizer.

    Args:
      path: a tokenizer.json, a folder that holds one, or a GGUF file; "bytes" or None for bytes.
      bos: False leaves out the tokens that the file's template puts before a text.

    Raises:
      FileNotFoundError: the file is missing.
      ValueError: the file is not a tokenizer, or it cannot encode an unknown character.
      ImportError: the library that reads it is not installed.
    """
    if path is None or path == BYTES.name:
        return BYTES
    path = pathlib.Path(local_copy(os.fspath(path)))
    path = path / FILE if path.is_dir() else path
    if not path.is_file():
        raise FileNotFoundError(f"there is no tokenizer {str(path)!r}: give a tokenizer.json, its folder, or 'bytes'")
    require(str(path), "tokenizers")
    import tokenizers

    content, found = _read(path)
    with _RustErrors(str(path)):
        rust = tokenizers.Tokenizer.from_buffer(content)
        rust.encode(_UNKNOWN)
    rust.no_truncation()
    rust.no_padding()
    size = 1 + max(rust.get_vocab(with_added_tokens=True).values(), default=-1)
    begins = () if bos is False else _beginning(found.get("post_processor") or {})
    return Tokenizer(str(path), size, hashlib.sha256(content).hexdigest(), begins, rust)


def _read(path: pathlib.Path) -> tuple[bytes, dict[str, Any]]:
    """Returns a tokenizer.json as bytes and as an object; a GGUF file's is made of its fields."""
    if path.suffix == SUFFIX:
        try:
            found = gguf_tokens.tokenizer_of(GGUF(path).fields)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        return json.dumps(found).encode(), found
    content = path.read_bytes()
    found = parse_json(content, path)
    if "model" not in found:
        raise ValueError(f"{path} is not a tokenizer.json: it has no 'model'")
    return content, found


def _beginning(processor: dict[str, Any]) -> tuple[int, ...]:
    """Returns the tokens that a post_processor puts before a text."""
    kind = processor.get("type")
    if kind == "Sequence":
        return tuple(itertools.chain.from_iterable(map(_beginning, processor["processors"])))
    if kind == "TemplateProcessing":
        before = itertools.takewhile(lambda piece: "SpecialToken" in piece, processor["single"])
        ids = (processor["special_tokens"][piece["SpecialToken"]["id"]]["ids"] for piece in before)
        return tuple(itertools.chain.from_iterable(ids))
    return (processor["cls"][1],) if kind in ("BertProcessing", "RobertaProcessing") else ()
