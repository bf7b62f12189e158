"""Arguments have their documented effect, compared with numbers worked out by hand, also away from their defaults."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax as pj
from posjax.encodings.pairs import HIDDEN

KEY, HEADS, HEAD_DIM = jax.random.key(0), 4, 4
DIMS = pj.Dims(HEADS * HEAD_DIM, HEADS, HEAD_DIM)


def at(*position, dtype=np.int32):
    ones = np.ones(len(position), np.int32)
    return pj.Site(np.asarray(position, dtype), ones, 0 * ones)


def bias(spec, q_site, k_site, params=None):
    """Logits of queries and keys that all hold the same."""
    encoding = pj.parse(spec)
    token = np.random.default_rng(0).normal(size=(HEADS, HEAD_DIM)).astype(np.float32)
    q, k = (np.broadcast_to(token, (len(site.segment), HEADS, HEAD_DIM)) for site in (q_site, k_site))

    @jax.jit
    def run(q, k):
        return encoding.bias(encoding.init(KEY, DIMS) if params is None else params, q, q_site, k, k_site)

    return np.asarray(run(q, k))


@pytest.mark.parametrize(
    "spec",
    [
        "t5(num_buckets=16, max_distance=20)",
        "shaw(max_relative_position=5)",
        "deberta(position_buckets=-1, max_relative_positions=6)",
    ],
)
def test_fractions_count_as_the_whole_distance_below(spec):
    """On either side: half a token before is distance 0, as half a token behind."""
    whole = bias(spec, at(10), at(8, 9, 10, 10, 11, 12))
    fractions = bias(spec, at(10, dtype=np.float32), at(7.5, 8.75, 9.5, 10.5, 11.25, 12.5, dtype=np.float32))
    np.testing.assert_array_equal(fractions, whole)
    assert len(np.unique(whole[0])) == 5


def test_power_kernel_has_twice_the_sigmoid_in_its_exponent():
    """p = 0 is the exponent 1, ln 3 the exponent 3/2; in the formula for kernels too."""
    params = {"p": jnp.log(jnp.array([1.0, 3.0, 1 / 3, 7.0])), "a": jnp.log(jnp.expm1(jnp.array([0.5, 1.0, 2.0, 1.0])))}
    expected = -np.array([0.5, 1, 2, 1])[:, None] * 4.0 ** np.array([1, 1.5, 0.5, 1.75])[:, None]
    np.testing.assert_allclose(bias("kerple(kind='power')", at(4), at(0), params)[:, 0], expected, rtol=1e-5)
    encoding = pj.parse("kerple(kind='power')")
    constants = np.asarray(encoding.constants(params, HEADS))
    found = [[encoding.logit(tuple(map(float, head)), (jnp.int32(-4),))] for head in constants]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_kernels_know_the_side_that_split_heads_do_not_see():
    encoding, offset = pj.parse("alibi(direction='split')"), np.arange(-3, 4, dtype=np.int32)
    constants = np.asarray(encoding.constants((), HEADS))
    found = np.array([encoding.logit(tuple(map(float, head)), (jnp.asarray(offset),)) for head in constants])
    left = [np.where(offset > 0, HIDDEN, -slope * np.abs(offset)) for slope in (2**-4, 2**-8)]
    np.testing.assert_allclose(found, [*left, *(each[::-1] for each in left)])


def test_dpb_sees_the_logarithm_of_an_offset():
    """With log_distance it reads ln(1 + |x|): its value at e^x - 1 is the value at x without."""
    origin, far = at(0, dtype=np.float32), np.array([-2.0, -0.5, 0.0, 0.25, 1.5])
    plain = bias("dpb(hidden_dim=5)", origin, at(*far, dtype=np.float32))
    further = at(*np.sign(far) * np.expm1(abs(far)), dtype=np.float32)
    logarithmic = bias("dpb(hidden_dim=5, log_distance=True)", origin, further)
    np.testing.assert_allclose(logarithmic, plain, atol=1e-5)
    assert np.ptp(plain[0]) > 1e-2


def test_sandwich_takes_its_base():
    """With base 1 all waves are the same one: dim / 2 cos(distance), over 8h / H."""
    found = bias("sandwich(dim=6, base=1)", at(5), at(3, 5, 9))[:, 0]
    np.testing.assert_allclose(found, 3 * np.cos([2, 0, 4]) * (4 / (8 * np.arange(1, 5)))[:, None], atol=1e-5)


@pytest.mark.parametrize("gamma", [0.4, 3.0])
def test_the_slowest_pair_of_xpos_keeps_gamma_of_one_and_gamma(gamma):
    """Compares positions a scale_base apart, with keys that have only this pair; with base 1 it turns by the distance."""
    encoding, site = pj.parse(f"xpos(base=1, scale_base=710, gamma={gamma})"), at(710, 0)  # 710 is 113 turns to 6e-5
    x = jnp.zeros((2, 1, 8)).at[:, :, 0].set(1.0)
    q, k = map(np.asarray, jax.jit(lambda x: encoding.rotate((), x, site, x, site))(x))
    np.testing.assert_allclose(np.vdot(q[0], k[1]), gamma / (1 + gamma), rtol=1e-4)


def test_pose_skips_whatever_it_cuts():
    """4 cuts and 8 skips: all 32 pairs come."""
    encoding, site = pj.parse("pose(length=15)"), pj.sites(8)
    keys = jax.random.split(KEY, 800)
    skipped = np.asarray(jax.jit(jax.vmap(lambda key: encoding.place((), site, key).position))(keys)) - np.arange(8)
    pairs = {(int((row == 0).sum()), int(row[-1])) for row in skipped if row[-1]}
    assert pairs == {(cut, skip) for cut in range(1, 5) for skip in range(1, 8)}


def test_a_sum_reaches_no_further_than_its_parts():
    assert pj.parse("rope() + xpos()").reach == pj.parse("xpos()").reach < 30_000
