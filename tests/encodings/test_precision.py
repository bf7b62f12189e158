"""Angles are exact to 1e-6 at positions up to 2^20, whatever the activations are rounded to."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import FIRST, forward, inner_jaxprs, world

import posjax as pj
from posjax.encodings.angles import angles, axial, geometric

FAR = np.unique(np.concatenate([2 ** np.arange(21), 2 ** np.arange(1, 21) - 1, np.arange(9) * 12345, [999_983]]))
BOTH_SIDES = np.concatenate([-FAR, [0], FAR])[:, None]


def turned(difference):
    """Difference of angles, whole turns aside."""
    return np.abs((difference + np.pi) % (2 * np.pi) - np.pi)


@pytest.mark.parametrize("base", [10, 100, 10_000, 500_000, 1e7])
@pytest.mark.parametrize("dtype", [np.int32, np.float32])
@pytest.mark.parametrize("compiled", [False, True])
def test_angles_are_exact(base, dtype, compiled):
    assert not jax.config.jax_enable_x64
    wave = axial(base, 1, 64, "a test")
    compute = jax.jit(lambda p: angles(p, wave)) if compiled else lambda p: angles(p, wave)
    ours = compute(BOTH_SIDES.astype(dtype))
    assert ours.dtype == jnp.float32
    assert turned(np.asarray(ours, np.float64) - BOTH_SIDES * wave).max() < 1e-6
    assert np.abs(ours).max() < np.pi + 1e-5


EVERYWHERE = np.array([0, 1, 2**24 + 1, 2**27 + 3, 1_732_492_801, 2**31 - 1])  # one is a time in seconds


@pytest.mark.parametrize("learned", [False, True])
def test_angles_of_whole_positions_are_exact_up_to_2_to_31(learned):
    """Learned frequencies are rounded to turns in float32 first, alike for all positions."""
    position, wave = np.concatenate([-EVERYWHERE, EVERYWHERE])[:, None], axial(10_000, 1, 64, "a test")
    ours = jax.jit(lambda p: (angles(p, wave), wave / (2 * np.pi)))
    if learned:
        ours = functools.partial(jax.jit(lambda w, p: (angles(p, w), w / (2 * np.pi))), jnp.asarray(wave, jnp.float32))
    ours, turn = ours(position.astype(np.int32))
    turn = turn if learned else wave / (2 * np.pi)
    expected = position.astype(np.longdouble) * np.asarray(turn).astype(np.longdouble) * 2 * np.pi
    assert turned(np.asarray(ours, np.longdouble) - expected).max() < 1e-6


def test_distances_that_int32_does_not_hold_are_refused_where_they_are_known():
    q, site = jnp.ones((2, 1, 4)), pj.Site(np.int32([-(2**30), 2**30]), np.int32([1, 1]), np.int32([0, 0]))
    with pytest.raises(ValueError, match=r"positions from -1073741824 to 1073741824 are 2\^31 and more apart"):
        pj.attend(pj.parse("alibi"), (), q, q, q, site, site)
    pj.attend(pj.parse("alibi"), (), q, q, q, *[site._replace(segment=np.int32([0, 1]))] * 2)


def test_angles_between_tokens_and_on_several_axes():
    position = np.random.default_rng(0).uniform(-(2**20), 2**20, (200, 2)).astype(np.float32)
    wave = np.random.default_rng(1).normal(size=(2, 16))  # dense: every channel reads both axes
    error = turned(np.asarray(angles(position, wave), np.float64) - position.astype(np.float64) @ wave)
    assert error.max() < 2e-6  # 1e-6 for each axis


def test_angles_with_known_and_unknown_positions_agree():
    wave = geometric(10_000, 32)[None]
    known = jax.jit(lambda: angles(BOTH_SIDES.astype(np.int32), wave))()
    unknown = jax.jit(lambda p: angles(p, wave))(BOTH_SIDES.astype(np.int32))
    assert turned(np.asarray(known, np.float64) - np.asarray(unknown, np.float64)).max() < 1e-6


def test_angles_differentiate_to_the_frequency():
    wave = geometric(10_000, 8)[None]
    _, slope = jax.jvp(lambda p: angles(p, wave), (jnp.full((1, 1), 1234.5),), (jnp.ones((1, 1)),))
    np.testing.assert_allclose(slope, wave, rtol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_positions_are_refused(dtype):
    with pytest.raises(ValueError, match=r"positions are int32 or float32, got (bfloat16|float16)"):
        angles(jnp.zeros((3, 1), dtype), geometric(100, 4)[None])


@pytest.mark.parametrize("spec", ["rope()", "rope(base=500000)", "rope(layout='interleaved')"])
def test_bfloat16_logits_far_out(spec):
    """Within 1 % of what float64 makes of the same bfloat16 queries and keys; bfloat16 positions would make noise."""
    encoding, site = pj.parse(spec), pj.sites(64, start=2**17)
    q, k = jax.random.normal(jax.random.key(0), (2, 64, 1, 64), jnp.bfloat16)
    rotated = encoding.rotate((), q, site, k, site)
    assert all(x.dtype == jnp.bfloat16 for x in rotated)
    ours = np.einsum("thd,shd->ts", *(np.asarray(x, np.float64) for x in rotated))
    theirs = np.einsum("td,sd->ts", *(_rotated_float64(x, site.position, encoding) for x in (q, k)))
    assert np.abs(ours - theirs).max() < 0.01 * np.abs(theirs).max()


def _rotated_float64(x, position, encoding):
    x = np.asarray(x, np.float64)[:, 0]
    turn = np.exp(1j * position[:, None] * encoding.base ** (-np.arange(32) / 32))
    if encoding.layout == "half":
        z = (x[:, :32] + 1j * x[:, 32:]) * turn
        return np.concatenate([z.real, z.imag], axis=1)
    z = (x[:, 0::2] + 1j * x[:, 1::2]) * turn
    return np.stack([z.real, z.imag], axis=-1).reshape(x.shape)


@pytest.mark.parametrize("spec", ["rope()", "rope(base=100, layout='interleaved')"])
@pytest.mark.parametrize("site", [pj.sites(9, start=2**20), pj.grid(2, 3, prefix=3)], ids=["line", "grid"])
def test_rotation_keeps_the_norm(spec, site):
    q, k = jax.random.normal(jax.random.key(0), (2, 9, 2, 16))
    for before, after in zip((q, k), pj.parse(spec).rotate((), q, site, k, site), strict=True):
        np.testing.assert_allclose(jnp.linalg.norm(after, axis=-1), jnp.linalg.norm(before, axis=-1), rtol=1e-6)
        assert np.abs(after - before)[4:].max() > 0.1
        standing = site.prefix == 0
        np.testing.assert_array_equal(after[~standing], before[~standing])


def test_rotary_layouts_differ_by_a_permutation_of_channels():
    site, x = pj.sites(5), jax.random.normal(jax.random.key(0), (5, 2, 8))
    to_half = np.array([0, 2, 4, 6, 1, 3, 5, 7])
    interleaved, _ = pj.encodings.rope(layout="interleaved").rotate((), x, site, x, site)
    half, _ = pj.encodings.rope().rotate((), x[..., to_half], site, x, site)
    np.testing.assert_allclose(interleaved[..., to_half], half, atol=1e-6)


def test_interpolation_is_division():
    placed = pj.parse("interpolate(factor=4) >> rope()").place(((), ()), pj.sites(9))
    np.testing.assert_array_equal(placed.position, np.arange(9) / 4)
    assert placed.position.dtype == jnp.float32


def test_interpolated_positions_are_exact_quotients():
    """Angles equal NumPy's anywhere: XLA divides by a number that it knows by a product with its reciprocal."""
    encoding, site = pj.parse("interpolate(factor=41)"), pj.sites(500)
    for place in (encoding.place, jax.jit(encoding.place)):
        position = place((), jax.tree.map(jnp.asarray, site)).position
        np.testing.assert_array_equal(position, np.arange(500, dtype=np.float32) / np.float32(41))


