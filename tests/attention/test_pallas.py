"""The kernel for GPUs: its arithmetic, interpreted, beside the dense oracle; lowering for CUDA; refusals."""

import re
from dataclasses import dataclass

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
from posjax.attention.dense import Operands, dense, shown
from posjax.attention.gpu import sweep
from posjax.attention.gpu.kernel import pallas
from posjax.attention.gpu.terms import supported, terms
from posjax.describe.agreement import two_documents
from posjax.encoding import WITHIN_ATTENTION, members
from posjax.encodings.bias import Alibi
from posjax.encodings.pairs import ElementwiseBias

HEADS, KEY_HEADS, WIDTH, VALUE_WIDTH, LENGTH = 4, 2, 8, 4, 22
T5 = "t5(num_buckets=8, max_distance=6)"
LINE = np.arange(6, dtype=np.int32)

slow = pytest.mark.slow


def world(spec: str, length: int = LENGTH, width: int = WIDTH, value_width: int = VALUE_WIDTH, dtype=jnp.float32):
    encoding = pj.parse(spec)
    params = encoding.init(jax.random.key(1), pj.Dims(HEADS * width, HEADS, width))
    rng, shapes = np.random.default_rng(0), ((HEADS, width), (KEY_HEADS, width), (KEY_HEADS, value_width))
    return encoding, params, [jnp.asarray(rng.normal(size=(length, *shape)), dtype) for shape in shapes]


def read(encoding, params, q, k, v, site, causal, **options):
    """The output by the kernel, or by `dense` without options."""
    order = np.arange(len(q), dtype=np.int32) if causal else None
    operands, scale = transform(encoding, params, q, k, v, site, site, order, order), q.shape[-1] ** -0.5
    if options:
        return pallas(encoding, operands, scale=scale, **options)
    return dense(encoding, operands, scale=scale)[0]


def gradients(encoding, site, causal, **options):
    def loss(params, q, k, v):
        out = read(encoding, params, q, k, v, site, causal, **options)
        return jnp.sum(jnp.sin(out.astype(jnp.float32))), out

    return jax.value_and_grad(loss, argnums=(0, 1, 2, 3), has_aux=True)


def check(spec: str, causal: bool, registers: bool):
    encoding, params, qkv = world(spec)
    site = two_documents(LENGTH, registers)

    @jax.jit
    def run(params, *qkv):
        tiled = jax.vmap(gradients(encoding, site, causal, interpret=True, tile=8), (None, 0, 0, 0))
        tiled = tiled(params, *(jnp.stack([jnp.flip(x, 0), x]) for x in qkv))
        return jax.tree.map(lambda x: x[1], tiled), gradients(encoding, site, causal)(params, *qkv)

    ((_, out), grads), ((_, expected), expected_grads) = run(params, *qkv)
    assert all(np.abs(leaf).max() > 1e-3 for leaf in jax.tree.leaves(expected_grads[1:]))
    close(out, expected)
    close(grads, expected_grads, atol=3e-5)


@pytest.mark.parametrize(
    ("spec", "causal", "registers"),
    [
        (f"rope() + alibi(direction='offset') + {T5}", True, False),
        pytest.param("rope() + bigbird(2, num_random=2)", False, True, marks=slow),
        pytest.param(
            "kerple() + window(5) + (unpad() >> alibi(direction='split')) + kerple(kind='power')",
            False,
            True,
            marks=slow,
        ),
    ],
)
def test_kernel_is_dense(spec, causal, registers):
    """Output and gradients under vmap, in tiles of 8 of 22 tokens, grouped queries, documents, padding."""
    check(spec, causal, registers)


def grid_of_pairs():
    q, k = np.meshgrid(np.arange(0, 200, 7), np.arange(0, 200, 3), indexing="ij")
    return q.astype(np.int32), k.astype(np.int32)


def adds_terms(case):
    """Whether the kernel takes it, and it has a bias or a mask."""
    encoding = pj.parse(case.spec)
    within = encoding.hooks & WITHIN_ATTENTION
    return case.kind != GRID and not supported(encoding) and within and within <= BACKENDS["pallas"].hooks


