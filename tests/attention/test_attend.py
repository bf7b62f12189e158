"""`attend` itself: its result, its choice of an implementation, and its messages."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import Case, forward, project, world

import posjax as pj
from posjax.attention import BEFORE_ATTENTION
from posjax.attention import attend as attend_function

T, H, D = 4, 2, 8
SITE = pj.sites(T)
Q = jax.random.normal(jax.random.key(0), (T, H, D))


def attend(q=Q, k=Q, v=Q, q_site=SITE, k_site=SITE, **options):
    return jax.jit(lambda *qkv: pj.attend(pj.parse("rope()"), (), *qkv, q_site, k_site, **options))(q, k, v)


ERRORS = {
    "a batch": (dict(q=Q[None]), r"\(1, 4, 2, 8\).*jax.vmap it over a batch"),
    "other head dims": (dict(k=Q[..., :4], v=Q[..., :4]), r"do not fit each other: got \(4, 2, 8\), \(4, 2, 4\)"),
    "heads that cannot be shared": (
        dict(k=Q[:, [0, 1, 1]], v=Q[:, [0, 1, 1]]),
        "3 key heads cannot be shared evenly by 2 query heads",
    ),
    "no token": (dict(q=Q[:0], q_site=pj.sites(0)), "at least one query and one key, got 0 and 4"),
    "orders of nothing": (dict(q_order=np.arange(4), k_order=np.arange(4)), "which only causal=True hides"),
    "one order": (dict(causal=True, q_order=np.arange(4)), "both q_order and k_order"),
    "an order too long": (dict(causal=True, q_order=np.arange(4), k_order=np.arange(5)), r"got \(4,\), \(5,\)"),
    "fewer values than keys": (dict(v=Q[:3]), r"do not fit each other: .*\(3, 2, 8\)"),
    "a site too few": (dict(q_site=pj.sites(3)), "q has 4 tokens, q_site 3"),
    "a key site too many": (dict(k_site=pj.sites(5)), "k has 4 tokens, k_site 5"),
    "other axes": (dict(k_site=pj.grid(2, 2)), r"same axes: got positions \(4,\) and \(4, 2\)"),
    "causal cross attention": (
        dict(q=Q[:3], q_site=pj.sites(3), causal=True),
        "as many queries as keys, or their orders; got 3 and 4",
    ),
    "a misspelt implementation": (dict(implementation="blokwise"), "named 'blokwise'; did you mean 'blockwise'"),
    "weights of blockwise": (
        dict(implementation="blockwise", return_weights=True),
        "implementation='blockwise' never holds the attention weights: ask implementation='dense'",
    ),
}


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(("arguments", "message"), ERRORS.values(), ids=ERRORS)
def test_errors_name_the_value_and_the_mend(arguments, message):
    with pytest.raises(ValueError, match=message):
        attend(**arguments)


def test_attend_is_one_function():
    assert attend_function is pj.attend


@pytest.mark.parametrize("implementation", ["auto", "dense"])
def test_weights_sum_to_one_or_zero(implementation):
    w = world(Case("rope() + alibi() + t5()"))
    segment = np.array([0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 2, 0, 2, 2], np.int32)
    site = w.site._replace(segment=segment)
    q, k, v, site = project(w.encoding, w.params, w.x, site, w.weights)
    options = dict(causal=True, implementation=implementation, return_weights=True)
    out, weights = jax.jit(
        lambda *qkv: pj.attend(w.encoding, w.params, *qkv, site, site, consumed=BEFORE_ATTENTION, **options)
    )(q, k, v)
    assert weights.shape == (3, 14, 14)
    assert weights.dtype == jnp.float32
    np.testing.assert_allclose(weights.sum(-1), np.broadcast_to(segment > 0, (3, 14)), atol=1e-6)
    allowed = np.tril(np.ones((14, 14), bool)) & (segment[:, None] == segment) & (segment > 0)
    assert ((np.asarray(weights) > 0) == allowed).all()
    np.testing.assert_allclose(out, jnp.einsum("hts,she->the", weights, v), atol=1e-6)


def test_scale():
    np.testing.assert_allclose(attend(scale=D**-0.5), attend(), atol=1e-7)
    uniform, weights = attend(scale=0.0, return_weights=True)
    np.testing.assert_allclose(weights, 1 / T, atol=1e-7)
    np.testing.assert_allclose(uniform, jnp.broadcast_to(Q.mean(0), Q.shape), atol=1e-6)
    np.testing.assert_allclose(attend(scale=0.3, implementation="blockwise"), attend(scale=0.3), atol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_output_has_the_dtype_of_the_queries(dtype, implementation):
    q = Q.astype(dtype)
    assert attend(q, q, q, implementation=implementation).dtype == dtype


def test_causality_is_of_array_order_not_of_positions():
    w = world(Case("none()"))
    backwards = w._replace(site=w.site._replace(position=w.site.position[::-1]))
    np.testing.assert_array_equal(forward(*backwards, causal=True), forward(*w, causal=True))


def test_a_later_token_changes_nothing_before_it():
    w = world(Case("rope() + alibi()"))
    changed = w._replace(x=w.x.at[9].set(7.0))
    for tile in (None, 4):
        run = jax.jit(lambda x, tile=tile: forward(*w._replace(x=x), causal=True, tile=tile))
        before, after = run(w.x), run(changed.x)
        np.testing.assert_array_equal(before[:9], after[:9])
        assert (np.abs(before - after)[9:].max(axis=(1, 2)) > 0).all()


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_a_scale_may_be_learned(implementation):
    def loss(scale):
        return jnp.sum(jnp.sin(attend(scale=scale, implementation=implementation)))

    value, gradient = jax.jit(jax.value_and_grad(loss))(jnp.float32(0.3))
    np.testing.assert_allclose(value, loss(0.3), rtol=1e-5)
    step = 1e-2
    np.testing.assert_allclose(gradient, (loss(0.3 + step) - loss(0.3 - step)) / (2 * step), rtol=1e-2)
