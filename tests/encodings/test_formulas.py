"""The constants and worked examples that papers print."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from members.bias import published_slopes, t5_bucket

import posjax as pj
from posjax.encodings.bias import alibi_slopes


def test_sinusoidal_worked_example():
    """d = 8, position 1. Notes that give sin(0.01), sin(0.001), sin(0.0001) for channels 2, 4 and 6 misread 2i/d."""
    code = pj.parse("sinusoidal()").embed((), jnp.zeros((2, 8)), pj.sites(2))
    np.testing.assert_array_equal(code[0], [0, 1] * 4)
    by_hand = [f(angle) for angle in (1.0, 0.1, 0.01, 0.001) for f in (math.sin, math.cos)]
    np.testing.assert_allclose(code[1], by_hand, rtol=0, atol=1e-7)


def test_alibi_slopes_as_printed():
    np.testing.assert_array_equal(alibi_slopes(8), [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256])
    sixteen = alibi_slopes(16)
    np.testing.assert_allclose(sixteen[:4], [2**-0.5, 2**-1, 2**-1.5, 2**-2], rtol=1e-15)


@pytest.mark.parametrize("num_heads", [*range(1, 25), 71])
def test_alibi_slopes_as_published(num_heads):
    np.testing.assert_allclose(alibi_slopes(num_heads), published_slopes(num_heads), rtol=1e-12)


def test_t5_edges_as_published():
    causal = pj.parse("t5(bidirectional=False)").steps().listed()[128::-1]  # of distances 0 to 128
    lower = [int(np.flatnonzero(causal == bucket)[0]) for bucket in range(32)]
    assert lower[:16] == list(range(16))
    assert lower[16:] == [16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]


@pytest.mark.parametrize("settings", [(32, 128), (32, 129), (64, 1000), (8, 5), (4, 3), (10, 99)])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_t5_buckets(settings, bidirectional):
    encoding = pj.encodings.t5(*settings, bidirectional)
    far = settings[1]
    expected = [t5_bucket(offset, encoding) for offset in range(-far, far + 1)]
    np.testing.assert_array_equal(encoding.steps().listed(), expected)


@pytest.mark.parametrize("far", [2**16, 10**9])
def test_t5_with_more_distances_than_can_be_listed(far):
    encoding = pj.encodings.t5(32, far)
    offset = np.concatenate([[0], *([-x, x] for x in (1, 7, 8, 9, far // 3, far - 1, far, far + 1))])
    expected = [t5_bucket(int(x), encoding) for x in offset]
    params = {"table": jnp.arange(32.0)[:, None]}
    found = encoding.of_offset(params, jnp.asarray(offset, jnp.int32)[None, :, None], 1)
    np.testing.assert_array_equal(found[0, 0], expected)
