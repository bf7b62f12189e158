"""Workers from the outside: starting them, and measuring one cell of a table with them in turn."""

import contextlib
import json
import os
import pathlib
import selectors
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

_ROOT = pathlib.Path(__file__).parents[2]
_START_SECONDS = 120
_TURN_SECONDS = 0.1  # short calls are repeated within a turn until it takes about so long
PAUSE_SECONDS = 0.02  # between turns: OpenMP's threads spin for a while when their work is done


class Contender(NamedTuple):
    """A row of a table: in which interpreter, by which module, and what of it."""

    name: str
    side: str  # "jax", "torch" or "accelerator"
    case: Mapping[str, Any]  # the request to the module; its fields replace the cell's
    only: Mapping[str, Sequence[Any]] = {}  # values of the cell for which it is measured; all of them by default
    fresh: bool = False  # whether each cell has a new process, whose peak of memory is that of the cell


class Settings(NamedTuple):
    """Limits of time and memory of a measurement."""

    rounds: int = 9  # at most, and 3 at least: 2 or 1 where a single round takes longer than the cell should
    cell_seconds: float = 15.0
    call_seconds: float = 45.0
    memory_bytes: float = 8 * 2**30
    prepare_seconds: float = 300.0  # flex_attention is compiled by a C++ compiler


class Ended(Exception):
    """A worker that will not answer any more; the message says why."""


class Worker:
    """One contender's process; `with` ends it."""

    def __init__(self, module: str, python: str, cpus: Sequence[int] | None, threads: int):
        count = str(threads)
        extra = {"OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count, "NPROC": count}
        extra["JAX_TRACEBACK_FILTERING"] = "off"  # so that the last line of stderr is the error
        extra["PYTHONPATH"] = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._log = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115 (closed by close())
        self._process = subprocess.Popen(
            [python, "-m", "experiments.benchmarks.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=os.environ | extra,
        )
        self.about = self.ask(_START_SECONDS, do="start", module=module, cpus=cpus, threads=threads)

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_) -> None:
        self.close()

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
        """The reply to a request.

        Raises:
          Ended: the process has died, or has not answered in so many seconds (and is ended then).
        """
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Ended(self._last_words()) from None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(seconds):
                self._process.kill()
                raise Ended(f"no answer in {seconds:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise Ended(self._last_words())
        return json.loads(line)

    def _last_words(self) -> str:
        self._process.wait()
        self._log.seek(0)
        lines = [line.strip() for line in self._log if line.strip()]
        return lines[-1][:300] if lines else f"the process ended with exit code {self._process.returncode}"


def time_in_turn(workers: Mapping[str, Worker], cases: Mapping[str, Mapping[str, Any]], settings: Settings):
    """One cell: every contender prepared, then timed in rounds, A B C A B C.

    Args:
      workers, cases: by contender; who has a case has a worker.

    Returns:
      By contender {"skip": reason}, or {"cpu": [s, ...], "wall": [s, ...]} with an entry per round, "temp_bytes"
      and "peak_bytes".
    """
    found: dict[str, dict[str, Any]] = {}
    for name, case in cases.items():
        found[name] = _asked(workers[name], settings.prepare_seconds, do="prepare", case=case)
        if found[name].get("seconds", 0) > 2 * settings.call_seconds:
            found[name]["skip"] = f"a call takes {found[name]['seconds']:.1f} s"
    live = {name: reply for name, reply in found.items() if "skip" not in reply and "seconds" in reply}
    counted = all("first" in reply for reply in live.values())
    repeats, rounds = schedule({name: reply["seconds"] for name, reply in live.items()}, counted, settings)
    for name, reply in live.items():
        first = reply.pop("first", None)
        found[name] |= {clock: [first[clock]] if first else [] for clock in ("cpu", "wall")}
    for _ in range(rounds):
        for name in [name for name in live if "skip" not in found[name]]:
            time.sleep(PAUSE_SECONDS)
            limit = 60 + 20 * repeats[name] * live[name]["seconds"]
            reply = _asked(workers[name], limit, do="run", repeats=repeats[name])
            if "skip" in reply:
                found[name] |= reply
            else:
                found[name]["cpu"].append(reply["cpu"])
                found[name]["wall"].append(reply["wall"])
    return found


def schedule(seconds: Mapping[str, float], counted: bool, settings: Settings) -> tuple[dict[str, int], int]:
    """(calls in a turn, by contender; number of rounds) for calls that take so many seconds.

    Args:
      counted: a first round has been made already, and is counted.
    """
    repeats = {name: max(1, min(200, round(_TURN_SECONDS / max(s, 1e-6)))) for name, s in seconds.items()}
    one_round = max(1e-6, sum(repeats[name] * s for name, s in seconds.items()))
    lowest = 3 if one_round < settings.cell_seconds else 2 if one_round < 4 * settings.cell_seconds else 1
    rounds = min(settings.rounds, max(lowest, int(settings.cell_seconds / one_round)))
    return repeats, rounds - counted if seconds else 0


def _asked(worker: Worker, limit: float, **request: Any) -> dict[str, Any]:
    try:
        return worker.ask(limit, **request)
    except Ended as reason:
        return {"skip": str(reason), "ended": True}


def relative_spread(values: Sequence[float]) -> float:
    """The interquartile range over the median; 0 for a single value."""
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / statistics.median(values)


def start_worker(
    contender: Contender, interpreters: Mapping[str, str], cpus: Sequence[int] | None, threads: int
) -> Worker:
    """The contender's process.

    Raises:
      Ended: it could not be started.
    """
    module = f"experiments.benchmarks.{contender.side}_side"
    return Worker(module, interpreters.get(contender.side, sys.executable), cpus, threads)