def test_a_temperature_steps_at_its_multiples():
    """41 * (1/41) falls short of 1 in float32, as XLA divides by a number that it knows."""
    encoding, site = pj.parse("llama4_temperature(floor_scale=41)"), pj.sites(200)
    q = jnp.ones((200, 1, 2))
    found = jax.jit(lambda site: encoding.rotate((), q, site, q, site)[0])(jax.tree.map(jnp.asarray, site))
    steps = np.flatnonzero(np.diff(np.asarray(found)[:, 0, 0])) + 2  # the number of keys at which it grows
    np.testing.assert_array_equal(steps, [41, 82, 123, 164])


# Products of q, of k or of logits with a table or with each other, beyond the three of every layer.
_OF_CONTENT = {"dape": 1, "cope": 2, "deberta": 2, "inkling": 1, "shaw": 2, "tapa": -1, "transformer_xl": 2, "tupe": 2}
_OF_CONTENT |= {"self_extend": 1, "rerope": 1, "shifted": 1, "dual_chunk": 2, "streaming": 1}


@pytest.mark.slow
def test_gpus_may_round_products_of_content_alone():
    """GPUs round float32 factors to 10 bits by default: an angle of 1,000 radians would be off by one. No CPU shows that."""
    found, expected = {}, {}
    for case in FIRST:
        w = world(case)
        traced = jax.make_jaxpr(lambda params, x, w=w: forward(w.encoding, params, x, w.site, w.weights))(w.params, w.x)
        products = [
            eqn for jaxpr, _ in inner_jaxprs(traced) for eqn in jaxpr.eqns if eqn.primitive.name == "dot_general"
        ]
        found[case] = sum(eqn.params["precision"] is None for eqn in products)
        expected[case] = 3 + sum(_OF_CONTENT.get(name, 0) for name in re.findall(r"\w+", case.spec))
    assert found == expected
