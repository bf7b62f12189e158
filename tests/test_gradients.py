"""Forward mode beside gradients by hand: through attention in tiles, norms and models."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import DEEP, HEAD_DIM, HEADS, each_case, forward, world
from jax.sharding import Mesh, PartitionSpec

import posjax as pj
from posjax.attention import ContextParallel
from posjax.describe.worlds import normal
from posjax.gradients import einsum, one_by_one
from posjax.models.layers import normalised

SITE = pj.sites(14)
Q, K, V = (normal(seed, 14, HEADS, HEAD_DIM) for seed in range(3))


def close(a, b, atol=2e-5):
    for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=atol * max(1, np.abs(y).max(initial=0)))


def wave(tree):
    """Tangents."""
    return jax.tree.map(lambda x: jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape), tree)


@pytest.mark.slow
@each_case(DEEP)
def test_forward_mode_in_tiles_is_dense(case):
    """Derivatives, and derivatives of gradients, along one direction, to parameters, tokens and projections.

    In the cases are a bias, one of contents, both products, a gate, sinks, values and other positions.
    """
    w = world(case)
    given = w.params, w.x, w.weights

    @functools.partial(jax.jit, static_argnums=0)
    def moved(tile, given):
        def out(params, x, weights):
            return forward(w.encoding, params, x, w.site, weights, tile=tile)

        def loss(*given):
            return jnp.sum(jnp.sin(out(*given)))

        return jax.jvp(out, given, wave(given)), jax.jvp(jax.grad(loss, (0, 1, 2)), given, wave(given))

    close(moved(5, given), moved(None, given), atol=5e-5)


def attended(implementation):
    """The sum of a wave of outputs, as a function of two factors."""

    def loss(s, sites=SITE):
        hosted = pj.Hosted(pj.parse("rope + alibi"), ((), ()), sites)
        read = hosted.attend(s[0] * Q, s[1] * K, V, causal=True, implementation=implementation)
        return jnp.sum(jnp.sin(read))

    return loss


@pytest.mark.slow
@pytest.mark.parametrize("transform", [jax.hessian, jax.linearize], ids=lambda f: f.__name__)
def test_transforms(transform):
    s = jnp.array([1.0, 0.5])
    run = (lambda f: jax.linearize(f, s)[1](s)) if transform is jax.linearize else (lambda f: transform(f)(s))
    close(*(jax.jit(functools.partial(run, attended(name)))() for name in ("blockwise", "dense")))


@pytest.mark.slow
def test_a_loss_that_holds_a_derivative_still():
    """Follows MeanFlow: the gradient flows through the output of `jvp`, not through its tangent."""

    def gradient(name):
        def loss(s):
            out, moved = jax.jvp(attended(name), (s,), (jnp.ones(2),))
            return jnp.square(out - jax.lax.stop_gradient(moved))

        return jax.jit(jax.grad(loss))(jnp.array([1.0, 0.5]))

    close(gradient("blockwise"), gradient("dense"))


@pytest.mark.slow
def test_tiles_have_no_reverse_mode_over_a_derivative():
    for run in (jax.jacfwd, jax.grad):
        with pytest.raises(ValueError, match="take implementation='dense'"):
            jax.eval_shape(jax.grad(lambda s, run=run: jnp.sum(run(attended("blockwise"))(s))), jnp.ones(2))


@pytest.mark.parametrize("spec", ["none", "t5"])
def test_gradients_of_dense_attention_pass_the_types_of_shard_map(spec):
    encoding, q = pj.parse(spec), jnp.stack([Q, K]).astype(jnp.bfloat16)
    params = encoding.init(jax.random.key(0), pj.Dims(HEADS * HEAD_DIM, HEADS, HEAD_DIM))

    def rows(q):
        return jax.vmap(lambda q: pj.attend(encoding, params, q, q, q, SITE, SITE, implementation="dense"))(q)

    mesh, each = Mesh(np.array(jax.devices()[:1]), ("data",)), PartitionSpec("data")
    sharded = jax.shard_map(rows, mesh=mesh, in_specs=each, out_specs=each)
    found, expected = (jax.jit(jax.grad(lambda q, run=run: jnp.sum(run(q) ** 2)))(q) for run in (sharded, rows))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("dtype", "expected"), [(jnp.float16, 1.025e-5), (jnp.bfloat16, 1.024e-5), (jnp.float32, 1.024e-5)]
)
def test_small_cotangents_of_products(dtype, expected):
    """float16 would make 1e-8 zero, bfloat16 has float32's range."""
    y = jnp.full((1, 1), 2.0**10, dtype)
    found = jax.grad(lambda x: 1e-8 * einsum("ab,bc->ac", x, y).sum())(jnp.ones((1, 1), dtype))
    np.testing.assert_allclose(found.astype(jnp.float32), [[expected]], rtol=0.01)


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_cotangents_of_products_stay_in_float32_on_tpus_alone(platform):
    x = jax.ShapeDtypeStruct((2, 2), jnp.bfloat16)
    gradient = jax.jit(jax.grad(lambda x, y: jnp.sum(einsum("ab,bc->ac", x, y) ** 2), (0, 1)))
    text = gradient.trace(x, x).lower(lowering_platforms=(platform,)).as_text()
    assert ("(tensor<2x2xf32>, tensor<2x2xbf16>)" in text) == (platform == "tpu")


@pytest.mark.slow
def test_forward_mode_in_a_ring():
    context = ContextParallel(Mesh(np.array(jax.devices()[:1]), ("context",)), keys="ring")

    def loss(s, context=None):
        hosted = pj.Hosted(pj.parse("rope + alibi"), ((), ()), SITE)
        return jnp.sum(jnp.sin(hosted.attend(s[0] * Q, s[1] * K, V, causal=True, context=context)))

    run = jax.jit(lambda s, context: jax.jvp(functools.partial(loss, context=context), (s,), (s,)), static_argnums=1)
    s = jnp.array([1.0, 0.5])
    close(run(s, context), run(s, None))


@pytest.mark.parametrize("centred", [False, True])
def test_norms_have_every_mode(centred):
    def plain(x):
        x = x - jnp.mean(x, axis=-1, keepdims=True) if centred else x
        return jnp.sum(jnp.sin(x / jnp.sqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + 1e-6)))

    def ours(x):
        return jnp.sum(jnp.sin(normalised(x, centred, 1e-6)))

    modes = jax.grad, jax.jacfwd, jax.hessian, lambda f: jax.jacrev(jax.jacrev(f))
    for pair in jax.jit(lambda x: [(mode(ours)(x), mode(plain)(x)) for mode in modes])(normal(1, 3, 5)):
        close(*pair)


def test_one_by_one():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    run = one_by_one(lambda x: jnp.sin(x[0]) * x[1])
    rows, slope = jax.jit(lambda x: (jax.vmap(lambda x: run((x, x)))(x), jax.jacfwd(lambda x: run((x, 2.0)))(x[0])))(x)
    close(rows, np.sin(x) * x)
    close(slope, 2 * np.diag(np.cos(x[0])))
