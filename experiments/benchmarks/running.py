"""The loop of every benchmark: one cell after the other, without the calls that would be too long or too large."""

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from experiments.benchmarks import pool
from experiments.benchmarks.pool import Contender, Ended, Settings, Worker
from experiments.benchmarks.suites import Cell, Suite, Turn

_LEAST = 10.0  # seconds: with less time left nothing begins
_UNWELL = ("XlaRuntimeError", "JaxRuntimeError", "InternalError")  # errors of a device that may not compute again
_FIGURES = ("skip", "seconds", "cpu", "wall", "temp_bytes", "peak_bytes")
_MORE_FIGURES = ("held_bytes", "runs", "found")  # of some contenders


def run_suite(
    name: str,
    suite: Suite,
    turns: Sequence[Turn],
    threads: int,
    begin: Callable[[Contender], Worker],
    settings: Settings,
    *,
    end: float = math.inf,
    now: Callable[[], float] = time.monotonic,
) -> Iterator[list[dict[str, Any]]]:
    """Yields the records of each turn of a suite; a turn that `end` cuts off has none.

    Args:
      turns: the turns of the suite to measure.
      threads: number of cores, for the records.
      begin: starts a contender's process.
      end: time of `now` at which to stop.

    Raises:
      ValueError: the device of a suite that is measured one by one is gone.
    """
    history = History(settings)
    with _Workers(begin, shared=suite.one_by_one) as workers:
        for cell, contenders in turns:
            if end - now() < _LEAST:
                return
            found, cases = {}, {}
            for c in contenders:
                slow = history.too_slow(c.name, cell)
                skip = history.too_large(c.name, cell) or (None if suite.compiles else slow) or workers.start(c)
                if skip:
                    found[c.name] = {"skip": skip}
                else:
                    cases[c.name] = {**cell, **c.case} | ({"run": not slow} if suite.compiles else {})
            limits = settings._replace(prepare_seconds=min(settings.prepare_seconds, end - now()))
            if suite.compiles:
                limits = limits._replace(call_seconds=math.inf)
            live, load = {c.name: workers.of(c) for c in contenders}, os.getloadavg()[0]
            found |= pool.time_in_turn(live, cases, limits)
            if now() >= end and any(reply.get("ended") for reply in found.values()):
                return
            records = []
            for c in contenders:
                shared = dict(suite=name, contender=c.name, cell=dict(cell), threads=threads)
                about = live[c.name].about if live[c.name] else {}
                records.append({**shared, **_figures(found[c.name]), "load": load, **about})
                history.add(records[-1])
                if found[c.name].get("ended") or _unwell(found[c.name]):
                    workers.end(c)  # other cells may do
            yield records


class _Workers:
    """The process of each contender, started when it is first needed; `shared`: one for all, which others replace."""

    def __init__(self, begin: Callable[[Contender], Worker], shared: bool):
        self._begin, self._shared = begin, shared
        self._live: dict[str, Worker] = {}
        self._refused: dict[str, str] = {}

    def __enter__(self) -> "_Workers":
        return self

    def __exit__(self, *_) -> None:
        for worker in self._live.values():
            worker.close()

    def of(self, contender: Contender) -> Worker | None:
        return self._live.get(self._key(contender))

    def start(self, contender: Contender) -> str | None:
        """Starts a process unless it is there; returns the reason if the contender cannot be measured here."""
        key = self._key(contender)
        if contender.fresh:
            self.end(contender)
        if key not in self._live and key not in self._refused:
            try:
                self._live[key] = self._begin(contender)
            except Ended as reason:
                if self._shared:
                    raise ValueError(f"no worker starts any more: {reason}; what was measured is kept") from None
                self._refused[key] = str(reason)
            else:
                if reason := self._live[key].about.get("skip"):
                    self._refused[key] = reason
        return self._refused.get(key)

    def end(self, contender: Contender) -> None:
        if worker := self._live.pop(self._key(contender), None):
            worker.close()

    def _key(self, contender: Contender) -> str:
        return "" if self._shared else contender.name


class History:
    """Time and memory of contenders at shorter lengths, to estimate a longer one."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self._seen: dict[tuple, list[dict[str, Any]]] = {}

    def add(self, record: dict[str, Any]) -> None:
        self._seen.setdefault(_series(record["contender"], record["cell"]), []).append(record)

    def too_slow(self, contender: str, cell: Cell) -> str | None:
        """The reason if a call would take too long; None if it would not."""
        seen = self._seen.get(_series(contender, cell), ())
        seconds = _extrapolated(seen, cell["length"], "seconds")
        return f"a call would take about {seconds:.0f} s" if seconds > self._settings.call_seconds else None

    def too_large(self, contender: str, cell: Cell) -> str | None:
        """The reason if it would take too much memory, or was left out at a shorter length; None if neither."""
        seen = self._seen.get(_series(contender, cell), ())
        if seen and seen[-1]["skip"]:
            return seen[-1]["skip"]
        held = "held_bytes" if any(record.get("held_bytes") for record in seen) else "peak_bytes"
        memory = _extrapolated(seen, cell["length"], held)
        too_much = memory > self._settings.memory_bytes
        return f"would take about {memory / 2**30:.0f} GiB of memory" if too_much else None


def _extrapolated(seen: Sequence[dict[str, Any]], length: int, quantity: str) -> float:
    """Extrapolates by a power law through the last two lengths, of degree 1 to 2; of degree 2 if there is one length."""
    points = [(r["cell"]["length"], r[quantity]) for r in seen if r[quantity]]
    if not points:
        return 0.0
    (last, value), degree = points[-1], 2.0
    if len(points) > 1:
        before, less = points[-2]
        degree = min(2.0, max(1.0, math.log(value / less) / math.log(last / before)))
    return value * (length / last) ** degree


def _series(contender: str, cell: Cell) -> tuple:
    return (contender, *sorted((name, value) for name, value in cell.items() if name != "length"))


def _figures(reply: Mapping[str, Any]) -> dict[str, Any]:
    return {name: reply.get(name) for name in _FIGURES} | {name: reply[name] for name in _MORE_FIGURES if name in reply}


def _unwell(reply: Mapping[str, Any]) -> bool:
    """Whether a device raised an error after which it may not compute again."""
    errors = [reply.get("skip"), *(result.get("error") for result in reply.get("found", {}).values())]
    return any(text.startswith(_UNWELL) for text in errors if text)
