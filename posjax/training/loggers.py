"""Where metrics go beside metrics.jsonl: TensorBoard, Weights & Biases. Another one is a class and a line of `LOGGERS`."""

import json
import pathlib
from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

from posjax.extras import require
from posjax.spec import nearest
from posjax.training.identity import RUN

_WANDB_RUN = "wandb_run.txt"  # the id of the run, by which it goes on


@runtime_checkable
class Logger(Protocol):
    """What `MetricsWriter` tells a service."""

    def write(self, step: int, scalars: dict[str, float]) -> None:
        """Passes on the numbers of a step, each under its name."""

    def close(self) -> None:
        """Ends it; everything is written then."""


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


class _Wandb:
    """A run of W&B named after the directory, in the project "posjax"; a run that is resumed goes on under its id.

    W&B drops steps that it has seen, so that what was logged before a kill stays as it was. The config is that of the
    directory's run.json. What else it asks for (entity, key, server) it takes from its own settings.
    """

    def __init__(self, directory: pathlib.Path, resume_step: int | None, mode: str | None = None):
        import wandb

        directory.mkdir(parents=True, exist_ok=True)
        known = directory / _WANDB_RUN
        before = known.read_text().strip() if resume_step is not None and known.exists() else None
        options = dict(id=before, resume="allow") if before else {}
        described = directory / RUN
        config = json.loads(described.read_text())["config"] if described.exists() else None
        where = dict(project="posjax", name=directory.name, dir=str(directory), config=config)
        self._run = wandb.init(**where, mode=mode, **options)
        known.write_text(f"{self._run.id}\n")

    def write(self, step: int, scalars: dict[str, float]) -> None:
        self._run.log(scalars, step=step)

    def close(self) -> None:
        self._run.finish()


def _offline(directory: pathlib.Path, resume_step: int | None) -> _Wandb:
    return _Wandb(directory, resume_step, mode="offline")


class _Known(NamedTuple):
    open: Callable[[pathlib.Path, int | None], Logger]
    package: str  # that is imported


LOGGERS = {
    "tensorboard": _Known(_TensorBoard, "tensorboardX"),
    "wandb": _Known(_Wandb, "wandb"),
    "wandb_offline": _Known(_offline, "wandb"),  # into the directory, for `wandb sync`
}


def open_logger(name: str, directory: pathlib.Path, resume_step: int | None) -> Logger:
    """The logger of that name, for a run in `directory` that goes on from `resume_step` (None: from the start).

    Raises:
      ValueError: for an unknown name.
      ImportError: for one whose package is not installed.
    """
    check_logger(name)
    return LOGGERS[name].open(directory, resume_step)


def check_logger(name: str) -> None:
    """Raises what `open_logger` would, and opens nothing."""
    if name not in LOGGERS:
        raise ValueError(f"no logger is named {name!r}; {nearest(name, list(LOGGERS))}")
    require(f"logger={name!r}", LOGGERS[name].package)
