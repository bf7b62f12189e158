"""Runs checks in a worker, one after the other; one that a check ended, hung or left with a sick device is replaced."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from experiments.benchmarks import pool
from experiments.benchmarks.accelerator.checks import Check
from experiments.benchmarks.pool import Ended, Settings, Worker

_LEAST = 10.0  # seconds: with less time left no check begins
_UNWELL = ("XlaRuntimeError", "JaxRuntimeError", "InternalError")  # what a device raises; it may not compute again
_KEPT = ("skip", "wall", "runs", "temp_bytes", "device_peak_bytes", "found")


def run(
    checks: Sequence[Check],
    worker: Worker,
    begin: Callable[[], Worker],
    *,
    seconds: float,
    settings: Settings,
    now: Callable[[], float] = time.monotonic,
) -> Iterator[dict[str, Any]]:
    """A record for each check, until so many seconds are over: a check that was cut off has none.

    Args:
      worker: the first one; it is closed here, as are those that `begin` starts.
    """
    end, used = now() + seconds, False
    try:
        for check in checks:
            if check.fresh and used:
                worker.close()
                worker, used = begin(), False
            left = end - now()
            if left < _LEAST:
                return
            limited = settings._replace(prepare_seconds=min(settings.prepare_seconds, left))
            began, used = now(), True
            found = pool.measure({check.name: worker}, {check.name: check.case}, limited)[check.name]
            if found.get("ended") and now() >= end:
                return
            yield {
                **dict(name=check.name, group=check.group, case=dict(check.case), took=round(now() - began, 1)),
                **{name: found[name] for name in _KEPT if name in found},
                "versions": worker.about["versions"],
            }
            if found.get("ended") or _unwell(found):
                worker.close()
                worker, used = begin(), False
    except Ended as reason:  # the device is gone for good
        raise ValueError(f"no worker starts any more: {reason}; what was measured is kept") from None
    finally:
        worker.close()


def _unwell(found: dict[str, Any]) -> bool:
    told = [found.get("skip"), *(each.get("error") for each in found.get("found", {}).values())]
    return any(text.startswith(_UNWELL) for text in told if text)
