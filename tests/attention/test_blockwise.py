"""Attention tile by tile beside the dense oracle, and the arrays that it must never build. The values and gradients of each
encoding are compared in tests/encodings/test_properties.py.
"""

import functools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import FIRST, HEAD_DIM, HEADS, WIDTH, forward, inner_jaxprs, project, rows, setting, ways, world
from members import GRID, MEMBERS, Case

import posjax as pj
from posjax.attention import BEFORE_ATTENTION
from posjax.attention.attend import transform
from posjax.attention.blockwise import blockwise
from posjax.encoding import Needs


def close(a, b, atol=1e-5):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=atol), a, b)


def test_cross_attention():
    """5 queries, 14 keys, at sites of their own, values of another size, and capped logits."""
    w = world(Case("rope() + t5()"))

    def gradients(params, q, k, v, tile):
        def loss(params, q, k, v):
            if tile is None:
                out = pj.attend(w.encoding, params, q, k, v, q_site, site, implementation="dense", softcap=2.0)
            else:
                operands = transform(w.encoding, params, q, k, v, q_site, site)
                out = blockwise(w.encoding, operands, scale=8**-0.5, tile=tile, softcap=2.0)
            return jnp.sum(jnp.sin(out)), out

        return jax.grad(loss, argnums=(0, 1, 2, 3), has_aux=True)(params, q, k, v)

    @jax.jit
    def run(params, x):
        q, k, v, _ = project(w.encoding, params, x, site, w.weights)
        return [gradients(params, q[3:8], k, v[..., :3], tile) for tile in (4, None)]

    site = w.placed
    q_site = rows(site, slice(3, 8))
    tiled, dense = run(w.params, w.x)
    assert tiled[1].shape == (5, 3, 3)
    close(tiled, dense)


@pytest.mark.slow
def test_half_precision_gradients():
    w = world(Case("rope() + t5()"))

    @jax.jit
    def gradients(x):
        loss = lambda x, tile: jnp.sum(jnp.sin(forward(*w._replace(x=x), tile=tile).astype(jnp.float32)))  # noqa: E731
        return [jax.grad(loss)(x, tile) for tile in (5, None)]

    tiled, dense = gradients(w.x.astype(jnp.bfloat16))
    assert tiled.dtype == jnp.bfloat16
    close(tiled.astype(np.float32), dense.astype(np.float32), atol=0.05 * float(jnp.abs(dense).max()))


def test_nobody_to_see():
    """All padding: zeros, and zero gradients rather than NaN."""
    w = world(Case("rope() + t5() + sinusoidal()"))
    site = w.site._replace(segment=np.zeros_like(w.site.segment))

    @jax.jit
    def run(params, x):
        def loss(params, x, tile):
            return jnp.sum(forward(w.encoding, params, x, site, w.weights, tile=tile) + 1)

        return [jax.value_and_grad(loss, argnums=(0, 1))(params, x, tile) for tile in (None, 2)]

    for value, gradients in run(w.params, w.x):
        assert value == w.x.size
        assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradients))


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
    encoding, dims, _ = setting(case)
    params = jax.eval_shape(functools.partial(encoding.init, dims=dims), jax.random.key(0))
    length = 64 * 64
    whole = pj.sites(length) if case.kind != GRID else pj.grid(64, 64)
    if "raster" in case.spec:
        whole = whole._replace(position=whole.position % np.int32(7))
    if Needs.RELATION in encoding.needs:  # of many tokens to few nodes: to as many it would be squared itself
        node = np.arange(length, dtype=np.int32) % 16
        whole = whole._replace(relation=pj.Relation(node, abs(node[:, None] - np.arange(16, dtype=np.int32))))
        whole = cases.with_relation(whole, encoding) if Needs.CAMERAS in encoding.needs else whole
    site = jax.eval_shape(lambda params: jax.tree.map(jnp.asarray, encoding.place(params, whole)), params)
    x = jax.ShapeDtypeStruct((length, WIDTH), jnp.float32)
    site = jax.eval_shape(encoding.observe, params, x, site)
    q = jax.ShapeDtypeStruct((length, HEADS, HEAD_DIM), jnp.float32)
    options = dict(causal=True, implementation=implementation, consumed=BEFORE_ATTENTION)

    def loss(params, q, k, v, site):
        return jnp.sum(jnp.sin(pj.attend(encoding, params, q, k, v, site, site, **options)))

    return jax.make_jaxpr(jax.grad(loss, argnums=(0, 1, 2, 3)))(params, q, q, q, site)


LONG = [MEMBERS[name].variants[0] for name in ("alibi", "cope", "self_extend")]  # in diagonals, in rows, a product
WITHIN = [case for case in ways(FIRST) if pj.parse(case.spec).hooks - {"embed", "place", "rotate"}]


@pytest.mark.parametrize(
    "case",
    [*LONG, *(pytest.param(case, marks=pytest.mark.slow) for case in WITHIN if case not in LONG)],
    ids=str,
)
def test_no_array_of_length_squared(case):
    rows = 3 if "kernel_size=" in case.spec else 8  # of DAPE v2 a tile of queries by all keys has three keys' channels
    assert largest(traced(case, "blockwise")) < 4096**2 / rows


@pytest.mark.parametrize("implementation", ["dense", "auto"])
def test_the_check_sees_arrays_of_length_squared(implementation):
    assert (largest(traced(Case("alibi()"), implementation)) >= 4096**2) == (implementation == "dense")
