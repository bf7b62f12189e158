"""The widths at which parameters start, as published: other tests draw or disturb their parameters."""

import functools

import jax
import numpy as np
import pytest

import posjax as pj

WIDTH, HEADS, HEAD_DIM = 288, 6, 48
LINE = pj.Dims(WIDTH, HEADS, HEAD_DIM, length=60, prefix=4)
ON_GRID = LINE._replace(grid=(12, 14))
UNIFORM = 3**-0.5  # the deviation of a uniform number in [-1, 1]

STARTS = {
    "abacus(stddev=0.3)": (LINE, {"rows": 0.3}),
    "cable": (LINE, {"kernel": 0.02}),
    "carope(stddev=0.3)": (LINE, {"kernel": 0.3}),
    "cayley_string(stddev=0.3)": (LINE, {"skew": 0.3}),
    "comrope": (LINE, {"generator": 2**0.5}),
    "cope(stddev=0.3)": (LINE, {"": 0.3}),
    "centrality": (LINE, {"table": 0.02}),
    "data_dependent_alibi": (LINE, {"kernel": WIDTH**-0.5}),
    "deberta": (LINE, {"pos_key": 0.02 * WIDTH**0.5, "pos_query": 0.02 * WIDTH**0.5}),
    "dpb(hidden_dim=40)": (LINE, {"layers.0.kernel": UNIFORM * 40**-0.5, "layers.2.kernel": UNIFORM * 40**-0.5}),
    "fire(hidden_dim=400)": (LINE, {"layers.1.kernel": UNIFORM * 400**-0.5}),
    "fourier(features=20, hidden=80)": (LINE, {"inner": 20**-0.5, "outer": 80**-0.5}),
    "fox": (LINE, {"kernel": WIDTH**-0.5}),
    "grape_a": (LINE, {"query": HEAD_DIM**-0.5, "key": HEAD_DIM**-0.5}),
    "grape_ap": (LINE, {"kernel": 0.5 * WIDTH**-0.5}),
    "grape_m(stddev=0.3, per_head=True)": (LINE, {"kernel": 0.3}),
    "graphormer": (LINE, {"table": 0.02}),
    "harope(stddev=0.3)": (LINE, {"left": 0.3, "right": 0.3, "scale": 0.3}),
    "laplacian": (LINE, {"kernel": UNIFORM * 8**-0.5}),
    "learned(stddev=0.3)": (ON_GRID, {"rows": 0.3}),
    "learned_factorized(stddev=0.3)": (ON_GRID, {"row": 0.3, "column": 0.3, "prefix": 0.3}),
    "pape": (ON_GRID, {"direction": UNIFORM * 2**-0.5 * HEAD_DIM**-0.25}),
    "pape_ri": (LINE, {"curve": UNIFORM * WIDTH**-0.5}),
    "path(stddev=0.3)": (LINE, {"down": 0.3, "up": 0.3, "taps": 0.3, "kernel": 0.3}),
    "per_row_alibi": (LINE, {"kernel": UNIFORM * WIDTH**-0.5}),
    "peg": (LINE, {"kernel": (2 / 3) ** 0.5}),
    "peg(kernel_size=5)": (ON_GRID, {"kernel": (2 / 25) ** 0.5}),
    "random_walk": (LINE, {"kernel": UNIFORM / 4}),
    "repo": (LINE, {"gate": 0.02, "content": 0.02, "place": 0.02}),
    "selective_rope(rank=8)": (LINE, {"down": UNIFORM * WIDTH**-0.5, "up": UNIFORM * 8**-0.5, "taps": UNIFORM / 2}),
    "shaw": (LINE, {"key": HEAD_DIM**-0.5, "value": HEAD_DIM**-0.5}),
    "swin(stddev=0.3)": (ON_GRID, {"rows": 0.3}),
    "swin_v2(hidden_dim=400)": (ON_GRID, {"layers.0.kernel": UNIFORM * 2**-0.5, "layers.1.kernel": UNIFORM / 20}),
    "t5(num_buckets=400, max_distance=999)": (LINE, {"table": WIDTH**-0.5}),
    "transformer_xl": (LINE, {"u": 0.02, "v": 0.02, "position": 0.02}),
    "tree(depth=1, degree=2)": (LINE, {"rate": 144**-0.5}),
    "tupe(stddev=0.3)": (LINE, {"query": 0.3, "key": 0.3, "table.rows": 0.3}),
}


# Parameters that say nothing until they are trained, and one that counts 0.394 of a position a token.
CONSTANTS = {
    "beit": ("rows", 0),
    "cable": ("bias", 0),
    "cayley_string": ("skew", 0),
    "cope": ("", 0),
    "data_dependent_alibi": ("bias", 5),
    "fox": ("bias", 0),
    "grape_m": ("bias", 16 * np.log(0.3937 / (1 - 0.3937))),
    "harope": ("left", 0),
    "pope": ("phase", 0),
}
NOISY, PLAIN = (f"fope(gain={gain})" for gain in (0.3, 0))


@functools.cache
def started():
    """The first parameters of all specs, by one program: {spec: {name: array}}."""
    dims = {spec: dims for spec, (dims, _) in STARTS.items()} | dict.fromkeys((*CONSTANTS, NOISY, PLAIN), ON_GRID)
    init = jax.jit(lambda key: {spec: pj.parse(spec).init(key, dims) for spec, dims in dims.items()})
    found = {}
    for spec, params in jax.device_get(init(jax.random.key(0, impl="unsafe_rbg"))).items():
        leaves = jax.tree_util.tree_leaves_with_path(params)
        found[spec] = {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}
    return found


@pytest.mark.parametrize("spec", STARTS)
def test_parameters_start_as_wide_as_is_said(spec):
    found = started()[spec]
    for name, deviation in STARTS[spec][1].items():
        np.testing.assert_allclose(found[name].std(), deviation, rtol=0.12, err_msg=name)
        assert abs(found[name].mean()) < 0.2 * deviation, name


def test_the_noise_of_fope_is_xaviers():
    """12 of 24 frequencies stay for 512 tokens: variance gain^2 2 / (12 (12 + heads))."""
    noisy, plain = started()[NOISY], started()[PLAIN]
    for name in ("cos", "sin"):
        assert noisy[name].shape == (HEADS, 12, 12)
        np.testing.assert_allclose((noisy[name] - plain[name]).std(), 0.3 * np.sqrt(2 / (12 * 18)), rtol=0.12)


@pytest.mark.parametrize("spec", CONSTANTS)
def test_parameters_start_as_published(spec):
    name, value = CONSTANTS[spec]
    np.testing.assert_allclose(started()[spec][name], value, atol=2e-3)
