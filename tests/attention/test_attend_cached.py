"""Decoding from a cache is the full causal pass: prompts, padding, documents, dtypes. Each encoding token by token is in
tests/encodings/test_properties.py.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import HEAD_DIM, HEADS, forward, joined, project, rows, world
from members import Case

import posjax as pj
from posjax.attention import BEFORE_ATTENTION, attend_cached, empty_cache
from posjax.encoding import Needs, Sum

SLOTS = 17  # more than there are tokens


@functools.cache
def step(case, prefill=False):
    """One layer on the next tokens; compiled once for each number of tokens."""
    w = world(case)

    @jax.jit
    def step(x, site, cache):
        q, k, v, site = project(w.encoding, w.params, x, site, w.weights, None if prefill else cache.site)
        return attend_cached(w.encoding, w.params, q, k, v, site, cache, prefill=prefill, consumed=BEFORE_ATTENTION)

    return step


def decoded(case, x, site, prompt=0):
    """All outputs, `prompt` tokens at once and the others one by one. `site` is placed."""
    w = world(case)
    observed = jax.eval_shape(lambda: w.encoding.observe(w.params, x, site))
    cache = empty_cache(SLOTS, HEADS, HEAD_DIM, observed)
    outs = []
    if prompt:
        out, cache = step(case, prefill=True)(x[:prompt], rows(site, slice(prompt)), cache)
        outs.append(out)
    for t in range(prompt, len(x)):
        out, cache = step(case)(x[t : t + 1], rows(site, slice(t, t + 1)), cache)
        outs.append(out)
    assert cache.filled == len(x)
    assert not np.any(cache.site.segment[len(x) :])
    return jnp.concatenate(outs)


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=0, atol=5e-6)


@pytest.mark.parametrize("case", [Case("rope() + t5()"), Case("(interpolate(factor=2) >> rope()) + alibi()")], ids=str)
def test_prefill_then_steps(case):
    w = world(case)
    close(decoded(case, w.x, w.placed, prompt=5), forward(*w, causal=True))


@pytest.mark.parametrize("case", [Case("rope() + t5()"), Case("(interpolate(factor=2) >> rope()) + alibi()")], ids=str)
def test_left_padded_prompt(case):
    """Rows of a batch begin together; the short ones with padding, which stands before their first token."""
    w = world(case)
    tokens = rows(w.site, slice(9))
    pad = rows(w.site, slice(5))
    pad = pad._replace(position=pad.position - np.int32(5), segment=np.zeros(5, np.int32))
    alone = forward(*w._replace(x=w.x[5:], site=tokens), causal=True)
    site = w.encoding.place(w.params, joined(pad, tokens))
    for prompt in (0, 5, 7):
        out = decoded(case, w.x, site, prompt=prompt)
        close(out[5:], alone)
        assert not np.any(out[:5])


def test_chunk_by_chunk():
    """Several tokens onto a filled cache: each sees the cache and its elders in the chunk, no younger one."""
    case = Case("rope() + t5()")
    w = world(case)
    cache = empty_cache(SLOTS, HEADS, HEAD_DIM, w.placed)
    first, cache = step(case)(w.x[:5], rows(w.placed, slice(5)), cache)
    second, cache = step(case)(w.x[5:], rows(w.placed, slice(5, None)), cache)
    close(jnp.concatenate([first, second]), forward(*w, causal=True))


def test_two_documents_in_one_cache():
    case = Case("rope() + t5()")
    w = world(case)
    first, second = (rows(w.site, slice(count)) for count in (5, 9))
    site = joined(first, second._replace(segment=np.full(9, 2, np.int32)))
    close(decoded(case, w.x, site, prompt=5)[5:], forward(*w._replace(x=w.x[5:], site=second), causal=True))


def test_sites_of_a_sum_travel_whole():
    case = Case("(interpolate(factor=2) >> rope()) + alibi()")
    w = world(case)
    assert isinstance(w.encoding, Sum)
    site = w.placed
    assert [part.position.dtype for part in site.state] == [np.float32, np.int32]
    cache = empty_cache(SLOTS, HEADS, HEAD_DIM, site)
    assert jax.tree.structure(cache.site) == jax.tree.structure(site)
    assert [leaf.dtype for leaf in jax.tree.leaves(cache.site)] == [leaf.dtype for leaf in jax.tree.leaves(site)]


class LengthScaled(pj.Encoding):
    """Keys rotated by position over the number of tokens so far, as dynamic scalings do: no cached key stays right."""

    needs = Needs.DOCUMENT_LENGTH

    def rotate(self, params, q, q_site, k, k_site):
        last = jnp.max(jnp.where(k_site.segment > 0, k_site.position, 0))
        spin = lambda x, site: x * jnp.cos(site.position / (1.0 + last))[:, None, None]  # noqa: E731
        return spin(q, q_site), spin(k, k_site)


def test_length_dependent_keys_are_kept_raw():
    """The last token of each prefix sees what a full pass over that prefix shows it."""
    encoding = LengthScaled()
    site = pj.sites(6)
    q, k, v = jax.random.normal(jax.random.key(0), (3, 6, HEADS, HEAD_DIM))
    cache = empty_cache(SLOTS, HEADS, HEAD_DIM, site)
    step = jax.jit(lambda *new: attend_cached(encoding, (), *new))
    for t in range(6):
        new = slice(t, t + 1)
        out, cache = step(q[new], k[new], v[new], rows(site, new), cache)
        if t in (2, 5):
            past = rows(site, slice(t + 1))
            full = pj.attend(encoding, (), q[: t + 1], k[: t + 1], v[: t + 1], past, past, causal=True)
            close(out[0], full[-1])
    np.testing.assert_array_equal(jnp.swapaxes(cache.key, 0, 1)[:6], k)


class ReadsKeys(pj.Encoding):
    """A bias made of what the keys hold before any rotation."""

    def bias(self, params, q, q_site, k, k_site):
        return jnp.broadcast_to(k.sum(-1).T[:, None], (k.shape[1], q.shape[0], k.shape[0]))


def test_a_bias_that_reads_keys_is_given_them_unrotated():
    encoding = pj.parse("rope()") + ReadsKeys()
    site = pj.sites(6)
    q, k, v = jax.random.normal(jax.random.key(0), (3, 6, HEADS, HEAD_DIM))

    @jax.jit
    def run(q, k, v):
        full = pj.attend(encoding, ((), ()), q, k, v, site, site, causal=True, consumed=BEFORE_ATTENTION)
        cache, outs = empty_cache(SLOTS, HEADS, HEAD_DIM, site), []
        for part, prefill in ((slice(4), True), (slice(4, 6), False)):
            new = (q[part], k[part], v[part], rows(site, part))
            out, cache = attend_cached(encoding, ((), ()), *new, cache, prefill=prefill, consumed=BEFORE_ATTENTION)
            outs.append(out)
        return jnp.concatenate(outs), full

    close(*run(q, k, v))


def test_half_precision_cache():
    case = Case("rope()")
    w = world(case)
    q, k, v, site = project(w.encoding, w.params, w.x.astype(jnp.bfloat16), w.placed, w.weights)
    cache = empty_cache(SLOTS, HEADS, HEAD_DIM, site, dtype=jnp.bfloat16)
    out, cache = jax.jit(
        lambda *qkv: attend_cached(w.encoding, w.params, *qkv, site, cache, consumed=BEFORE_ATTENTION)
    )(q, k, v)
    assert out.dtype == cache.key.dtype == cache.value.dtype == jnp.bfloat16
    exact = forward(*w, causal=True)
    np.testing.assert_allclose(out.astype(jnp.float32), exact, rtol=0, atol=0.05 * float(jnp.abs(exact).max()))
