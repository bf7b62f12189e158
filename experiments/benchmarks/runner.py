"""The runner of every suite: processes that measure contenders in turn, within limits of time and memory."""

import contextlib
import json
import math
import os
import pathlib
import selectors
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from experiments.benchmarks.cases import Contender, Suite, Turn
from experiments.benchmarks.findings import series

_ROOT = pathlib.Path(__file__).parents[2]
_START_SECONDS = 300  # imports of a busy machine
_TURN_SECONDS = 0.1  # short calls are repeated within a turn until it takes about so long
PAUSE_SECONDS = 0.02  # between turns: OpenMP's threads spin for a while when their work is done
_LEAST = 10.0  # seconds: with less time left nothing begins
_UNWELL = ("XlaRuntimeError", "JaxRuntimeError", "InternalError")  # errors of a device that may not compute again
# In every record; others where they are measured.
_FIGURES = ("skip", "seconds", "cpu", "wall", "temp_bytes", "peak_bytes")


class Settings(NamedTuple):
    """Limits of time and memory of a measurement."""

    rounds: int = 9  # at most, and 3 at least: 2 or 1 where a single round takes longer than the cell should
    cell_seconds: float = 15.0
    call_seconds: float = 45.0
    memory_bytes: float = 8 * 2**30
    prepare_seconds: float = 300.0  # flex_attention is compiled by a C++ compiler


