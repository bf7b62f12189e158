"""A cache of few slots decodes any number of tokens as the full pass does, where a query sees so few."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import joined, rows
from drawn import drawn

import posjax as pj
from posjax.attention import BEFORE_ATTENTION, attend_cached, empty_cache, slots_needed
from posjax.mask import Memory

WIDTH, HEADS, KV_HEADS, HEAD_DIM = 16, 4, 2, 4
TOTAL, PROMPT = 26, 12
# Specs with the slots that each asks for: its last tokens and its first.
RINGS = {
    "sinks(num_sinks=2, window=4) + rope": 4 + 2,
    "streaming(num_sinks=2, window=4) >> rope": 4 + 2,
    "streaming(num_sinks=2, window=4) >> (rope + fox)": 4 + 2,
    "window(5) + t5(num_buckets=8, max_distance=8)": 5,
    "(interpolate(factor=1.5) >> (sinks(num_sinks=2, window=3) + rope)) + alibi": 6 + 3,
    "dilated(size=3, dilation=2) + rope": 5,
    "longformer(window=4, num_global=1) + kerple": 3 + 1,
    "sinks(num_sinks=9, window=3) + window(4) + shaw": 4,
    "window(3) + fox": 3,
    "window(4) + rope + value_rotary + shaw + learned_sink(stddev=1)": 4,
    "window(2) + selective_rope": 3,  # three tokens before its own in a convolution of four
}
SAMPLE = [
    pytest.param("streaming(num_sinks=2, window=4) >> (rope + fox)", marks=pytest.mark.slow),
    "window(2) + selective_rope",
]


class Layer:
    """One attention layer with grouped queries: on whole sequences, and on new tokens of a batch with caches."""

    def __init__(self, spec):
        self.encoding, rng = pj.parse(spec), np.random.default_rng(0)
        self.params = drawn(lambda: self.encoding.init(jax.random.key(1), pj.Dims(WIDTH, HEADS, HEAD_DIM)))
        shapes = [(WIDTH, heads, HEAD_DIM) for heads in (HEADS, KV_HEADS, KV_HEADS)]
        self.weights = [0.5 * rng.normal(size=shape).astype(np.float32) for shape in shapes]
        self.traces = 0
        self.full = jax.jit(self._full)
        self.step = jax.jit(jax.vmap(self._step))
        self.prefill = jax.jit(jax.vmap(functools.partial(self._step, cache=None)))

    def projected(self, x, site, past=None):
        site = self.encoding.observe(self.params, x, self.encoding.place(self.params, site), past)
        return *(jnp.einsum("tm,mhd->thd", x, w) for w in self.weights), site

    def _full(self, x, site):
        *qkv, site = self.projected(x, site)
        return pj.attend(
            self.encoding, self.params, *qkv, site, site, causal=True, consumed=BEFORE_ATTENTION, implementation="dense"
        )

    def empty(self, site, size=TOTAL):
        return empty_cache(slots_needed(self.encoding, site, size), KV_HEADS, HEAD_DIM, site)

    def _step(self, x, site, cache):
        self.traces += 1
        *qkv, site = self.projected(x, site, None if cache is None else cache.site)
        options = dict(prefill=cache is None, consumed=BEFORE_ATTENTION)
        return attend_cached(self.encoding, self.params, *qkv, site, cache or self.empty(site), **options)


@functools.cache
def layer(spec):
    return Layer(spec)


def tokens(length=TOTAL, seed=0):
    return np.random.default_rng(seed).normal(size=(length, WIDTH)).astype(np.float32)


def batch(*each):
    return jax.tree.map(lambda *leaves: np.stack(leaves), *each)


def padding(count):
    return pj.Site(*(np.zeros(count, np.int32) for _ in range(3)))


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)


SPANS = ((0, PROMPT), (4, PROMPT), (0, 7))  # where in the prompt each row stands: all of it, padded left, padded right


def padded_prompt(x):
    parts = [(padding(a), rows(pj.sites(TOTAL), slice(b - a)), padding(PROMPT - b)) for a, b in SPANS]
    prompt = [np.concatenate([np.ones((a, WIDTH)), x[: b - a], np.ones((PROMPT - b, WIDTH))]) for a, b in SPANS]
    return np.stack(prompt), batch(*(joined(*part) for part in parts))


@pytest.mark.parametrize("spec", SAMPLE)
@pytest.mark.slow
def test_a_padded_batch_decodes_as_each_row_would_alone(spec):
    """Far behind what the ring holds."""
    run, x = Layer(spec), tokens()
    expected = run.full(x, pj.sites(TOTAL))
    out, caches = run.prefill(*padded_prompt(x))
    assert caches.order.shape == (len(SPANS), RINGS[spec])
    for row, (a, b) in zip(out, SPANS, strict=True):
        close(row[a:b], expected[: b - a])
    for step in range(13):
        at = np.array([b - a + step for a, b in SPANS])[:, None]
        out, after = run.step(x[at], batch(*(rows(pj.sites(TOTAL), i) for i in at)), caches)
        assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, caches)
        close(out[:, 0], np.asarray(expected)[at[:, 0]])
        caches = after
    assert run.traces == 2  # the prompt's, and one for all steps


@pytest.mark.slow
def test_sinks_are_those_of_the_document_that_is_decoded():
    """A second document begins behind the prompt; padding between them is not remembered."""
    run, x, prompt = layer("sinks(num_sinks=2, window=4) + rope"), tokens(), 4
    second = rows(pj.sites(TOTAL), slice(14))._replace(segment=np.full(14, 2, np.int32))
    site = joined(rows(pj.sites(TOTAL), slice(6)), padding(1), second)
    site, x = batch(site), x[None, : 6 + 1 + 14]
    out, caches = run.prefill(x[:, :prompt], jax.tree.map(lambda leaf: leaf[:, :prompt], site))
    outs = [out]
    for t in range(prompt, x.shape[1]):
        out, caches = run.step(x[:, t : t + 1], jax.tree.map(lambda leaf, t=t: leaf[:, t : t + 1], site), caches)
        outs.append(out)
    expected = run.full(x[0], rows(jax.tree.map(lambda leaf: leaf[0], site), slice(None)))
    close(jnp.concatenate(outs, axis=1)[0], expected)


def forgets(run, site, size=TOTAL):
    x = tokens(len(site.segment))[:, None, None]  # [T, 1, 1, M]
    caches = jax.tree.map(lambda leaf: leaf[None], run.empty(rows(site, slice(1)), size))
    outs = []
    for t in range(len(x)):
        out, caches = run.step(x[t], batch(rows(site, slice(t, t + 1))), caches)
        outs.append(bool(jnp.isnan(out).any()))
    return outs


def test_what_is_forgotten_too_early_is_told():
    window = layer("window(4) + rope")
    site = pj.sites(8)
    assert forgets(window, site) == [False] * 8
    near = site._replace(position=site.position // 2)
    assert forgets(window, near) == [False] * 4 + [True] * 4
    nowhere = site._replace(prefix=np.int32([1] + [0] * 7))  # seen by all, for ever
    assert forgets(window, nowhere) == [False] * 4 + [True] * 4
    assert forgets(layer("rope"), site, size=5) == [False] * 5 + [True] * 3


def walk(*runs, segment=1):
    """One document at these positions."""
    position = np.concatenate([np.asarray(run) for run in runs]).astype(np.float32)
    return pj.Site(position, np.full(len(position), segment, np.int32), np.zeros(len(position), np.int32))


up = np.arange(12)
WALKS = {  # whether all of it is decoded: True; or where the first token stands that finds another one forgotten
    "window(4) + rope": [
        (walk(up, up[3:8]), 12),
        (walk(up, up + 100, [50]), 24),
        (walk(up, [100, 101, 102, 103, 2]), 16),
        (walk(-up, -12 - up), True),
        (walk(2 * up, 30 - up), 13),
        (walk([2, 0, 3, 1], 30 + up), True),  # nothing is forgotten before positions rise
        (joined(walk(up), walk(up, segment=2), walk(up[:4])), 24),
        (joined(walk(up[:5]), padding(2), walk(up[:2], segment=3), walk(up[2:9], segment=2)), 9),
    ],
    "sinks(num_sinks=2, window=4) + rope": [(walk(-up), 6), (walk(7 + up, 2 * up + 30), True)],
    "interpolate(factor=4) >> (window(2) + rope)": [(walk(up, 12 + up), True), (walk(up / 2), 9), (walk(up, up), 12)],
}
WALK = 28


@pytest.mark.parametrize("spec", WALKS)
def test_no_token_reads_something_else_than_in_the_full_pass(spec):
    """It reads the same, or NaN, wherever tokens stand; and NaN only where positions turn or come close."""
    run, (walks, told) = layer(spec), zip(*WALKS[spec], strict=True)
    lengths = [len(site.segment) for site in walks]
    site = batch(*(joined(each, padding(WALK - n)) for each, n in zip(walks, lengths, strict=True)))
    x = np.broadcast_to(tokens(WALK), (len(walks), WALK, WIDTH))
    expected = jax.jit(jax.vmap(run.full))(x, site)
    placed = run.encoding.place(run.params, rows(walks[0], slice(1)))
    caches = batch(*[run.empty(placed)] * len(walks))
    outs = []
    for t in range(WALK):
        out, caches = run.step(x[:, t : t + 1], jax.tree.map(lambda leaf, t=t: leaf[:, t : t + 1], site), caches)
        outs.append(out)
    out = np.concatenate(outs, axis=1)
    close(np.where(np.isnan(out), expected, out), expected)
    for row, n, first in zip(out, lengths, told, strict=True):
        lost = np.flatnonzero(np.isnan(row[:n]).any((1, 2)))
        assert lost.tolist() == list(range(n if first is True else first, n))


@pytest.mark.parametrize(
    ("spec", "slots"),
    [
        *RINGS.items(),
        ("rope", 100),
        ("window(200)", 100),
        ("bigbird(block_size=4)", 100),
        ("window(4) + cope", 100),  # counts keys that the window hides
        ("window(4) + rope(scaling=dynamic_ntk(factor=2, original_length=8))", 100),
        ("randomized(64) >> window(4)", 100),
        ("self_extend(group=2, window=4) >> rope", 100),
        ("alibi_pi(original_length=8) + window(4)", 100),
        ("dape(alibi) + window(4)", 4),
    ],
)
def test_slots_are_what_queries_see(spec, slots):
    encoding = pj.parse(spec)
    assert slots_needed(encoding, pj.sites(3), 100) == slots


def test_a_window_of_a_grid_is_no_ring():
    """The row above lies a whole row of tokens back."""
    assert slots_needed(pj.parse("window(2) + rope"), pj.grid(3, 4), 100) == 100
    assert slots_needed(pj.parse("raster(width=4) >> (window(2) + rope)"), pj.grid(3, 4), 100) == 100


def test_a_map_says_what_becomes_of_a_window():
    assert pj.parse("interpolate(factor=4)").before(Memory()) == Memory()
    assert pj.parse("interpolate(factor=4)").before(Memory(3, 2)) == Memory(13, 8)
    assert pj.PositionMap().before(Memory(3, 2)).last == math.inf
