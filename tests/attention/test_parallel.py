"""Devices that share a sequence compute what one device does, in equal parts, and hold no array of length squared."""

import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import HEAD_DIM, HEADS, rows, ways
from jax.sharding import AbstractMesh, Mesh
from members import GRID, LINE, MEMBERS

import posjax as pj
from posjax.attention import ContextParallel, attend_parallel, unzigzag, zigzag
from posjax.attention.dense import Operands
from posjax.attention.ring import Keys, Queries, Ring, attend_in_ring
from posjax.attention.tiles import Plan, seen_tiles
from posjax.encoding import Needs
from posjax.models import BlockConfig, Decoder

TESTS = pathlib.Path(__file__).parents[1]
MESH = Mesh(np.array(jax.devices()[:1]), ("context",))


def on_devices(*jobs, count=12):
    """The results of sharing.py's checks on so many devices."""
    flags = {"JAX_NUM_CPU_DEVICES": str(count), "JAX_PLATFORMS": "cpu"}
    path = {"PYTHONPATH": os.pathsep.join((str(TESTS.parent), str(TESTS)))}
    command = [sys.executable, str(TESTS / "attention" / "sharing.py"), json.dumps(jobs)]
    done = subprocess.run(command, env=os.environ | flags | path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def sums_of(kind: str, size: int = 12) -> list[str]:
    """The first encoding of each way to act, so many to a sum; of those that widen the head dim one a sum; by itself what
    stands for the softmax, or on other axes.
    """
    cases = ways([member.variants[0] for member in MEMBERS.values()])
    specs = [case.spec for case in cases if case.kind == kind]
    axes = 1 if kind == LINE else 2
    alone = [spec for spec in specs if "weigh" in pj.parse(spec).hooks or axes not in pj.parse(spec).dimensions]
    specs = [spec for spec in specs if spec not in alone]
    specs.sort(key=lambda spec: Needs.HEAD_DIM not in pj.parse(spec).needs)
    count = max(-(-len(specs) // size), sum(Needs.HEAD_DIM in pj.parse(spec).needs for spec in specs))
    return [" + ".join(f"({spec})" for spec in specs[first::count]) for first in range(count)] + alone


INKLING = "inkling(rank=3, extent=5, n_floor=3, clip=2, stddev=0.5)"
DEBERTA = "deberta(position_buckets=4, max_relative_positions=6)"
SHARED = [  # values and gradients, but for those with False; groups of devices share the batch, those of a group sequences
    [f"rope() + shaw() + fox() + value_rotary() + learned_sink(stddev=1) + {INKLING}", LINE, 2, 4, "zigzag", "ring"],
    ["self_extend(group=2, window=4) >> (rope() + alibi())", LINE, 1, 2, "contiguous", "ring", False],
    ["(raster(width=7) >> sinusoidal()) + rope() + token_sink(stddev=0.5)", GRID, 2, 2, "zigzag", "ring", False],
    ["(raster(width=7) >> learned()) + rope() + peg()", GRID, 1, 8, "zigzag", "gather"],
]
SHARED += [  # kernels, with 3 devices that share the heads, and 2 that share queries, in two groups or one
    ["rope() + learned_sink(stddev=1)", LINE, 2, 2, "zigzag", "gather", True, "splash_interpret", 3],
    ["rope() + window(4)", LINE, 2, 1, "zigzag", "gather", False, "splash_interpret", 3],
    ["rope() + alibi() + t5()", LINE, 1, 2, "zigzag", "gather", True, "pallas_interpret", 3],
    ["rope()", GRID, 1, 1, "zigzag", "gather", False, "splash_interpret", 3],
    [
        f"rope() + t5() + {DEBERTA} + learned_sink(stddev=1)",
        LINE,
        2,
        1,
        "zigzag",
        "gather",
        True,
        "pallas_tpu_interpret",
        3,
    ],
    [
        "randomized(length=64) >> (t5() + transformer_xl() + learned_sink(stddev=1))",
        LINE,
        1,
        1,
        "zigzag",
        "gather",
        True,
        "pallas_tpu_interpret",
        3,
    ],
]
SHARED += [[spec, kind, 2, 4, "zigzag", "gather", False] for kind in (LINE, GRID) for spec in sums_of(kind)]


@pytest.fixture(scope="module")
def on_eight_devices():
    """The results of all checks of sharing.py, in one process."""
    return on_devices(
        ["arrays", ["rope() + t5()", 4096, 4, 2, 4]], ["zigzags", [16, 4]], *(["differences", job] for job in SHARED)
    )


@pytest.mark.slow
def test_devices_compute_what_one_does(on_eight_devices):
    far = {str(job): gap for job, gap in zip(SHARED, on_eight_devices[2:], strict=True) if not gap < 2e-5}
    assert far == {}


@pytest.mark.slow
def test_what_devices_hold_and_send(on_eight_devices):
    """4096 tokens of 4 sequences, 2 groups of 4 devices, forward and backward."""
    (largest, gathered, sent), held = on_eight_devices[:2]
    assert largest < 4096**2 / 8  # a device's queries by all keys would be 4096**2 / 4
    assert max(gathered) == 2 * 4096 * HEADS * HEAD_DIM  # the keys of a group's half of the batch, not of all of it
    assert gathered.count(max(gathered)) == 2  # once the keys, once the values
    chunk = 2 * 4096 // 8 * HEADS * HEAD_DIM
    assert sent.count(chunk) == 8  # the two chunks of queries there, their outputs, and the gradients of both
    assert max(sent) == chunk
    assert [sorted(shard) for shard in held] == np.sort(zigzag(np.arange(16), 4).reshape(4, 4)).tolist()


@pytest.mark.thorough
def test_models_on_devices_compute_what_they_do_on_one():
    """Trains on packed rows, drawn positions and dropout; and 18 tokens of 3 images on 2 x 4 devices."""
    ((decoder, d_decoder, vit, d_vit),) = on_devices(["models", []])
    assert decoder < 1e-5 * max(d_decoder, 1)
    assert vit < 1e-5 * max(d_vit, 1)
    assert min(d_decoder, d_vit) > 1e-2


@pytest.mark.parametrize(("size", "length"), [(1, 2), (3, 12)])
def test_zigzag_and_back(size, length):
    tree = (np.arange(length), pj.sites(length), np.arange(2.0 * length).reshape(length, 2))
    laid_out = zigzag(tree, size)
    jax.tree.map(np.testing.assert_array_equal, unzigzag(laid_out, size), tree)
    chunks = np.arange(length).reshape(2 * size, -1)
    for shard, tokens in enumerate(np.split(laid_out[0], size)):
        np.testing.assert_array_equal(tokens, np.concatenate([chunks[shard], chunks[-1 - shard]]))
    batch = np.stack([tree[0], tree[0] + 1])
    np.testing.assert_array_equal(zigzag(batch, size, axis=1), np.stack([laid_out[0], laid_out[0] + 1]))


def tiles_of_each(order, size=4):
    """The tiles of 128 x 128 pairs that each device computes, for a causal sequence whose queries lie in `order`."""
    site = jax.tree.map(jnp.asarray, pj.sites(len(order)))
    plan = Plan(pj.parse("none()"), 1.0, HEADS, HEAD_DIM, 128, 128)

    @jax.jit
    @jax.vmap
    def count(own):
        pair = dict(q_site=rows(site, own), k_site=site, q_order=own, k_order=np.arange(len(order), dtype=np.int32))
        unread = dict.fromkeys({*Operands._fields} - pair.keys())
        return seen_tiles(plan, Operands(**pair, **unread)).tiles(0)[1]

    return count(order.reshape(size, -1)).tolist()


def test_zigzag_is_equal_work_for_all():
    order = np.arange(2048, dtype=np.int32)
    assert tiles_of_each(order) == [10, 26, 42, 58]
    assert tiles_of_each(zigzag(order, 4)) == [34, 34, 34, 34]


def test_tokens_may_come_in_an_order_of_their_own():
    """Laid out in zigzag by the caller, on one device, with orders that say so; grouped keys."""
    encoding, site, rng = pj.parse("rope() + alibi()"), pj.sites(12), np.random.default_rng(0)
    q, k = (rng.normal(size=(12, heads, 8)).astype(np.float32) for heads in (4, 2))
    laid_out = zigzag((q, k, site, np.arange(12, dtype=np.int32)), 3)
    options = dict(causal=True, implementation="blockwise")

    @jax.jit
    def run():
        q, k, site, order = laid_out
        kwargs = dict(q_order=order, k_order=order, context=ContextParallel(MESH, keys="ring"), **options)
        return attend_parallel(encoding, ((), ()), q, k, k, site, site, **kwargs)

    expected = jax.jit(lambda: pj.attend(encoding, ((), ()), q, k, k, site, site, causal=True))()
    np.testing.assert_allclose(unzigzag(run(), 3), expected, atol=1e-6)


@pytest.mark.slow
def test_shares_in_half_precision_are_rounded_once():
    """Each of four reads the mean of two values that lies between two numbers of bfloat16; their mean is one of them."""
    v = 1 + np.array([[0, 1], [0, 1], [0, 1], [2, 3]]) / 128
    v = v[..., None, None].astype(jnp.bfloat16)
    site = jax.tree.map(lambda leaf: leaf.reshape(4, 2), pj.sites(8)[:3])
    ring = Ring(pj.parse("none"), "context", 4, 1.0)

    def read(v, site):
        return attend_in_ring(ring, (), Queries(0 * v, pj.Site(*site), None), Keys(v, v, pj.Site(*site), None))

    out = jax.jit(jax.vmap(read, axis_name="context"))(v, site)
    assert out.dtype == jnp.bfloat16
    assert np.all(out.astype(np.float32) == 1 + 1 / 128)


def test_the_backward_pass_keeps_no_keys_of_others():
    """The residuals between the passes are of a device's own tokens, or arguments of `attend`."""
    encoding, site = pj.parse("rope()"), pj.sites(64)
    q = jnp.ones((64, 8, 8))
    context = ContextParallel(AbstractMesh((4,), ("context",)), order="contiguous")
    options = dict(context=context, causal=True, implementation="blockwise")
    read = lambda k: attend_parallel(encoding, (), q, k, k, site, site, **options)  # noqa: E731
    pull = jax.eval_shape(lambda k: jax.vjp(read, k)[1], q)
    kept = sum(leaf.size for leaf in jax.tree.leaves(pull) if leaf.dtype == jnp.float32)
    # q, k, v, the output, a number for each query and head; and some constants of less than another array of tokens.
    assert 4 * q.size + 64 * 8 <= kept < 5 * q.size


REFUSED = {
    "all keys of a document": (
        dict(encoding="rope(scaling=dynamic_ntk(factor=2, original_length=6))"),
        "keys='gather'",
    ),
    "all keys of a query": (dict(encoding="cope()"), "needs the keys of all devices at once"),
    "weights of a whole row": (dict(encoding="stick_breaking()"), "needs the keys of all devices at once"),
    "another implementation": (dict(implementation="dense"), "implementation='dense' needs keys='gather'"),
}


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED)
def test_a_ring_refuses_what_needs_all_keys(arguments, message):
    options = {"encoding": "rope()", "context": ContextParallel(MESH, keys="ring"), **arguments}
    q, site = jnp.ones((4, 2, 8)), pj.sites(4)
    with pytest.raises(ValueError, match=message):
        attend_parallel(pj.parse(options.pop("encoding")), (), q, q, q, site, site, causal=True, **options)


def test_a_model_that_decodes_from_a_cache_shares_nothing():
    model = Decoder(8, block=BlockConfig(width=8, num_heads=1, context=ContextParallel(MESH)), depth=1)
    tokens, site = jnp.zeros((1, 4), jnp.int32), pj.sites(4)
    variables = jax.eval_shape(model.init, jax.random.key(0), tokens, site)
    with pytest.raises(ValueError, match=r"decode with model.with_fields\(context=None\)"):
        jax.eval_shape(lambda v: model.apply(v, tokens, site, cache_size=8, method=Decoder.prefill), variables)
