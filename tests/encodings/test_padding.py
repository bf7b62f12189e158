"""Padding may hold anything: no token, gradient or cache learns of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import DEEP, HEAD_DIM, HEADS, world
from members import GRID, Case

import posjax as pj
from posjax.attention import ContextParallel
from posjax.encoding import Needs

SEGMENT = np.array([0, 1, 1, 1, 0, 1, 1, 2, 2, 0, 2, 2, 2, 0], np.int32)
REAL = SEGMENT > 0
FIRST = 9  # tokens of the prompt of a cache
OTHERS = jnp.nan, jnp.inf


def layer(w, site, implementation):
    """A function of (params, x, [q, k, v]): the tokens with their code, and attention's output."""

    def run(params, x, qkv):
        coded, hosted = pj.host(w.encoding, params, x, site, key=None)
        causal = w.site.position.ndim == 1 and Needs.BOTH_DIRECTIONS not in w.encoding.needs
        return coded, hosted.attend(*qkv, x=x, causal=causal, implementation=implementation)

    return run


def decoded(w, site, x, qkv):
    """A prompt, then the other tokens at once, by a cache."""
    _, hosted = pj.host(w.encoding, w.params, x, site, key=None)
    outs, cache = [], None
    for part in (slice(FIRST), slice(FIRST, None)):
        here = pj.Hosted(w.encoding, w.params, jax.tree.map(lambda leaf, part=part: leaf[part], hosted.site))
        size = None if cache else len(x)
        out, cache = here.attend_cached(*(y[part] for y in qkv), x=x[part], cache=cache, cache_size=size)
        outs.append(out)
    return jnp.concatenate(outs), (cache.key, cache.value)


def filled(array, value):
    return jnp.where(REAL.reshape(-1, *[1] * (array.ndim - 1)), array, value)


# Padding is set to zero before any hook sees it: one of each kind of hook is enough.
KINDS = [*DEEP, Case("peg()", GRID), Case("path(rank=5, stddev=0.5) + stick_breaking()")]


@pytest.mark.slow
@pytest.mark.parametrize("case", [Case("fox() + t5()"), *KINDS], ids=str)
def test_padding_may_hold_anything(case):
    """Outputs and gradients, dense and in tiles, of known sites and traced ones; and both halves of a cached pass."""
    w = world(case)
    site = w.site._replace(segment=np.where(w.site.prefix == 0, SEGMENT, 1).astype(np.int32))
    real = site.segment > 0
    qkv = jax.random.normal(jax.random.key(5), (3, 14, HEADS, HEAD_DIM))
    cached = not {Needs.BOTH_DIRECTIONS, Needs.WHOLE_DOCUMENT} & {*w.encoding.needs}

    @jax.jit
    def compute(params, x, qkv, traced):
        def loss(params, x, qkv, site, implementation):
            coded, out = layer(w, site, implementation)(params, x, qkv)
            return jnp.sum(jnp.sin(out)) + jnp.sum(jnp.where(real[:, None], coded, 0)), out

        found = [
            jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(params, x, qkv, *told)
            for told in ((site, "dense"), (traced, "blockwise"))
        ]
        return found, decoded(w, traced, x, list(qkv)) if cached else ()

    def at(value):
        x, *each = (jnp.where(real.reshape(-1, *[1] * (y.ndim - 1)), y, value) for y in (w.x, *qkv))
        return jax.device_get(compute(w.params, x, jnp.stack(each), site))

    expected = at(3.0)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(expected))
    for value in OTHERS:
        jax.tree.map(np.testing.assert_array_equal, at(value), expected)


@pytest.mark.parametrize("implementation", ["pallas_interpret", "gather", "ring"])
def test_no_backend_reads_padding(implementation):
    q, k, v = jax.random.normal(jax.random.key(0), (3, 14, HEADS, HEAD_DIM))
    told = dict(implementation=implementation)
    if implementation in ("gather", "ring"):
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("context",))
        told = dict(context=ContextParallel(mesh, keys=implementation))

    @jax.jit
    def compute(*qkv):
        hosted = pj.Hosted(pj.parse("rope + alibi"), ((), ()), pj.sites(14)._replace(segment=SEGMENT))
        return jax.value_and_grad(lambda *qkv: jnp.sum(jnp.sin(hosted.attend(*qkv, causal=True, **told))), (0, 1, 2))(
            *qkv
        )

    expected = compute(q, k, v)
    for value in OTHERS:
        jax.tree.map(np.testing.assert_array_equal, compute(*(filled(x, value) for x in (q, k, v))), expected)


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "implementation"), [("shaw", "dense"), ("fox + cope + t5", "blockwise")])
def test_padding_may_hold_anything_between_layers(spec, implementation):
    """A norm between two layers makes the gradient at padding NaN, which must not reach what the encoding has learned."""
    encoding, site = pj.parse(spec), pj.Site(np.arange(14, dtype=np.int32), SEGMENT)
    params = encoding.init(
        jax.random.key(0), pj.Dims(width=HEADS * HEAD_DIM, num_heads=HEADS, head_dim=HEAD_DIM, length=14)
    )
    x = filled(jax.random.normal(jax.random.key(1), (14, HEADS * HEAD_DIM)), jnp.nan)

    def loss(params, site):
        y, hosted = pj.host(encoding, params, x, site, key=None)
        for _ in range(2):
            q = (y / jnp.linalg.norm(y, axis=-1, keepdims=True)).reshape(14, HEADS, HEAD_DIM)
            y = y + hosted.attend(q, q, q, x=y, causal=True, implementation=implementation).reshape(x.shape)
        return jnp.sum(filled(y, 0.0) ** 2)

    for leaf in jax.tree.leaves(jax.jit(jax.grad(loss))(params, site)):
        assert np.isfinite(leaf).all()
        assert np.any(leaf != 0)
