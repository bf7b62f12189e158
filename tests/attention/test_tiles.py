"""The tiles that blockwise attention computes: tiles with a visible pair, and few others."""

import functools
import re
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, NamedSharding, PartitionSpec
from test_blockwise import largest

import posjax as pj
from posjax.attention.blockwise import blockwise, plan_of
from posjax.attention.dense import Operands, visible
from posjax.attention.tile_bias import tile_bias_of
from posjax.attention.tiles import Plan, cut, padded, seen_tiles, tile_sizes

LENGTH, RNG = 512, np.random.default_rng(0)
# One near, one with two parts, one with blocks that are no multiple of a tile; with causality or without.
MASKS = {
    "window(64)": True,
    "streaming(num_sinks=4, window=60) >> rope": True,
    "bigbird(block_size=48, num_random=1, num_global=1)": False,
}
SITES = {
    "a document": pj.sites(LENGTH),
    "documents and padding": pj.sites(LENGTH)._replace(
        segment=np.repeat([1, 2, 3, 0], [100, 200, 140, 72]).astype(np.int32)
    ),
    "restarting": pj.Site(
        *(np.concatenate(x) for x in zip(*(pj.sites(n)[:2] for n in (200, 312)), strict=True)),
        np.zeros(LENGTH, np.int32),
    ),
    "registers": pj.sites(LENGTH)._replace(prefix=np.where(np.arange(LENGTH) < 2, np.arange(LENGTH) + 1, 0)),
    "registers that are padding": pj.sites(LENGTH)._replace(
        segment=np.where(np.arange(LENGTH) == 64, 0, 1).astype(np.int32),
        prefix=np.where(np.arange(LENGTH) == 64, 1, 0).astype(np.int32),
    ),
    "shuffled": jax.tree.map(lambda x: np.random.default_rng(0).permutation(x), pj.sites(LENGTH)),
}


def tokens(length, heads):
    return jnp.asarray(RNG.normal(size=(length, heads, 8)), jnp.float32)


def planned(spec, site, causal=True, length=LENGTH, tile=None, heads=2, key_heads=1):
    """The plan of an attention, and its operands."""
    encoding = pj.parse(spec)
    params = encoding.init(jax.random.key(0), pj.Dims(8 * heads, heads, 8, length=length))
    site = encoding.place(params, site)
    order = np.arange(length, dtype=np.int32) if causal else None
    plan = Plan(encoding, 1.0, heads, 8, *tile_sizes(encoding, length, length, tile, "cpu"))
    q, k = jnp.zeros((heads, length, 8)), jnp.zeros((key_heads, length, 8))
    return plan, padded(plan, Operands(params, None, None, q, k, k, site, site, order, order))


def test_tiles_are_larger_on_a_gpu():
    encoding = pj.parse("alibi")
    assert tile_sizes(encoding, 4096, 4096, None, "cpu") == (256, 256)
    assert tile_sizes(encoding, 4096, 4096, None, "gpu") == (1024, 1024)
    assert tile_sizes(pj.parse("window(64)"), 4096, 4096, None, "gpu")[0] < 1024  # a mask knows its own
    tpu = AbstractMesh((1,), ("data",), abstract_device=AbstractDevice("TPU v5 lite", 1, "tpu"))
    q = jax.ShapeDtypeStruct((4096, 2, 8), jnp.float32, sharding=NamedSharding(tpu, PartitionSpec()))
    assert plan_of(encoding, q, q, scale=1.0).q_tile == 1024  # the program is compiled for what is not here


def computed(plan, operands, by_diagonal=False):
    """The pairs of tiles of each group, and how many of them, the first ones, are computed: [G, P, 2] and [G]."""
    seen = seen_tiles(plan, operands)
    index = jnp.arange(len(seen.groups))
    pairs, count = jax.lax.map(lambda n: seen.tiles(n, by_diagonal), index)
    return pairs, jnp.where(index < seen.count, count, 0)


