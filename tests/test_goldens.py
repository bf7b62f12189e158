"""Our encodings beside transformers and timm: tests/goldens/make.py made the vectors and says how."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from goldens import CHECKS, table
from goldens.check import line, load

import posjax as pj

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


def close(a, b, atol):
    np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("spec", "golden"),
    [
        ("rope()", "llama_{}_10000"),
        ("rope(base=500000)", "llama_{}_500000"),
        ("rope(layout='interleaved')", "gptj_{}"),
    ],
)
def test_rotary_of_llama_and_gptj(spec, golden):
    file = load("rotary")
    site = line(file["position"])
    q, k = jax.jit(lambda q, k: pj.parse(spec).rotate((), q, site, k, site))(file["q"], file["k"])
    # Up to position 15 both are exact; beyond, the references' float32 product of position and frequency is not.
    for what, ours in (("q", q), ("k", k)):
        theirs = file[golden.format(what)]
        close(ours[:8], theirs[:8], atol=2e-6)
        close(ours, theirs, atol=4e-5)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_axial_rotary_of_timm(layout):
    file = load("grids")
    site, x = pj.grid(3, 5), file["rotary_x"]
    ours = jax.jit(lambda x: pj.encodings.rope(base=100, layout=layout).rotate((), x, site, x, site)[0])(x)
    close(ours, file[f"rotary_{layout}"], atol=2e-6)


def test_goldens_name_their_makers_and_stay_small():
    files = list(GOLDENS.glob("*.npz"))
    assert sum(file.stat().st_size for file in files) < 1_780_000
    for file in files:
        arrays = load(file.stem)
        versions = arrays["versions"] if "versions" in arrays else json.loads(str(arrays["json"]))["versions"]
        makers = {line.split()[0] for line in versions}
        assert makers & {"torch", "tensorflow"}
        assert makers <= PACKAGES
