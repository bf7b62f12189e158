"""Numbers of a run: JSON lines, and the services that get them too (TensorBoard, Weights & Biases, trackio)."""

import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from posjax.extras import require
from posjax.files import naming, replace_file
from posjax.jsonl import line_of, parse_json, parse_line, whole_lines
from posjax.spec import nearest
from posjax.training.identity import RUN

_WANDB_RUN = "wandb_run.txt"  # the id under which a run goes on


class MetricsWriter:
    """Writes `metrics.jsonl` in a directory, a line per step, flushed at once.

    Args:
      directory: made if it is not there.
      resume_step: the step the run goes on from: later lines, written before the kill, are dropped, so that the file
        ends up as that of an uninterrupted run. None starts the file anew.
      logger: a name of `LOGGERS`, which gets the numbers too.

    Attributes:
      elapsed: the largest "elapsed" in lines of the run before it went on, dropped ones too; 0.0 for a new run.

    Raises:
      ValueError: an existing file has a line that is not JSON; names it. An unknown logger.
      ImportError: a logger whose package is not installed.
    """

    def __init__(self, directory: str | pathlib.Path, resume_step: int | None = None, logger: str | None = None):
        directory = pathlib.Path(directory)
        self.path, self._logger = directory / "metrics.jsonl", None
        if logger is not None:
            check_logger(logger)
            self._logger = LOGGERS[logger].open(directory, resume_step)
        directory.mkdir(parents=True, exist_ok=True)
        elapsed = _keep_until(self.path, -1 if resume_step is None else resume_step)
        self.elapsed = 0.0 if resume_step is None else elapsed
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
            scalars = {}
            for name, value in values.items():
                numbers = np.atleast_1d(np.asarray(value))
                scalars |= {f"{name}/{i}" if np.ndim(value) else name: float(n) for i, n in enumerate(numbers)}
            self._logger.write(step, scalars)

    def close(self) -> None:
        """Closes the file and the logger."""
        self.file.close()
        if self._logger is not None:
            self._logger.close()


def _keep_until(path: pathlib.Path, step: int) -> float:
    """Drops the lines of later steps, and half a line at the end; returns the largest "elapsed" of all lines."""
    if not path.exists():
        return 0.0
    kept, elapsed = [], 0.0
    for number, line in enumerate(whole_lines(path), start=1):
        record = parse_line(line, path, number)
        if type(record.get("step")) is not int:
            raise ValueError(f"{path}, line {number} has no step: {line[:80]!r}")
        elapsed = max(elapsed, record.get("elapsed", 0.0))
        if record["step"] <= step:
            kept.append(line + b"\n")
    replace_file(path, b"".join(kept))
    return elapsed


# Loggers: called with the directory of a run and the step that it goes on from; None for a new run.


class _TensorBoard:
    def __init__(self, directory: pathlib.Path, resume_step: int | None):
        from tensorboardX import SummaryWriter

        self._events = SummaryWriter(str(directory), purge_step=None if resume_step is None else resume_step + 1)

    def write(self, step: int, scalars: dict[str, float]) -> None:
        for name, value in scalars.items():
            self._events.add_scalar(name, value, step)
        self._events.flush()

    def close(self) -> None:
        self._events.close()


class _Logged:
    """A run of a service with wandb's methods."""

    _run: Any

    def write(self, step: int, scalars: dict[str, float]) -> None:
        self._run.log(scalars, step=step)

    def close(self) -> None:
        self._run.finish()


class _Wandb(_Logged):
    """A run of W&B named after the directory, in the project "posjax"; a run that is resumed goes on under its id.

    W&B drops steps that it has seen: lines that were logged before a kill stay. The config is read from the directory's
    run.json; entity, key and server come from W&B's own settings.
    """

    def __init__(self, directory: pathlib.Path, resume_step: int | None, mode: str | None = None):
        import wandb

        directory.mkdir(parents=True, exist_ok=True)
        known = directory / _WANDB_RUN
        before = known.read_text().strip() if resume_step is not None and known.exists() else None
        options = dict(id=before, resume="allow") if before else {}
        where = dict(project="posjax", name=directory.name, dir=str(directory), config=_config_of(directory))
        self._run = wandb.init(**where, mode=mode, **options)
        known.write_text(f"{self._run.id}\n")


class _Trackio(_Logged):
    """A run of trackio named after the directory, in the project "posjax"; a run that is resumed goes on under its name.

    Lines that were logged before a kill stay. Files lie where trackio keeps them (TRACKIO_DIR), not in the directory.
    """

    def __init__(self, directory: pathlib.Path, resume_step: int | None):
        import trackio

        resume = "never" if resume_step is None else "allow"
        self._run = trackio.init("posjax", name=directory.name, config=_config_of(directory), resume=resume)


def _config_of(directory: pathlib.Path) -> dict[str, Any] | None:
    described = directory / RUN
    return parse_json(described.read_bytes(), described)["config"] if described.exists() else None


class _Known(NamedTuple):
    open: Callable[[pathlib.Path, int | None], Any]
    package: str


LOGGERS = {
    "tensorboard": _Known(_TensorBoard, "tensorboardX"),
    "wandb": _Known(_Wandb, "wandb"),
    "wandb_offline": _Known(functools.partial(_Wandb, mode="offline"), "wandb"),  # into the directory, for `wandb sync`
    "trackio": _Known(_Trackio, "trackio"),
}


def check_logger(name: str) -> None:
    """Refuses an unknown logger (ValueError), and one whose package is not installed (ImportError)."""
    if name not in LOGGERS:
        raise ValueError(f"no logger is named {name!r}; {nearest(name, list(LOGGERS))}")
    require(f"logger={name!r}", LOGGERS[name].package)
