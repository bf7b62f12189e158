"""Numbers of a run as JSON lines: one strict-JSON object per line, never half of one after a kill."""

import hashlib
import json
import math
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from posjax.files import naming, replace_file
from posjax.training.loggers import open_logger


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
    """12 hex digits that name a config (a ConfigDict or a dict), whatever its key order; tuples equal lists.

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
    return [_parse(line, path, number) for number, line in enumerate(_whole_lines(path), start=1)]


def read_lines(path: str | pathlib.Path) -> Iterator[tuple[int, dict[str, Any] | ValueError]]:
    """(number, object) of each line as `read_jsonl` reads them; in place of one that is no object, what is wrong."""
    for number, line in enumerate(_whole_lines(path), start=1):
        try:
            yield number, _parse(line, path, number)
        except ValueError as error:
            yield number, error


def append_jsonl(path: str | pathlib.Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Appends one line per record: all of them are on disk when this returns, or, after a kill, none; one writer at a time.

    A last line cut off by an earlier kill is dropped.
    """
    path = pathlib.Path(path)
    lines = b"".join(_line(record) for record in records)
    path.parent.mkdir(parents=True, exist_ok=True)
    before = [line + b"\n" for line in _whole_lines(path)] if path.exists() else []
    replace_file(path, b"".join(before) + lines)


class MetricsWriter:
    """Writes `metrics.jsonl` in a directory, a line per step, flushed at once.

    Args:
      directory: where; made if it is not there.
      resume_step: the step the run goes on from: later lines, written before the kill, are dropped, so that the file
        ends up as that of an uninterrupted run. None starts the file anew.
      logger: a name of `posjax.training.loggers.LOGGERS`: what the numbers are also sent to.
    Raises:
      ValueError: an existing file has a line that is not JSON; names it. An unknown logger.
      ImportError: a logger whose package is not installed.
    """

    def __init__(self, directory: str | pathlib.Path, resume_step: int | None = None, logger: str | None = None):
        self.path = pathlib.Path(directory) / "metrics.jsonl"
        self._logger = None if logger is None else open_logger(logger, pathlib.Path(directory), resume_step)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _keep_until(self.path, -1 if resume_step is None else resume_step)
        self.file = self.path.open("ab", buffering=0)

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Appends {"step": step, **values}; a value is a number or a list of them (one per seed)."""
        if "step" in values:
            raise ValueError(f"values hold 'step' ({values['step']!r}), which is the line's own; rename it")
        line = memoryview(_line({"step": step, **values}))
        with naming(self.path, len(line)):
            while line:  # the last room on a disk takes a part of it
                line = line[self.file.write(line) :]
        if self._logger is not None:
            self._logger.write(step, _scalars(values))

    def close(self) -> None:
        self.file.close()
        if self._logger is not None:
            self._logger.close()


def _scalars(values: Mapping[str, Any]) -> dict[str, float]:
    """One number a name: those of a list, one per seed, are loss/0, loss/1 ..."""
    return {
        f"{name}/{index}" if np.ndim(value) else name: float(number)
        for name, value in values.items()
        for index, number in enumerate(np.atleast_1d(np.asarray(value)))
    }


def _line(record: Mapping[str, Any]) -> bytes:
    return json.dumps(strict(record), allow_nan=False).encode() + b"\n"


def _parse(line: bytes, path: str | pathlib.Path, number: int) -> dict[str, Any]:
    try:
        record = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}, line {number} is not JSON ({error}): {line[:80]!r}") from error
    if not isinstance(record, dict):
        raise ValueError(f"{path}, line {number} is not a JSON object: {line[:80]!r}")
    return record


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON's")


def _whole_lines(path: str | pathlib.Path) -> list[bytes]:
    """The lines of a file; the last one counts without its newline only if it is an object all the same.

    (No beginning of an object is an object, so such a line was not cut off.)
    """
    *lines, last = pathlib.Path(path).read_bytes().split(b"\n")
    if last.startswith(b"{"):
        try:
            json.loads(last)
        except (ValueError, RecursionError):
            return lines
        return [*lines, last]
    return lines


def _keep_until(path: pathlib.Path, step: int) -> None:
    """Drops the lines of later steps, and half a line at the end."""
    if not path.exists():
        return
    kept = []
    for number, line in enumerate(_whole_lines(path), start=1):
        record = _parse(line, path, number)
        if type(record.get("step")) is not int:
            raise ValueError(f"{path}, line {number} has no step: {line[:80]!r}")
        if record["step"] <= step:
            kept.append(line + b"\n")
    replace_file(path, b"".join(kept))
