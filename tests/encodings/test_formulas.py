"""The constants and worked examples that papers print."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from members.bias import published_slopes, t5_bucket

import posjax as pj
from posjax.encodings.bias import alibi_slopes


def test_rotation_stays_exact_far_out():
    """The logits of neighbours at position 2^20 are those at 0: a float32 product of position and frequency errs by 2 %."""
    q, k = jax.random.normal(jax.random.key(0), (2, 6, 1, 64))
    near, far = pj.sites(6), pj.sites(6, start=2**20)
    for spec in ("rope()", "rope(base=500000, layout='interleaved')"):
        logits = [jnp.einsum("thd,shd->ts", *pj.parse(spec).rotate((), q, site, k, site)) for site in (near, far)]
        np.testing.assert_allclose(logits[1], logits[0], rtol=0, atol=2e-5)


def test_sinusoidal_worked_example():
    """d = 8, position 1. Notes that give sin(0.01), sin(0.001), sin(0.0001) for channels 2, 4 and 6 misread 2i/d."""
    code = pj.parse("sinusoidal()").embed((), jnp.zeros((2, 8)), pj.sites(2))
    np.testing.assert_array_equal(code[0], [0, 1] * 4)
    by_hand = [f(angle) for angle in (1.0, 0.1, 0.01, 0.001) for f in (math.sin, math.cos)]
    np.testing.assert_allclose(code[1], by_hand, rtol=0, atol=1e-7)


def test_sinusoidal_code_of_a_shift_is_linear():
    """Section 3.5: PE(p + k) is a linear function of PE(p), the same at every p."""
    code = np.asarray(pj.parse("sinusoidal(base=100)").embed((), jnp.zeros((200, 16)), pj.sites(200)), np.float64)
    step, *_ = np.linalg.lstsq(code[:190:2], code[7:197:2], rcond=None)
    np.testing.assert_allclose(code[1:190:2] @ step, code[8:197:2], rtol=0, atol=1e-5)


def test_alibi_slopes_as_printed():
    np.testing.assert_array_equal(alibi_slopes(8), [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256])
    sixteen = alibi_slopes(16)
    np.testing.assert_allclose(sixteen[:4], [2**-0.5, 2**-1, 2**-1.5, 2**-2], rtol=1e-15)


@pytest.mark.parametrize("num_heads", [*range(1, 25), 71])
def test_alibi_slopes_as_published(num_heads):
    np.testing.assert_allclose(alibi_slopes(num_heads), published_slopes(num_heads), rtol=1e-12)


def test_alibi_is_not_scaled_by_the_head_dim():
    site = pj.sites(4)
    for head_dim in (2, 32):
        q = jnp.zeros((4, 8, head_dim))
        _, weights = pj.attend(pj.parse("alibi()"), (), q, q, q, site, site, return_weights=True)
        np.testing.assert_allclose(np.log(weights[0, 0, 3] / weights[0, 0, 0]), -1.5, atol=1e-6)


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


@pytest.mark.parametrize("far", [2**16, 2**16 + 1, 10**9])
def test_t5_with_more_distances_than_can_be_listed(far):
    encoding = pj.encodings.t5(32, far)
    offset = np.concatenate([[0], *([-x, x] for x in (1, 7, 8, 9, far // 3, far - 1, far, far + 1))])
    expected = [t5_bucket(int(x), encoding) for x in offset]
    params = {"table": jnp.arange(32.0)[:, None]}
    found = encoding.of_offset(params, jnp.asarray(offset, jnp.int32)[None, :, None], 1)
    np.testing.assert_array_equal(found[0, 0], expected)


def test_t5_later_keys_are_at_distance_zero_for_decoders():
    encoding = pj.parse("t5(bidirectional=False)")
    params = encoding.init(jax.random.key(0), pj.Dims(8, 2, 4))
    site, q = pj.sites(200), jnp.zeros((200, 2, 4))
    bias = np.asarray(encoding.bias(params, q, site, q, site))
    upper = np.triu(np.ones((200, 200), bool))
    for head in range(2):
        assert (bias[head][upper] == np.asarray(params["table"])[0, head]).all()
