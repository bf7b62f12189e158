"""The design, as tests: who imports whom, how long things are, and that no field of a config is dead."""

import ast
import importlib
import importlib.metadata
import pathlib
import pkgutil
import re
import runpy
import subprocess
import sys

import pytest
from ml_collections import ConfigDict

REPO = pathlib.Path(__file__).parents[1]
SOURCES = sorted(path for part in ("posjax", "experiments", "configs", "tests") for path in (REPO / part).rglob("*.py"))
LIBRARY = [path for path in SOURCES if path.is_relative_to(REPO / "posjax")]
CONFIGS = sorted((REPO / "configs").rglob("*.py"))
MAX_FILE, MAX_FUNCTION = 300, 60
# Arrows point down only: what each part may import beside itself.
_CONTRACT = {"encoding", "composition", "spec"}  # the values, + and >> of them, and their text form
MAY_IMPORT = {
    "encoding": _CONTRACT,
    "composition": {"encoding"},
    "spec": _CONTRACT,
    "encodings": _CONTRACT,
    "attention": {*_CONTRACT, "encodings"},
    "hf": {*_CONTRACT, "encodings"},
    "hosting": {*_CONTRACT, "attention"},
    "models": {*_CONTRACT, "encodings", "attention", "hosting"},
    "data": {"encoding"},
    "training": {*_CONTRACT, "attention", "models", "data"},
    "analysis": {*_CONTRACT, "encodings", "attention", "models"},
}
CORE = {"spec", "encoding", "composition", "encodings", "attention", "hf", "hosting"}
ASIDE = {"__init__", "nnx"}  # the public names, and the adapter for another framework
FRAMEWORK_FREE = {"jax", "numpy", "jaxtyping", "posjax", *sys.stdlib_module_names}
of_source = pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(REPO)))
of_library = pytest.mark.parametrize("path", LIBRARY, ids=lambda path: str(path.relative_to(REPO)))
of_config = pytest.mark.parametrize("path", CONFIGS, ids=lambda path: str(path.relative_to(REPO)))


def tree_of(path):
    return ast.parse(path.read_text())


def imports(tree):
    """The dotted names of all modules that are imported, wherever that happens; `from a import b` as a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part_of(path):
    """posjax/models/vit.py -> models."""
    return path.relative_to(REPO / "posjax").parts[0].removesuffix(".py")


@of_library
def test_the_core_imports_jax_and_numpy_only(path):
    if part_of(path) in CORE:
        assert {name.split(".")[0] for name in imports(tree_of(path))} <= FRAMEWORK_FREE


@of_library
def test_arrows_point_down(path):
    part, names = part_of(path), list(imports(tree_of(path)))
    used = {name.split(".")[1] for name in names if name.startswith("posjax.")} - {part}
    if part not in ASIDE:
        assert used & set(MAY_IMPORT) <= MAY_IMPORT[part]
    assert not any(name.startswith(("experiments", "configs", "tests")) for name in names)


@of_source
def test_files_and_functions_are_short(path):
    lines = len(path.read_text().splitlines())
    assert lines < MAX_FILE, f"{lines} lines"
    for node in ast.walk(tree_of(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            doc = len((ast.get_docstring(node, clean=False) or "").splitlines())  # which may say what needs saying
            assert node.end_lineno - node.lineno - doc < MAX_FUNCTION, f"{node.name} is too long"


@of_source
def test_no_exception_is_caught_blindly(path):
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None, f"line {node.lineno}: a bare except"
            names = {part.id for part in ast.walk(node.type) if isinstance(part, ast.Name)}
            assert not names & {"Exception", "BaseException"}, f"line {node.lineno}: catches everything"


def test_nothing_imports_tensorflow():
    packages = [importlib.import_module(name) for name in ("posjax", "experiments")]
    walked = [module.name for p in packages for module in pkgutil.walk_packages(p.__path__, f"{p.__name__}.")]
    assert {"posjax.data.loading", "posjax.training.loop", "experiments.ablate"} <= set(walked)
    walked.remove("experiments.benchmarks.torch_side")  # what a Python with torch runs to be measured against
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


def load(path):
    return runpy.run_path(str(path))["get_config"]()


def fields(config, prefix=""):
    for name, value in config.items():
        if isinstance(value, ConfigDict):
            yield from fields(value, f"{prefix}{name}.")
        else:
            yield prefix + name


@of_config
def test_every_config_loads_and_says_how_to_run_it(path):
    config = load(path)
    assert isinstance(config, ConfigDict)
    assert f"--config={path.relative_to(REPO)}" in ast.get_docstring(tree_of(path))


def test_commands_in_the_readme_name_configs_that_exist():
    readme = REPO / "README.md"
    if not readme.exists():
        pytest.skip("there is no README.md yet")
    named = set(re.findall(r"--config=([\w/]+\.py)", readme.read_text()))
    assert named
    assert [name for name in named if not (REPO / name).is_file()] == []


@pytest.fixture
def read(monkeypatch):
    """The (config, field) pairs that were read, except by those who copy a whole config."""
    seen, copying = set(), []
    get, to_dict = ConfigDict.__getitem__, ConfigDict.to_dict

    def recorded(self, key):
        if not copying:
            seen.add((id(self), key))
        return get(self, key)

    def copied(self, *arguments, **options):
        copying.append(True)
        try:
            return to_dict(self, *arguments, **options)
        finally:
            copying.pop()

    monkeypatch.setattr(ConfigDict, "__getitem__", recorded)
    monkeypatch.setattr(ConfigDict, "to_dict", copied)
    return seen


SMALL = {"steps": 2, "batch_size": 4, "model.width": 8, "model.depth": 1, "model.num_heads": 2}
SMALL |= {"optimizer.warmup_steps": 1, "checkpoint_every": 2, "eval_every": 0}
SMALL_TEXT = {"data.length": 16, "eval_lengths": (16,), "data.positions": "window", "eval_batch_size": 512}


SMALL_VIT = {"model.patch_size": 4}


@pytest.mark.parametrize(
    ("name", "kinds"), [("vit", [SMALL_VIT, SMALL_VIT | {"data.mode": "native"}]), ("decoder", [SMALL_TEXT])]
)
def test_every_field_of_a_config_is_read(name, kinds, read, tmp_path, monkeypatch):
    """By one kind of run or another."""
    from experiments import _environment, train

    monkeypatch.setattr(_environment, "compilation_cache", lambda directory: None)  # it would stay on for other tests
    dead = None
    for kind, sizes in enumerate(kinds):
        config = load(REPO / "configs" / f"{name}.py")
        config.update_from_flattened_dict({**SMALL, **sizes, "data.data_dir": str(tmp_path / "data")})
        groups = {"": config, **{key: value for key, value in config.items() if isinstance(value, ConfigDict)}}
        read.clear()
        train.main(config.lock(), tmp_path / f"run{kind}")
        unread = {
            f"{name}.{key}".lstrip(".")
            for name, group in groups.items()
            for key in group
            if (id(group), key) not in read
        }
        dead = unread if dead is None else dead & unread
    assert len(list(fields(config))) > 30
    assert dead == set()


def test_studies_have_the_fields_of_a_single_run():
    single = {config.task: set(fields(config)) - {"seed"} for config in map(load, CONFIGS) if "task" in config}
    studies = [study for config in map(load, CONFIGS) if "studies" in config for study in config.studies.values()]
    assert len(studies) >= 2
    for study in studies:
        own = {name for name in fields(study) if not name.startswith(("encodings.", "rows."))} | {"model.encoding"}
        assert own - {"seed"} == single[study.task]
