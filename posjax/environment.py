"""Versions, commit and hardware: the environment that a run records."""

import os
import pathlib
import platform
import subprocess
from importlib import metadata
from typing import Any

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
_FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")  # of the compilers


def describe() -> dict[str, Any]:
    """Returns versions, commit and hardware, in terms of JSON."""
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
        **compiler_flags(),
    }


def compiler_flags() -> dict[str, str]:
    """Returns the variables that hold flags of XLA's compilers, where they are set."""
    return {name: os.environ[name] for name in _FLAGS if os.environ.get(name)}


def commit() -> str | None:
    """Returns the commit of this code, with "-dirty" behind it if tracked files differ; None outside its repository."""
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
