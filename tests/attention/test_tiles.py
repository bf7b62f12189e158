"""The tiles that blockwise attention computes: tiles with a visible pair, and few others."""

import functools
import re
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_blockwise import largest

import posjax as pj
from posjax.attention.blockwise import blockwise
from posjax.attention.dense import Operands, visible
from posjax.attention.tile_bias import tile_bias_of
from posjax.attention.tiles import Plan, cut, padded, seen_tiles, tile_sizes

LENGTH = 512
MASKS = [
    "none",
    "window(64)",
    "window(9, ahead=40)",
    "dilated(size=32, dilation=2)",
    "longformer(window=64, num_global=3)",
    "sinks(num_sinks=4, window=60)",
    "bigbird(block_size=64, num_random=1, num_global=1)",
    "bigbird(block_size=48, num_random=1, num_global=1)",
    "rope + t5 + window(100)",
    "interpolate(factor=2) >> window(40)",
    "streaming(num_sinks=4, window=60) >> rope",
]
UNEVEN = {"none", "bigbird(block_size=48, num_random=1, num_global=1)", "rope + t5 + window(100)"}  # with tiles of 64
OF_A_KIND = {MASKS[1], MASKS[5], MASKS[7]}  # one near, one with two parts, one with blocks: where time is short
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


def planned(spec, site, causal=True, length=LENGTH, tile=None, heads=2, key_heads=1):
    """The plan of an attention, and its operands."""
    encoding = pj.parse(spec)
    params = encoding.init(jax.random.key(0), pj.Dims(8 * heads, heads, 8, length=length))
    site = encoding.place(params, site)
    order = np.arange(length, dtype=np.int32) if causal else None
    plan = Plan(encoding, 1.0, heads, 8, *tile_sizes(encoding, length, length, tile))
    q, k = jnp.zeros((heads, length, 8)), jnp.zeros((key_heads, length, 8))
    return plan, padded(plan, Operands(params, None, None, q, k, k, site, site, order, order))


def test_tiles_are_larger_on_a_gpu(monkeypatch):
    encoding = pj.parse("alibi")
    assert tile_sizes(encoding, 4096, 4096, None) == (256, 256)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert tile_sizes(encoding, 4096, 4096, None) == (1024, 1024)
    assert tile_sizes(pj.parse("window(64)"), 4096, 4096, None)[0] < 1024  # a mask knows its own


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


@pytest.mark.parametrize("tile", [pytest.param(None, marks=pytest.mark.thorough), 4])
@pytest.mark.parametrize("spec", [pytest.param(m, marks=[] if m in OF_A_KIND else pytest.mark.slow) for m in MASKS])
def test_no_tile_is_missed(spec, tile):
    """Takes 8 tiles, one group, and 128, several groups."""

    def computed_and_seen(site):
        for causal in (True, False):
            plan, operands = planned(spec, site, causal, tile=tile)
            yield computed(plan, operands), seen_by_tile(plan, operands)

    sites = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(x, jnp.int32) for x in leaves]), *SITES.values())
    for (pairs, count), seen in jax.jit(jax.vmap(lambda site: list(computed_and_seen(site))))(sites):
        for chosen, counts, wanted in zip(pairs.tolist(), count.tolist(), seen, strict=True):
            some = [tuple(pair) for group, n in zip(chosen, counts, strict=True) for pair in group[:n]]
            assert len(set(some)) == len(some)
            assert set(some) >= set(map(tuple, np.argwhere(wanted).tolist()))


@pytest.mark.parametrize(
    "spec", [pytest.param(m, marks=[] if m in OF_A_KIND else pytest.mark.slow) for m in MASKS if m not in UNEVEN]
)
def test_no_tile_is_computed_in_vain(spec):
    """One document: the bounds of a tile then say exactly what its tokens see."""

    @jax.jit
    def counts():
        plan, operands = planned(spec, SITES["a document"])
        return computed(plan, operands)[1].sum(), seen_by_tile(plan, operands).sum()

    count, seen = counts()
    assert count == seen < 36


@pytest.mark.slow
def test_a_window_costs_the_same_for_every_token():
    spec = "window(512) + rope"
    count = {n: int(computed(*planned(spec, pj.sites(n), length=n))[1].sum()) for n in (8192, 16384)}
    assert count[16384] / count[8192] == pytest.approx(2, rel=0.02)
    assert count[16384] * 128**2 <= 1.3 * 512 * 16384  # pairs of tokens within the tiles and within the window


