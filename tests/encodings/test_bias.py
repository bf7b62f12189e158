"""Published constants and behaviours of logit biases, and their refusals."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from goldens.checks_bias import WINDOWS, beit_hf_bias

import posjax as pj
from posjax.encodings.bias import alibi_slopes
from posjax.encodings.bias_grid import OffsetTable
from posjax.encodings.pairs import HIDDEN, pairwise

KEY = jax.random.key(0)


def bias(spec, site, num_heads=4, params=None, **sizes):
    encoding = pj.parse(spec)
    if params is None:
        params = encoding.init(KEY, pj.Dims(**dict(width=16, num_heads=num_heads, head_dim=4) | sizes))
    q = jnp.zeros((len(site.segment), num_heads, 4))
    run = jax.jit(lambda params, q: encoding.bias(params, q, encoding.observe(params, q[:, 0], site), q, site))
    return np.asarray(run(params, q))


def test_alibi_slopes_of_twelve_heads_are_not_a_power_of_the_head():
    """2^(-8h/H), as some ports have it for every H, is off by up to 0.69."""
    naive = 2.0 ** (-8 * np.arange(1, 13) / 12)
    gap = np.abs(alibi_slopes(12) - naive)
    assert gap.argmax() == 8
    np.testing.assert_allclose(gap.max(), 2**-0.5 - 2**-6, rtol=1e-12)
    np.testing.assert_allclose(alibi_slopes(8), 2.0 ** -np.arange(1, 9), rtol=0)


def test_bam_begins_with_no_bias_or_with_alibis():
    """b = 0 adds the same to all keys, which no softmax sees; b = 1 with ALiBi's slopes is ALiBi."""
    site = pj.sites(5)
    np.testing.assert_allclose(bias("bam()", site), -1, rtol=1e-6)
    np.testing.assert_allclose(bias("bam(start='alibi')", site), bias("alibi()", site), atol=1e-5)


def test_bam_looks_for_keys_at_its_location():
    """m = exp(c) - exp(-c) is counted from the query to the key, as in their code; their README has it the other way."""
    params = {"scale": np.zeros(1), "shape": np.ones(1), "location": np.float32([-np.arcsinh(1)])}  # m = -2
    found = bias("bam(location=True)", pj.sites(6), 1, params)[0]
    assert found[4].argmax() == 2


def test_alibi_tells_left_from_right_as_it_is_told():
    site = pj.sites(5)
    both = bias("alibi()", site)
    np.testing.assert_array_equal(both, both.transpose(0, 2, 1))
    offset = bias("alibi(direction='offset')", site)
    before = np.tril(np.ones((5, 5)), -1)
    np.testing.assert_allclose(offset, both + 0.5 * alibi_slopes(4)[:, None, None] * before, atol=1e-6)
    split = bias("alibi(direction='split')", site)
    assert ((split == HIDDEN) == np.stack(2 * [np.triu(before.T, 1)] + 2 * [before]).astype(bool)).all()
    np.testing.assert_allclose(split[0, 4], -alibi_slopes(2)[0] * np.arange(4, -1, -1))
    np.testing.assert_allclose(split[2, 0], -alibi_slopes(2)[0] * np.arange(5))
    three = bias("alibi(direction='split')", site, num_heads=3)
    assert [(head == HIDDEN)[0, 1] for head in three] == [True, True, False]


def test_alibi_pi_is_alibi_until_the_original_length():
    for length, stretch in ((6, 1), (8, 1), (9, 8 / 9), (32, 1 / 4)):
        site = pj.sites(length, start=3)
        np.testing.assert_allclose(bias("alibi_pi(8)", site), stretch * bias("alibi()", site), rtol=1e-6)


def test_alibi_pi_knows_each_document_by_itself():
    packed = pj.sites(12)._replace(segment=np.int32([0] + 3 * [5] + 8 * [2]), prefix=np.int32(11 * [0] + [1]))
    spans = pj.parse("alibi_pi(2)").observe((), jnp.zeros((12, 4)), packed).state
    np.testing.assert_array_equal(spans, [1] + 3 * [3] + 8 * [7])
    with pytest.raises(ValueError, match=r"alibi_pi needs to know the length of each document: .*observe"):
        q = jnp.zeros((12, 2, 4))
        pj.parse("alibi_pi(2)").bias((), q, packed, q, packed)


