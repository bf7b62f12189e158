"""Published constants and behaviours of logit biases, and their refusals."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from goldens.checks_bias import WINDOWS, beit_hf_bias

import posjax as pj
from posjax.encodings.bias import alibi_slopes
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


def test_beit_of_transformers_is_transposed_on_other_windows_than_square():
    """It takes its (2h - 1, 2w - 1) table for a (2w - 1, 2h - 1) one, resized at every call."""
    for number, window in enumerate(WINDOWS):
        ours, theirs = beit_hf_bias(number)
        gap = np.abs(ours - theirs).max()
        assert gap == 0 if window[0] == window[1] else gap > 1


OUTSIDE = {
    "a larger grid": (
        "swin()",
        pj.grid(3, 4),
        r"swin has rows for offsets within a window of 3x3.*\[0 0\] and \[0 3\]",
    ),
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
    softplus = lambda x: np.log1p(np.exp(x))  # noqa: E731
    for kind, p_of in (("log", softplus), ("power", lambda x: 2 / (1 + np.exp(-x)))):
        params = jax.device_get(jax.jit(functools.partial(pj.encodings.kerple(kind).init, dims=dims))(KEY))
        p, a = p_of(params["p"]), softplus(params["a"])
        np.testing.assert_allclose([p.min(), p.max(), p.mean()], [0.02, 1.99, 1.01], atol=0.02)
        np.testing.assert_allclose([a.min(), a.max(), a.mean()], [0.01, 1, 0.505], atol=0.015)
    of_heads = {name: np.float32([-30, 0, 0, 30]) for name in ("p", "a")}
    for kind in ("log", "power"):
        out = bias(f"kerple('{kind}')", pj.sites(5), params=of_heads)
        assert np.isfinite(out).all()
        assert (np.diff(out[:, -1]) >= 0).all()


def test_pairwise_computes_the_same_in_pieces():
    features = np.random.default_rng(0).normal(size=(9, 1000, 2)).astype(np.float32)
    function = lambda x: jnp.sin(x @ jnp.ones((2, 3)))  # noqa: E731
    summed = lambda f, hidden: (jnp.sum(out := pairwise(function, f, hidden)), out)  # noqa: E731
    both = jax.jit(lambda f: [jax.value_and_grad(summed, has_aux=True)(f, hidden) for hidden in (1, 500)])
    for pieces, whole in zip(*map(jax.tree.leaves, both(features)), strict=True):
        np.testing.assert_allclose(pieces, whole, rtol=2e-6, atol=1e-6)


SIZES = {
    "no window": ("swin()", dict(), pj.sites(3), r"swin needs to know its window: give Dims\(grid"),
    "more undirected heads than heads": ("lookhere(undirected=5)", dict(), pj.grid(1, 3), "as many heads, got 4"),
    "an image": ("grape_a()", dict(), pj.grid(1, 3), r"raster\(width=\.\.\.\) >> grape_a\(\)"),
}


@pytest.mark.parametrize(("spec", "sizes", "site", "message"), SIZES.values(), ids=SIZES)
def test_sizes_that_cannot_be(spec, sizes, site, message):
    with pytest.raises(ValueError, match=message):
        bias(spec, site, **sizes)


@pytest.mark.parametrize("site", [pj.sites(9), pj.grid(3, 4)], ids=["line", "grid"])
def test_a_token_is_no_distance_from_itself(site):
    """However small the power, and in whatever way XLA rounds positions that it divides while it subtracts them."""
    encoding = pj.parse("interpolate(factor=3) >> kerple(kind='power')")
    params = (), {name: np.full(3, -5, np.float32) for name in ("p", "a")}  # p is 0.013
    q = jnp.zeros((len(site.segment), 3, 8))

    @jax.jit
    def bias(site):
        site = encoding.place(params, site)
        return encoding.bias(params, q, site, q, site)

    diagonal = np.diagonal(bias(jax.tree.map(jnp.asarray, site)), axis1=1, axis2=2)
    np.testing.assert_allclose(diagonal, 0, atol=1e-6)
