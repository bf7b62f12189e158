"""Sites: how they are made, which types they may have, and the programs in which they are made."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import WIDTH, World, each_case, params_of_long, world

import posjax as pj


def equal(site, other):
    jax.tree.map(np.testing.assert_array_equal, site, other)
    assert {leaf.dtype for leaf in jax.tree.leaves(site)} == {np.dtype(np.int32)}


def test_a_site_needs_no_more_than_positions():
    equal(pj.Site(np.arange(4, dtype=np.int32)), pj.sites(4))
    equal(pj.Site(position=pj.grid(2, 3).position), pj.grid(2, 3))
    equal(
        jax.tree.map(np.int32, pj.Site([3, 5, 8], segment=[1, 1, 2])), pj.Site(np.int32([3, 5, 8]), np.int32([1, 1, 2]))
    )
    qkv, sites = np.ones((3, 2, 1, 8), np.float32), (pj.Site(range(2)), pj.Site([4, 7]))
    assert jax.eval_shape(lambda qkv: pj.attend(pj.parse("rope"), (), *qkv, *sites), qkv).shape == (2, 1, 8)
    class_token = pj.Site(np.int32([0, 0, 1]), prefix=np.int32([1, 0, 0]))
    equal(class_token, pj.Site(np.int32([0, 0, 1]), np.ones(3, np.int32), np.int32([1, 0, 0])))
    assert jax.tree.map(lambda leaf: None, pj.sites(2)) == pj.Site(None, None, None)


def test_sites_of_a_decoding_step():
    """Their start is traced, and may be of a batch."""
    step = jax.jit(lambda start: pj.sites(2, start=start))
    equal(step(5), pj.sites(2, start=5))
    equal(step(jnp.array([3, 7])), pj.Site(np.int32([[3, 4], [7, 8]]), np.ones((2, 2), np.int32)))
    equal(pj.sites(2, start=np.int64(5)), pj.sites(2, start=5))


@pytest.mark.parametrize("start", [2**31 - 2, -(2**31) - 1])
def test_positions_that_int32_does_not_hold_are_refused(start):
    with pytest.raises(ValueError, match=r"below 2\^31; got .*nearer to 0"):
        pj.sites(5, start=start)


def test_packed_documents():
    site = pj.packed([2, 3], length=7)
    equal(site, pj.Site(np.int32([0, 1, 0, 1, 2, 0, 0]), np.int32([1, 1, 2, 2, 2, 0, 0])))
    equal(pj.packed([4]), pj.sites(4))
    with pytest.raises(ValueError, match=r"\[5, 7\] tokens, 12 together, do not fit into a row of 10"):
        pj.packed([5, 7], length=10)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("dtype", [bool, np.int64])
def test_padded_rows(traced, dtype):
    mask = np.array([[0, 0, 1, 1], [1, 0, 1, 1], [1, 1, 0, 0]], dtype)
    made = jax.jit(pj.padded)(mask) if traced else pj.padded(mask)
    equal(made, pj.Site(np.int32([[0, 0, 0, 1], [0, 0, 1, 2], [0, 1, 1, 1]]), mask.astype(np.int32)))


def hosted(w: World, site, implementation="dense"):
    """A function of the tokens: one layer."""

    def run(x):
        x, own = pj.host(w.encoding, w.params, x, site, key=None)
        q, k, v = jnp.einsum("...tm,nmhd->n...thd", x, w.weights)
        return own.attend(q, k, v, x=x, implementation=implementation)

    return run


@each_case([param for param in params_of_long() if not param.marks][::2])
def test_programs_of_sites(case):
    """NumPy's int64 and float64 give the same program as int32 and float32; a program may close over a batch of sites."""
    w = world(case)
    wide = jax.tree.map(lambda leaf: leaf.astype(np.int64 if leaf.dtype == np.int32 else np.float64), w.site)
    programs = [re.sub(" at 0x[0-9a-f]+", "", str(jax.make_jaxpr(hosted(w, site))(w.x))) for site in (w.site, wide)]
    assert programs[0] == programs[1]
    site = jax.tree.map(lambda leaf: np.stack([leaf, leaf]), w.site)
    jax.eval_shape(hosted(w, site, "blockwise"), jnp.stack([w.x, 2 * w.x]))


def test_types_that_no_site_may_have():
    x, q = jnp.zeros((3, WIDTH)), jnp.zeros((3, 2, 8))
    for position, message in [
        (np.arange(3) + 2**31, "2147483648 to 2147483650"),
        (jnp.arange(3, dtype=jnp.bfloat16), "positions of bfloat16 are rounded"),
    ]:
        site = pj.Site(position)
        with pytest.raises(ValueError, match=message):
            pj.host(pj.parse("alibi"), (), x, site, key=None)
        with pytest.raises(ValueError, match=message):
            pj.attend(pj.parse("alibi"), (), q, q, q, site, site)


@pytest.mark.slow
def test_a_full_cache_says_so():
    encoding = pj.parse("rope")

    def step(cache, start, count):
        x = jnp.ones((2, count, 16))
        x, own = pj.host(encoding, (), x, pj.sites(count, start=start), key=None)
        q = x.reshape(2, count, 2, 8)
        return own.attend_cached(q, q, q, cache=cache, cache_size=None if cache else 4)

    _, cache = jax.jit(step, static_argnums=2)(None, 0, 4)
    with pytest.raises(ValueError, match="the cache of 4 slots is full: of 5 tokens"):
        step(cache, 4, 1)
    out, cache = jax.jit(step, static_argnums=2)(cache, 4, 1)
    assert np.isnan(out).all()
    assert np.all(cache.lost)


@pytest.mark.parametrize(
    ("hides", "dtype", "array"), [(-np.inf, np.float32, np.asarray), (-1e4, jnp.bfloat16, jnp.asarray)]
)
def test_an_additive_mask_is_refused(hides, dtype, array):
    mask = array(np.array([hides, 0, 0]).astype(dtype))
    with pytest.raises(ValueError, match=r"holds 0 and 1, got -.*: of an additive mask give mask == 0"):
        pj.padded(mask)
    assert pj.padded(mask == 0).segment.tolist() == pj.padded((mask == 0).astype(dtype)).segment.tolist() == [0, 1, 1]