def test_lookhere_views_tile_the_image():
    """On any grid, square or not: every key is in the view of some head, itself in that of all of them."""
    site = pj.grid(3, 5, prefix=2)
    for fov, directed in ((180, 4), (90, 4), (45, 8)):
        out = bias(f"lookhere(fov={fov}, undirected=0)", site, num_heads=directed)
        assert not out[:, :2].any()
        assert not out[:, :, :2].any()
        seen = out[:, 2:, 2:] > HIDDEN
        assert seen.any(axis=0).all()
        assert seen[:, np.arange(15), np.arange(15)].all()
        middle = seen[:, 7].reshape(directed, 3, 5)  # of row 1, column 2
        edges = {180: [10, 10, 9, 9], 90: [6, 6, 6, 6], 45: [3, 3, 5, 5, 3, 3, 5, 5]}[fov]
        assert [int(view.sum()) for view in middle] == edges


def test_lookhere_slopes_as_the_authors():
    """12 heads at 90 degrees: 8 directed ones of 1/2, then 4^-1 ... 4^-4, times the factor of the layers."""
    site = pj.grid(1, 2)
    out = -bias("lookhere(slope=1)", site, num_heads=12)
    slopes = np.maximum(np.where(out < -HIDDEN, out, 0)[:, 0, 1], np.where(out < -HIDDEN, out, 0)[:, 1, 0])
    sideways = [0, 1, 2, 3, 6, 7]  # up and down see neither left nor right
    np.testing.assert_allclose(slopes[sideways], 0.5)
    np.testing.assert_allclose(slopes[8:], [1 / 4, 1 / 16, 1 / 64, 1 / 256])
    assert not slopes[4:6].any()


def test_swin_v2_depends_on_the_window_it_was_trained_on():
    """16 sigmoid keeps it between 0 and 16; with the window given, a larger grid sees the same function of offsets."""
    params = pj.parse("swin_v2()").init(KEY, pj.Dims(16, 4, 4, grid=(4, 4)))
    small, large = pj.grid(4, 4), pj.grid(6, 4)
    near, far = (bias("swin_v2()", site, params=params) for site in (small, large))
    np.testing.assert_allclose(far[:, :16, :16], near, atol=1e-5)
    assert (far > 0).all()
    assert (far < 16).all()
    wider = bias("swin_v2(pretrained_window=(4, 4))", large, grid=(6, 4))
    np.testing.assert_allclose(wider, far, atol=1e-5)
    assert np.abs(bias("swin_v2()", large, grid=(6, 4)) - far).max() > 1e-3


def test_beit_of_transformers_is_transposed_on_other_windows_than_square():
    """It takes its (2h - 1, 2w - 1) table for a (2w - 1, 2h - 1) one, resized at every call."""
    for number, window in enumerate(WINDOWS):
        ours, theirs = beit_hf_bias(number)
        gap = np.abs(ours - theirs).max()
        assert gap == 0 if window[0] == window[1] else gap > 1


def test_beit_has_a_bias_for_each_pair_of_prefix_tokens():
    site, extent = pj.grid(2, 2, prefix=3), (2, 2)
    params = OffsetTable(np.arange(9 + 3 + 3 + 9, dtype=np.float32)[:, None], extent, 3)
    out = bias("beit()", site, num_heads=1, params=params)[0]
    np.testing.assert_array_equal(out[:3, 3:], np.repeat([[9], [10], [11]], 4, axis=1))
    np.testing.assert_array_equal(out[3:, :3], np.repeat([[12, 13, 14]], 4, axis=0))
    np.testing.assert_array_equal(out[:3, :3], np.arange(15, 24).reshape(3, 3))
    np.testing.assert_array_equal(out[3:, 3:], [[4, 3, 1, 0], [5, 4, 2, 1], [7, 6, 4, 3], [8, 7, 5, 4]])


