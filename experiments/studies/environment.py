"""The environment of a study for its records, and the cache of compiled programs."""

import argparse
import math
import os
import pathlib
from collections.abc import Mapping
from typing import Any

# XLA's flags that hide communication behind computation, on GPUs and TPUs; nothing changes on one of them.
_FAST = {
    "XLA_FLAGS": ("--xla_gpu_enable_latency_hiding_scheduler=true",),
    "LIBTPU_INIT_ARGS": (
        "--xla_tpu_enable_async_collective_fusion=true",
        "--xla_tpu_enable_async_collective_fusion_fuse_all_gather=true",
        "--xla_tpu_overlap_compute_collective_tc=true",
    ),
}
_DEVICES = "JAX_NUM_CPU_DEVICES"


def add_fast_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the option --fast_flags."""
    about = (
        "hide communication behind computation, and make a device of each core of a CPU; flags are printed and recorded"
    )
    parser.add_argument("--fast_flags", action="store_true", help=about)


def set_fast_flags(*trained: Mapping[str, Any]) -> None:
    """Adds XLA's flags to the environment, where jax and `posjax.environment.describe` read them; before jax has a device.

    Cores of a CPU become devices, as many as can share the batches of the `trained` configs; a number given already stays.
    """
    import jax

    rows = math.gcd(*(config.get("batch_size", 0) // (config.get("accumulate") or 1) for config in trained))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1  # macOS: all
    os.environ.setdefault(_DEVICES, str(math.gcd(rows, cores) if rows else 1))
    jax.config.update("jax_num_cpu_devices", int(os.environ[_DEVICES]))
    for name, flags in {**_FAST, _DEVICES: ()}.items():
        given = os.environ.get(name, "").split()
        os.environ[name] = " ".join([*given, *(flag for flag in flags if flag not in given)])
        print(f"{name}={os.environ[name]}", flush=True)


def compilation_cache(directory: str | pathlib.Path) -> None:
    """Keeps every compiled program in `directory`, so that the same experiment starts in seconds the next time."""
    import jax

    jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def recorded() -> dict[str, Any]:
    """Returns the fields "device" and "versions" of records."""
    from posjax.environment import describe

    described = describe()
    return {"device": described.pop("device"), "versions": described}
