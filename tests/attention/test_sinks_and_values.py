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
Q, K, V = (
    jax.random.normal(jax.random.key(n), (T, heads, DIM)) for n, heads in ((0, HEADS), (1, KEY_HEADS), (2, KEY_HEADS))
)
IMPLEMENTATIONS = ["dense", "blockwise"]


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
    site, sink = SITE._replace(segment=segment), jnp.array([-1.0, 0.0, 0.5, 30.0])
    options = dict(causal=True, implementation=implementation)
    out = pj.attend(pj.parse("learned_sink"), {"sink": sink}, 0 * Q, K, 0 * V + 1, site, site, **options)
    seen = np.array([1, 2, 3, 0, 1, 2, 3])[:, None]
    np.testing.assert_allclose(out[..., 0], seen / (seen + np.exp(sink)), atol=1e-6)


def test_weights_leave_the_sink_its_share():
    params = ({"sink": jnp.log(jnp.arange(1.0, HEADS + 1))}, {"sink": jnp.zeros(HEADS)})
    encoding = pj.parse("learned_sink + learned_sink")
    _, weights = pj.attend(encoding, params, 0 * Q, K, V, SITE, SITE, return_weights=True)
    np.testing.assert_allclose(weights.sum(-1)[:, 0], T / (T + np.arange(1, HEADS + 1) + 1), atol=1e-6)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_sink_far_above_or_below_the_logits_overflows_nothing(implementation):
    def read(params, q):
        out = pj.attend(pj.parse("learned_sink"), params, q, K, 0 * V + 1, SITE, SITE, implementation=implementation)
        return out.sum(), out

    run = jax.jit(jax.value_and_grad(read, argnums=(0, 1), has_aux=True))
    for sink, expected in ((-1e30, 1.0), (1e30, 0.0), (-math.inf, 1.0)):
        for q in (Q, 1e3 * Q):
            (_, out), gradients = run({"sink": jnp.full(HEADS, sink)}, q)
            np.testing.assert_allclose(out, expected, atol=1e-6)
            assert all(np.isfinite(g).all() for g in jax.tree.leaves(gradients))


def reads_with_content_sinks(encoding, x, weight, qkv, **options):
    """The outputs of one layer whose sinks are x @ weight."""
    params, nothing = {"kernel": weight}, {"sink": jnp.zeros(HEADS)}
    params = params if encoding == "token_sink" else (params, nothing) if "+" in encoding else ((), params)
    encoding = pj.parse(encoding)
    site = pj.sites(len(x))
    x, hosted = pj.host(encoding, params, x, site, key=None)
    return hosted.attend(*qkv, x=x, causal=True, **options)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["token_sink", "token_sink + learned_sink", "interpolate(factor=2) >> token_sink"])
