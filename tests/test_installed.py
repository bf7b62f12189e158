"""What is importable from anywhere, and without which heavy packages."""

import importlib
import importlib.metadata
import pathlib
import pkgutil
import subprocess
import sys

import pytest

REPO = pathlib.Path(__file__).parents[1]


@pytest.mark.slow
def test_nothing_imports_tensorflow():
    packages = [importlib.import_module(name) for name in ("posjax", "experiments")]
    walked = [module.name for p in packages for module in pkgutil.walk_packages(p.__path__, f"{p.__name__}.")]
    assert {"posjax.data.loading", "posjax.training.loop", "experiments.ablate"} <= set(walked)
    for name in ("torch_models", "torch_side"):  # what a Python with torch runs to be measured against
        walked.remove(f"experiments.benchmarks.{name}")
    heavy = ["tensorflow_datasets", "grain"]  # imported where they are used, so here by hand
    code = (
        "import importlib, sys\n"
        f"for name in {walked + heavy}: importlib.import_module(name)\n"
        "print(sorted(name for name in sys.modules if name.split('.')[0] in ('tensorflow', 'torch', 'keras')))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr[-2000:]


def test_it_is_importable_from_anywhere_once_installed(tmp_path):
    try:
        version = importlib.metadata.version("posjax")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("posjax is not installed here")
    code = "import posjax, experiments.train; print(posjax.__version__, len(posjax.names()) > 5)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, [version, "True"]), done.stderr[-2000:]