OUTSIDE = {
    "a larger grid": (
        "swin()",
        pj.grid(3, 4),
        r"swin has rows for offsets within a window of 3x3.*\[0 0\] and \[0 3\]",
    ),
    "a grid laid on its side": ("beit()", pj.grid(4, 2), r"within a window of 3x3.*make the window larger"),
    "another prefix token": (
        "beit()",
        pj.grid(2, 2, prefix=2),
        "rows for 1 prefix tokens, none for number 2: set Dims",
    ),
}


@pytest.mark.parametrize(("spec", "site", "message"), OUTSIDE.values(), ids=OUTSIDE)
def test_offsets_outside_the_window_are_refused(spec, site, message):
    with pytest.raises(ValueError, match=message):
        bias(spec, site, grid=(3, 3), prefix=1)
    padding = site._replace(segment=np.zeros_like(site.segment))
    assert not bias(spec, padding, grid=(3, 3), prefix=1).any()
    unknown = jax.jit(lambda site: pj.parse(spec).bias(*arguments(spec, site)))(site)
    assert np.isnan(unknown).any()
    assert not np.isnan(unknown).all()


def arguments(spec, site):
    q = jnp.zeros((len(site.segment), 4, 4))
    return pj.parse(spec).init(KEY, pj.Dims(16, 4, 4, grid=(3, 3), prefix=1)), q, site, q, site


def test_kerple_starts_and_stays_within_its_bounds():
    """p in (0, 2) and a in (0, 1) to begin with; whatever the parameters, the log kernel falls and p is at most 2."""
    dims = pj.Dims(16, 4000, 4)
    for kind, p_of in (("log", jax.nn.softplus), ("power", lambda x: 2 * jax.nn.sigmoid(x))):
        params = pj.encodings.kerple(kind).init(KEY, dims)
        p, a = p_of(params["p"]), jax.nn.softplus(params["a"])
        np.testing.assert_allclose([p.min(), p.max(), p.mean()], [0.02, 1.99, 1.01], atol=0.02)
        np.testing.assert_allclose([a.min(), a.max(), a.mean()], [0.01, 1, 0.505], atol=0.015)
    site = pj.sites(5)
    for kind in ("log", "power"):
        for value in (-30.0, 0.0, 30.0):
            params = {"p": jnp.full(4, value), "a": jnp.full(4, value)}
            out = bias(f"kerple('{kind}')", site, params=params)
            assert np.isfinite(out).all()
            assert (np.diff(out[:, -1]) >= 0).all()


def test_sandwich_as_its_appendix_has_it():
    """sandwich = PE PE^T of width 128, each head divided by 8 h / H: its value at distance 0 is 64 H / 8h."""
    out = bias("sandwich()", pj.sites(3), num_heads=12)
    np.testing.assert_allclose(out[:, 1, 1], 64 * 12 / (8 * np.arange(1, 13)), rtol=1e-6)
    step = sum(math.cos(10_000 ** (-2 * i / 128)) for i in range(64))
    np.testing.assert_allclose(out[11, 0, 1], step / 8, rtol=1e-6)


def test_fire_is_normalised_by_the_query():
    """Beyond the threshold the first token of a causal row is always at ratio 1, so it gets the same bias."""
    out = bias("fire(init_L=4)", pj.sites(32))
    np.testing.assert_allclose(out[:, 5:, 0], np.broadcast_to(out[:, 31:, 0], (4, 27)), atol=1e-5)
    assert np.abs(out[:, 2, 0] - out[:, 31, 0]).max() > 1e-3
    assert np.abs(out[:, 31, 28] - out[:, 13, 10]).max() > 1e-3  # as far apart, elsewhere


