"""Look-ups by offset on a line of tokens: the same numbers as pair by pair, and no work of both kinds."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import HEAD_DIM, HEADS, WIDTH, joined, rows

import posjax as pj
from posjax.encodings import contextual, offsets, pairs

SPECS = ["shaw(max_relative_position=3)", "deberta(position_buckets=4, max_relative_positions=6)"]
SPECS += ["cope(npos=4, stddev=1)", "transformer_xl(clamp_len=7)"]
LINE = pj.sites(12, start=5)


def numbered(site, segment):
    return site._replace(segment=np.broadcast_to(np.int32(segment), site.segment.shape))


PADDING = numbered(pj.sites(3, start=40), 0)
SITES = {
    "a document": LINE,
    "packed": joined(pj.sites(5), numbered(pj.sites(4), 2), PADDING),
    "padded on the left": joined(PADDING, pj.sites(9)),
    "registers within": LINE._replace(prefix=np.int32([1, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 4])),
    "a register between": joined(pj.grid(0, 0, prefix=1)._replace(position=np.int32([0])), pj.sites(11)),
    "shuffled": rows(LINE, np.random.default_rng(0).permutation(12)),
    "a gap": LINE._replace(position=LINE.position + (np.arange(12) > 6).astype(np.int32)),
    "twice": LINE._replace(position=np.repeat(LINE.position[:6], 2)),
    "documents out of order": joined(numbered(pj.sites(6), 2), pj.sites(6)),
    "documents interleaved": LINE._replace(
        position=np.arange(12, dtype=np.int32) // 2, segment=np.arange(12, dtype=np.int32) % 2 + 1
    ),
    "fractions": LINE._replace(position=LINE.position * np.float32(0.5)),
    "nothing": numbered(LINE, 0),
}
ON_LINE = {"a document", "packed", "padded on the left", "registers within", "a register between", "nothing"}
ON_LINE |= {"documents out of order"}
IN_ORDER = ON_LINE - {"documents out of order"} | {"a gap", "fractions"}


def close(a, b, atol=2e-5):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=atol)


def noise(*shape):
    return jnp.asarray(np.random.default_rng(sum(shape)).standard_normal(shape), jnp.float32)


def line_and_order(site):
    return offsets.line_of(site, site), contextual.in_order(site)


traced_line_and_order = jax.jit(line_and_order)


@pytest.mark.parametrize("name", SITES)
def test_what_is_a_line_and_in_order(name):
    """Positions as numpy arrays, known at tracing time, and as data."""
    site = SITES[name]
    for known in (line_and_order(site), traced_line_and_order(site)):
        line, in_order = known
        assert bool(line.holds) == (name in ON_LINE)
        assert bool(in_order) == (name in IN_ORDER)
        if name in ON_LINE - {"nothing"}:
            assert line.first == 0
    assert offsets.line_of(rows(site, slice(4, 9)), rows(site, slice(2, 12))).holds or name not in ON_LINE


def test_where_a_line_begins():
    q, k = rows(LINE, slice(7, 12)), rows(LINE, slice(3, 11))
    assert offsets.line_of(q, k) == (-4, True)
    assert not offsets.line_of(rows(LINE, slice(7, 8)), LINE).holds  # a step of decoding looks few pairs up
    assert not offsets.line_of(*[pj.grid(2, 2)] * 2).holds


def test_a_batch_is_a_line_if_all_of_it_is():
    """One `first` for all, without a batch axis: vmap would refuse out_axes of None."""

    one = jax.jit(jax.vmap(jax.vmap(offsets.line_of, out_axes=None), out_axes=None))

    def of_batch(q_sites, k_sites):
        return one(*(stacked(sites, 2, 2) for sites in (q_sites, k_sites)))

    lines = [SITES[name] for name in ("a document", "packed", "nothing", "padded on the left")]
    mixed = [*lines[:3], SITES["a gap"]]
    assert of_batch(lines, lines) == (0, True)
    assert not of_batch(mixed, mixed).holds
    parts = [rows(LINE, slice(start, start + 5)) for start in (0, 1, 2, 3)]
    assert of_batch(parts, [rows(LINE, slice(start + 2, start + 7)) for start in range(4)]) == (2, True)
    assert not of_batch(parts, parts[:1] * 4).holds


def stacked(sites, *batch):
    return jax.tree.map(lambda *leaves: np.stack(leaves).reshape(*batch or (len(sites),), *leaves[0].shape), *sites)


@pytest.mark.parametrize(("num_q", "num_k"), [(5, 70), (300, 40)])
def test_products_are_those_of_each_pair(num_q, num_k):
    """300 queries make blocks of 38; the last is not full."""
    x, table = noise(num_q, 2, 4), noise(num_q + num_k, 2, 4)
    row = np.arange(num_k) - np.arange(num_q)[:, None] + num_q - 1
    expected = np.einsum("thd,tshd->hts", x, np.asarray(table)[row])
    close(jax.jit(lambda x, table: offsets.products_on_line(x, table, num_k))(x, table), expected)


@functools.cache
def looked_up_and_summed(left, right):
    by_row, x = noise(2, 6, left + right + 1), noise(2, 6, 8)

    def both(first, row):
        on_line = offsets.at_line(by_row, 8, first, left, right), offsets.sums_on_line(x, first, left, right)
        return on_line, (offsets.at(by_row, row), offsets.sums_at(x, row, left + right + 1))

    return jax.jit(both)


@pytest.mark.parametrize(("left", "right"), [(9, 9), (1, 0), (2, 5)])
@pytest.mark.parametrize("first", [0, -2, 4, 30, -(2**30)])
def test_rows_are_looked_up_and_summed_on_a_line(first, left, right):
    row = np.int32(np.clip(first + np.arange(8) - np.arange(6)[:, None], -left, right) + left)
    on_line, at = looked_up_and_summed(left, right)(np.int32(first), row)
    close(on_line, at)


def probe(spec):
    """Gradients of everything by way of one layer of attention: a function of q, k, v and a site."""
    encoding = pj.parse(spec)
    params = encoding.init(jax.random.key(0), pj.Dims(WIDTH, HEADS, HEAD_DIM, length=30))

    def loss(params, q, k, v, site, implementation):
        out = pj.attend(encoding, params, q, k, v, site, site, causal=False, implementation=implementation)
        return jnp.sum(jnp.sin(out))

    def run(x, site, implementation="dense"):
        return jax.value_and_grad(loss, argnums=(0, 1, 2, 3))(params, *x, site, implementation)

    return run


def tokens(*batch):
    return jax.random.normal(jax.random.key(2), (*batch, 3, 12, HEADS, HEAD_DIM))


def pair_by_pair(monkeypatch):
    for module in (contextual, offsets):
        monkeypatch.setattr(module, "line_of", lambda q_site, k_site: offsets.Line(0, False))
    monkeypatch.setattr(contextual, "in_order", lambda site: False)


@pytest.mark.parametrize("spec", [SPECS[0], *(pytest.param(spec, marks=pytest.mark.slow) for spec in SPECS[1:])])
def test_a_line_gives_what_pairs_give(spec, monkeypatch):
    """Values and gradients of a batch all of whose sequences are lines, or not all."""
    run = probe(spec)
    everything = [site for name, site in SITES.items() if name != "fractions"]  # which a batch of integers cannot hold
    lines = [SITES[name] for name in sorted(ON_LINE & IN_ORDER)]
    lines += lines[: len(everything) - len(lines)]
    x = tokens(len(everything))
    one_by_one = jax.jit(jax.vmap(run))
    probed = [one_by_one(x, stacked(sites)) for sites in (lines, everything)]
    pair_by_pair(monkeypatch)
    pairs = jax.jit(jax.vmap(lambda x, site: run(x, site)))
    close(probed, [pairs(x, stacked(sites)) for sites in (lines, everything)])


@pytest.mark.parametrize("spec", SPECS[1:])
@pytest.mark.slow
def test_no_batch_computes_both(spec):
    """A condition with a batch axis becomes a select of both: all of them are one bool, however batches are nested."""
    run = probe(spec)
    site, nested = (stacked([SITES["packed"]] * 4, *batch) for batch in ((4,), (2, 2)))
    for function, args in (
        (jax.vmap(run), (tokens(4), site)),
        (jax.vmap(jax.vmap(run)), (tokens(2, 2), nested)),
        (jax.vmap(jax.vmap(run, in_axes=(0, None)), in_axes=(None, 0)), (tokens(2), site)),
        (jax.vmap(lambda x, site: run(x, site, "blockwise")), (tokens(4), site)),
        (jax.grad(jax.checkpoint(lambda x, site: jnp.sum(jax.vmap(run)(x, site)[0]))), (tokens(4), site)),
    ):
        assert jax.jit(function).lower(*args).as_text().count("stablehlo.case") >= 2  # forward and backward


def test_known_sites_leave_no_choice(monkeypatch):
    run = probe("shaw() + deberta() + cope()")
    monkeypatch.setattr(jax.lax, "cond", None)
    for name in ("packed", "shuffled"):
        jax.make_jaxpr(lambda x, name=name: run(x, SITES[name]))(tokens())


@pytest.mark.parametrize("npos", [5, 200])
def test_gradients_of_counts_are_those_of_the_interpolation(npos):
    """Gradients by the sum over keys for few counts, by a scatter for many: both equal JAX's."""
    by_count = jax.random.normal(jax.random.key(0), (2, 3, npos))
    counted = jnp.linspace(0, npos - 1, 2 * 3 * 7).reshape(2, 3, 7) * 0.999
    x = jax.random.normal(jax.random.key(1), counted.shape)
    codes = contextual.interpolated_codes, contextual.between_codes
    ours, theirs = jax.jit(lambda *at: [jax.vjp(f, *at)[1](x) for f in codes])(by_count, counted)
    close(ours, theirs)
    assert np.any(ours[0])


