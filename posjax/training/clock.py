"""Seconds of a run over all of its processes: in steps, waiting for batches, and in all."""

import math
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

WARM_UP = 3  # steps of a process that compile and fill caches: not timed
# `Clock.times` of a checkpoint without them.
UNKNOWN_TIMES = {"elapsed": 0.0, "step_time": math.nan, "in_steps": math.nan}


class Clock:
    """Seconds of a run: between settled steps, without warm-up and pauses, waiting for batches, and in all.

    Args:
      elapsed, step_time, in_steps: `times` of earlier processes of the run.
      began: time at which this process began; None for now.
    """

    def __init__(
        self, elapsed: float = 0.0, step_time: float = math.nan, in_steps: float = 0.0, began: float | None = None
    ):
        self._began = time.perf_counter() if began is None else began
        self._elapsed, self._step_time, self._in_steps = elapsed, step_time, in_steps
        self._last, self._skip, self._durations, self._taken = None, WARM_UP, [], 0
        self._waits, self._lap = [], (0, 0)

    @property
    def elapsed(self) -> float:
        """Seconds of all processes."""
        return self._elapsed + time.perf_counter() - self._began

    def go_on_from(self, elapsed: float) -> None:
        """Counts the seconds of earlier processes to `elapsed` where their last checkpoint knew less."""
        self._elapsed = max(self._elapsed, elapsed)

    def timed(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yields the batches; the time until each one comes is a wait."""
        began = time.perf_counter()
        for batch in batches:
            self._waits.append(time.perf_counter() - began)
            yield batch
            began = time.perf_counter()

    def tick(self) -> None:
        """Ends a step."""
        now = time.perf_counter()
        self._taken += 1
        if self._skip:
            self._skip -= 1
        elif self._last is not None:
            self._durations.append(now - self._last)
        self._last = now

    def lap(self, ends: bool) -> tuple[float, float]:
        """Returns the mean seconds of the steps since the last lap ended, and of their waits; nan for none."""
        timed, taken = self._lap
        means = _mean(self._durations[timed:]), _mean(self._waits[taken : self._taken])
        self._lap = (len(self._durations), self._taken) if ends else self._lap
        return means

    def pause(self) -> None:
        """Leaves the step under way out of the median."""
        self._skip = max(self._skip, 1)

    def times(self) -> dict[str, float]:
        """Returns "elapsed", "in_steps", and the median "step_time" of this process, or of earlier ones if it timed no step.

        Steps that were not timed, such as those that compile, count in "in_steps" as the mean of the others.
        """
        median, in_steps = self._step_time, self._in_steps
        if self._durations:
            median, in_steps = float(np.median(self._durations)), in_steps + self._taken * _mean(self._durations)
        return {"elapsed": self.elapsed, "step_time": median, "in_steps": in_steps}

    def efficiency(self) -> dict[str, float]:
        """Returns {"goodput": number, "data_wait": seconds}, each where it is known.

        Goodput is the share of the seconds of all processes that were spent in steps which were kept. The wait for a batch is
        the mean over this process's steps behind those that warm up.
        """
        times = self.times()
        known = {"goodput": times["in_steps"] / times["elapsed"], "data_wait": _mean(self._waits[WARM_UP:])}
        return {name: value for name, value in known.items() if not math.isnan(value)}


def _mean(numbers: list[float]) -> float:
    return float(np.mean(numbers)) if numbers else math.nan
