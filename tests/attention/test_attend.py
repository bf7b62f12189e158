"""`attend` itself: its result, its choice of an implementation, and its messages."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import Case, forward, project, world

import posjax as pj
from posjax.attention import BEFORE_ATTENTION

T, H, D = 4, 2, 8
SITE = pj.sites(T)
Q = jnp.asarray(np.random.default_rng(0).normal(size=(T, H, D)), jnp.float32)
IMPLEMENTATIONS = ["dense", "blockwise"]


def attend(q=Q, k=Q, v=Q, q_site=SITE, k_site=SITE, **options):
    return pj.attend(pj.parse("rope()"), (), q, k, v, q_site, k_site, **options)


ERRORS = {
    "a batch": (dict(q=Q[None]), r"\(1, 4, 2, 8\).*jax.vmap it over a batch"),
    "other head dims": (dict(k=Q[..., :4], v=Q[..., :4]), r"do not fit each other: got \(4, 2, 8\), \(4, 2, 4\)"),
    "heads that cannot be shared": (dict(k=Q[:, [0, 1, 1]], v=Q[:, [0, 1, 1]]), "3 key heads"),
    "no token": (dict(q=Q[:0], q_site=pj.sites(0)), "at least one query and one key, got 0 and 4"),
    "orders of nothing": (dict(q_order=np.arange(4), k_order=np.arange(4)), "which only causal=True hides"),
    "one order": (dict(causal=True, q_order=np.arange(4)), "both q_order and k_order"),
    "an order too long": (dict(causal=True, q_order=np.arange(4), k_order=np.arange(5)), r"got \(4,\), \(5,\)"),
    "a site too few": (dict(q_site=pj.sites(3)), "q has 4 tokens, q_site 3"),
    "other axes": (dict(k_site=pj.grid(2, 2)), r"same axes: got positions \(4,\) and \(4, 2\)"),
    "causal cross attention": (dict(q=Q[:3], q_site=pj.sites(3), causal=True), "got 3 and 4"),
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


def test_weights_sum_to_one_or_zero():
    w = world(Case("rope() + alibi() + t5()"))
    segment = np.array([0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 2, 0, 2, 2], np.int32)
    site = w.site._replace(segment=segment)
    options = dict(causal=True, return_weights=True, consumed=BEFORE_ATTENTION)

    @jax.jit
    def run(x):
        q, k, v, placed = project(w.encoding, w.params, x, site, w.weights)
        return *pj.attend(w.encoding, w.params, q, k, v, placed, placed, **options), v

    out, weights, v = run(w.x)
    assert weights.shape == (3, 14, 14)
    assert weights.dtype == jnp.float32
    np.testing.assert_allclose(weights.sum(-1), np.broadcast_to(segment > 0, (3, 14)), atol=1e-6)
    allowed = np.tril(np.ones((14, 14), bool)) & (segment[:, None] == segment) & (segment > 0)
    assert ((np.asarray(weights) > 0) == allowed).all()
    np.testing.assert_allclose(out, np.einsum("hts,she->the", weights, v), atol=1e-6)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_output_has_the_dtype_of_the_queries(implementation):
    for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
        q = jax.ShapeDtypeStruct(Q.shape, dtype)
        assert jax.eval_shape(lambda q: attend(q, q, q, implementation=implementation), q).dtype == dtype


def test_causality_is_of_array_order_not_of_positions():
    w = world(Case("none()"))
    run = jax.jit(lambda site: forward(*w._replace(site=site), causal=True))
    np.testing.assert_array_equal(run(w.site._replace(position=w.site.position[::-1])), run(w.site))


def test_a_scale_may_be_learned():
    @jax.jit
    def run(scale):
        losses = [
            lambda scale, name=name: jnp.sum(jnp.sin(attend(scale=scale, implementation=name)))
            for name in IMPLEMENTATIONS
        ]
        return [jax.value_and_grad(loss)(scale) for loss in losses]

    (value, gradient), (tiled, tiled_gradient) = run(0.3)
    step = 1e-2
    difference = (run(0.3 + step)[0][0] - run(0.3 - step)[0][0]) / (2 * step)
    np.testing.assert_allclose([gradient, tiled_gradient], difference, rtol=1e-2)
    np.testing.assert_allclose(tiled, value, rtol=1e-5)
