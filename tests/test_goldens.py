"""Our encodings beside transformers and timm: tests/goldens/make.py made the vectors and says how."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from goldens import CHECKS, table

import posjax as pj
from posjax.encodings.additive import Table

GOLDENS = Path(__file__).parent / "goldens"


@pytest.mark.parametrize("check", CHECKS, ids=str)
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


def load(name):
    with np.load(GOLDENS / f"{name}.npz", allow_pickle=False) as file:
        return dict(file)


def line(position):
    ones = np.ones(len(position), np.int32)
    return pj.Site(np.asarray(position, np.int32), ones, 0 * ones)


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
    q, k = pj.parse(spec).rotate((), file["q"], site, file["k"], site)
    # Up to position 15 both are exact; beyond, the references' float32 product of position and frequency is not.
    for what, ours in (("q", q), ("k", k)):
        theirs = file[golden.format(what)]
        close(ours[:8], theirs[:8], atol=2e-6)
        close(ours, theirs, atol=4e-5)


@pytest.mark.parametrize("num_heads", load("alibi")["heads"])
@pytest.mark.parametrize("source", ["bloom", "mpt"])
def test_alibi_of_bloom_and_mpt(source, num_heads):
    """Theirs is a function of the key alone, which softmax cannot tell from ours under a causal mask."""
    theirs = load("alibi")[f"{source}_{num_heads}"]
    site = pj.sites(theirs.shape[1])
    q = jnp.zeros((len(site.position), num_heads, 2))
    ours = pj.parse("alibi()").bias((), q, site, q, site)
    lower = np.tril(np.ones(ours.shape[1:], bool))
    close(ours, np.where(lower, theirs[:, None, :] - theirs[:, :, None], ours), atol=1e-6)


@pytest.mark.parametrize("number", range(7))
def test_t5_buckets(number):
    file = load("t5")
    buckets, distance, bidirectional = file["settings"][number].tolist()
    encoding = pj.encodings.t5(buckets, distance, bool(bidirectional))
    table = jnp.arange(buckets, dtype=jnp.float32)[:, None]
    q = jnp.zeros((1, 1, 2))
    bias = encoding.bias({"table": table}, q, line([1000]), q, line(1000 + file["offset"]))
    np.testing.assert_array_equal(bias[0, 0], file[f"bucket_{number}"])


@pytest.mark.parametrize(("name", "spec"), [("encoder", "t5()"), ("decoder", "t5(bidirectional=False)")])
def test_t5_bias(name, spec):
    file = load("t5")
    site, q = pj.sites(40), jnp.zeros((40, 2, 4))
    bias = pj.parse(spec).bias({"table": file[f"table_{name}"]}, q, site, q, site)
    close(bias, file[f"bias_{name}"], atol=0)


def test_learned_table_of_vit():
    file = load("grids")
    out = pj.parse("learned()").embed(Table(file["vit_table"], (3, 3)), file["vit_tokens"], pj.grid(3, 3, prefix=1))
    close(out, file["vit_out"], atol=1e-6)


def test_sines_on_a_grid_of_timm():
    theirs = load("grids")["sincos"]
    ours = pj.parse("sinusoidal(layout='concatenated')").embed((), jnp.zeros((15, 32)), pj.grid(3, 5))
    close(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_axial_rotary_of_timm(layout):
    file = load("grids")
    site, x = pj.grid(3, 5), file["rotary_x"]
    ours, _ = pj.encodings.rope(base=100, layout=layout).rotate((), x, site, x, site)
    close(ours, file[f"rotary_{layout}"], atol=2e-6)


def test_goldens_name_their_makers_and_stay_small():
    files = list(GOLDENS.glob("*.npz"))
    assert sum(file.stat().st_size for file in files) < 1_500_000
    for file in files:
        assert {line.split()[0] for line in load(file.stem)["versions"]} == {"torch", "transformers", "timm"}
