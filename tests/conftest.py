"""Shapes and dtypes in posjax's signatures are checked under pytest, and only there."""

import gc
import importlib.metadata
import os

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("NPROC", "1")  # XLA's thread pool: one thread per worker, the workers are the parallelism

# jaxlib 0.10's newer code generator for CPUs takes up to four times as long, and these programs run once. Later ones may
# not know these flags, and XLA ends the process at a flag that it does not know.
if importlib.metadata.version("jaxlib").startswith("0.10."):
    flags = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    os.environ["XLA_FLAGS"] = f"{flags} {os.environ.get('XLA_FLAGS', '')}".strip()

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
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


# For tests that compile much and run it once: without LLVM's optimisations it takes half the time. The second one is for
# modules whose own fixtures compile.
quick_compilation = pytest.fixture(_without_optimisations, name="quick_compilation")
quick_module = pytest.fixture(_without_optimisations, name="quick_module", scope="module")


def pytest_collection():
    """Constants of modules are computed while tests are collected, in each worker."""
    jax.config.update("jax_disable_most_optimizations", True)


def pytest_collection_finish():
    """Tracing makes and drops millions of objects, which Python would look through again and again: rarer, and not at what
    stays for the whole session."""
    jax.config.update("jax_disable_most_optimizations", False)
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


_run = 0


def pytest_runtest_teardown():
    """What JAX has compiled for one encoding hardly serves another: kept for all of them it would fill the memory."""
    global _run
    _run += 1
    if _run % 250 == 0:
        jax.clear_caches()
