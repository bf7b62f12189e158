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


@pytest.mark.parametrize(
    ("base", "dtype", "compiled"),
    [(10, np.int32, True), (10_000, np.float32, True), (1e7, np.int32, True), (10_000, np.int32, False)],
)
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
    attend = lambda site: jax.eval_shape(lambda q: pj.attend(pj.parse("alibi"), (), q, q, q, site, site), q)  # noqa: E731
    with pytest.raises(ValueError, match=r"positions from -1073741824 to 1073741824 are 2\^31 and more apart"):
        attend(site)
    attend(site._replace(segment=np.int32([0, 1])))


def test_angles_between_tokens_and_on_several_axes():
    position = np.random.default_rng(0).uniform(-(2**20), 2**20, (200, 2)).astype(np.float32)
    wave = np.random.default_rng(1).normal(size=(2, 16))  # dense: every channel reads both axes
    ours = jax.jit(lambda position: angles(position, wave))(position)
    error = turned(np.asarray(ours, np.float64) - position.astype(np.float64) @ wave)
    assert error.max() < 2e-6  # 1e-6 for each axis


def test_angles_differentiate_to_the_frequency():
    wave = geometric(10_000, 8)[None]
    position = np.full((1, 1), 1234.5, np.float32)
    _, slope = jax.jit(lambda p: jax.jvp(lambda p: angles(p, wave), (p,), (p / 1234.5,)))(position)
    np.testing.assert_allclose(slope, wave, rtol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_positions_are_refused(dtype):
    with pytest.raises(ValueError, match=r"positions are int32 or float32, got (bfloat16|float16)"):
        angles(jnp.zeros((3, 1), dtype), geometric(100, 4)[None])


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
