"""The kernel for TPUs: its arithmetic, interpreted, beside the dense oracle; what it refuses; which tokens are a line."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, each_case, params_of
from members import GRID
from test_blockwise import close, largest

import posjax as pj
from posjax.attention.attend import transform
from posjax.attention.backends import BACKENDS, Asked
from posjax.attention.dense import Operands, dense
from posjax.attention.tpu.kernel import line_of, pallas_tpu, refusal
from posjax.attention.tpu.rows import gathered, in_eights, spread
from posjax.describe.agreement import two_documents
from posjax.encoding import WITHIN_ATTENTION

HEADS, KEY_HEADS, WIDTH, VALUE_WIDTH, LENGTH = 4, 2, 8, 4, 230
DOCUMENTS = pj.packed([100, 90, 25], LENGTH)
APART = DOCUMENTS._replace(position=3 * DOCUMENTS.position)
REGISTERS = pj.Site(np.maximum(np.arange(LENGTH) - 3, 0), prefix=np.minimum(np.arange(LENGTH) + 1, 4) % 4)

slow = pytest.mark.slow


def gradients(encoding, site, causal, kernel):
    """The output and its gradients to parameters, queries, keys, values, and perhaps sums, the state of a first part."""

    def loss(params, q, k, v, *sums):
        order = np.arange(len(q), dtype=np.int32) if causal else None
        own = site._replace(state=(site._replace(state=sums[0]), site)) if sums else site
        operands, scale = transform(encoding, params, q, k, v, own, own, order, order), q.shape[-1] ** -0.5
        if kernel:
            out = pallas_tpu(encoding, operands, scale=scale, interpret=True, blocks=(128, 128))
        else:
            out = dense(encoding, operands, scale=scale)[0]
        return jnp.sum(jnp.sin(out)), out

    return lambda *given: jax.value_and_grad(loss, range(len(given)), has_aux=True)(*given)


def check(spec: str, causal: bool, sites: list[pj.Site], known: bool = True):
    """A batch of rows at these sites; `known`: one row, whose site is known when it is traced."""
    encoding, rng = pj.parse(spec), np.random.default_rng(0)
    params = encoding.init(jax.random.key(1), pj.Dims(HEADS * WIDTH, HEADS, WIDTH, length=4 * LENGTH))
    shapes = (HEADS, WIDTH), (KEY_HEADS, WIDTH), (KEY_HEADS, VALUE_WIDTH)
    qkv = [jnp.asarray(rng.normal(size=(len(sites), LENGTH, *shape)), jnp.float32) for shape in shapes]

    def run(kernel):
        def of_row(*given):
            site = sites[0] if known else given[3]
            (_, out), grads = gradients(encoding, site, causal, kernel)(params, *given[:3])
            return out, grads

        return jax.jit(jax.vmap(of_row))(*qkv, *([] if known else [jax.tree.map(lambda *x: np.stack(x), *sites)]))

    (out, grads), (expected, expected_grads) = run(True), run(False)
    assert all(np.abs(leaf).max() > 1e-3 for leaf in jax.tree.leaves(expected_grads[1:]))
    close(out, expected)
    close(grads, expected_grads, atol=3e-5)


@pytest.mark.parametrize(
    ("spec", "causal", "sites", "known"),
    [
        ("rope() + t5() + window(90) + learned_sink(stddev=1)", True, [DOCUMENTS], True),
        pytest.param("t5() + kerple()", False, [REGISTERS, REGISTERS], False, marks=slow),
        pytest.param("kerple() + dpb()", True, [DOCUMENTS, APART], False, marks=slow),  # in tiles after all
        pytest.param("(interpolate(factor=3) >> alibi()) + kerple() + window(9)", True, [REGISTERS], True, marks=slow),
    ],
)
def test_kernel_is_dense(spec, causal, sites, known):
    """Output and gradients under vmap: grouped queries, documents, padding, registers."""
    if "interpolate" in spec:  # where positions are known to rise
        sites = [pj.sites(LENGTH)]
    check(spec, causal, sites, known)


def takes(case):
    """Whether the kernel takes it, and it has a bias or a mask of its own."""
    encoding = pj.parse(case.spec)
    within = encoding.hooks & WITHIN_ATTENTION
    if case.kind == GRID or not within or not within <= BACKENDS["pallas_tpu"].hooks or "observe" in encoding.hooks:
        return False
    return not refusal(encoding, asked(encoding, pj.sites(8), np.arange(8, dtype=np.int32)))


def asked(encoding, site, order=None, dtype=jnp.float32):
    q = jax.ShapeDtypeStruct((len(site.segment), HEADS, WIDTH), dtype)
    return Operands(None, q, q, None, None, q, site, site, order, order)


@pytest.mark.thorough
@each_case(params_of(takes))
def test_every_member_that_it_takes(case):
    check(case.spec, True, [DOCUMENTS])


@slow
def test_sums_of_gates_have_their_gradient():
    """A potential beside a row, where padding follows."""
    site, rng = (
        pj.Site(np.arange(LENGTH, dtype=np.int32), np.repeat([1, 0], [200, 30]).astype(np.int32)),
        np.random.default_rng(1),
    )
    encoding = pj.parse("fox() + kerple()")
    params = encoding.init(jax.random.key(1), pj.Dims(HEADS * WIDTH, HEADS, WIDTH))
    shapes = (LENGTH, HEADS, WIDTH), (LENGTH, KEY_HEADS, WIDTH), (LENGTH, KEY_HEADS, WIDTH)
    qkv = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]
    sums = jnp.cumsum(-jnp.asarray(rng.random((LENGTH, HEADS)), jnp.float32), axis=0)
    runs = [jax.jit(gradients(encoding, site, True, kernel)) for kernel in (True, False)]
    ((_, out), grads), ((_, expected), expected_grads) = (run(params, *qkv, sums) for run in runs)
    assert np.abs(expected_grads[4]).max() > 0.1
    close((out, grads), (expected, expected_grads), atol=3e-5)


def test_a_row_is_spread_over_a_tile_and_gathered():
    keys, queries, row = 256, 128, jnp.asarray(np.random.default_rng(0).normal(size=(1, 384)), jnp.float32)
    at = np.arange(queries) - np.arange(keys)[:, None] + keys - 1
    tile = jax.jit(spread, static_argnums=(1, 2))(in_eights(row)[0], keys, queries)
    np.testing.assert_array_equal(tile, row[0][at])
    sums = jax.linear_transpose(in_eights, row)(jax.jit(gathered)(tile)[None])[0]
    np.testing.assert_allclose(sums[0], np.bincount(at.ravel(), np.ravel(row[0][at]), 384), rtol=1e-5, atol=1e-5)


def test_lines():
    """By its definition, at random sites, known and traced."""
    rng, found = np.random.default_rng(0), []
    for _ in range(300):
        length, first, gap = 7, rng.integers(-3, 4), rng.integers(3)
        segment = np.sort(rng.integers(0, 3, length)).astype(np.int32)
        k_site = pj.Site(np.arange(length) + 5 * segment, segment, (rng.random(length) < 0.1).astype(np.int32))
        moved = rng.integers(0, 2, length) * (gap == 0)
        q_site = k_site._replace(position=k_site.position - first + moved, segment=rng.permutation(3)[segment])
        both = (q_site.segment[:, None] == k_site.segment) & (k_site.segment > 0) & (q_site.prefix == 0)[:, None]
        both &= k_site.prefix == 0
        place = np.arange(length) - np.arange(length)[:, None]
        firsts = {*(k_site.position - q_site.position[:, None] - place)[both]}
        q_site, k_site = (pj.encoding.canonical(site) for site in (q_site, k_site))
        known, traced = line_of(q_site, k_site), _line_of(q_site, k_site)
        assert bool(known.holds) == bool(traced.holds)
        if known.holds and firsts:
            assert firsts == {int(known.first)} == {int(traced.first)}
        found.append((bool(known.holds), len(firsts) <= 1))
    assert (True, False) not in found
    assert found.count((True, True)) > 30


@jax.jit
def _line_of(q_site, k_site):
    return line_of(q_site, k_site)


def test_no_array_of_length_squared():
    encoding = pj.parse("t5() + kerple()")
    params = encoding.init(jax.random.key(1), pj.Dims(HEADS * 64, HEADS, 64))
    q = jax.ShapeDtypeStruct((4096, HEADS, 64), jnp.bfloat16)
    assert largest(jax.make_jaxpr(gradients(encoding, pj.sites(4096), True, True))(params, q, q, q)) < 4096**2 / 8


LINE = pj.sites(6)


@pytest.mark.parametrize(
    ("spec", "site", "order", "reason"),
    [
        ("t5()", LINE, None, None),
        ("window(3) + learned_sink()", LINE, None, None),
        ("t5()", LINE._replace(position=2 * LINE.position), None, "tokens do not stand side by side"),
        ("t5()", jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), LINE), None, None),
        ("t5()", LINE._replace(position=LINE.position.astype(np.float32)), None, "positions of float32"),
        (
            "interpolate(factor=2) >> alibi()",
            LINE._replace(position=LINE.position / np.float32(2)),
            LINE.position,
            None,
        ),
        ("fire()", LINE, LINE.position, r"fire\(\) is not known to be a function of the offset"),
        ("fox() + t5()", LINE, LINE.position, None),
        ("fox()", LINE, None, "fox"),
        ("fox() + learned_sink()", LINE, LINE.position, "has a sink and a bias that is a difference"),
        ("swin()", pj.grid(2, 3), None, "swin"),
        ("self_extend(2, 3) >> alibi()", LINE, LINE.position, "self_extend"),
        ("t5()", pj.grid(2, 3), None, "2 axes"),
        ("window(3)", pj.grid(2, 3), None, "2 axes"),
        ("cope()", LINE, None, "cope"),
    ],
)
def test_refusals(spec, site, order, reason):
    request = Asked(pj.parse(spec), asked(pj.parse(spec), site, order), "tpu", None)
    got = BACKENDS["pallas_tpu"].refusal(request)
    assert got is None if reason is None else re.search(reason, got), got


def test_devices_that_share_queries():
    request = asked(pj.parse("fox + window(3)"), LINE, LINE.position)
    assert "part of the queries" in refusal(pj.parse("fox + window(3)"), request, devices=2)
    assert refusal(pj.parse("window(3)"), request, devices=2) is None


def test_lengths_that_it_holds():
    long = [asked(pj.parse("t5"), two_documents(length, registers=False), dtype=jnp.float16) for length in (64, 70)]
    assert "bfloat16" in refusal(pj.parse("none"), long[0])
    q = jax.ShapeDtypeStruct((2**20, HEADS, 128), jnp.bfloat16)
    assert "1048576 of 128 channels do not fit" in refusal(pj.parse("none"), long[1]._replace(q=q, k=q, v=q))


def test_cases_are_taken():
    assert {"alibi()", "t5()", "kerple()", "dpb(hidden_dim=5)", "sandwich(dim=12)"} <= {
        c.spec for c in CASES if takes(c)
    }
