"""The values that a contender's module gives a worker. Imported by interpreters that have neither jax nor posjax."""

import itertools
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class Seconds(NamedTuple):
    """The time that a run says of itself, where not all of the run counts."""

    cpu: float
    wall: float


class Call(NamedTuple):
    """Something to be timed, compiled already: `run` returns when the result is there; None if only memory is asked."""

    run: Callable[[], object] | None
    temp_bytes: int | None = None  # temporaries of the compiled program, where the compiler tells
    send: Callable[[], object] | None = None  # begins a run without waiting for it, where that can be
    figures: Mapping[str, Any] = MappingProxyType({})  # what else was found while it was prepared, for the record


class Skip(Exception):
    """A contender that cannot be measured here; the message is the reason."""


_FEWEST = 8  # steps


def step_seconds(
    take: Callable[[], Any], wait: Callable[[Any], object], steps: int, most_seconds: float = 60.0
) -> list[float]:
    """Returns the seconds of training steps, each waited for while the next one computes, as in training.

    The first quarter of the steps warms up and is left out.

    Args:
      take: begins a step and returns what `wait` needs to wait for its end.
      steps: most steps.
      most_seconds: after this time no step begins, but for the first few.
    """
    ends, began, step = [], time.perf_counter(), take()
    while len(ends) <= steps and (len(ends) <= _FEWEST or time.perf_counter() - began < most_seconds):
        following = take()
        wait(step)
        ends.append(time.perf_counter())
        step = following
    wait(step)
    durations = [end - start for start, end in itertools.pairwise(ends)]
    return durations[len(durations) // 4 :]
