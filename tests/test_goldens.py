"""Our encodings beside other libraries: tests/goldens/maker.py says how the vectors were made."""

import json
from pathlib import Path

import pytest
from goldens import CHECKS, table
from goldens.check import load

GOLDENS = Path(__file__).parent / "goldens"
PACKAGES = {"torch", "torchvision", "transformers", "timm", "einops", "x-transformers", "pillow", "tensorflow"}
PACKAGES |= {"axial-positional-embedding", "diffusers", "local-attention", "rotary-embedding-torch"}

FIRST = {check.encoding: check for check in reversed(CHECKS)}


def marks(check):
    """The first comparison of each encoding is fast, the others are slow."""
    return [] if check is FIRST[check.encoding] else pytest.mark.slow


@pytest.mark.parametrize("check", [pytest.param(check, id=str(check), marks=marks(check)) for check in CHECKS])
def test_ours_is_theirs(check):
    assert check.error <= check.atol


def test_the_table_is_current():
    """docs/goldens.md names every encoding, reference and number of comparisons that there are, with errors in bounds."""
    written = [line.strip("| ").split(" | ") for line in table.OUT.read_text().splitlines() if line.startswith("| `")]
    now = table.rows(formula=lambda case: 0.0, golden=lambda check: 0.0)
    stale = "run python tests/goldens/table.py"
    assert [row[:2] + row[3:5] for row in written] == [row[:2] + row[3:5] for row in now], stale
    assert all(float(row[2]) <= 1e-5 for row in written)
    assert all(row[5] == "-" or float(row[5]) <= float(row[6]) for row in written)


def test_goldens_name_their_makers_and_stay_small():
    files = list(GOLDENS.glob("*.npz"))
    assert sum(file.stat().st_size for file in files) < 1_780_000
    for file in files:
        arrays = load(file.stem)
        versions = arrays["versions"] if "versions" in arrays else json.loads(str(arrays["json"]))["versions"]
        makers = {line.split()[0] for line in versions}
        assert makers & {"torch", "tensorflow"}
        assert makers <= PACKAGES
