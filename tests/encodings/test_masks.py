"""Masks: how many keys a size counts, by whose convention, and what BigBird draws."""

import jax
import numpy as np
import pytest
from goldens.check import load
from members.masks import bigbird_draws

import posjax as pj
from posjax.attention.dense import shown
from posjax.mask import Bounds


def mask(spec, site, k_site=None):
    return np.asarray(jax.jit(lambda: shown(pj.parse(spec), site, site if k_site is None else k_site))())


def keys_seen(spec, length=40):
    """The number of keys that the middle query sees, on both sides and causal."""
    seen = mask(spec, pj.sites(length))[length // 2]
    return seen.sum(), seen[: length // 2 + 1].sum()


def test_what_sizes_count():
    assert keys_seen("window(size=4)") == (7, 4)  # as Mistral's, the query's own among them
    assert keys_seen("window(size=4, ahead=1)") == (5, 4)
    assert keys_seen("window(size=2, ahead=3)") == (5, 2)
    assert keys_seen("dilated(size=4, dilation=3)") == (7, 4)
    assert keys_seen("longformer(window=4, num_global=0)") == (5, 3)  # half on each side, and the query's own
    assert keys_seen("sinks(num_sinks=2, window=4)") == (9, 6)


@pytest.mark.parametrize("spec", ["window(size=64, ahead=0)", "chunked(size=8, before=1)"])
def test_no_tile_beyond_the_shorter_side_is_computed(spec):
    """Tiles of 8 queries and 8 keys, one beside the other."""
    first, second = (Bounds((np.full((1, 1), n),), (np.full((1, 1), n + 7),)) for n in (0, 8))
    assert not pj.parse(spec).mask().may_show(first, second)
    assert pj.parse(spec).mask().may_show(second, first)


@pytest.mark.parametrize("spec", ["window(size=1)", "dilated(size=1)"])
def test_class_token_and_registers_are_global(spec):
    seen = mask(spec, pj.grid(2, 3, prefix=2))
    assert seen[:2].all()
    assert seen[:, :2].all()
    assert seen[2:, 2:].sum() == 6


def test_global_tokens_see_all_and_sinks_are_only_seen():
    seen = mask("longformer(window=2, num_global=2)", pj.sites(9))
    assert seen[:2].all()
    assert seen[:, :2].all()
    seen = mask("sinks(num_sinks=2, window=1)", pj.sites(9))
    assert seen[:, :2].all()
    assert not seen[:2, 2:].any()


def blocks_seen(spec, blocks, size=4, start=0):
    site = pj.sites(blocks * size)
    seen = mask(spec, site).reshape(blocks, size, blocks, size)
    assert (seen == seen[:, :1, :, :1]).all(), "blocks see each other whole"
    return seen[:, 0, :, 0]


def test_bigbird_blocks():
    e = pj.encodings.bigbird(block_size=4, num_random=3, num_global=2, seed=5)
    seen = blocks_seen(str(e), 40)
    assert (seen == seen.T).all()
    for block in range(40):
        earlier = {*np.flatnonzero(seen[block, : block + 1])}
        local = {0, 1, block - 1, block} if block > 1 else set(range(block + 1))
        assert earlier == local | bigbird_draws(block, e)
        assert len(earlier - local) == min(3, max(block - 3, 0))  # all there are, or three different ones


def test_bigbird_draws_do_not_depend_on_length_but_on_the_seed():
    spec = "bigbird(block_size=4, num_random=2, num_global=1, seed={})"
    seen = blocks_seen(spec.format(1), 30)
    np.testing.assert_array_equal(seen[:20, :20], blocks_seen(spec.format(1), 20))
    assert (seen != blocks_seen(spec.format(2), 30)).any()


def test_bigbird_draws_are_spread():
    """400 blocks choose among earlier ones: each fifth of the choice is drawn equally often."""
    e = pj.encodings.bigbird(num_random=1, num_global=0)
    place = [next(iter(bigbird_draws(block, e))) / (block - 1) for block in range(50, 450)]
    share = np.histogram(place, bins=5, range=(0, 1))[0] / 400
    assert np.abs(share - 0.2).max() < 0.06


def test_bigbird_of_transformers_draws_nothing_in_evaluation():
    """There all random blocks are block 0, which is global anyway; ours are the same in training and evaluation."""
    assert not load("masks")["bigbird_eval_draws"].any()
    e = pj.encodings.bigbird(block_size=4, num_random=2, num_global=1)
    assert all(len(bigbird_draws(block, e)) == 2 for block in range(4, 16))


@pytest.mark.parametrize(
    ("spec", "count"), [("longformer(4)", 1), ("sinks()", 1), ("chunked(8)", 1), ("bigbird(8)", 5)]
)
def test_unions_compare_each_coordinate_once(spec, count):
    """Kernels trace a mask as one function of few coordinates; BigBird's has block numbers twice, and three draws."""
    (term,) = pj.parse(spec).mask().terms(pj.sites(32), pj.sites(32))
    assert (len(term.q), len(term.k)) == (count, count)
