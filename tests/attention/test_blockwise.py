"""Attention tile by tile beside the dense oracle, and the arrays that it must never build. The values and gradients of each
encoding are compared in tests/encodings/test_properties.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import HEAD_DIM, HEADS, WIDTH, each_case, forward, inner_jaxprs, params_of_long, project, rows, world
from members import GRID, Case

import posjax as pj
from posjax.attention import BEFORE_ATTENTION
from posjax.attention.attend import transform
from posjax.attention.blockwise import blockwise
from posjax.encoding import Needs


def close(a, b, atol=1e-5):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=atol), a, b)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("tile", [1, 4, *(pytest.param(tile, marks=pytest.mark.slow) for tile in (7, 13, 14, 512))])
def test_any_tile_size(tile, causal):
    case = Case("rope() + alibi() + t5()")
    w = world(case)
    both = jax.jit(lambda x: [forward(*w._replace(x=x), causal=causal, tile=size) for size in (tile, None)])
    close(*both(w.x))


@pytest.mark.parametrize("case", [Case("rope() + t5()"), Case("alibi()", GRID)], ids=str)
def test_cross_attention(case):
    """5 queries, 14 keys, at sites of their own, and values of another size."""
    w = world(case)
    q, k, v, site = project(w.encoding, w.params, w.x, w.placed, w.weights)
    q, q_site, v = q[3:8], rows(site, slice(3, 8)), v[..., :3]

    def read(params, q, k, v, tile):
        if tile is None:
            return pj.attend(w.encoding, params, q, k, v, q_site, site, implementation="dense")
        operands = transform(w.encoding, params, q, k, v, q_site, site)
        return blockwise(w.encoding, operands, scale=8**-0.5, tile=tile)

    def gradients(tile):
        def loss(*args):
            out = read(*args, tile)
            return jnp.sum(jnp.sin(out)), out

        return jax.grad(loss, argnums=(0, 1, 2, 3), has_aux=True)(w.params, q, k, v)

    tiled, dense = jax.jit(lambda: [gradients(4), gradients(None)])()
    assert tiled[1].shape == (5, 3, 3)
    close(tiled, dense)


def test_half_precision_gradients():
    w = world(Case("rope() + t5()"))
    w = w._replace(x=w.x.astype(jnp.bfloat16))

    def gradient(tile):
        loss = lambda x: jnp.sum(jnp.sin(forward(*w._replace(x=x), tile=tile).astype(jnp.float32)))  # noqa: E731
        return jax.jit(jax.grad(loss))(w.x)

    tiled, dense = gradient(5), gradient(None)
    assert tiled.dtype == jnp.bfloat16
    close(tiled.astype(jnp.float32), dense.astype(jnp.float32), atol=0.05 * float(jnp.abs(dense).max()))


@pytest.mark.parametrize("tile", [None, 2])
def test_nobody_to_see(tile):
    """All padding: zeros, and zero gradients rather than NaN."""
    w = world(Case("rope() + t5() + sinusoidal()"))
    site = w.site._replace(segment=np.zeros_like(w.site.segment))
    loss = lambda params, x: jnp.sum(forward(w.encoding, params, x, site, w.weights, tile=tile) + 1)  # noqa: E731
    value, gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(w.params, w.x)
    assert value == w.x.size
    for leaf in jax.tree.leaves(gradients):
        np.testing.assert_array_equal(leaf, 0)


def test_extreme_logits():
    """exp(1000) overflows: only differences of logits may be exponentiated, across tiles too."""
    w = world(Case("rope()"))
    w = w._replace(weights=w.weights.at[:2].mul(30.0))
    tiled, dense = jax.jit(lambda x: [forward(*w._replace(x=x), tile=tile) for tile in (4, None)])(w.x)
    assert np.isfinite(dense).all()
    close(tiled, dense, atol=2e-3)


def largest(jaxpr) -> int:
    """Elements of the largest array that a jaxpr computes, takes or closes over, in its inner jaxprs too."""
    sizes = []
    for inner, consts in inner_jaxprs(jaxpr):
        variables = [*inner.invars, *inner.constvars, *(v for eqn in inner.eqns for v in eqn.outvars)]
        sizes += [np.size(const) for const in consts]
        sizes += [v.aval.size for v in variables if hasattr(v.aval, "size")]
    return max(sizes)


def traced(case, implementation):
    """Forward and backward on 4096 tokens, traced but never run."""
    w = world(case)
    length = 64 * 64
    whole = pj.sites(length) if case.kind != GRID else pj.grid(64, 64)
    if "raster" in case.spec:
        whole = whole._replace(position=whole.position % np.int32(7))
    if Needs.RELATION in w.encoding.needs:  # of many tokens to few nodes: to as many it would be squared itself
        node = np.arange(length, dtype=np.int32) % 16
        whole = whole._replace(relation=pj.Relation(node, abs(node[:, None] - np.arange(16, dtype=np.int32))))
    site = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, w.encoding.place(w.params, whole)))
    x = jax.ShapeDtypeStruct((length, WIDTH), jnp.float32)
    site = jax.eval_shape(w.encoding.observe, w.params, x, site)
    q = jax.ShapeDtypeStruct((length, HEADS, HEAD_DIM), jnp.float32)

    def loss(params, q, k, v, site):
        out = pj.attend(
            w.encoding,
            params,
            q,
            k,
            v,
            site,
            site,
            causal=True,
            implementation=implementation,
            consumed=BEFORE_ATTENTION,
        )
        return jnp.sum(jnp.sin(out))

    return jax.make_jaxpr(jax.grad(loss, argnums=(0, 1, 2, 3)))(w.params, q, q, q, site)


@each_case(params_of_long(beside=("learned", "peg")))
def test_no_array_of_length_squared(case):
    rows = 3 if "kernel_size=" in case.spec else 8  # of DAPE v2 a tile of queries by all keys has three keys' channels
    assert largest(traced(case, "blockwise")) < 4096**2 / rows


@pytest.mark.parametrize("implementation", ["dense", "auto"])
def test_the_check_sees_arrays_of_length_squared(implementation):
    assert (largest(traced(Case("alibi()"), implementation)) >= 4096**2) == (implementation == "dense")
