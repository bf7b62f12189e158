"""What a cache keeps; decoding beside full passes is in tests/test_invariants.py, each encoding token by token in
tests/encodings/test_properties.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
from cases import HEAD_DIM, HEADS, forward, project, rows, world
from members import Case

import posjax as pj
from posjax.attention import BEFORE_ATTENTION, attend_cached, empty_cache
from posjax.encoding import Needs

SLOTS, TOKENS = 17, 6  # more slots than tokens
SITE = pj.sites(TOKENS)
QKV = jnp.asarray(np.random.default_rng(0).normal(size=(3, TOKENS, HEADS, HEAD_DIM)), jnp.float32)


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

    @jax.jit
    def run(q, k, v):
        def step(cache, new):
            out, cache = attend_cached(encoding, (), *new, cache)
            return cache, out[0]

        one_by_one = jax.tree.map(lambda leaf: leaf[:, None], (q, k, v, SITE))
        cache, outs = jax.lax.scan(step, empty_cache(SLOTS, HEADS, HEAD_DIM, SITE), one_by_one)
        fulls = []
        for count in (3, TOKENS):
            past = rows(SITE, slice(count))
            fulls.append(pj.attend(encoding, (), q[:count], k[:count], v[:count], past, past, causal=True)[-1])
        return outs, fulls, cache

    outs, fulls, cache = run(*QKV)
    np.testing.assert_allclose(np.asarray(outs)[[2, 5]], np.stack(fulls), rtol=0, atol=5e-6)
    np.testing.assert_array_equal(np.swapaxes(cache.key, 0, 1)[:TOKENS], QKV[1])
    assert not np.any(cache.site.segment[TOKENS:])


class ReadsKeys(pj.Encoding):
    """A bias made of what the keys hold before any rotation."""

    def bias(self, params, q, q_site, k, k_site):
        return jnp.broadcast_to(k.sum(-1).T[:, None], (k.shape[1], q.shape[0], k.shape[0]))


def test_a_bias_that_reads_keys_is_given_them_unrotated():
    encoding = pj.parse("rope()") + ReadsKeys()

    @jax.jit
    def run(q, k, v):
        full = pj.attend(encoding, ((), ()), q, k, v, SITE, SITE, causal=True, consumed=BEFORE_ATTENTION)
        cache, outs = empty_cache(SLOTS, HEADS, HEAD_DIM, SITE), []
        for part, prefill in ((slice(4), True), (slice(4, 6), False)):
            new = (q[part], k[part], v[part], rows(SITE, part))
            out, cache = attend_cached(encoding, ((), ()), *new, cache, prefill=prefill, consumed=BEFORE_ATTENTION)
            outs.append(out)
        return jnp.concatenate(outs), full

    np.testing.assert_allclose(*run(*QKV), rtol=0, atol=5e-6)


def test_half_precision_cache():
    w = world(Case("rope()"))

    @jax.jit
    def run(x):
        q, k, v, site = project(w.encoding, w.params, x.astype(jnp.bfloat16), w.placed, w.weights)
        cache = empty_cache(SLOTS, HEADS, HEAD_DIM, site, dtype=jnp.bfloat16)
        out = attend_cached(w.encoding, w.params, q, k, v, site, cache, consumed=BEFORE_ATTENTION)
        return *out, forward(*w._replace(x=x), causal=True)

    out, cache, exact = run(w.x)
    assert out.dtype == cache.key.dtype == cache.value.dtype == jnp.bfloat16
    np.testing.assert_allclose(out.astype(np.float32), exact, rtol=0, atol=0.05 * float(np.abs(exact).max()))
