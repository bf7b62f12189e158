"""The environment of a study for its records, and the cache of compiled programs."""

import pathlib
from typing import Any


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
