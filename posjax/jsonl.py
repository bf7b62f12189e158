"""JSON, and JSON lines: one strict-JSON object per line, never half of one after a kill."""

import hashlib
import json
import math
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from posjax.files import replace_file


def strict(value: Any) -> Any:
    """`value` in terms of strict JSON: arrays and tuples as lists, numpy and jax scalars as Python's.

    Non-finite floats become "NaN", "Infinity" and "-Infinity", strings that `float` reads back.
    """
    if isinstance(value, Mapping):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(item) for item in value]
    if hasattr(value, "__array__"):
        return strict(np.asarray(value).tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def config_hash(config: Any) -> str:
    """12 hex digits that name a config (a ConfigDict or a dict) in any order of keys; tuples equal lists.

    TypeError if it holds something JSON does not know.
    """
    content = strict(config.to_dict() if hasattr(config, "to_dict") else config)
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()[:12]


def read_jsonl(path: str | pathlib.Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file; a last line cut off by a kill is left out.

    Raises:
      ValueError: another line is not a JSON object; names it.
      FileNotFoundError: no such file.
    """
    return [parse_line(line, path, number) for number, line in enumerate(whole_lines(path), start=1)]


def read_lines(path: str | pathlib.Path) -> Iterator[tuple[int, dict[str, Any] | ValueError]]:
    """Yields (number, object) of each line as `read_jsonl` reads it; for a line that is no object, the problem as text."""
    for number, line in enumerate(whole_lines(path), start=1):
        try:
            yield number, parse_line(line, path, number)
        except ValueError as error:
            yield number, error


def append_jsonl(path: str | pathlib.Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Appends one line per record: all of them are on disk when this returns, or, after a kill, none; one writer at a time.

    A last line cut off by an earlier kill is dropped.
    """
    path = pathlib.Path(path)
    lines = b"".join(line_of(record) for record in records)
    path.parent.mkdir(parents=True, exist_ok=True)
    before = [line + b"\n" for line in whole_lines(path)] if path.exists() else []
    replace_file(path, b"".join(before) + lines)


def line_of(record: Mapping[str, Any]) -> bytes:
    """The line of a record, with its newline."""
    return json.dumps(strict(record), allow_nan=False).encode() + b"\n"


def parse_line(line: bytes, path: str | pathlib.Path, number: int) -> dict[str, Any]:
    """The object of a line.

    Raises:
      ValueError: a line is not a JSON object; the message names the file and the line.
    """
    return parse_json(line, f"{path}, line {number}", strict=True)


def parse_json(content: bytes | str, where: Any, *, strict: bool = False) -> dict[str, Any]:
    """Returns the object of JSON text.

    Args:
      content: the text.
      where: the file, or the place in it, with which messages begin.
      strict: whether NaN and Infinity are refused.

    Raises:
      ValueError: the text is not a JSON object.
    """
    try:
        value = json.loads(content, parse_constant=_refuse_constant if strict else None)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not JSON: {error}") from None
    if not isinstance(value, dict):
        kind = "null" if value is None else type(value).__name__
        raise ValueError(f"{where} is not a JSON object but {kind}")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def whole_lines(path: str | pathlib.Path) -> list[bytes]:
    """The lines of a file; the last one counts without its newline only if it is an object all the same.

    (No beginning of an object is an object, so such a line was not cut off.)
    """
    *lines, last = pathlib.Path(path).read_bytes().split(b"\n")
    if last.startswith(b"{"):
        try:
            parse_json(last, path)
        except ValueError:
            return lines
        return [*lines, last]
    return lines
