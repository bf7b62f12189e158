"""A process that runs one contender when it is told to, and says how long that took.

    python -m experiments.benchmarks.worker          # started by experiments.benchmarks.runner, not by people

One JSON object per line comes in and one goes out:
  {"do": "start", "module": M, "cpus": [...] or null, "threads": N}   {"allocator": A, "versions": {...}}
  {"do": "prepare", "case": {...}}                                     {"seconds": s, "temp_bytes": b, "peak_bytes": b,
                                                                        "first": {"cpu": s, "wall": s} if it counts}
  {"do": "run", "repeats": N, "warm": bool}                            {"cpu": s, "wall": s}, of one call
or {"skip": reason}. The affinity and the allocator are set before jax or torch is imported.
"""

import ctypes
import gc
import importlib
import json
import os
import pathlib
import sys
import time
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from experiments import tune_allocator
from experiments.benchmarks.contender import Call, Seconds, Skip

_PROC = pathlib.Path("/proc/self")
_BRIEF = 5.0  # seconds: a first call shorter than this warms up and is not counted


def main() -> None:
    """Answers requests until stdin ends."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not get among the replies
    module, call = None, None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["do"] == "start":
                module, reply = _start(request)
            elif request["do"] == "prepare":
                call = None  # its arrays go before the new ones come
                call, reply = _prepare(module, request["case"])
            else:
                if request["warm"]:  # others had the caches since its last turn
                    call.run()
                reply = timed(call, request["repeats"])
        except Skip as reason:
            reply = {"skip": str(reason)}
        print(json.dumps(reply), file=channel, flush=True)


def _start(request: Mapping[str, Any]) -> tuple[ModuleType, dict[str, Any]]:
    if request["cpus"] is not None:
        os.sched_setaffinity(0, request["cpus"])
    allocator = tune_allocator()
    try:
        module = importlib.import_module(request["module"])
    except ModuleNotFoundError as error:
        if error.name.startswith(("posjax.", "experiments.")):
            raise
        raise Skip(f"{error.name} is not installed for {os.path.basename(sys.executable)}") from error
    return module, {"allocator": allocator, "versions": module.start(request["threads"])}


def _prepare(module: ModuleType, case: Mapping[str, Any]) -> tuple[Call, dict[str, Any]]:
    """Builds the call; runs it once for its memory and, if that is brief, again for its time."""
    gc.enable()
    gc.collect()
    held = _resident()
    call = module.prepare(case)
    gc.collect()
    gc.disable()  # as timeit does
    if call.run is None:
        return call, {"temp_bytes": call.temp_bytes, **call.figures}
    _forget_peak()
    first = timed(call, 1)
    peak = None if held is None else max(0, _status("VmHWM") - held)
    reply = {"temp_bytes": call.temp_bytes, "peak_bytes": peak, **call.figures}
    if first["wall"] >= _BRIEF:
        return call, reply | {"seconds": first["wall"], "first": first}
    if call.send is not None:  # touches the memory of two runs at once: one may begin before that of the last is free
        call.send()
    return call, reply | {"seconds": timed(call, 1)["wall"]}


def timed(call: Call, repeats: int) -> dict[str, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(repeats):
        result = call.run()
    if isinstance(result, Seconds):
        return result._asdict()
    return {"cpu": (time.process_time() - cpu) / repeats, "wall": (time.perf_counter() - wall) / repeats}


def _resident() -> int | None:
    """Bytes in memory, after free memory has been given back; None where Linux does not tell."""
    if not (_PROC / "clear_refs").exists():
        return None
    ctypes.CDLL(None).malloc_trim(0)
    return _status("VmRSS")


def _forget_peak() -> None:
    """Makes the peak start from the memory held now, without that of compiling."""
    if _resident() is not None:
        (_PROC / "clear_refs").write_text("5")


def _status(field: str) -> int:
    lines = (_PROC / "status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


if __name__ == "__main__":
    main()
