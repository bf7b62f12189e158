"""The frequencies of rotary encodings and their use, against known angles and norms."""

import jax
import numpy as np
import pytest

import posjax as pj
from experiments.analysis.frequencies import frequency_use, waves

DIMS = pj.Dims(width=24, num_heads=3, head_dim=8, grid=(3, 4), prefix=1)
SITE = pj.grid(3, 4, prefix=1)


def hosted(spec):
    encoding = pj.parse(spec)
    return encoding, encoding.init(jax.random.key(0), DIMS)


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["axial_rope(base=100)", "rope_mixed", "dinov3"])
def test_waves_are_radians_per_patch(spec):
    encoding, params = hosted(spec)
    found = waves(encoding, params, DIMS, SITE)
    placed, unit = encoding.place(params, SITE), np.zeros((13, 3, 8), np.float32)
    unit[..., [a for a, _ in found.pairs]] = 1
    turned, _ = encoding.rotate(params, unit, placed, unit, placed)
    token = 1 + 1 * 4 + 1  # the patch at (1, 1), against that at (0, 0)
    a, b = (np.asarray(turned)[..., [pair[side] for pair in found.pairs]] for side in (0, 1))
    angle = np.arctan2(b, a)
    np.testing.assert_allclose(np.exp(1j * found.wave.sum(axis=0)), np.exp(1j * (angle[token] - angle[1])), atol=1e-4)
    if spec == "rope_mixed":
        assert found.pairs == [(0, 1), (2, 3), (4, 5), (6, 7)]
        np.testing.assert_allclose(found.wave, params["wave"], atol=1e-4)
    if spec == "axial_rope(base=100)":
        np.testing.assert_allclose(found.magnitude[0], [1, 0.1, 1, 0.1], atol=1e-4)


@pytest.mark.slow
def test_what_does_not_turn_pairs_has_no_waves():
    assert waves(*hosted("learned"), DIMS, SITE) is None
    assert waves(*hosted("liere(generator_dim=4)"), DIMS, SITE) is None


def test_use_is_the_mean_norm_of_pairs():
    q, k = np.zeros((2, 2, 2, 4)), np.ones((2, 2, 1, 4))
    q[:, :, 0] = [3, 1, 4, 0]  # pairs (0, 2) and (1, 3)
    q[1, :, 0] *= 2
    found = frequency_use(q, k, [(0, 2), (1, 3)])
    np.testing.assert_allclose(found.query, [[7.5, 1.5], [0, 0]])
    np.testing.assert_allclose(found.key, np.full((2, 2), np.sqrt(2)))
    np.testing.assert_allclose(found.product, np.sqrt(2) * found.query)
    with pytest.raises(ValueError, match="2 key heads cannot be shared evenly by 3"):
        frequency_use(np.ones((1, 2, 3, 4)), np.ones((1, 2, 2, 4)), [(0, 2)])


def test_use_leaves_out_tokens_that_stand_nowhere():
    q = np.ones((1, 13, 1, 2))
    q[:, 0] = 100
    found = frequency_use(q, q, [(0, 1)], SITE)
    np.testing.assert_allclose(found.product, 2)
    assert frequency_use(q, q, [(0, 1)]).product > 10


def test_use_is_the_mean_of_products_and_not_the_product_of_means():
    """Queries and keys are long in the same image: (1 * 1 + 3 * 3) / 2 = 5, not 2 * 2."""
    x = np.ones((2, 4, 1, 2)) / np.sqrt(2)
    x[1] *= 3
    found = frequency_use(x, x, [(0, 1)])
    np.testing.assert_allclose((found.query, found.key, found.product), np.reshape([2, 2, 5], (3, 1, 1)))
