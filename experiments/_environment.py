"""What an experiment runs on: described for its record, and tuned where that changes no number."""

import ctypes
import os
import pathlib
import platform
import subprocess
from importlib import metadata
from typing import Any

# (parameter, value) of glibc's mallopt(3).
_KEEP_MEMORY = (
    (-3, 2**31 - 1),  # M_MMAP_THRESHOLD: large buffers come from the heap, whose pages stay mapped
    (-1, 2**31 - 1),  # M_TRIM_THRESHOLD: and the heap is not given back
    (-2, 2**28),  # M_TOP_PAD: it grows by 256 MB at a time
    (-8, 1),  # M_ARENA_MAX: one heap for all threads
)

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def tune_allocator() -> str:
    """Makes glibc keep freed memory, so that XLA on CPU does not page-fault every large buffer anew.

    An exp of 64 MB becomes 5 to 6 times as fast; in return the process does not shrink. To be called before jax
    is imported; calling it again changes nothing. Returns, for the record, "mallopt", or "default" where there is
    no glibc, where it refused, or where the environment has POSJAX_ALLOCATOR=default.
    """
    if os.environ.get("POSJAX_ALLOCATOR") == "default" or platform.libc_ver()[0] != "glibc":
        return "default"
    libc = ctypes.CDLL(None)
    accepted = [libc.mallopt(parameter, value) == 1 for parameter, value in _KEEP_MEMORY]
    return "mallopt" if all(accepted) else "default"


def compilation_cache(directory: str | pathlib.Path) -> None:
    """Keeps every compiled program in `directory`, so that the same experiment starts in seconds the next time."""
    import jax

    jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def describe(allocator: str | None = None) -> dict[str, Any]:
    """Versions, commit and hardware, as JSON can hold them.

    Args:
      allocator: what `tune_allocator` returned, for the record.
    """
    import jax

    import posjax

    devices = jax.devices()
    return {
        "posjax": posjax.__version__,
        "python": platform.python_version(),
        **{package: _version(package) for package in _PACKAGES},
        "commit": commit(),
        "platform": f"{platform.system()} {platform.machine()}",
        "device": devices[0].device_kind,
        "devices": len(devices),
        "cpus": os.cpu_count(),
        "allocator": allocator,
    }


def commit() -> str | None:
    """The commit this code was checked out at, with "-dirty" after it if tracked files differ; None elsewhere."""
    here = pathlib.Path(__file__).parent
    try:
        # An installed copy may lie inside somebody else's repository, which does not track it.
        _git("-C", str(here), "ls-files", "--error-unmatch", pathlib.Path(__file__).name)
        return _git("-C", str(here), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    except (FileNotFoundError, subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return None


def _git(*arguments: str) -> str:
    result = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=10, check=True)
    return result.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
