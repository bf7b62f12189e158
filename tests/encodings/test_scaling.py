"""Published constants of the frequency scalings, their lengths by document, and where sources disagree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from members.scaling import scaled, scalings

import posjax as pj
from posjax.encodings.scaling import Spectrum, document_lengths
from posjax.spec import registered


def scaling(spec):
    return pj.parse(f"rope(scaling={spec})").scaling


def frequencies(spec, head_dim, base=1e4, length=None):
    spectrum = Spectrum(base, head_dim // 2, np.arange(head_dim // 2))
    length = None if length is None else np.array([length], np.float32)
    return spectrum.frequency * np.asarray(scaling(spec).multiplier(spectrum, length)).reshape(-1)


def attention(spec, length=None):
    length = None if length is None else np.array([length], np.float32)
    return float(np.squeeze(scaling(spec).attention(np.full((1, 1), 5), length)))


@pytest.mark.filterwarnings("ignore:Do not use the `random` module")  # beartype does, to sample items for its checks
@settings(max_examples=100, deadline=None)
@given(scalings())
def test_frequencies_by_the_papers(value):
    """A rotary dim of 6, in documents below and above the trained length."""
    if value is None:
        return
    spectrum = Spectrum(500.0, 3, np.arange(3))
    if value.spec_name == "longrope" and {len(value.short_factor), len(value.long_factor)} != {3}:
        with pytest.raises(ValueError, match="give one for each"):
            value.multiplier(spectrum, np.ones(1, np.float32))
        return
    trained = getattr(value, "original_length", 100)
    for n in (1, trained, 5 * trained):
        length = np.array([n], np.float32) if value.length_dependent else None
        theta, m = scaled(value, 500.0, 6, n)
        ours = spectrum.frequency * np.asarray(value.multiplier(spectrum, length)).reshape(-1)
        np.testing.assert_allclose(ours, theta, rtol=2e-6)
        np.testing.assert_allclose(value.attention(np.full((1, 1), 1000), length), m, rtol=2e-6)


def test_yarn_ramp_is_the_codes():
    """The paper's ramp is linear in turns, and here named ntk_by_parts; the published code's is linear in the channel."""
    yarn = frequencies("yarn(factor=4, original_length=1024)", 16)
    by_parts = frequencies("ntk_by_parts(factor=4, original_length=1024)", 16)
    assert np.abs(yarn / by_parts - 1).max() > 0.2
    np.testing.assert_allclose(yarn[[0, -1]], by_parts[[0, -1]])


@pytest.mark.parametrize(
    "spec",
    [
        "yarn(factor=4, original_length={})",
        "yarn(factor=4, original_length={}, truncate=False)",
        "dynamic_yarn(original_length={})",
        "dype(factor=4, original_length={})",
        "ntk_by_parts(factor=4, original_length={})",
        "llama3(factor=4, original_length={})",
    ],
)
def test_every_channel_is_kept_where_all_turn_often_and_divided_where_none_does(spec):
    """As by eq. 17 and 18 of YaRN's paper. Its code turns the ramp round there: it divides all by the factor, or none."""
    for length, factor in ((1_000_000, 1), (4, 4), (2, 4)):
        scaled = frequencies(spec.format(length), 4, base=5, length=4 * length)
        np.testing.assert_allclose(scaled, np.array([1, 5**-0.5]) / factor, rtol=1e-6)


def test_yarn_mscale_is_deepseeks():
    """One mscale alone counts, as in DeepSeek's code; transformers would not heed it."""
    spec = "yarn(factor=40, original_length=4096, mscale={}, mscale_all_dim={})"
    growth = 0.1 * np.log(40)
    assert attention(spec.format(0.707, 0)) == pytest.approx(0.707 * growth + 1)
    assert attention(spec.format(1, 1)) == 1
    assert attention(spec.format(0.5, 1)) == pytest.approx((0.5 * growth + 1) / (growth + 1))


def test_attention_factor_reaches_every_token():
    """It is a temperature: tokens that stand nowhere are not turned, but theirs are logits too. Not so other channels."""
    site = pj.grid(2, 2, prefix=1)
    x = jnp.ones((5, 1, 8))
    encoding = pj.parse("rope(fraction=0.5, scaling=yarn(factor=4, original_length=8, attention_factor=3))")
    turned, _ = jax.jit(lambda x: encoding.rotate((), x, site, x, site))(x)
    np.testing.assert_array_equal(turned[0, 0], [3] * 4 + [1] * 4)
    np.testing.assert_array_equal(turned[1, 0], [3] * 4 + [1] * 4)  # position (0, 0)


LONGROPE = "longrope(short_factor=(1, 1), long_factor=(2, 4), factor=4, original_length=1024{})"


def test_longrope_switches_by_document():
    np.testing.assert_allclose(frequencies(LONGROPE.format(""), 4, length=1024), [1, 0.01])
    np.testing.assert_allclose(frequencies(LONGROPE.format(""), 4, length=1025), [1 / 2, 0.01 / 4])


