"""Published constants and behaviours of logit biases, and their refusals."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from goldens.checks_bias import WINDOWS, beit_hf_bias

import posjax as pj
from posjax.encodings.pairs import pairwise

KEY = jax.random.key(0)


def bias(spec, site, num_heads=4, params=None, **sizes):
    encoding = pj.parse(spec)
    if params is None:
        params = encoding.init(KEY, pj.Dims(**dict(width=16, num_heads=num_heads, head_dim=4) | sizes))
    q = jnp.zeros((len(site.segment), num_heads, 4))
    run = jax.jit(lambda params, q: encoding.bias(params, q, encoding.observe(params, q[:, 0], site), q, site))
    return np.asarray(run(params, q))


def test_bam_begins_with_no_bias_or_with_alibis():
    """b = 0 adds the same to all keys, which no softmax sees; b = 1 with ALiBi's slopes is ALiBi."""
    site = pj.sites(5)
    np.testing.assert_allclose(bias("bam()", site), -1, rtol=1e-6)
    np.testing.assert_allclose(bias("bam(start='alibi')", site), bias("alibi()", site), atol=1e-5)


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
