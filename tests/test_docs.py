"""Names in the documents exist, and the examples of docstrings run."""

import ast
import doctest
import importlib
import pathlib
import re

import pytest
from goldens import CHECKS

import posjax as pj
import posjax.models
import posjax.nnx
import posjax.spec
from experiments.report import diffusion
from posjax.describe.properties import PROPERTIES, check
from posjax.encoding import Needs

REPO = pathlib.Path(__file__).parents[1]
ERRATA = [line.split(" | ") for line in (REPO / "docs/errata.md").read_text().splitlines() if line.startswith("| ")]
ROWS = [row for row in ERRATA if "---" not in row[1] and row[-1].strip(" |") != "pinned by"]
DEFINED = {name for path in (REPO / "tests").rglob("*.py") for name in re.findall(r"def (test_\w+)", path.read_text())}


def test_every_erratum_is_pinned_by_a_test():
    assert len(ROWS) >= 30
    for row in ROWS:
        named = set(re.findall(r"\btest_\w+", row[-1])) - {"test_goldens"}
        files = re.findall(r"tests/[\w/]+\.py", row[-1])
        goldens = re.findall(r"`(\w+: [^`]+)`", row[-1])
        properties = set(re.findall(r'property "([^"]+)"', row[-1]))
        assert named or files or goldens or properties, row
        assert properties <= PROPERTIES.keys(), row
        for start, *rest in (golden.split("...") for golden in goldens):
            assert any(
                str(check).startswith(start) and all(part.strip() in str(check) for part in rest) for check in CHECKS
            ), row
        assert named - {pathlib.Path(file).stem for file in files} <= DEFINED, row
        assert all((REPO / file).is_file() for file in files), row


def test_the_page_of_diffusion_models_is_current():
    pages = (REPO / "docs/diffusion.md").read_text(), diffusion.page()
    written, now = (re.sub(r"\de-\d\d", "", page) for page in pages)  # digits of rounding depend on the machine
    assert written == now, "run python -m experiments.report"


def docstrings_of(path):
    nodes = ast.walk(ast.parse(path.read_text()))
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef
    return [ast.get_docstring(node, clean=False) or "" for node in nodes if isinstance(node, kinds)]


EXAMPLES = [path for path in sorted((REPO / "posjax").rglob("*.py")) if ">>> " in path.read_text()]


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(REPO)))
def test_the_examples_of_docstrings_run(path):
    """All that the file has: doctest passes over a docstring that a decorator hides."""
    module = importlib.import_module(".".join(path.relative_to(REPO).with_suffix("").parts).removesuffix(".__init__"))
    done = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert done.failed == 0
    assert done.attempted == sum(len(doctest.DocTestParser().get_examples(text)) for text in docstrings_of(path))


# The first four have one in `host`, `Placed`, `graph` and `parse`.
WITHOUT_EXAMPLE = {"Hosted", "PositionMap", "Relation", "names", "ResNet", "Transformer", "as_params"}


@pytest.mark.parametrize("package", [pj, posjax.models, posjax.nnx])
def test_the_public_names_have_an_example(package):
    given = {name: each for name, each in vars(package).items() if callable(each) and not name.startswith("_")}
    names = getattr(package, "__all__", [name for name, each in given.items() if each.__module__ == package.__name__])
    asked = [name for name in names if name in given and name not in WITHOUT_EXAMPLE]
    assert [name for name in asked if ">>> " not in (given[name].__doc__ or "")] == []


GUIDE = (REPO / "docs/writing_an_encoding.md").read_text()


def first_cells(heading):
    """The first column of the table under a heading of the guide, without its header."""
    table = [line for line in GUIDE.split(f"## {heading}")[1].split("\n## ")[0].splitlines() if line.startswith("|")]
    return [line.split("|")[1] for line in table[2:]]


def test_the_guide_tells_of_every_hook():
    hooks = {re.search(r"`(\w+)\(", cell)[1] for cell in first_cells("The hooks")}
    methods = {name for name, value in vars(pj.Encoding).items() if callable(value) and not name.startswith("_")}
    assert methods - {"coordinates"} == hooks


def test_the_guide_tells_of_all_that_is_declared():
    named = {name for cell in first_cells("What an encoding declares") for name in re.findall(r"`(\w+)`", cell)}
    declared = {name for name, kind in pj.Encoding.__annotations__.items() if "ClassVar" in str(kind)} - {"spec_name"}
    assert named == declared | {"observes"} | {need.name for need in Needs}


def test_the_guide_tells_what_each_failure_of_a_check_means():
    assert [cell.strip() for cell in first_cells("What `posjax check` says")] == list(PROPERTIES)


@pytest.mark.thorough
def test_the_encodings_of_the_guide_hold_to_all_properties(monkeypatch):
    monkeypatch.setattr(posjax.spec, "REGISTRY", dict(posjax.spec.REGISTRY))
    before = {*pj.names()}
    text = GUIDE.split("## A backend of your own")[0]
    exec("\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)), {"__name__": "guide"})
    written = sorted({*pj.names()} - before)
    assert len(written) == 10
    for name in written:
        spec = f"{name} >> steps" if name == "squeezed" else name
        assert [str(row) for row in check(pj.parse(spec)) if not row.ok] == [], name