def test_longrope_start_tokens_are_as_they_were():
    """Neither scaled nor, as in the authors' code, multiplied by the attention factor."""
    site, x = pj.sites(2000), jnp.ones((2000, 1, 4))
    specs = "rope()", f"rope(scaling={LONGROPE.format(', start_tokens=4')})"
    plain, ours = map(np.asarray, jax.jit(lambda x: [pj.parse(s).rotate((), x, site, x, site)[0] for s in specs])(x))
    np.testing.assert_allclose(ours[:4], plain[:4], atol=1e-6)
    assert np.abs(ours[4:8] - plain[4:8]).max() > 0.1
    np.testing.assert_allclose(np.linalg.norm(ours[4:], axis=-1), 2 * 1.095445115, rtol=1e-5)


def test_document_lengths():
    """Takes any ids in any order, with holes and strangers; padding and tokens that stand nowhere do not count."""
    segment = np.array([7, -3, 7, 2**30, 0, -3, 7, 2**30, 5], np.int32)
    position = np.array([4, 90, 9, 0, 1000, 17, 2, 3, 50], np.int32)
    prefix = np.array([0, 1, 0, 0, 0, 0, 0, 0, 1], np.int32)
    keys = pj.Site(position, segment, prefix)
    queries = pj.Site(np.zeros(5, np.int32), np.array([2**30, 7, 6, 0, 5], np.int32), np.zeros(5, np.int32))
    of_queries, of_keys = jax.jit(document_lengths)(queries, keys)
    np.testing.assert_array_equal(of_queries, [4, 10, 0, 0, 0])
    np.testing.assert_array_equal(np.asarray(of_keys)[[0, 2, 6, 3, 7, 8]], [10, 10, 10, 4, 4, 0])


def test_document_lengths_of_a_grid_are_of_its_longest_axis():
    site = pj.grid(3, 5, prefix=1)
    np.testing.assert_array_equal(jax.jit(document_lengths)(site, site)[0], np.full(16, 5))


def test_lengths_take_linear_memory():
    count = 100_000
    site = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), pj.sites(count))
    analysis = jax.jit(document_lengths).lower(site, site).compile().memory_analysis()
    assert analysis.temp_size_in_bytes < 400 * count


def test_resonance_has_whole_periods():
    """The order of the authors' Resonance YaRN: scaled, then rounded."""
    np.testing.assert_allclose(2 * np.pi / frequencies("resonance", 8), [6, 63, 628, 6283], rtol=1e-12)
    halved = frequencies("resonance(scaling=linear(factor=2))", 8)
    np.testing.assert_allclose(2 * np.pi / halved, [13, 126, 1257, 12566])
    yarn = "yarn(factor=4, original_length=1024)"
    assert attention(f"resonance(scaling=clipped(count=1, scaling={yarn}))") == attention(yarn)


def test_riflex_lowers_one_frequency_of_one_axis():
    """HunyuanVideo's fourth, of period 50, for more latents than that; the paper has a margin of 1."""
    plain = frequencies("clipped(count=0)", 16, base=256)
    np.testing.assert_array_equal(frequencies("riflex(length=50, repetition=48)", 16, base=256), plain)
    for spec, margin in (("riflex(length=66, repetition=48)", 0.9), ("riflex(length=66, repetition=48, margin=1)", 1)):
        lowered = frequencies(spec, 16, base=256)
        assert lowered[3] == pytest.approx(margin * 2 * np.pi / 66)
        np.testing.assert_array_equal(np.delete(lowered, 3), np.delete(plain, 3))
    sites, wave = np.array([[2, 0], [0, 2]], np.int32), np.tile(plain, (2, 1))
    spectrum = Spectrum(256.0, 8, np.arange(8))
    time, row = scaling("riflex(length=66, repetition=48)").angles(sites, wave, spectrum, None)
    np.testing.assert_allclose(time[3], 2 * 0.9 * 2 * np.pi / 66, rtol=1e-6)
    np.testing.assert_allclose(row[3], 2 * plain[3], rtol=1e-6)
    with pytest.raises(ValueError, match=r"riflex\(axis=2\) of positions with 2 axes"):
        scaling("riflex(length=66, repetition=48, axis=2)").angles(sites, wave, spectrum, None)


def test_dype_ends_unscaled():
    """The scaling is vision YaRN's at noise, and nothing at the picture; where its ramps crossed, all was divided."""
    plain = frequencies("clipped(count=0)", 56)
    for time in (0, 0.001):
        np.testing.assert_allclose(frequencies(f"dype(factor=4, original_length=64, time={time})", 56), plain)
    noise, middle = (frequencies(f"dype(factor=4, original_length=64, time={time})", 56) for time in (1, 0.5))
    assert noise[-1] == pytest.approx(plain[-1] / 4)
    assert np.all(noise <= middle + 1e-12)
    assert np.any(noise < middle)


def test_dype_of_a_traced_time_is_that_of_a_number():
    spectrum, dype = Spectrum(1e4, 28, np.arange(28)), registered("dype")
    frequency = jax.jit(lambda time: dype(4, 64, time).multiplier(spectrum, None))
    for time in np.float32([0, 0.3, 1]):
        np.testing.assert_allclose(frequency(time), dype(4, 64, float(time)).multiplier(spectrum, None), rtol=1e-5)
