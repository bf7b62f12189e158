"""Numbers of a run as JSON lines, which loggers get too."""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from posjax.files import naming, replace_file
from posjax.jsonl import line_of, parse_line, whole_lines
from posjax.training.loggers import open_logger


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
        line = memoryview(line_of({"step": step, **values}))
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


def _keep_until(path: pathlib.Path, step: int) -> None:
    """Drops the lines of later steps, and half a line at the end."""
    if not path.exists():
        return
    kept = []
    for number, line in enumerate(whole_lines(path), start=1):
        record = parse_line(line, path, number)
        if type(record.get("step")) is not int:
            raise ValueError(f"{path}, line {number} has no step: {line[:80]!r}")
        if record["step"] <= step:
            kept.append(line + b"\n")
    replace_file(path, b"".join(kept))