@each_case(params_of(adds_terms))
def test_the_kernel_knows_each_bias_and_mask(case):
    """The terms that are traced into the kernel add up to the bias, and hide what the mask does."""
    encoding = pj.parse(case.spec)
    params = encoding.init(jax.random.key(1), pj.Dims(24, HEADS, 8))
    q, k = grid_of_pairs()
    sites = [pj.Site(p, np.ones_like(p), np.zeros_like(p)) for p in (q[:, 0], k[0])]
    static, constants, q_axes, k_axes = terms(encoding, params, *sites, HEADS)
    tiles = [(tuple(x[:, None] for x in qs), tuple(x[None] for x in ks)) for qs, ks in zip(q_axes, k_axes, strict=True)]
    seen, count = np.ones(q.shape, bool), len(static.masks)
    for (mask, _), (at, to) in zip(static.masks, tiles[:count], strict=True):
        seen &= np.broadcast_to(mask.shows(at, to), q.shape)
    np.testing.assert_array_equal(seen, np.broadcast_to(shown(encoding, *sites), q.shape))
    found = np.zeros((HEADS, *q.shape))
    for bias, ((at,), (to,)) in zip(static.biases, tiles[count:], strict=True):
        for head, row in enumerate(np.asarray(constants)[:, bias.start : bias.stop]):
            found[head] += bias.encoding.logit(tuple(map(float, row)), (jnp.asarray(to - at),))
    heads = [jnp.zeros((len(site.segment), HEADS, 8)) for site in sites]
    expected = encoding.bias(params, heads[0], sites[0], heads[1], sites[1])
    np.testing.assert_allclose(found, np.broadcast_to(expected, found.shape), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("spec", [T5, "t5(bidirectional=False)", "t5(num_buckets=6, max_distance=5)"])
def test_the_bias_is_constant_beyond(spec):
    encoding = pj.parse(spec)
    offsets, constants = np.arange(-300, 301, dtype=np.int32), tuple(np.arange(encoding.num_buckets, dtype=np.float32))
    bias, beyond = encoding.logit(constants, (offsets,)), encoding.constant_beyond
    assert len(set(np.asarray(bias[offsets >= beyond]))) == len(set(np.asarray(bias[offsets <= -beyond]))) == 1


def for_cuda(spec: str, length: int = 150, width: int = 64, causal: bool = True):
    encoding, params, qkv = world(spec, length, width, width, jnp.bfloat16)
    traced = jax.jit(gradients(encoding, two_documents(length, True), causal, tile=64)).trace(params, *qkv)
    return traced.lower(lowering_platforms=("cuda",)).as_text()


@slow
@pytest.mark.parametrize(
    ("spec", "width"),
    [
        ("kerple() + window(100)", 64),
        ("longformer(8) + alibi(direction='offset') + t5()", 128),
        ("bigbird(8) + kerple()", 64),
    ],
)
def test_lowers_for_cuda(spec, width):
    """Mosaic GPU infers layouts and lowers the three kernels: no GPU is needed for that."""
    assert for_cuda(spec, width=width).count("custom_call @mosaic_gpu") == 3


def test_no_array_of_length_squared():
    encoding, params, _ = world("alibi() + kerple()", width=64)
    q = jax.ShapeDtypeStruct((4096, HEADS, 64), jnp.bfloat16)
    k = jax.ShapeDtypeStruct((4096, KEY_HEADS, 64), jnp.bfloat16)
    traced = jax.make_jaxpr(gradients(encoding, pj.sites(4096), True, tile=64))(params, q, k, k)
    assert largest(traced) < 4096**2 / 8


@pytest.mark.slow
def test_data_movement(monkeypatch):
    """The kernels with their copies and barriers, in jax's simulator of a GPU, which knows no transposed tiles."""
    params_module = pytest.importorskip("jax._src.pallas.mosaic_gpu.interpret.params")

    def dot(a, b, *options, **more):
        return sweep.plain_dot(a[...], b[...], *options, **more)

    monkeypatch.setattr(sweep, "tensor_core_dot", dot)
    encoding, params, qkv = world("alibi() + kerple()", 150, 64, 64, jnp.bfloat16)
    site = two_documents(150, registers=False)
    _, expected = jax.jit(gradients(encoding, site, True))(params, *qkv)
    with params_module.force_gpu_interpret_mode(params_module.InterpretGPUParams(detect_races=True)):
        _, grads = jax.jit(gradients(encoding, site, True, tile=64))(params, *qkv)
        jax.block_until_ready(grads)
    assert not pytest.importorskip("jax._src.pallas.mosaic_gpu.interpret.gpu_callbacks").get_races().races_found
    for got, want in zip(jax.tree.leaves(grads), jax.tree.leaves(expected), strict=True):
        got, want = got.astype(jnp.float32), want.astype(jnp.float32)
        close(got, want, atol=0.02 * float(jnp.abs(want).max()))


@dataclass(frozen=True)
class Steeper(Alibi):
    """Changes the bias, for whoever calls it."""

    def logit(self, constants, offset):
        return 2 * super().logit(constants, offset)


@dataclass(frozen=True)
class Steepening(Alibi):
    """Changes the bias where the kernel does not see it."""

    def bias(self, params, q, q_site, k, k_site):
        return 2 * super().bias(params, q, q_site, k, k_site)


@dataclass(frozen=True)
class OfOffset(Alibi):
    def of_offset(self, params, offset, num_heads):
        return 2 * super().of_offset(params, offset, num_heads)


def test_a_changed_bias():
    """The kernel computes the change of `logit` too; a change of another method is refused."""
    _, params, qkv = world("alibi()")
    site = two_documents(LENGTH, registers=False)

    @jax.jit
    def run(*qkv):
        tiled = read(Steeper(), params, *qkv, site, True, interpret=True, tile=8)
        return tiled, *(read(encoding, params, *qkv, site, True) for encoding in (Steeper(), Alibi()))

    out, expected, plain = run(*qkv)
    close(out, expected)
    assert np.abs(expected - plain).max() > 1e-2
    for changed in (Steepening(), OfOffset()):
        assert "not written for a kernel" in supported(changed + pj.parse("rope()"))


def test_what_acts_on_logits_is_hosted_or_refused():
    for case in CASES:
        encoding = pj.parse(case.spec)
        for member in members(encoding):
            plain = type(member).bias is pj.Encoding.bias
            assert plain or isinstance(member, ElementwiseBias) or supported(encoding), case


@pytest.mark.parametrize(
    ("spec", "dtype", "position", "reason"),
    [
        ("rope()", jnp.float32, LINE, "half precision"),
        ("self_extend(2, 3) >> rope()", jnp.bfloat16, LINE, "product"),
        ("stick_breaking()", jnp.bfloat16, LINE, r"\(`weigh`\), which it does not compute"),
        ("self_extend(2, 3) >> alibi()", jnp.bfloat16, LINE, "self_extend.*not written for a kernel"),
        ("value_rotary() + learned_sink()", jnp.bfloat16, LINE, "learned_sink.* adds a sink"),
        ("value_rotary()", jnp.bfloat16, LINE, None),
        ("alibi()", jnp.bfloat16, LINE.astype(np.float32), "no gradient"),
        ("alibi()", jnp.bfloat16, np.zeros((6, 2), np.int32), "on a line"),
        ("rope()", jnp.bfloat16, np.zeros((6, 2), np.float32), None),
        ("window(3) + t5()", jnp.bfloat16, LINE, None),
    ],
)
def test_refusals(spec, dtype, position, reason):
    encoding = pj.parse(spec)
    q = jax.ShapeDtypeStruct((6, HEADS, WIDTH), dtype)
    site = pj.Site(position, np.ones(6, np.int32), np.zeros(6, np.int32))
    asked = Asked(encoding, Operands(None, q, q, None, None, q, site, site), "gpu", "9.0")
    got = BACKENDS["pallas"].refusal(asked)
    assert got is None if reason is None else re.search(reason, got)


def test_refuses_what_an_encoding_makes_too_wide():
    """PoPE doubles the channels of queries and keys."""
    encoding, site = pj.parse("pope()"), pj.sites(6)
    params = encoding.init(jax.random.key(0), pj.Dims(HEADS * 128, HEADS, 128))
    q = jax.ShapeDtypeStruct((6, HEADS, 128), jnp.bfloat16)
    with pytest.raises(ValueError, match="head dims up to 128, got 256"):
        jax.eval_shape(lambda q: pj.attend(encoding, params, q, q, q, site, site, implementation="pallas_interpret"), q)