def seen_by_tile(plan, operands):
    seen = visible(plan.encoding, operands.q_site, operands.k_site, operands.q_order, operands.k_order)
    rows, columns = (len(s.segment) // t for s, t in ((operands.q_site, plan.q_tile), (operands.k_site, plan.k_tile)))
    return seen.reshape(rows, plan.q_tile, columns, plan.k_tile).any(axis=(1, 3))


@pytest.mark.parametrize("spec", MASKS)
def test_no_tile_is_missed(spec):
    """128 tiles of 4 tokens are several groups."""

    @jax.jit
    @jax.vmap
    def computed_and_seen(site):
        plan, operands = planned(spec, site, MASKS[spec], tile=4)
        return *computed(plan, operands), seen_by_tile(plan, operands)

    sites = jax.tree.map(lambda *leaves: np.stack(leaves).astype(np.int32), *SITES.values())
    for chosen, counts, wanted in zip(*map(np.asarray, computed_and_seen(sites)), strict=True):
        some = [tuple(pair) for group, n in zip(chosen.tolist(), counts, strict=True) for pair in group[:n]]
        assert len(set(some)) == len(some)
        assert set(some) >= set(map(tuple, np.argwhere(wanted).tolist()))


@pytest.mark.parametrize("spec", ["window(64)", "sinks(num_sinks=4, window=60)"])
def test_no_tile_is_computed_in_vain(spec):
    """One document: the bounds of a tile then say exactly what its tokens see."""

    @jax.jit
    def counts():
        plan, operands = planned(spec, SITES["a document"])
        return computed(plan, operands)[1].sum(), seen_by_tile(plan, operands).sum()

    count, seen = counts()
    assert count == seen < 36


def compared_and_listed(length):
    """Pairs of tiles that are compared by each tile of 128 queries, and elements of the longest list."""
    plan, operands = planned("sinks(num_sinks=4, window=512)", pj.sites(length), length=length, heads=1)
    operands = operands._replace(**dict.fromkeys(("params", "q", "k", "rotated_q", "rotated_k", "v")))
    first_group = jax.make_jaxpr(lambda operands: seen_tiles(plan, operands).tiles(0))(operands)
    pairs = jax.jit(lambda operands: seen_tiles(plan, operands).count * np.prod(seen_tiles(plan, operands).sides))
    return int(pairs(operands)) / (length / 128), largest(first_group)


def test_what_is_listed_and_compared_grows_linearly():
    """Tiles are compared in those pairs of groups only that may see each other; no list is longer than there are tokens."""
    compared, listed = zip(*map(compared_and_listed, (2**16, 2**18)), strict=True)
    assert max(compared) <= 3 * 64  # by each tile of queries: keys of the two last groups, and of the first
    assert listed == (2**16, 2**18)  # the sites


@pytest.mark.slow
def test_no_tile_costs_a_copy_of_all_tokens():
    """The bodies of the loops change their arrays in place."""
    encoding, site = pj.parse("window(64) + rope"), pj.sites(8192)
    q = jax.ShapeDtypeStruct((8192, 1, 8), jnp.float32)

    def loss(q, k, v):
        return jnp.sum(pj.attend(encoding, ((), ()), q, k, v, site, site, causal=True, implementation="blockwise"))

    text = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(q, q, q).compile().as_text()
    bodies = re.findall(r"body=(%[\w.\-]+)", text)
    assert len(bodies) >= 6  # groups, runs and tiles, forward and backward
    for body in bodies:
        (lines,) = re.findall(rf"^{re.escape(body)} .*?^}}", text, re.MULTILINE | re.DOTALL)
        assert not [line for line in lines.split("\n") if " copy(" in line and "8192" in line.split(" copy(")[0]]


@pytest.mark.slow
def test_sites_that_a_program_makes_are_not_folded():
    """A million tokens compile about as fast as a few thousand: XLA does not compute at compile time what is seen."""

    def seconds(length):
        site = pj.sites(length)
        q = jax.ShapeDtypeStruct((length, 1, 8), jnp.float32)
        lowered = jax.jit(lambda q: pj.attend(pj.parse("alibi"), (), q, q, q, site, site, causal=True)).lower(q)
        start = time.perf_counter()
        lowered.compile()
        return time.perf_counter() - start

    assert seconds(2**20) < 4 * seconds(2**14)


def test_documents_are_not_compared():
    """Eight documents of a tile each: eight tiles of 36."""
    site = pj.sites(LENGTH)._replace(segment=np.repeat(np.arange(1, 9), 64).astype(np.int32))
    assert jax.jit(lambda: computed(*planned("none", site, tile=64))[1].sum())() == 8


def test_documents_under_vmap():
    """Each sequence of a batch goes through its own tiles: a batch costs the sum of what its sequences cost."""
    encoding, site = pj.parse("none"), pj.sites(LENGTH)
    segment = np.stack([site.segment, np.repeat(np.arange(1, 9), 64)]).astype(np.int32)
    x = tokens(LENGTH, 1)
    order = np.arange(LENGTH, dtype=np.int32)

    def one(segment):
        at = site._replace(segment=segment)
        return blockwise(encoding, Operands((), x, x, x, x, x, at, at, order, order), scale=1.0, tile=64)

    lowered = jax.jit(jax.vmap(one)).lower(segment)
    text = lowered.as_text()
    assert "tensor<2x1x64x64xf32>" not in text  # tiles of all sequences at once
    assert "tensor<1x64x64xf32>" in text
    np.testing.assert_allclose(lowered.compile()(segment)[1], jax.jit(one)(segment[1]), atol=1e-6)


@pytest.mark.parametrize(
    ("spec", "site", "runs"),
    [
        ("t5", "a document", 8),  # the diagonals
        ("interpolate(factor=2) >> t5", "a document", 1),  # nothing is shared: fractional positions get gradients
        ("t5", "shuffled", 36),
    ],
)
def test_equal_offsets_share_a_bias(spec, site, runs):
    @jax.jit
    def begins():
        plan, operands = planned(spec, SITES[site], tile=64)
        tile_bias = tile_bias_of(plan, operands)
        (pairs,), (count,) = computed(plan, operands, tile_bias.by_diagonal)
        return tile_bias.runs(pairs, count).sum()

    assert begins() == runs


@pytest.mark.slow
@pytest.mark.parametrize("site", ["documents and padding", "restarting", "registers"])
def test_tokens_side_by_side_have_a_bias_for_each_offset(site):
    """A tile of 64 by 64 tokens on a line computes 127 of its 4,096 biases, and has the others from them."""
    shapes = set()

    class Watched(type(pj.parse("t5"))):
        def of_offset(self, params, offset, num_heads):
            jax.debug.callback(lambda: shapes.add(offset.shape[:2]))
            return super().of_offset(params, offset, num_heads)

    plan, operands = planned("t5", SITES[site], tile=64)
    tile_bias = tile_bias_of(plan._replace(encoding=Watched()), operands)
    for i, j in ((0, 0), (3, 1), (1, 0), (7, 7)):
        shapes.clear()
        bias = jax.jit(tile_bias.shared)(jnp.int32(i), jnp.int32(j))
        jax.effects_barrier()
        tile = cut(plan, operands, i, j)
        on_line = site not in ("registers", "shuffled") and not (site == "restarting" and 3 in (i, j))
        assert shapes == ({(1, 127)} if on_line else {(64, 64)})
        one_document = [each._replace(segment=np.ones(64, np.int32)) for each in (tile.q_site, tile.k_site)]
        q = np.zeros((64, 2, 8), np.float32)
        expected = plan.encoding.bias(tile.params, q, one_document[0], q, one_document[1])
        real = (tile.q_site.segment > 0)[:, None] & (tile.k_site.segment > 0)
        np.testing.assert_array_equal(jnp.where(real, bias, 0), jnp.where(real, expected, 0))


def test_gradients_of_grouped_queries():
    """4 query heads, 2 key heads: as if keys and values were repeated."""
    encoding, length = pj.parse("tupe"), 24
    params = encoding.init(jax.random.key(0), pj.Dims(32, 4, 8, length=length))
    site = encoding.place(params, pj.sites(length))
    q, k, v = (tokens(length, heads) for heads in (4, 2, 2))

    def probe(implementation, repeat):
        def loss(params, q, k, v):
            k, v = (jnp.repeat(x, 2, axis=1) if repeat else x for x in (k, v))
            options = dict(causal=True, implementation=implementation)
            return jnp.sum(jnp.sin(pj.attend(encoding, params, q, k, v, site, site, **options)))

        return jax.value_and_grad(loss, argnums=(0, 1, 2, 3))(params, q, k, v)

    expected, tiled = jax.jit(lambda: (probe("dense", repeat=True), probe("blockwise", repeat=False)))()
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=2e-5), tiled, expected)


def test_causality_goes_by_the_order_that_is_given():
    encoding, rng = pj.parse("rope + alibi"), np.random.default_rng(0)
    site, order = pj.sites(40), np.arange(40, dtype=np.int32)
    q, k, v = (tokens(40, 2) for _ in range(3))
    a, b = rng.permutation(40)[:17], rng.permutation(40)
    sites = [jax.tree.map(lambda x, index=index: x[index], site) for index in (a, b)]

    @jax.jit
    def run(q, k, v):
        attend = functools.partial(pj.attend, encoding, ((), ()), causal=True)
        orders = dict(q_order=order[a], k_order=order[b])
        parts = [attend(q[a], k[b], v[b], *sites, implementation=name, **orders) for name in ("dense", "blockwise")]
        return attend(q, k, v, site, site), parts

    whole, parts = run(q, k, v)
    np.testing.assert_allclose(parts, np.stack([whole[a], whole[a]]), atol=1e-5)
