"""What a study runs on, described for its records, and the cache of compiled programs."""

import os
import pathlib
import platform
import subprocess
from importlib import metadata
from typing import Any

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


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


def recorded(allocator: str | None) -> dict[str, Any]:
    """What records say of where they were made: "device" and "versions"."""
    described = describe(allocator)
    device, _ = described.pop("device"), described.pop("allocator")
    return {"device": device, "versions": described}


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
