"""Shapes and dtypes in posjax's signatures are checked by `make test` and `make thorough`: a fifth of the time."""

import collections
import gc
import importlib.metadata
import os
import pathlib

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("NPROC", "1")  # XLA's thread pool: one thread per worker, the workers are the parallelism

# Programs run once here, on little: without most of LLVM's optimisations they compile in half the time, and jaxlib 0.10's
# newer code generator for CPUs takes up to four times as long as the older one. The processes that tests start inherit both.
# `make slow` runs test_precision.py once more as users do. XLA ends a process at a flag that it does not know.
if os.environ.get("POSJAX_TESTS") != "optimised":
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "true"
    os.environ["JAX_INCLUDE_FULL_TRACEBACKS_IN_LOCATIONS"] = "false"  # of each operation, a tenth of all time
    if importlib.metadata.version("jaxlib").startswith("0.10."):
        flags = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
        os.environ["XLA_FLAGS"] = f"{flags} {os.environ.get('XLA_FLAGS', '')}".strip()

import jax
import pytest
from absl import logging
from jaxtyping import config, install_import_hook

SOURCE = pathlib.Path(__file__).parents[1]
SOURCES = sorted(path for house in ("posjax", "experiments") for path in (SOURCE / house).rglob("*.py"))
STATE_SHAPES = [path for path in SOURCES if "jaxtyping" in path.read_text()]
MODULES = [".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in STATE_SHAPES]
if "POSJAX_TESTS" not in os.environ:  # "unchecked" and "optimised" do without
    install_import_hook(MODULES, "shapes.checked")


def pytest_configure(config):
    """Shares compiled programs between workers and runs; `pytest --cache-clear` forgets it."""
    from experiments.studies.environment import (
        compilation_cache,  # posjax is imported behind the hook above, or it is not checked
    )

    if config.pluginmanager.hasplugin("cacheprovider"):
        compilation_cache(config.cache.mkdir("compiled"))


@pytest.fixture
def unchecked_shapes():
    """Lets ill-shaped arguments through to the error messages that users see, who run without the checks above."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """Where prepared sets lie; a set is made on first use."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def warnings(monkeypatch):
    """The warnings given through absl, formatted."""
    seen = []
    monkeypatch.setattr(logging, "warning", lambda text, *args: seen.append(text % args))
    return seen


def pytest_collection_finish():
    """Tracing makes and drops millions of objects, which Python would look through again and again: rarer, and not at what
    stays for the whole session."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


def pytest_terminal_summary(terminalreporter):
    """Prints the seconds of the ten slowest files beside their budget."""
    from test_house import SECONDS

    seconds = collections.Counter()
    for report in (report for reports in terminalreporter.stats.values() for report in reports):
        if hasattr(report, "duration"):
            seconds[report.nodeid.split("::")[0]] += report.duration
    for file, time in seconds.most_common(10):
        terminalreporter.write_line(f"{time:6.0f} s of {SECONDS.get(file, 30)}  {file}")


_run = 0


def pytest_runtest_teardown():
    """Drops JAX's programs after each encoding: kept for all encodings they would fill the memory."""
    global _run
    _run += 1
    if _run % 2000 == 0:
        jax.clear_caches()