def test_fire_on_a_grid():
    """A row or a column of patches is a line; elsewhere pairs at one ratio of distance to normaliser share a bias."""
    line = bias("fire(init_L=4)", pj.sites(9))
    for shape in ((1, 9), (9, 1)):
        np.testing.assert_allclose(bias("fire(init_L=4)", pj.grid(*shape)), line, atol=1e-6)
    out = bias("fire(init_L=0.01)", pj.grid(5, 5)).reshape(-1, 5, 5, 5, 5)
    np.testing.assert_allclose(out[:, 3, 4, 0, 0], out[:, 4, 3, 0, 0], atol=1e-6)  # sqrt(9 + 16) / 5
    np.testing.assert_allclose(out[:, 3, 4, 0, 0], out[:, 0, 2, 0, 0], atol=1e-5)  # 2 / 2
    np.testing.assert_allclose(out[:, 3, 4, 0, 0], out[:, 2, 0, 4, 0], atol=1e-5)  # 2 / 2, to a later patch
    assert np.abs(out[:, 3, 4, 0, 0] - out[:, 3, 4, 3, 0]).max() > 1e-3  # 4 / 5


def test_dape_takes_only_what_biases_logits():
    assert pj.parse("dape(encoding=interpolate(factor=2) >> (t5() + alibi()))").relative
    assert not pj.parse("dape(fire())").relative
    for inner in ("rope()", "sinusoidal()", "rope() + alibi()"):
        with pytest.raises(ValueError, match="dape takes an encoding that only biases logits"):
            pj.parse(f"dape({inner})")


def test_pairwise_computes_the_same_in_pieces():
    features = jax.random.normal(KEY, (9, 1000, 2))
    function = lambda x: jnp.sin(x @ jnp.ones((2, 3)))  # noqa: E731
    whole, pieces = pairwise(function, features, 1), pairwise(function, features, 500)
    np.testing.assert_allclose(pieces, whole, rtol=0, atol=1e-6)
    grads = [jax.grad(lambda f, hidden=hidden: pairwise(function, f, hidden).sum())(features) for hidden in (1, 500)]
    np.testing.assert_allclose(*grads, rtol=0, atol=1e-6)


SIZES = {
    "no window": ("swin()", dict(), pj.sites(3), r"swin needs to know its window: give Dims\(grid"),
    "no window for an MLP": ("swin_v2()", dict(), pj.sites(3), "swin_v2 needs to know its window"),
    "a line's window": ("swin()", dict(length=3), pj.grid(1, 3), "positions of 1 axes, got 2"),
    "a line's network": ("dpb()", dict(), pj.grid(1, 3), "1 position axes, got 2"),
    "a line's MLP": ("swin_v2()", dict(length=3), pj.grid(1, 3), "window of 1 axes, got positions of 2"),
    "more undirected heads than heads": ("lookhere(undirected=5)", dict(), pj.grid(1, 3), "as many heads, got 4"),
    "an image": ("grape_a()", dict(), pj.grid(1, 3), r"raster\(width=\.\.\.\) >> grape_a\(\)"),
}


@pytest.mark.parametrize(("spec", "sizes", "site", "message"), SIZES.values(), ids=SIZES)
def test_sizes_that_cannot_be(spec, sizes, site, message):
    with pytest.raises(ValueError, match=message):
        bias(spec, site, **sizes)


@pytest.mark.parametrize("site", [pj.sites(9), pj.grid(3, 4)], ids=["line", "grid"])
@pytest.mark.parametrize("spec", ["alibi", "kerple(kind='power')", "interpolate(factor=3) >> kerple(kind='power')"])
def test_a_token_is_no_distance_from_itself(spec, site):
    """However small the power, and in whatever way XLA rounds positions that it divides while it subtracts them."""
    encoding = pj.parse(spec)
    params = encoding.init(jax.random.key(0), pj.Dims(24, 3, 8))
    params = jax.tree.map(lambda x: jnp.full_like(x, -5.0), params)  # p is 0.013
    q = jnp.zeros((len(site.segment), 3, 8))

    @jax.jit
    def bias(site):
        site = encoding.place(params, site)
        return encoding.bias(params, q, site, q, site)

    diagonal = jnp.diagonal(bias(jax.tree.map(jnp.asarray, site)), axis1=1, axis2=2)
    np.testing.assert_allclose(diagonal, 0, atol=1e-6)
