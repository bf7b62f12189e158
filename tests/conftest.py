"""Shapes and dtypes in posjax's signatures are checked under pytest, and only there."""

import os

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("NPROC", "1")  # XLA's thread pool: one thread per worker, the workers are the parallelism

import jax
import pytest
from jaxtyping import config, install_import_hook

from experiments._environment import compilation_cache

# An int is welcome where a float is asked for (PEP 484's numeric tower), as in interpolate(factor=2).
install_import_hook("posjax", "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))")


def pytest_configure(config):
    """What one worker has compiled, or an earlier run, serves the others; `pytest --cache-clear` forgets it."""
    if config.pluginmanager.hasplugin("cacheprovider"):
        compilation_cache(config.cache.mkdir("compiled"))


@pytest.fixture
def unchecked_shapes():
    """Lets ill-shaped arguments through to the error messages that users see, who run without the checks above."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


def _without_optimisations():
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


# For tests that compile much and run it once: without LLVM's optimisations it takes half the time. The second one is for
# modules whose own fixtures compile.
quick_compilation = pytest.fixture(_without_optimisations, name="quick_compilation")
quick_module = pytest.fixture(_without_optimisations, name="quick_module", scope="module")


_run = 0


def pytest_runtest_teardown():
    """What JAX has compiled for one encoding hardly serves another: kept for all of them it would fill the memory."""
    global _run
    _run += 1
    if _run % 100 == 0:
        jax.clear_caches()