def test_a_sink_of_each_query(encoding):
    """Outputs by hand for logits of 0; tiles with their gradients as dense."""
    x = jax.random.normal(jax.random.key(3), (100, 8))
    weight, qkv = jax.random.normal(jax.random.key(4), (8, HEADS)), jnp.zeros((3, 100, HEADS, DIM)).at[2].set(1.0)
    sinks, seen = np.exp(np.asarray(x @ weight, np.float64)), np.arange(1, 101)[:, None]
    out = reads_with_content_sinks(encoding, x, weight, qkv, implementation="dense")
    np.testing.assert_allclose(out[..., 0], seen / (seen + sinks + ("+" in encoding)), rtol=2e-5)

    def loss(implementation):
        qkv = jax.random.normal(jax.random.key(5), (3, 100, HEADS, DIM))
        return jax.value_and_grad(
            lambda *given: jnp.sum(reads_with_content_sinks(encoding, *given, implementation=implementation) ** 2),
            argnums=(0, 1, 2),
        )(x, weight, qkv)

    for a, b in zip(*(jax.tree.leaves(loss(each)) for each in IMPLEMENTATIONS), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_sink_of_each_query_in_a_cache_and_on_devices():
    x, weight = jax.random.normal(jax.random.key(3), (T, 8)), jax.random.normal(jax.random.key(4), (8, HEADS))
    encoding, weight = pj.parse("token_sink"), {"kernel": weight}
    known = dict(consumed=("observe",))
    site = encoding.observe(weight, x, SITE)
    expected = pj.attend(encoding, weight, Q, K, V, site, site, causal=True, **known)
    cache, outs = empty_cache(T, KEY_HEADS, DIM, site), []
    for t in range(T):
        new = jax.tree.map(lambda leaf, t=t: leaf[t : t + 1], (Q, K, V, site))
        out, cache = attend_cached(encoding, weight, *new, cache, **known)
        outs.append(out[0])
    np.testing.assert_allclose(np.stack(outs), expected, atol=1e-5)
    for keys in ("gather", "ring"):
        context = ContextParallel(jax.sharding.Mesh(np.array(jax.devices()[:1]), ("context",)), keys=keys)
        out = attend_parallel(encoding, weight, Q, K, V, site, site, context=context, causal=True, **known)
        np.testing.assert_allclose(out, expected, atol=1e-5)


def test_values_are_turned_by_their_distance():
    """Two tokens, the second reading the first: R_1^T R_0 v, a turn by minus one radian in the first pair of channels."""
    v = jnp.zeros((2, 1, 2)).at[0, 0, 0].set(1.0)
    q = jnp.array([[[0.0, 0.0]], [[100.0, 0.0]]])
    k = jnp.array([[[1.0, 0.0]], [[-1.0, 0.0]]])
    out = pj.attend(pj.parse("value_rotary"), (), q, k, v, pj.sites(2, 5), pj.sites(2, 5), causal=True)
    np.testing.assert_allclose(out[1, 0], [math.cos(1), -math.sin(1)], atol=1e-6)


def expected_by_head():
    q, k, v = (np.repeat(np.asarray(x, np.float64), HEADS // x.shape[1], axis=1) for x in (Q, K, V))
    logits = np.einsum("thd,shd->hts", q, k) / math.sqrt(DIM)
    weights = np.exp(logits) * np.tril(np.ones((T, T)))
    values = v * np.arange(1, HEADS + 1)[:, None] * (1 + np.arange(T))[:, None, None]
    out = np.einsum("hts,shd->thd", weights / weights.sum(-1, keepdims=True), values)
    return out * (2 + np.arange(T))[:, None, None]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_heads_that_share_values_may_transform_them_differently(implementation):
    out = pj.attend(ByHead(), (), Q, K, V, SITE, SITE, causal=True, implementation=implementation)
    np.testing.assert_allclose(out, expected_by_head(), rtol=1e-5)


@pytest.mark.parametrize("keys", ["gather", "ring"])
def test_heads_that_share_values_on_devices(keys):
    context = ContextParallel(jax.sharding.Mesh(np.array(jax.devices()[:1]), ("context",)), keys=keys)
    read = jax.jit(lambda *qkv: attend_parallel(ByHead(), (), *qkv, SITE, SITE, context=context, causal=True))
    np.testing.assert_allclose(read(Q, K, V), expected_by_head(), rtol=1e-5)


def decoded(encoding, size=T):
    cache, step, outs = (
        empty_cache(size, KEY_HEADS, DIM, SITE),
        jax.jit(lambda *new: attend_cached(encoding, (), *new)),
        [],
    )
    for t in range(T):
        new = jax.tree.map(lambda leaf, t=t: leaf[t : t + 1], (Q, K, V, SITE))
        out, cache = step(*new, cache)
        outs.append(out[0])
    return np.stack(outs), cache


def test_a_cache_keeps_values_raw_where_heads_share_them():
    out, cache = decoded(ByHead())
    np.testing.assert_allclose(out, expected_by_head(), rtol=1e-5)
    np.testing.assert_array_equal(jnp.moveaxis(cache.value, 2, 0), V)


def test_a_cache_keeps_values_transformed():
    encoding = pj.parse("value_rotary")
    out, cache = decoded(encoding)
    np.testing.assert_allclose(out, pj.attend(encoding, (), Q, K, V, SITE, SITE, causal=True), atol=1e-5)
    np.testing.assert_allclose(jnp.moveaxis(cache.value, 2, 0), encoding.value((), V, SITE), atol=1e-6)


def test_a_scaling_by_the_length_of_a_document_is_refused_for_values():
    with pytest.raises(
        ValueError, match="depends on the length of a document, and values are cached as they are turned"
    ):
        pj.parse("value_rotary(scaling=dynamic_ntk(factor=2, original_length=8))")


def test_views_leave_values_where_they_stand():
    encoding, plain = pj.parse("self_extend(group=2, window=3) >> (value_rotary + rope)"), pj.parse("value_rotary")
    site = encoding.place(((), ((), ())), SITE)
    np.testing.assert_array_equal(encoding.value(((), ((), ())), V, site), plain.value((), V, SITE))
    np.testing.assert_array_equal(encoding.output(((), ((), ())), Q, site), plain.output((), Q, SITE))


def test_an_attention_factor_does_not_scale_values():
    encoding = pj.parse("value_rotary(scaling=yarn(factor=16, original_length=4))")
    turned = encoding.value((), V, SITE)
    assert np.abs(turned - V).max() > 0.1
    np.testing.assert_allclose(jnp.linalg.norm(turned, axis=-1), jnp.linalg.norm(V, axis=-1), rtol=1e-5)
