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
from posjax.attention.tpu.rows import gathered, in_eights, skewed, spread, unskewed
from posjax.describe.agreement import two_documents
from posjax.encoding import WITHIN_ATTENTION

HEADS, KEY_HEADS, WIDTH, VALUE_WIDTH, LENGTH = 4, 2, 8, 4, 230
DOCUMENTS = pj.packed([100, 90, 25], LENGTH)
APART = DOCUMENTS._replace(position=3 * DOCUMENTS.position)
REGISTERS = pj.Site(np.maximum(np.arange(LENGTH) - 3, 0), prefix=np.minimum(np.arange(LENGTH) + 1, 4) % 4)
RISES = pj.sites(LENGTH)._replace(segment=np.repeat([1, 0], [200, 30]).astype(np.int32))

XL, PI = "transformer_xl(clamp_len=40)", "alibi_pi(original_length=20)"
DEBERTA, INKLING = "deberta(position_buckets=8, max_relative_positions=40)", "inkling(rank=3, extent=70)"
LOOSE = {"fox": 1e-3, "inkling": 6e-5}  # which adds up all gates before a token; whose gradients go up to 70
slow = pytest.mark.slow


def gradients(encoding, site, causal, kernel):
    """The output and its gradients to parameters, queries, keys, values and the layer's input."""

    def loss(params, q, k, v, x):
        order = np.arange(len(q), dtype=np.int32) if causal else None
        own = encoding.observe(params, x, site) if "observe" in encoding.hooks else site
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
    shapes = (HEADS, WIDTH), (KEY_HEADS, WIDTH), (KEY_HEADS, VALUE_WIDTH), (HEADS * WIDTH,)
    tokens = [jnp.asarray(rng.normal(size=(len(sites), LENGTH, *shape)), jnp.float32) for shape in shapes]

    def run(kernel):
        def of_row(*given):
            site = sites[0] if known else given[4]
            (_, out), grads = gradients(encoding, site, causal, kernel)(params, *given[:4])
            return out, grads

        return jax.jit(jax.vmap(of_row))(*tokens, *([] if known else [jax.tree.map(lambda *x: np.stack(x), *sites)]))

    (out, grads), (expected, expected_grads) = run(True), run(False)
    assert all(np.abs(leaf).max() > 1e-3 for leaf in jax.tree.leaves(expected_grads[1:4]))
    close(out, expected)
    close(grads, expected_grads, atol=next((LOOSE[name] for name in LOOSE if name in spec), 3e-5))


@pytest.mark.parametrize(
    ("spec", "causal", "sites", "known"),
    [
        ("rope() + t5() + window(90) + learned_sink(stddev=1)", True, [DOCUMENTS], True),
        pytest.param("t5() + kerple()", False, [REGISTERS, REGISTERS], False, marks=slow),
        pytest.param("kerple() + dpb()", True, [DOCUMENTS, APART], False, marks=slow),  # in tiles after all
        pytest.param("(interpolate(factor=3) >> alibi()) + kerple() + window(9)", True, [REGISTERS], True, marks=slow),
        pytest.param("bigbird(5, num_random=2) + window(150)", True, [DOCUMENTS, REGISTERS], False, marks=slow),
        pytest.param("fox() + kerple()", True, [RISES], True, marks=slow),  # a potential beside a row, before padding
        pytest.param(f"{XL} + chunked(60, before=1) + learned_sink(stddev=1)", True, [DOCUMENTS], True, marks=slow),
        pytest.param(f"{DEBERTA} + rope()", False, [REGISTERS, REGISTERS], False, marks=slow),
        pytest.param(f"{INKLING} + {XL} + {PI} + t5()", True, [DOCUMENTS, REGISTERS], False, marks=slow),
        pytest.param(f"{DEBERTA} + {PI}", True, [DOCUMENTS, APART], False, marks=slow),
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
    if case.kind == GRID or not within or not within <= BACKENDS["pallas_tpu"].hooks:
        return False
    return not refusal(encoding, asked(encoding, DOCUMENTS, np.arange(LENGTH, dtype=np.int32)))


def asked(encoding, site, order=None, dtype=jnp.float32):
    q = jax.ShapeDtypeStruct((len(site.segment), HEADS, WIDTH), dtype)
    return Operands(None, q, q, None, None, q, site, site, order, order)


@pytest.mark.thorough
@each_case(params_of(takes))
def test_every_member_that_it_takes(case):
    check(case.spec, True, [DOCUMENTS])


def test_a_row_is_spread_over_a_tile_and_gathered():
    keys, queries, row = 256, 128, jnp.asarray(np.random.default_rng(0).normal(size=(1, 384)), jnp.float32)
    at = np.arange(queries) - np.arange(keys)[:, None] + keys - 1
    tile = jax.jit(spread, static_argnums=(1, 2))(in_eights(row)[0], keys, queries)
    np.testing.assert_array_equal(tile, row[0][at])
    sums = jax.linear_transpose(in_eights, row)(jax.jit(gathered)(tile)[None])[0]
    np.testing.assert_allclose(sums[0], np.bincount(at.ravel(), np.ravel(row[0][at]), 384), rtol=1e-5, atol=1e-5)


def test_columns_are_skewed_and_back():
    x, column = np.random.default_rng(0).normal(size=(384, 128)).astype(np.float32), np.arange(128)
    tile = jax.jit(skewed)(x)
    np.testing.assert_array_equal(tile, x[np.arange(256)[:, None] + 127 - column, column])
    row = np.arange(384)[:, None] - 127 + column
    np.testing.assert_array_equal(jax.jit(unskewed)(tile), np.where((row >= 0) & (row < 256), x, 0))


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
    encoding = pj.parse(f"t5() + kerple() + {XL}")
    params = encoding.init(jax.random.key(1), pj.Dims(HEADS * 64, HEADS, 64))
    q = jax.ShapeDtypeStruct((8192, HEADS, 64), jnp.bfloat16)
    x = jax.ShapeDtypeStruct((8192, HEADS * 64), jnp.bfloat16)
    assert largest(jax.make_jaxpr(gradients(encoding, pj.sites(8192), True, True))(params, q, q, q, x)) < 8192**2 / 8


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
        (f"{DEBERTA} + {INKLING} + learned_sink()", LINE, None, None),
        ("transformer_xl()", LINE._replace(position=2 * LINE.position), None, "tokens do not stand side by side"),
        ("transformer_xl()", pj.grid(2, 3), None, "2 axes"),
        ("shaw()", LINE, None, "reads beside values"),
        ("chunked(2) + window(3)", LINE, None, None),
        ("bigbird()", LINE, None, None),
        ("self_extend(2, 3) >> alibi()", LINE, LINE.position, "self_extend"),
        ("t5()", pj.grid(2, 3), None, "2 axes"),
        ("window(3)", pj.grid(2, 3), None, None),
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
    assert {"alibi()", "t5()", "kerple()", "dpb(hidden_dim=5)", "sandwich(dim=12)", "transformer_xl()"} <= {
        c.spec for c in CASES if takes(c)
    }
