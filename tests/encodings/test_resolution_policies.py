"""Every encoding that takes grids, on other grids than the one it was made for: resized, fitted, scaled or extrapolated."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import HEAD_DIM, HEADS, WIDTH, forward, joined
from drawn import drawn
from members import GRID, MEMBERS

import posjax as pj

OLD, NEW, PREFIX = (4, 6), (5, 9), 2
DIMS = pj.Dims(WIDTH, HEADS, HEAD_DIM, grid=OLD, prefix=PREFIX)
KEY = jax.random.key(0)
WEIGHTS = (0.3 * np.random.default_rng(3).normal(size=(3, WIDTH, HEADS, HEAD_DIM))).astype(np.float32)
MORE = [
    "raster(width=6) >> tupe()",
    "(raster(width=6) >> learned(stddev=1)) + swin(stddev=1)",
    "axis(index=1) >> learned(stddev=1)",
    "dape(encoding=swin(stddev=1), hidden_dim=5)",
    "shape(max_offset=3) >> learned(stddev=1)",
    "randomized(length=80) >> learned(stddev=1)",
    "raster(width=6) >> pose(length=60) >> learned(stddev=1)",
    "learned_factorized(stddev=1, combine='sum')",
]


# The axes of a tree are the branches of its levels: a grid has more of them than it allows.
ON_GRIDS = [member.on(GRID) for name, member in MEMBERS.items() if name != "tree" and member.on(GRID)]
# Encodings whose parameters or arguments change; others are formulas of any position.
CHANGING = [spec for spec in ON_GRIDS if type(pj.parse(spec)).resized is not pj.Encoding.resized]
SPECS = sorted({*MORE, *(spec for spec in CHANGING if not spec.startswith("raster"))})
FINITE = ["beit(stddev=1)", "swin_v2(hidden_dim=6)"]
LEARNED = ["learned(stddev=1)", "learned_factorized(stddev=1)", "swin(stddev=1)", "beit(stddev=1)", "tupe(stddev=1)"]
LEARNED += ["raster(width=6) >> learned(stddev=1)", *MORE]


@functools.cache
def made(spec):
    encoding = pj.parse(spec)
    return encoding, drawn(functools.partial(encoding.init, dims=DIMS), KEY)


def close(a, b, atol=5e-6):
    np.testing.assert_allclose(np.asarray(a, np.float32), np.asarray(b, np.float32), rtol=0, atol=atol)


def tokens(site, seed=2):
    return np.random.default_rng(seed).normal(size=(len(site.segment), WIDTH)).astype(np.float32)


def same(a, b):
    return jax.tree.structure(a) == jax.tree.structure(b) and all(
        np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


@pytest.mark.parametrize("spec", SPECS)
def test_resized_encodings_run_on_their_new_grid(spec):
    """Traces with known sites, where a position without a row is refused."""
    encoding, site = pj.parse(spec), pj.grid(*NEW, prefix=PREFIX)
    found = []

    def run(key):
        resized, params = encoding.resized(encoding.init(key, DIMS), OLD, NEW)
        found.append(resized)
        return params, forward(resized, params, jnp.zeros((len(site.segment), WIDTH)), site, WEIGHTS)

    params, out = jax.eval_shape(run, KEY)
    again = jax.eval_shape(lambda key: found[0].init(key, DIMS._replace(grid=NEW)), KEY)
    assert params == again, "not the parameters of a model that is made for the new grid"
    assert pj.parse(str(found[0])) == found[0]
    assert out.shape == (len(site.segment), HEADS, HEAD_DIM)


@pytest.mark.parametrize(
    "spec",
    [pytest.param(s, marks=[] if s in FINITE else pytest.mark.slow) for s in [*FINITE, *LEARNED[:5:2], *MORE[3:5]]],
)
def test_resized_encodings_are_finite_and_the_same_grid_changes_nothing(spec):
    encoding, params = made(spec)
    for method in ("torch_bicubic", "dinov2"):
        resized, of_same = encoding.resized(params, OLD, OLD, method)
        assert resized == encoding
        assert same(of_same, params)
    site = pj.grid(*NEW, prefix=PREFIX)
    resized, of_new = encoding.resized(params, OLD, NEW)
    run = jax.jit(lambda params, x: forward(resized, params, x, site, WEIGHTS))
    assert np.isfinite(run(of_new, tokens(site))).all()


def test_a_table_behind_raster_is_resized_as_the_grid_that_it_is():
    on_grid, table = made("learned(stddev=1)")
    _, expected = on_grid.resized(table, OLD, NEW)
    on_line, _ = made("raster(width=6) >> learned(stddev=1)")
    flat = type(table)(table.rows, (OLD[0] * OLD[1],))
    resized, (_, rows) = on_line.resized(((), flat), OLD, NEW)
    assert str(resized) == "raster(width=9) >> learned(stddev=1)"
    assert rows.extent == (NEW[0] * NEW[1],)
    np.testing.assert_array_equal(rows.rows, expected.rows)


def test_tables_that_no_map_lets_see_other_positions_stay():
    """randomized and pose show the table the same range of positions on every grid."""
    for spec in ("randomized(length=80) >> learned()", "raster(width=6) >> pose(length=60) >> learned()"):
        encoding, params = made(spec)
        assert same(encoding.resized(params, OLD, NEW)[1], params)


def test_swin_v2_keeps_the_window_that_it_was_trained_on():
    encoding, params = made("swin_v2(hidden_dim=6)")
    resized, of_new = encoding.resized(params, OLD, NEW)
    assert resized == pj.parse("swin_v2(hidden_dim=6, pretrained_window=(4, 6))")
    assert of_new.window == OLD
    small, large = pj.grid(*OLD), pj.grid(*NEW)
    q = jnp.zeros((len(large.segment), HEADS, HEAD_DIM))
    inside = np.flatnonzero((large.position < OLD).all(axis=1))
    run = jax.jit(
        lambda q: (resized.bias(of_new, q, large, q, large), encoding.bias(params, q[:24], small, q[:24], small))
    )
    ours, theirs = run(q)
    close(np.asarray(ours)[:, inside][:, :, inside], theirs)


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("learned", "dinov2"),
        pytest.param("learned_factorized", "torch_bicubic", marks=pytest.mark.slow),
    ],
)
def test_run_time_resize_is_that_of_load_time(name, method):
    """Tests images of any grid, alone, packed or padded, with known sites or data."""
    at_run_time, params = made(f"{name}(stddev=1, resize='{method}')")
    images = [OLD, NEW, (2, 12), (3, 2)]
    embed = jax.jit(lambda site: at_run_time.embed(params, jnp.zeros((len(site.segment), WIDTH)), site))
    expected, packed = [], []
    for number, grid in enumerate(images, start=1):
        site = pj.grid(*grid, prefix=PREFIX)
        encoding, resized = pj.parse(name).resized(params, OLD, grid, method)
        expected.append(encoding.embed(resized, np.zeros((len(site.segment), WIDTH), np.float32), site))
        packed.append(site._replace(segment=number * site.segment))
    pad = pj.grid(1, 3)._replace(segment=np.zeros(3, np.int32), position=np.int32([[-9, 99]] * 3))
    row, expected = joined(*packed, pad), np.concatenate([*expected, np.zeros((3, WIDTH))])
    close(embed(row), expected, atol=4e-6)
    known = jax.jit(lambda x: at_run_time.embed(params, x, at_run_time.place(params, row)))
    close(known(np.zeros(expected.shape, np.float32)), expected, atol=4e-6)
    if method != "dinov2":
        first = expected[PREFIX : PREFIX + 24]
        plain = pj.parse(name).embed(params, np.zeros((26, WIDTH), np.float32), pj.grid(*OLD, prefix=PREFIX))[PREFIX:]
        np.testing.assert_array_equal(first, plain)


def test_run_time_resize_knows_the_image_when_patches_are_left_out():
    """`place` sees the whole image, `embed` may see what patch dropout has left of it."""
    encoding, params = made("learned(stddev=1, resize='torch_bicubic')")

    @jax.jit
    def both(x):
        whole = encoding.place(params, pj.grid(*NEW))
        kept = jax.tree.map(lambda leaf: leaf[:11], whole)
        return encoding.embed(params, x[:11], kept), encoding.embed(params, x, whole)[:11]

    close(*both(np.zeros((45, WIDTH), np.float32)), atol=1e-6)


def test_run_time_resize_refuses_what_has_no_row():
    encoding, params = made("learned(resize='jax_linear')")
    x = jnp.zeros((2, WIDTH))
    before = pj.grid(1, 2)._replace(position=np.int32([[0, -1], [0, 1]]))
    with pytest.raises(ValueError, match=r"none for position \[ 0 -1\]"):
        encoding.embed(params, x, before)
    unknown = jax.jit(lambda site: encoding.embed(params, x, site))(before)
    assert np.isnan(unknown).all(axis=1).tolist() == [True, False]
    with pytest.raises(ValueError, match="none for prefix token 3"):
        encoding.embed(params, jnp.zeros((4, WIDTH)), pj.grid(1, 1, prefix=3))


def test_fitted_grids_end_where_the_training_grid_does():
    encoding = pj.parse("fit_grid(height=4, width=6)")
    np.testing.assert_array_equal(encoding.place((), pj.grid(4, 6)).position, pj.grid(4, 6).position)
    np.testing.assert_allclose(encoding.place((), pj.grid(8, 3)).position[-1], [3.5, 4.0])
    centred = pj.parse("fit_grid(height=4, width=6, half_pixel=True)").place((), pj.grid(8, 3)).position
    np.testing.assert_allclose(centred[[0, -1]], [[-0.25, 0.5], [3.25, 4.5]])


def scaled_wave(spec, channels=6):
    encoding = pj.parse(spec)
    wave = encoding.wave(2, channels)
    return (
        wave if encoding.scaling is None else wave * encoding.scaling.multiplier(encoding.spectrum(2, channels), None)
    )


@pytest.mark.parametrize(("frequencies", "channels"), [("shared", 6), ("split", 12)])
def test_ntk_changes_the_base_of_each_axis(frequencies, channels):
    """base s^(d/(d - 2)) with the d channels of one axis, or of the one series whose frequencies are split."""
    base = 30 * 2 ** (channels / (channels - 2))
    scaled = scaled_wave(f"axial_rope(base=30, frequencies='{frequencies}', indexing='xy', scaling=ntk(factor=2))")
    expected = scaled_wave(f"axial_rope(base={base}, frequencies='{frequencies}', indexing='xy')")
    np.testing.assert_allclose(scaled, expected, rtol=1e-12)


def test_scaled_learned_frequencies_begin_as_those_of_the_scaled_base():
    dims = pj.Dims(HEADS * 12, HEADS, 12, grid=OLD)
    scaled, other = pj.parse("rope_mixed(scaling=ntk(factor=2))"), pj.parse(f"rope_mixed(base={10 * 2**1.5})")
    x, site = jax.random.normal(KEY, (12, HEADS, 12)), pj.grid(3, 4)
    both = jax.jit(lambda x: [e.rotate(e.init(KEY, dims), x, site, x, site)[0] for e in (scaled, other)])
    close(*both(x), atol=2e-5)
