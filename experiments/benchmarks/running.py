"""Measures the cells of a suite, one after the other, leaving out what would be too long or too large."""

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from experiments.benchmarks import pool
from experiments.benchmarks.pool import Contender, Ended, Settings, Worker
from experiments.benchmarks.suites import Cell, Suite


def run(
    name: str,
    suite: Suite,
    threads: int,
    interpreters: Mapping[str, str],
    settings: Settings,
    on_cell: Callable[[Cell], None] = lambda cell: None,
    begin: Callable[..., Worker] = pool.start,
) -> Iterator[list[dict[str, Any]]]:
    """The records of one cell after the other.

    Args:
      threads: 1 pins every worker to the same core; more leave them all cores.
      interpreters: the Python of each side.
      on_cell: is told which cell comes next.
    """
    cpus = [max(os.sched_getaffinity(0))] if threads == 1 else None
    history = History(settings)
    with contextlib.ExitStack() as stack:
        workers, refused = _started(suite.contenders, interpreters, cpus, threads, begin, stack)
        for cell in suite.cells:
            on_cell(cell)
            part = [c for c in suite.contenders if takes_part(c, cell)]
            slow = {c.name: history.too_slow(c.name, cell) for c in part}
            skips = {c.name: refused.get(c.name) or history.too_large(c.name, cell) for c in part}
            if suite.compiles:
                extra = {name: {"run": not reason} for name, reason in slow.items()}
            else:
                skips, extra = {name: skip or slow[name] for name, skip in skips.items()}, {}
            cases = {c.name: {**cell, **c.case, **extra.get(c.name, {})} for c in part if not skips[c.name]}
            load = os.getloadavg()[0]
            timed = settings._replace(call_seconds=math.inf) if suite.compiles else settings
            found = pool.measure({c: workers[c] for c in cases}, cases, timed)
            records = []
            for contender in part:
                reply = found.get(contender.name, {"skip": skips[contender.name]})
                about = workers[contender.name].about if contender.name in workers else {}
                shared = dict(suite=name, contender=contender.name, cell=dict(cell), threads=threads)
                records.append({**shared, **_figures(reply), "load": load, **about})
                history.add(records[-1])
                if reply.get("ended"):  # by the system, for want of memory, or by ourselves; other cells may do
                    workers[contender.name].close()
                    again, why = _started([contender], interpreters, cpus, threads, begin, stack)
                    workers |= again
                    refused |= why
            yield records


def takes_part(contender: Contender, cell: Cell) -> bool:
    return all(cell.get(name) in values for name, values in contender.only.items())


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
    names = ("skip", "seconds", "cpu", "wall", "temp_bytes", "peak_bytes")
    held = {"held_bytes": reply["held_bytes"]} if "held_bytes" in reply else {}
    return {name: reply.get(name) for name in names} | held


def _started(contenders, interpreters, cpus, threads, begin, stack) -> tuple[dict[str, Worker], dict[str, str]]:
    """(workers by contender, the reasons of those that cannot be measured here)."""
    workers, refused = {}, {}
    for contender in contenders:
        try:
            worker = stack.enter_context(begin(contender, interpreters, cpus, threads))
        except Ended as reason:
            refused[contender.name] = str(reason)
            continue
        workers[contender.name] = worker
        if "skip" in worker.about:
            refused[contender.name] = worker.about["skip"]
    return workers, refused
