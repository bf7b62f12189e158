"""Gates: what accumulates, in which order, from where, and where sources disagree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import rows

import posjax as pj
from posjax.attention import BEFORE_ATTENTION

HEADS, HEAD_DIM, WIDTH = 2, 4, 8
GATES = ["fox()", "data_dependent_alibi()", "cable()", "selective_rope(rank=3)", "carope(base=20, stddev=0.5)"]


def made(spec):
    encoding = pj.parse(spec)
    init = jax.jit(lambda key: encoding.init(key, pj.Dims(WIDTH, HEADS, HEAD_DIM)))
    return encoding, init(jax.random.key(0))


def tokens(count):
    return jax.random.normal(jax.random.key(1), (count, WIDTH))


def close(a, b, atol=1e-5):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=atol), a, b)


@pytest.mark.parametrize("spec", GATES[1:4])
def test_goes_on_from_the_past(spec):
    """Two documents in one cache with free slots, and tokens of both to come; some stand nowhere."""
    encoding, params = made(spec)
    site = pj.Site(
        np.array([3, 0, 4, 1, 5, 9, 2, 6, 3, 0], np.int32),
        np.array([1, 2, 1, 2, 1, 1, 2, 1, 2, 0], np.int32),
        np.array([0, 0, 0, 0, 0, 1, 0, 0, 0, 0], np.int32),
    )
    x, now = tokens(10), slice(6, 10)

    @jax.jit
    def observed(params, x):
        full = encoding.observe(params, x, site)
        past = jax.tree.map(lambda leaf: jnp.concatenate([leaf[:6], jnp.zeros_like(leaf[:3])]), full)
        return full, encoding.observe(params, x[now], jax.tree.map(lambda leaf: leaf[now], site), past)

    full, new = observed(params, x)
    close(new.state, jax.tree.map(lambda leaf: leaf[now], full.state))
    for leaf in jax.tree.leaves(full.state):
        assert not np.any(leaf[np.array([5, 9])]), "a class token or padding adds something"


@pytest.mark.slow
@pytest.mark.parametrize("spec", GATES[::3])
def test_each_token_goes_on_from_all_others(spec):
    """A single new token, wherever it stands: what comes behind it and other documents are no past of its own."""
    encoding, params = made(spec)
    site = pj.Site(
        np.array([3, 0, 4, 1, 5, 9, 2, 6, 3, 0, 5], np.int32),
        np.array([1, 2, 1, 2, 1, 1, 2, 1, 2, 0, 1], np.int32),
        np.array([0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0], np.int32),
    )
    x = tokens(11)
    full = jax.jit(encoding.observe)(params, x, site)
    others = np.array(
        [[m for m in range(11) if m != n] for n in range(10)]
    )  # the last, with 5 before it, is no new one
    past = jax.tree.map(lambda leaf: jnp.asarray(leaf)[others], full)
    past = past._replace(segment=past.segment.at[:, 9].set(np.where(np.arange(10) == 4, 0, past.segment[:, 9])))
    new = jax.tree.map(lambda leaf: jnp.asarray(leaf)[:10, None], site)
    single = jax.jit(jax.vmap(encoding.observe, (None, 0, 0, 0)))(params, x[:10, None], new, past)
    close(jax.tree.map(lambda leaf: leaf[:, 0], single.state), jax.tree.map(lambda leaf: leaf[:10], full.state))


@pytest.mark.parametrize("spec", ["fox()", "selective_rope(rank=3)"])
def test_only_the_order_of_positions_matters(spec):
    encoding, params = made(spec)
    observe, x = jax.jit(encoding.observe), tokens(6)
    site = pj.sites(6)._replace(position=np.arange(6, dtype=np.float32))
    apart = site._replace(position=np.array([0.5, 7, 7.25, 8, 100, 2**20], np.float32))
    close(observe(params, x, apart).state, observe(params, x, site).state)


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["fox()", "carope(base=20, stddev=0.5)", "path(rank=3, stddev=0.5)"])
def test_tokens_at_one_position_are_in_the_order_of_the_array(spec):
    """Causal attention hides the later one, in sums and products too, and a cache goes on behind it."""
    encoding, params = made(spec)
    site = pj.sites(6)._replace(position=np.array([0, 0, 1, 1, 2, 2], np.int32))
    q, k, v = jax.random.normal(jax.random.key(2), (3, 6, HEADS, HEAD_DIM))

    @jax.jit
    def attended(x):
        here = encoding.observe(params, x, site)
        out = pj.attend(encoding, params, q, k, v, here, here, causal=True, consumed=BEFORE_ATTENTION)
        past, last = (jax.tree.map(lambda leaf, at=at: leaf[at], here) for at in (slice(5), slice(5, 6)))
        return out, last.state, encoding.observe(params, x[5:], rows(site, slice(5, 6)), past).state

    x = np.asarray(tokens(6))
    changed = np.where(np.arange(6) == np.array([[-1], [5], [4]]), 3, x.T[:, None]).transpose(1, 2, 0)
    (out, last, new), (later, *_), (earlier, *_) = map(attended, np.float32(changed))
    close(new, last)
    close(later[:5], out[:5])
    assert np.abs(earlier[5] - out[5]).max() > 1e-3


def gate_bias(spec, params, x):
    encoding, q = pj.parse(spec), jnp.zeros((len(x), HEADS, HEAD_DIM))

    @jax.jit
    def run(params, x):
        site = encoding.observe(params, x, pj.sites(len(x)))
        return encoding.bias(params, q, site, q, site)

    return run(params, x)


def test_one_direction_is_fox():
    _, params = made("fox(bias_init=5)")
    close(
        gate_bias("data_dependent_alibi(bidirectional=False)", params, tokens(7)), gate_bias("fox()", params, tokens(7))
    )


@pytest.mark.slow
def test_long_documents_lose_no_precision():
    """Sums of 2^13 tokens beside float64; angles stay within half a turn."""
    count = 2**13
    encoding, params = made("fox()")
    x = tokens(count)
    z = np.asarray(x, np.float64) @ np.asarray(params["kernel"], np.float64)
    exact = -np.cumsum(np.log1p(np.exp(-z)), axis=0)
    ours = jax.jit(lambda x: encoding.observe(params, x, pj.sites(count)).state)(x)
    assert np.abs(ours - exact).max() < 3e-7 * np.abs(exact).max()
    encoding, params = made("selective_rope(d_conv=1)")
    turns, phi = jax.jit(lambda x: encoding.observe(params, x, pj.sites(count)).state)(x)
    increments = np.asarray(phi, np.float64) * np.asarray(params["taps"], np.float64)
    exact = np.cumsum(increments, axis=0) * 500_000.0 ** -(np.arange(2) / 2) / (2 * np.pi)
    difference = np.asarray(turns, np.float64) - exact
    assert np.abs(turns).max() <= 0.5
    assert np.abs(difference - np.round(difference)).max() < 1e-5


def test_context_aware_frequencies_begin_as_rope():
    """f = base^(-2/D) for all tokens, which needs a bias: without, f is 1 / (1 + ln 2) where the kernel is 0."""
    (carope, params), rope = made("carope(base=100)"), pj.parse("rope(base=100)")
    site, (q, k) = pj.sites(6), jax.random.normal(jax.random.key(3), (2, 6, HEADS, HEAD_DIM))

    @jax.jit
    def logits(params, x):
        observed = carope.observe(params, x, site)
        rotated = [
            carope.rotate(params, q, observed, k, observed),
            rope.rotate((), q, site, k, site),
        ]
        return [rope.product(q, site, k, site) for q, k in rotated]

    close(*logits(params, tokens(6)))
