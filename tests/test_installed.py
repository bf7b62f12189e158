"""The package: its metadata, what an installed one can import and from where, and which packages that needs."""

import ast
import functools
import importlib
import importlib.metadata
import pathlib
import pkgutil
import re
import subprocess
import sys
import tomllib
import zipfile

import pytest

import posjax
from posjax.extras import EXTRAS, install_command

REPO = pathlib.Path(__file__).parents[1]
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text())
EXTRA_LISTS = PROJECT["project"]["optional-dependencies"]
# Packages that come with the core: named in `dependencies`, or brought by flax and jax.
CORE_MODULES = {
    "jax",
    "numpy",
    "flax",
    "jaxtyping",
    "safetensors",
    "ml_dtypes",
    "optax",
    "orbax",
    "rich",
    "absl",
    "scipy",
}
CORE_MODULES |= {"etils"}
ABSENT = sorted({module for modules in EXTRAS.values() for module in modules} - CORE_MODULES)
HIDE = f"import sys; sys.modules.update(dict.fromkeys({ABSENT}))"  # None there: as if it was not installed


def python(code, cwd, *flags):
    return subprocess.run([sys.executable, *flags, "-c", code], cwd=cwd, capture_output=True, text=True)


def names(requirements):
    return {re.split(r"\s*#", line)[0].strip() for line in requirements} - {""}


def of_extra(extra):
    """The requirements of an extra, and of the extras that it names."""
    for requirement in EXTRA_LISTS[extra]:
        others = re.fullmatch(r"posjax\[(.*)\]", requirement)
        for other in others[1].split(",") if others else ():
            yield from of_extra(other)
        if not others:
            yield requirement


def test_requirements_are_the_core_and_the_experiments():
    listed = names((REPO / "requirements.txt").read_text().splitlines())
    assert listed == {*PROJECT["project"]["dependencies"], *of_extra("experiments")}
    assert set(of_extra("dev")) >= {*of_extra("experiments"), *of_extra("text"), *of_extra("atlas")}


def test_the_lock_pins_all_that_the_tests_need_and_names_no_registry():
    """`uv pip compile`, as the head of the file says, makes it anew."""
    lock = (REPO / "requirements.lock").read_text()
    pinned = set(re.findall(r"^([\w.-]+)==", lock, re.MULTILINE))
    needed = {*PROJECT["project"]["dependencies"], *of_extra("dev")}
    assert {re.match(r"[\w-]+", each)[0].lower().replace("_", "-") for each in needed} <= pinned
    assert "://" not in lock


def test_the_core_is_small():
    names_of_core = {re.match(r"[\w-]+", requirement)[0] for requirement in PROJECT["project"]["dependencies"]}
    assert names_of_core == {"jax", "numpy", "flax", "jaxtyping", "safetensors"}
    assert set(EXTRAS) <= set(EXTRA_LISTS)


@functools.cache
def nodes_of(path):
    return [*ast.walk(ast.parse(path.read_text()))]


def third_party(path):
    """Top-level names of the packages of others that a file imports at run time."""
    typing = [node for node in nodes_of(path) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)]
    skipped = {inner for node in typing for inner in ast.walk(node)}
    for node in nodes_of(path):
        if node not in skipped and isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif node not in skipped and isinstance(node, ast.ImportFrom):
            yield node.module.partition(".")[0]


def required(path):
    """Modules that a file, or a package that holds it, names to `require`, modules in a table of packages included."""
    for file in (path, *(parent / "__init__.py" for parent in path.parents if parent.is_relative_to(REPO / "posjax"))):
        for node in nodes_of(file):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("require", "_Known"):
                yield from (each.value for each in node.args if isinstance(each, ast.Constant))


def test_a_package_that_may_be_missing_is_required_by_name():
    loose = {}
    for path in sorted((REPO / "posjax").rglob("*.py")):
        used = set(third_party(path)) - set(sys.stdlib_module_names) - {"posjax"} - CORE_MODULES - set(required(path))
        if used:
            loose[str(path.relative_to(REPO))] = used
    # The commands name the extra for plots; requests comes with tensorflow-datasets.
    drawn = {"posjax/describe/figures.py": {"matplotlib", "PIL"}, "posjax/describe/plots.py": {"matplotlib"}}
    assert loose == {**drawn, "posjax/data/preparing.py": {"requests"}}


