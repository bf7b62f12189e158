"""Sinks in the softmax and transforms of values, by hand and in every way of computing attention."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax as pj
from posjax.attention import ContextParallel, attend_cached, attend_parallel, empty_cache
from posjax.encoding import Needs

T, HEADS, KEY_HEADS, DIM = 7, 4, 2, 6
SITE = pj.sites(T)
RNG = np.random.default_rng(0)
Q, K, V = (jnp.asarray(RNG.normal(size=(T, heads, DIM)), jnp.float32) for heads in (HEADS, KEY_HEADS, KEY_HEADS))
IMPLEMENTATIONS = ["dense", "blockwise"]
MESH = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("context",))


class ByHead(pj.Encoding):
    """Values times the number of their head and 1 + their position; outputs times 2 + that of the query."""

    needs = Needs.EVERY_HEAD

    def value(self, params, v, k_site):
        return v * jnp.arange(1.0, HEADS + 1)[:, None] * (1.0 + k_site.position)[:, None, None]

    def output(self, params, out, q_site):
        return out * (2.0 + q_site.position)[:, None, None]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_sink_takes_its_share(implementation):
    """Logits of 0: a query that sees n keys gives each 1 / (n + exp(s)). One that sees none reads zeros."""
    segment = np.array([1, 1, 1, 0, 2, 2, 2], np.int32)
    site, sink = SITE._replace(segment=segment), np.float32([-1.0, 0.0, 0.5, 30.0])

    @jax.jit
    def run(sink):
        options = dict(causal=True, implementation=implementation)
        return pj.attend(pj.parse("learned_sink"), {"sink": sink}, 0 * Q, K, 0 * V + 1, site, site, **options)

    seen = np.array([1, 2, 3, 0, 1, 2, 3])[:, None]
    np.testing.assert_allclose(run(sink)[..., 0], seen / (seen + np.exp(sink)), atol=1e-6)


def test_weights_leave_the_sink_its_share():
    params = ({"sink": np.log(np.arange(1, HEADS + 1, dtype=np.float32))}, {"sink": np.zeros(HEADS, np.float32)})
    encoding = pj.parse("learned_sink + learned_sink")
    run = jax.jit(lambda params: pj.attend(encoding, params, 0 * Q, K, V, SITE, SITE, return_weights=True)[1])
    np.testing.assert_allclose(run(params).sum(-1)[:, 0], T / (T + np.arange(1, HEADS + 1) + 1), atol=1e-6)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_sink_far_above_or_below_the_logits_overflows_nothing(implementation):
    def read(params, q):
        out = pj.attend(pj.parse("learned_sink"), params, q, K, 0 * V + 1, SITE, SITE, implementation=implementation)
        return out.sum(), out

    run = jax.jit(jax.value_and_grad(read, argnums=(0, 1), has_aux=True))
    for sink, expected in ((-1e30, 1.0), (1e30, 0.0), (-math.inf, 1.0)):
        for factor in (1, 1000):
            (_, out), gradients = run({"sink": np.full(HEADS, sink, np.float32)}, factor * np.asarray(Q))
            np.testing.assert_allclose(out, expected, atol=1e-6)
            assert all(np.isfinite(g).all() for g in jax.tree.leaves(gradients))


@pytest.mark.parametrize(
    "spec", ["token_sink", pytest.param("interpolate(factor=2) >> (token_sink + learned_sink)", marks=pytest.mark.slow)]
)
def test_a_sink_of_each_query(spec):
    """By hand for logits of 0, as all implementations compute it."""
    encoding, count = pj.parse(spec), 100
    x = RNG.normal(size=(count, 8)).astype(np.float32)
    kernel = {"kernel": RNG.normal(size=(8, HEADS)).astype(np.float32)}
    params = kernel if spec == "token_sink" else ((), (kernel, {"sink": np.zeros(HEADS, np.float32)}))
    qkv = np.zeros((3, count, HEADS, DIM), np.float32)
    qkv[2] = 1

    @jax.jit
    def run(params):
        y, hosted = pj.host(encoding, params, x, pj.sites(count), key=None)
        context = [ContextParallel(MESH, keys=keys) for keys in ("gather", "ring")]
        options = [dict(implementation=name) for name in IMPLEMENTATIONS]
        options += [dict(implementation="blockwise", context=each) for each in context]
        return [hosted.attend(*qkv, x=y, causal=True, **each) for each in options]

    seen = np.arange(1, count + 1)[:, None]
    expected = seen / (seen + np.exp(x @ kernel["kernel"]) + ("+" in spec))
    for out in run(params):
        np.testing.assert_allclose(out[..., 0], expected, rtol=2e-5)


def test_values_are_turned_by_their_distance():
    """Two tokens, the second reading the first: R_1^T R_0 v, a turn by minus one radian in the first pair of channels."""
    q, k, v = np.float32([[[[0, 0]], [[100, 0]]], [[[1, 0]], [[-1, 0]]], [[[1, 0]], [[0, 0]]]])
    site = pj.sites(2, 5)
    run = jax.jit(lambda q, k, v: pj.attend(pj.parse("value_rotary"), (), q, k, v, site, site, causal=True))
    np.testing.assert_allclose(run(q, k, v)[1, 0], [math.cos(1), -math.sin(1)], atol=1e-6)


def expected_by_head():
    q, k, v = (np.repeat(np.asarray(x, np.float64), HEADS // x.shape[1], axis=1) for x in (Q, K, V))
    logits = np.einsum("thd,shd->hts", q, k) / math.sqrt(DIM)
    weights = np.exp(logits) * np.tril(np.ones((T, T)))
    values = v * np.arange(1, HEADS + 1)[:, None] * (1 + np.arange(T))[:, None, None]
    out = np.einsum("hts,shd->thd", weights / weights.sum(-1, keepdims=True), values)
    return out * (2 + np.arange(T))[:, None, None]


def decoded(encoding, q, k, v):
    """Outputs token by token, and the cache."""

    def step(cache, new):
        out, cache = attend_cached(encoding, (), *new, cache)
        return cache, out[0]

    one_by_one = jax.tree.map(lambda leaf: leaf[:, None], (q, k, v, SITE))
    cache, outs = jax.lax.scan(step, empty_cache(T, KEY_HEADS, DIM, SITE), one_by_one)
    return outs, cache


def test_heads_that_share_values_may_transform_them_differently():
    """A cache then keeps them raw."""

    @jax.jit
    def run(q, k, v):
        qkv, contexts = (q, k, v), [ContextParallel(MESH, keys=keys) for keys in ("gather", "ring")]
        attended = [
            pj.attend(ByHead(), (), *qkv, SITE, SITE, causal=True, implementation=name) for name in IMPLEMENTATIONS
        ]
        shared = [attend_parallel(ByHead(), (), *qkv, SITE, SITE, context=each, causal=True) for each in contexts]
        out, cache = decoded(ByHead(), *qkv)
        return [*attended, *shared, out], cache.value

    outs, values = run(Q, K, V)
    for out in outs:
        np.testing.assert_allclose(out, expected_by_head(), rtol=1e-5)
    np.testing.assert_array_equal(np.moveaxis(values, 2, 0), V)


def test_a_cache_keeps_values_transformed():
    encoding = pj.parse("value_rotary")

    @jax.jit
    def run(q, k, v):
        full = pj.attend(encoding, (), q, k, v, SITE, SITE, causal=True)
        return decoded(encoding, q, k, v), full, encoding.value((), v, SITE)

    (out, cache), full, values = run(Q, K, V)
    np.testing.assert_allclose(out, full, atol=1e-5)
    np.testing.assert_allclose(np.moveaxis(cache.value, 2, 0), values, atol=1e-6)


def test_a_scaling_by_the_length_of_a_document_is_refused_for_values():
    with pytest.raises(ValueError, match="depends on the length of a document"):
        pj.parse("value_rotary(scaling=dynamic_ntk(factor=2, original_length=8))")


def test_views_leave_values_where_they_stand():
    encoding, plain = pj.parse("self_extend(group=2, window=3) >> (value_rotary + rope)"), pj.parse("value_rotary")

    @jax.jit
    def run(q, v):
        params = ((), ((), ()))
        site = encoding.place(params, SITE)
        viewed = encoding.value(params, v, site), encoding.output(params, q, site)
        return viewed, (plain.value((), v, SITE), plain.output((), q, SITE))

    jax.tree.map(np.testing.assert_array_equal, *run(Q, V))


def test_an_attention_factor_does_not_scale_values():
    encoding = pj.parse("value_rotary(scaling=yarn(factor=16, original_length=4))")
    turned = jax.jit(lambda v: encoding.value((), v, SITE))(V)
    assert np.abs(turned - V).max() > 0.1
    np.testing.assert_allclose(np.linalg.norm(turned, axis=-1), np.linalg.norm(V, axis=-1), rtol=1e-5)
