"""Constants and behaviours of the rotary primitive and its plain members; formulas are swept in test_properties.py."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import HEAD_DIM, HEADS, world
from members import GRID, MEMBERS, Row

import posjax as pj
from posjax.encodings.angles import angles
from posjax.encodings.rotary import Rotary, rotated_by_pairs, rotated_by_product
from posjax.spec import registered

ROTARY = [name for name in pj.names() if issubclass(registered(name), Rotary)]


@pytest.mark.parametrize("case", [MEMBERS[name].variants[0] for name in ROTARY], ids=str)
def test_logits_far_out(case):
    """Angles at 2^17: float32's are within 1e-4 of the paper's formula in float64, bfloat16's within 1 % of float32's."""
    w = world(case)
    if w.encoding.reach < 2**18:
        pytest.skip("stands nowhere so far out")
    far = np.int32((2**17, 2**17 - 3) if case.kind == GRID else 2**17)
    unplaced = w.site._replace(position=w.site.position + far)
    site = w.encoding.place(w.params, unplaced)
    half = jax.random.normal(jax.random.key(0), (2, len(w.x), HEADS, HEAD_DIM), jnp.bfloat16)

    @jax.jit
    def turned(params, half):
        exact = half.astype(jnp.float32)
        return [w.encoding.rotate(params, q, site, k, site) for q, k in (exact, half)]

    exact, rough = (
        np.einsum("thd,shd->hts", *(np.asarray(x, np.float64) for x in pair)) for pair in turned(w.params, half)
    )
    assert np.abs(rough - exact).max() < 0.01 * np.abs(exact).max()
    there = zip(unplaced.position, unplaced.prefix, strict=True)
    position = [None if n else np.atleast_1d(p).astype(float) for p, n in there]
    q, k = np.asarray(half, np.float64)
    row = Row(position, site.prefix, site.segment, np.asarray(w.x, np.float64), q, k)
    oracle = MEMBERS[w.encoding.spec_name].oracle(w.encoding, w.params)
    for i, j in [(3, 3), (12, 5), (5, 12), (13, 2)]:
        with np.errstate(over="ignore", invalid="ignore"):
            by_paper = np.dot(*oracle.transform(row, 0, i, j, q[i, 0], k[j, 0]))
        if np.isfinite(by_paper):  # xPos' own formula is 0 times infinity so far from its origin
            assert abs(exact[0, i, j] - by_paper) < 1e-4 * np.abs(exact).max()


def test_computed_waves_are_multiplied_exactly():
    """A float32 product of position and frequency errs by 2.5e-2 at 2^20; here only the frequency itself is rounded."""
    wave = np.random.default_rng(0).uniform(1e-4, 1, (2, 3, 5)).astype(np.float32)  # two axes, three heads
    position = np.random.default_rng(1).integers(-(2**20), 2**20, (50, 2)).astype(np.int32)
    ours = jax.jit(angles)(position, wave)
    turn = (jnp.asarray(wave) / (2 * np.pi)).astype(jnp.float32)  # as it is rounded
    exact = np.tensordot(position.astype(np.float64), np.asarray(turn, np.float64), axes=1) * 2 * np.pi
    assert ours.shape == (50, 3, 5)
    error = np.abs((np.asarray(ours, np.float64) - exact + np.pi) % (2 * np.pi) - np.pi)
    assert error.max() < 2e-6


def frequencies(spec, head_dim):
    return pj.parse(spec).wave(1, head_dim // 2)[0]


def test_partial_is_not_proportional():
    """GPT-NeoX counts the exponent over the rotated channels, p-RoPE over all of them."""
    np.testing.assert_allclose(frequencies("rope(fraction=0.25)", 16), 1e4 ** (-np.arange(8) / 8))
    np.testing.assert_allclose(frequencies("p_rope(proportion=0.25)", 64)[:8], 1e4 ** (-np.arange(8) / 32))


def test_p_rope_between_its_ends():
    np.testing.assert_array_equal(frequencies("p_rope(proportion=1)", 16), frequencies("rope()", 16))
    assert not frequencies("p_rope(proportion=0)", 16).any()
    assert np.count_nonzero(frequencies("p_rope()", 256)) == 96  # Gemma's 0.75 of 128 frequencies


def test_hope_keeps_what_turns_once():
    found = frequencies("hope(original_length=2048)", 128)
    kept = found > 0
    period = 2 * np.pi * 1e4 ** (np.arange(64) / 64)
    np.testing.assert_array_equal(kept, period <= 2048)
    scaled = pj.parse("hope(original_length=2048, scaling=linear(factor=8))")
    np.testing.assert_array_equal(scaled.wave(1, 64)[0] > 0, kept)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("heads", [1, 3])
def test_the_form_for_tpus_is_that_of_all_others(layout, heads):
    """With gradients in x and in angles of each head, as learned frequencies have them."""
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((2, 5, 3, 8)).astype(np.float32)
    angle = rng.standard_normal((5, heads, 4)).astype(np.float32)

    def found(form, x, angle):
        return (weight * form(layout, x, jnp.cos(angle), jnp.sin(angle))).sum()

    forms = rotated_by_product, rotated_by_pairs
    both = jax.jit(lambda *at: [jax.value_and_grad(functools.partial(found, form), (0, 1))(*at) for form in forms])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), *both(x, angle))
    halves = x.astype(jnp.bfloat16), np.cos(angle), np.sin(angle)
    np.testing.assert_array_equal(*(np.asarray(jax.jit(form, static_argnums=0)(layout, *halves)) for form in forms))