def test_forms_for_tpus_are_those_for_cpus():
    """Programs for CPUs hold none of them."""
    random = np.random.default_rng(0)
    for num_q, num_k in ((130, 300), (256, 128), (1, 5), (5, 1), (3, 9)):
        row = random.normal(size=(2, num_q + num_k - 1)).astype(np.float32)
        rows = [row[:, num_q - 1 - t : num_q - 1 - t + num_k] for t in range(num_q)]
        for form in (pairs.toeplitz, pairs.toeplitz_of_blocks):
            found = jax.jit(form, static_argnums=(1, 2))(row, num_q, num_k)
            assert np.array_equal(found, np.stack(rows, axis=1)), (form, num_q, num_k)
        x = random.normal(size=(2, num_q, num_k)).astype(np.float32)
        close(pairs.sums_of_diagonals(x), jax.vjp(lambda row: pairs.toeplitz(row, num_q, num_k), row)[1](x)[0])  # noqa: B023
    loss = jax.jit(jax.grad(lambda row: (pairs.toeplitz(row, 3, 9) ** 2).sum())).trace(row)
    found = ["scatter" in loss.lower(lowering_platforms=(platform,)).as_text() for platform in ("cpu", "cuda")]
    assert found == [True, False]
    for num_q, count in ((130, 31), (256, 300), (5, 1)):
        x = random.normal(size=(2, num_q, num_q + count - 1)).astype(np.float32)
        rows = [x[:, t, t : t + count] for t in range(num_q)]
        for form in (offsets.diagonals, offsets.diagonals_in_blocks):
            found = jax.jit(form, static_argnums=1)(x, count)
            assert np.array_equal(found, np.stack(rows, axis=1)), (form, num_q, count)
    counted, x = 4 * random.random((2, 3, 7)), random.normal(size=(2, 3, 7))
    forms = contextual.shares_by_count, contextual.shares_by_key
    close(*jax.jit(lambda *at: [form(5, *at) for form in forms])(counted, x))
