"""The commands: `python -m experiments.NAME`."""

import ctypes
import importlib.util
import os
import pathlib
import platform
import sys

# If stdin, stdout or stderr is closed, the next opened file gets its number, and prints would go into a checkpoint.
while (null := os.open(os.devnull, os.O_RDWR)) < 3:
    pass
os.close(null)
sys.stdout, sys.stderr = sys.stdout or open(os.devnull, "w"), sys.stderr or open(os.devnull, "w")  # noqa: SIM115

# Said before anything of posjax is imported, and so that `python -m` shows no traceback. What measures a machine with an
# accelerator, or another library, runs without them.
_FREE = ("experiments.benchmark", "experiments.benchmarks.worker")
command = next((word for word in (*sys.argv, *sys.orig_argv) if word.startswith("experiments.")), _FREE[0])
needed = () if command in _FREE else ("absl", "ml_collections")
if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
    clone = pathlib.Path(__file__).parents[1]
    print(f"error: the commands need {missing[0]}: pip install -e '{clone}[experiments]'", file=sys.stderr)
    sys.exit(2)

# (parameter, value) of glibc's mallopt(3).
_KEEP_MEMORY = (
    (-3, 2**31 - 1),  # M_MMAP_THRESHOLD: large buffers come from the heap, whose pages stay mapped
    (-1, 2**31 - 1),  # M_TRIM_THRESHOLD: and the heap is not given back
    (-2, 2**28),  # M_TOP_PAD: it grows by 256 MB at a time
    (-8, 1),  # M_ARENA_MAX: one heap for all threads
)


def tune_allocator() -> str:
    """Makes glibc keep freed memory, so that XLA on CPU does not page-fault every large buffer anew.

    An exp of 64 MB becomes 5 to 6 times as fast, but the process does not shrink. Call it before jax is imported; another
    call changes nothing. Returns, for the record, "mallopt", or "default" if there is no glibc, if glibc refused, or if the
    environment has POSJAX_ALLOCATOR=default.
    """
    if os.environ.get("POSJAX_ALLOCATOR") == "default" or platform.libc_ver()[0] != "glibc":
        return "default"
    libc = ctypes.CDLL(None)
    accepted = [libc.mallopt(parameter, value) == 1 for parameter, value in _KEEP_MEMORY]
    return "mallopt" if all(accepted) else "default"
