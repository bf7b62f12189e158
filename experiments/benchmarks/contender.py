"""The values that a contender's module gives a worker. Imported by interpreters that have neither jax nor posjax."""

import itertools
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class Call(NamedTuple):
    """Something to be timed, compiled already: `run` returns when the result is there; None if only memory is asked."""

    run: Callable[[], object] | None
    temp_bytes: int | None = None  # temporaries of the compiled program, where the compiler tells
    send: Callable[[], object] | None = None  # begins a run without waiting for it, where that can be
    figures: Mapping[str, Any] = MappingProxyType({})  # what else was found while it was prepared, for the record


class Skip(Exception):
    """A contender that cannot be measured here; the message is the reason."""


_MOST_SECONDS, _FEWEST = 60.0, 8  # of a contender's steps


def step_seconds(take: Callable[[], Any], wait: Callable[[Any], object], steps: int) -> list[float]:
    """Returns the seconds of training steps, each waited for while the next one computes, as in training.

    Slow steps are fewer: they end after a minute. The first quarter warms up and is left out.

    Args:
      take: begins a step and returns what `wait` needs to wait for its end.
    """
    ends, began, step = [], time.perf_counter(), take()
    while len(ends) <= steps and (len(ends) <= _FEWEST or time.perf_counter() - began < _MOST_SECONDS):
        following = take()
        wait(step)
        ends.append(time.perf_counter())
        step = following
    wait(step)
    durations = [end - start for start, end in itertools.pairwise(ends)]
    return durations[len(durations) // 4 :]
