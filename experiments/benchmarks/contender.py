"""The values that a contender's module gives a worker. Imported by interpreters that have neither jax nor posjax."""

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
