"""What the documents name exists."""

import pathlib
import re

import pytest
from goldens import CHECKS

import posjax as pj
from posjax.spec import registered_names

REPO = pathlib.Path(__file__).parents[1]
ERRATA = [line.split(" | ") for line in (REPO / "docs/errata.md").read_text().splitlines() if line.startswith("| ")]
ROWS = [row for row in ERRATA if "---" not in row[1] and row[-1].strip(" |") != "pinned by"]
DEFINED = {name for path in (REPO / "tests").rglob("*.py") for name in re.findall(r"def (test_\w+)", path.read_text())}


def test_there_are_some_thirty_errata():
    assert len(ROWS) >= 30
    assert all(len(row) == 4 for row in ROWS), "a row of four cells"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip("| ")[:60])
def test_every_erratum_is_pinned_by_a_test(row):
    named = set(re.findall(r"\btest_\w+", row[-1])) - {"test_goldens"}
    files = re.findall(r"tests/[\w/]+\.py", row[-1])
    goldens = re.findall(r"`(\w+: [^`]+)`", row[-1])
    assert named or files or goldens, "no test is named"
    for start, *rest in (golden.split("...") for golden in goldens):
        assert any(
            str(check).startswith(start) and all(part.strip() in str(check) for part in rest) for check in CHECKS
        )
    assert named - {pathlib.Path(file).stem for file in files} <= DEFINED
    assert all((REPO / file).is_file() for file in files)


def test_readme_names_every_encoding():
    """In the table of families, all that are registered and no others."""
    table = (REPO / "README.md").read_text().split("| family | spec names |")[1].split("\n\n")[0]
    named = {name for line in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", line.split("|")[2])}
    assert named == {*registered_names()}
    assert named >= {*pj.names()}