@pytest.mark.parametrize("spec", ["window(512)", "sinks(num_sinks=4, window=512)"])
def test_what_is_listed_and_compared_grows_linearly(spec):
    """Tiles are compared in those pairs of groups only that may see each other; no list is longer than there are tokens."""
    compared, listed = [], []
    names = ("q_site", "k_site", "q_order", "k_order")
    for length in (2**16, 2**18):
        plan, operands = planned(spec, pj.sites(length), length=length, heads=1)

        def first_group(read, plan=plan):
            return seen_tiles(plan, Operands(**(dict.fromkeys(Operands._fields) | read))).tiles(0)

        read = {name: getattr(operands, name) for name in names}
        listed.append(largest(jax.make_jaxpr(first_group)(read)))
        seen = seen_tiles(plan, operands)
        compared.append(int(seen.count) * np.prod(seen.sides) / (length / 128))
    assert max(compared) <= 3 * 64  # by each tile of queries: keys of the two last groups, and of the first
    assert listed == [2**16, 2**18]  # the sites


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
    assert int(computed(*planned("none", site, tile=64))[1].sum()) == 8


def test_documents_under_vmap():
    """Each sequence of a batch goes through its own tiles: a batch costs the sum of what its sequences cost."""
    encoding, site = pj.parse("none"), pj.sites(LENGTH)
    segment = jnp.stack([jnp.asarray(site.segment), jnp.repeat(jnp.arange(1, 9), 64)]).astype(jnp.int32)
    x = jax.random.normal(jax.random.key(0), (LENGTH, 1, 8))
    order = np.arange(LENGTH, dtype=np.int32)

    def one(segment):
        at = site._replace(segment=segment)
        return blockwise(encoding, Operands((), x, x, x, x, x, at, at, order, order), scale=1.0, tile=64)

    lowered = jax.jit(jax.vmap(one)).lower(segment)
    text = lowered.as_text()
    assert "tensor<2x1x64x64xf32>" not in text  # tiles of all sequences at once
    assert "tensor<1x64x64xf32>" in text
    np.testing.assert_allclose(lowered.compile()(segment)[1], jax.jit(one)(segment[1]), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "site", "runs"),
    [
        ("t5", "a document", 8),  # the diagonals
        ("t5 + sinusoidal", "a document", 8),
        ("interpolate(factor=2) >> t5", "a document", 36),  # fractional positions get gradients of their own
        ("t5", "shuffled", 36),
        ("none", "a document", 1),
        ("fox", "a document", 1),
    ],
)
def test_equal_offsets_share_a_bias(spec, site, runs):
    plan, operands = planned(spec, SITES[site], tile=64)
    if spec == "fox":
        operands = operands._replace(
            **{name: operands.q_site._replace(state=jnp.zeros((LENGTH, 2))) for name in ("q_site", "k_site")}
        )
    tile_bias = tile_bias_of(plan, operands)
    (pairs,), (count,) = computed(plan, operands, tile_bias.by_diagonal)
    begins = tile_bias.runs(pairs, count)
    expected = runs if type(tile_bias).__name__ == "SharedBias" else 1
    assert int(begins.sum()) == expected


@pytest.mark.slow
@pytest.mark.parametrize("site", SITES)
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


@pytest.mark.parametrize("spec", [pytest.param("rope + t5", marks=pytest.mark.slow), "tupe"])
def test_gradients_of_grouped_queries(spec):
    """4 query heads, 2 key heads: dense and blockwise, as if keys and values were repeated."""
    encoding, length = pj.parse(spec), 24
    params = encoding.init(jax.random.key(0), pj.Dims(32, 4, 8, length=length))
    site = encoding.place(params, pj.sites(length))
    q, k, v = (jax.random.normal(jax.random.key(n), (length, h, 8)) for n, h in ((1, 4), (2, 2), (3, 2)))

    def probe(implementation, repeat):
        def loss(params, q, k, v):
            k, v = (jnp.repeat(x, 2, axis=1) if repeat else x for x in (k, v))
            options = dict(causal=True, implementation=implementation)
            return jnp.sum(jnp.sin(pj.attend(encoding, params, q, k, v, site, site, **options)))

        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3)))(params, q, k, v)

    expected = probe("dense", repeat=True)
    for implementation in ("dense", "blockwise"):
        check = functools.partial(np.testing.assert_allclose, atol=2e-5)
        jax.tree.map(check, probe(implementation, repeat=False), expected)


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_causality_goes_by_the_order_that_is_given(implementation):
    encoding, rng = pj.parse("rope + alibi"), np.random.default_rng(0)
    site, order = pj.sites(40), np.arange(40, dtype=np.int32)
    q, k, v = (jax.random.normal(jax.random.key(n), (40, 2, 8)) for n in range(3))

    def attend(q, k, v, *sites, **options):
        return jax.jit(lambda *qkv: pj.attend(encoding, ((), ()), *qkv, *sites, **options))(q, k, v)

    whole = attend(q, k, v, site, site, causal=True)
    a, b = rng.permutation(40)[:17], rng.permutation(40)
    rows = lambda index: jax.tree.map(lambda x: x[index], site)  # noqa: E731
    orders = dict(q_order=order[a], k_order=order[b], implementation=implementation)
    part = attend(q[a], k[b], v[b], rows(a), rows(b), causal=True, **orders)
    np.testing.assert_allclose(part, whole[a], atol=1e-5)