class Worker:
    """The process of a contender; one that has died or does not answer in time replies {"skip": why, "ended": True}."""

    def __init__(self, contender: Contender, pythons: Mapping[str, str], cpus: Sequence[int] | None, threads: int):
        count = str(threads)
        extra = {"OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count, "NPROC": count, **contender.environment}
        extra["JAX_TRACEBACK_FILTERING"] = "off"  # so that the last line of stderr is the error
        extra["PYTHONPATH"] = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._log = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115 (closed by close())
        self._process = subprocess.Popen(
            [pythons[contender.side], "-m", "experiments.benchmarks.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=os.environ | extra,
        )
        self.about = self.ask(_START_SECONDS, do="start", module=contender.module, cpus=cpus, threads=threads)

    def close(self) -> None:
        """Ends the process, at once if it is at work."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):  # a request that it did not live to read
            self._process.stdin.close()
        self._process.stdout.close()
        self._log.close()

    def ask(self, seconds: float, **request: Any) -> dict[str, Any]:
        """Returns the reply to a request."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(seconds):
                self._process.kill()
                return {"skip": f"no answer in {seconds:.0f} s", "ended": True}
        if line := self._process.stdout.readline():
            return json.loads(line)
        self._process.wait()
        self._log.seek(0)
        lines = [line.strip() for line in self._log if line.strip()]
        reason = lines[-1][:300] if lines else f"the process ended with exit code {self._process.returncode}"
        return {"skip": reason, "ended": True}


class _Workers:
    """The worker of each contender, started when it is first needed; `shared`: one for all, which others replace."""

    def __init__(self, begin: Callable[[Contender], Worker], shared: bool):
        self._begin, self._shared = begin, shared
        self._live: dict[str, Worker] = {}

    def of(self, contender: Contender) -> Worker:
        """Returns the worker of a contender."""
        key = "" if self._shared else contender.name
        if key not in self._live:
            self._live[key] = self._begin(contender)
            if self._shared and contender.side == "jax" and self._live[key].about.get("ended"):
                reason = self._live[key].about["skip"]
                raise ValueError(f"no worker starts any more: {reason}; what was measured is kept")
        return self._live[key]

    def end(self, contender: Contender) -> None:
        if worker := self._live.pop("" if self._shared else contender.name, None):
            worker.close()

    def close(self) -> None:
        for worker in self._live.values():
            worker.close()


def run_suite(
    suite: Suite,
    turns: Sequence[Turn],
    begin: Callable[[Contender], Worker],
    settings: Settings,
    *,
    end: float = math.inf,
    now: Callable[[], float] = time.monotonic,
) -> Iterator[list[dict[str, Any]]]:
    """Yields the records of each turn of a suite; a turn that `end` cuts off has none.

    Args:
      turns: the turns of the suite to measure.
      begin: starts a contender's process.
      end: time of `now` at which to stop.

    Raises:
      ValueError: the device of a suite that is measured one by one is gone.
    """
    done: list[dict[str, Any]] = []
    with contextlib.closing(_Workers(begin, shared=suite.one_by_one)) as workers:
        for cell, contenders in turns:
            if end - now() < _LEAST:
                return
            replies, cases, live = {}, {}, {}
            for c in contenders:
                if c.fresh:
                    workers.end(c)
                earlier = [r for r in done if r["contender"] == c.name and series(r["cell"]) == series(cell)]
                slow, large = foresee(earlier, cell, settings)
                skip = large or (None if suite.compiles else slow)
                if not skip:
                    live[c.name] = workers.of(c)
                    skip = live[c.name].about.get("skip")
                if skip:
                    replies[c.name] = {"skip": skip}
                else:
                    cases[c.name] = {**cell, **c.case} | ({"run": not slow} if suite.compiles else {})
            limits = settings._replace(prepare_seconds=min(settings.prepare_seconds, end - now()))
            if suite.compiles:
                limits = limits._replace(call_seconds=math.inf)
            load = os.getloadavg()[0]
            replies |= time_in_turn(live, cases, limits)
            if now() >= end and any(reply.get("ended") for reply in replies.values()):
                return
            records = []
            for c in contenders:
                reply, about = replies[c.name], live[c.name].about if c.name in live else {}
                figures = {name: reply[name] for name in reply if name not in ("first", "ended")}
                about = {name: about[name] for name in ("allocator", "versions") if name in about}
                shared = dict(contender=c.name, cell=dict(cell), load=load, **about)
                records.append({**shared, **dict.fromkeys(_FIGURES), **figures})
                if reply.get("ended") or _unwell(reply):
                    workers.end(c)  # other cells may do
            done += records
            yield records


def foresee(earlier: Sequence[Mapping[str, Any]], cell: Mapping, settings: Settings) -> tuple[str | None, str | None]:
    """Returns why a call would take too long, and why it would take too much memory; None where it would not.

    Args:
      earlier: records of the contender at shorter lengths; one that was left out is left out at all longer ones.
      cell: the cell of the call.
    """
    if earlier and earlier[-1]["skip"]:
        return None, earlier[-1]["skip"]
    held = "held_bytes" if any(record.get("held_bytes") for record in earlier) else "peak_bytes"
    seconds, memory = (_extrapolated(earlier, cell, quantity) for quantity in ("seconds", held))
    slow = f"a call would take about {seconds:.0f} s" if seconds > settings.call_seconds else None
    large = f"would take about {memory / 2**30:.0f} GiB of memory" if memory > settings.memory_bytes else None
    return slow, large


def _extrapolated(earlier: Sequence[Mapping[str, Any]], cell: Mapping[str, Any], quantity: str) -> float:
    """Extrapolates by a power law through the last two lengths, of degree 1 to 2; of degree 2 if there is one length."""
    points = [(record["cell"]["length"], record[quantity]) for record in earlier if record.get(quantity)]
    if not points:
        return 0.0
    (last, value), degree = points[-1], 2.0
    if len(points) > 1:
        before, less = points[-2]
        degree = min(2.0, max(1.0, math.log(value / less) / math.log(last / before)))
    return value * (cell["length"] / last) ** degree


def time_in_turn(workers: Mapping[str, Worker], cases: Mapping[str, Mapping[str, Any]], settings: Settings):
    """Measures one cell: prepares every contender, then times them in rounds, A B C A B C.

    Args:
      workers, cases: by contender; each contender of a case has a worker.

    Returns:
      By contender {"skip": reason}, or {"cpu": [s, ...], "wall": [s, ...]} with an entry per round, "temp_bytes"
      and "peak_bytes".
    """
    replies: dict[str, dict[str, Any]] = {}
    for name, case in cases.items():
        replies[name] = workers[name].ask(settings.prepare_seconds, do="prepare", case=case)
        if replies[name].get("seconds", 0) > 2 * settings.call_seconds:
            replies[name]["skip"] = f"a call takes {replies[name]['seconds']:.1f} s"
    live = [name for name, reply in replies.items() if "skip" not in reply and "seconds" in reply]
    first = {name: replies[name].get("first") for name in live}
    repeats, rounds = schedule({name: replies[name]["seconds"] for name in live}, all(first.values()), settings)
    for name in live:
        replies[name] |= {clock: [first[name][clock]] if first[name] else [] for clock in ("cpu", "wall")}
    for _ in range(rounds):
        for name in [name for name in live if "skip" not in replies[name]]:
            time.sleep(PAUSE_SECONDS)
            limit = 60 + 20 * (repeats[name] + 1) * replies[name]["seconds"]
            reply = workers[name].ask(limit, do="run", repeats=repeats[name], warm=not first[name])
            if "skip" in reply:
                replies[name] |= reply
            else:
                for clock in ("cpu", "wall"):
                    replies[name][clock].append(reply[clock])
    return replies


def schedule(seconds: Mapping[str, float], counted: bool, settings: Settings) -> tuple[dict[str, int], int]:
    """Returns (calls in a turn, by contender; number of rounds) for calls that take so many seconds.

    Args:
      counted: a first round has been made already, and is counted.
    """
    repeats = {name: max(1, min(200, round(_TURN_SECONDS / max(s, 1e-6)))) for name, s in seconds.items()}
    one_round = max(1e-6, sum(repeats[name] * s for name, s in seconds.items()))
    lowest = 3 if one_round < settings.cell_seconds else 2 if one_round < 4 * settings.cell_seconds else 1
    rounds = min(settings.rounds, max(lowest, int(settings.cell_seconds / one_round)))
    return repeats, rounds - counted if seconds else 0


def _unwell(reply: Mapping[str, Any]) -> bool:
    """Whether a device raised an error after which it may not compute again."""
    errors = [reply.get("skip"), *(result.get("error") for result in reply.get("found", {}).values())]
    return any(text.startswith(_UNWELL) for text in errors if text)