def test_every_extra_has_a_command(tmp_path):
    assert install_command("vl_convert") == f"pip install -e '{REPO}[atlas]'"
    assert install_command("tensorflow.io") == f"pip install -e '{REPO}[tf]'"
    assert install_command("no_such_module") is None
    for module in ABSENT:
        assert re.search(r"\[\w+\]'$", install_command(module))


@pytest.mark.slow
def test_the_core_needs_no_extra():
    code = (
        f"{HIDE}\n"
        "import posjax, posjax.models, posjax.pretrained, posjax.nnx\n"
        "from posjax import cli\n"
        "assert cli.main(['explain', 'none']) == 0\n"
        "print('explained')\n"
        "for name in ('data', 'training'):\n"
        "    try: __import__(f'posjax.{name}')\n"
        "    except ImportError as error: print(error)\n"
        "    else: print(name, 'was imported')"
    )
    done = python(code, REPO)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.partition("explained\n")[2].splitlines()
    assert len(lines) == 2
    for line in lines:
        assert re.fullmatch(rf"posjax\.[\w.]+ needs \w+: pip install -e '{re.escape(str(REPO))}\[\w+\]'", line), line


@pytest.mark.slow
def test_a_command_names_the_extra_that_is_missing(tmp_path):
    code = """
import runpy, sys
sys.modules["grain"] = None
sys.argv = ["prepare", "--list"]
runpy.run_module("experiments.prepare", run_name="__main__", alter_sys=True)
"""
    done = python(code, tmp_path)
    assert done.returncode == 2, done.stderr[-2000:]
    assert f"{REPO}[data]'" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_nothing_imports_tensorflow():
    packages = [importlib.import_module(name) for name in ("posjax", "experiments")]
    walked = [module.name for p in packages for module in pkgutil.walk_packages(p.__path__, f"{p.__name__}.")]
    # What a Python with torch runs to be measured against.
    for name in ("torch_models", "torch_reading", "torch_side", "torch_training"):
        walked.remove(f"experiments.benchmarks.{name}")
    heavy = ["tensorflow_datasets", "grain"]  # imported where they are used, so here by hand
    code = (
        "import importlib, sys\n"
        f"for name in {walked + heavy}: importlib.import_module(name)\n"
        "print(sorted(name for name in sys.modules if name.split('.')[0] in ('tensorflow', 'torch', 'keras')))"
    )
    done = python(code, REPO)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr[-2000:]


def test_it_is_importable_from_anywhere_once_installed(tmp_path):
    """From the folder that holds the clone too, whose name is that of the package."""
    try:
        version = importlib.metadata.version("posjax")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("posjax is not installed here")
    (tmp_path / "posjax" / "docs").mkdir(parents=True)
    code = "import posjax, experiments.train, configs.vit; print(posjax.__version__, len(posjax.names()) > 5)"
    done = python(code, tmp_path)
    assert (done.returncode, done.stdout.split()) == (0, [version, "True"]), done.stderr[-2000:]


@pytest.mark.slow
def test_the_wheel_holds_posjax_alone(tmp_path):
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", f"--wheel-dir={tmp_path}", str(REPO)]
    done = subprocess.run(build, capture_output=True, text=True)
    if "No matching distribution" in done.stderr:
        pytest.skip("no package registry: hatchling cannot be had")
    assert done.returncode == 0, done.stderr[-2000:]
    (wheel,) = tmp_path.glob("*.whl")
    files = zipfile.ZipFile(wheel).namelist()
    about = f"posjax-{posjax.__version__}.dist-info"
    assert {name.partition("/")[0] for name in files} == {"posjax", about}
    assert {"posjax/py.typed", "posjax/describe/papers.bib", f"{about}/licenses/LICENSE"} <= set(files)
    sources = {str(path.relative_to(REPO)) for path in (REPO / "posjax").rglob("*.py")}
    assert sources == {name for name in files if name.endswith(".py")}
    assert wheel.stat().st_size < 2**20
