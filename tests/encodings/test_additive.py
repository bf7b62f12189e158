"""Codes of waves, tables, places of digits and convolution: what their sources print, and where sources disagree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax as pj
from posjax.encodings.digits import coupled_positions, digit_places

KEY = jax.random.key(0)
DIGITS, EQUALS = tuple(range(48, 58)), ord("=")


def tokens(text):
    return np.array([ord(letter) for letter in text], np.int32)


def code(spec, site, width, **sizes):
    encoding, dims = pj.parse(spec), pj.Dims(width, 1, width, **sizes)
    run = jax.jit(lambda x: encoding.embed(encoding.init(KEY, dims), x, site))
    return np.asarray(run(np.zeros((len(site.segment), width), np.float32)))


def test_scaled_sinusoidal_starts_with_one_norm_at_every_width():
    for width in (8, 64):
        norms = np.linalg.norm(code("scaled_sinusoidal", pj.sites(9), width), axis=1)
        np.testing.assert_allclose(norms, 2**-0.5, rtol=1e-6)


def test_an_odd_width_ends_with_zeros():
    """As in fairseq. On a grid one channel is left too, not three."""
    for spec, site, width in (
        ("sinusoidal", pj.grid(2, 3), 9),
        ("sinusoidal(layout='concatenated')", pj.sites(5), 7),
        ("sinusoidal(layout='concatenated')", pj.grid(2, 3), 9),
    ):
        np.testing.assert_array_equal(code(spec, site, width), np.pad(code(spec, site, width - 1), ((0, 0), (0, 1))))
    with pytest.raises(ValueError, match="a width of 10 cannot be shared by 2 position axes"):
        code("scaled_sinusoidal", pj.grid(2, 3), 11)


def test_gamma_is_a_length():
    """N(0, gamma^-2) names a variance: features of tokens at the distance gamma have exp(-1/2) of their norm in common."""
    gamma = 5.0
    init = jax.jit(lambda: pj.encodings.fourier(features=100_000, gamma=gamma).init(KEY, pj.Dims(2, 1, 2)))
    wave = np.asarray(init()["wave"])
    np.testing.assert_allclose(wave.std(), 1 / gamma, rtol=0.01)
    np.testing.assert_allclose(np.cos(gamma * wave).mean(), np.exp(-0.5), atol=0.01)


def test_factorized_tables_of_a_video_are_resized_axis_by_axis():
    encoding = pj.parse("learned_factorized")
    with pytest.raises(ValueError, match="got grid=None"):
        encoding.init(KEY, pj.Dims(6, 1, 6))
    params = encoding.init(KEY, pj.Dims(6, 1, 6, grid=(2, 3, 4)))
    _, resized = encoding.resized(params, (2, 3, 4), (5, 3, 2))
    assert {name: table.shape for name, table in resized.items()} == {"time": (5, 2), "row": (3, 2), "column": (2, 2)}
    np.testing.assert_array_equal(resized["row"], params["row"])


def test_digit_places():
    places = digit_places(tokens("98+7=501.12"), DIGITS)
    np.testing.assert_array_equal(places, [1, 2, 0, 1, 0, 1, 2, 3, 0, 1, 2])
    assert places.dtype == np.int32
    assert digit_places(tokens(""), DIGITS).shape == (0,)


def test_abacus_moves_digits_alone_and_by_one_offset():
    encoding = pj.encodings.abacus(length=20, max_offset=9)
    site = pj.sites(11)._replace(position=digit_places(tokens("98+7=501.12"), DIGITS))
    assert encoding.place((), site) is site
    offsets = set()
    place = jax.jit(jax.vmap(lambda key: encoding.place((), site, key).position))
    for position in np.asarray(place(jax.random.split(KEY, 60))):
        moved = position - site.position
        assert not np.any(moved[site.position == 0])
        offsets |= {*moved[site.position > 0].tolist()}
        assert len({*moved[site.position > 0].tolist()}) == 1
    assert offsets == set(range(10))
    with pytest.raises(ValueError, match=r"abacus has rows for positions below 20 .* none for position 20"):
        encoding.embed(encoding.init(KEY, pj.Dims(4, 1, 4)), jnp.zeros((1, 4)), pj.sites(1, start=20))
    with pytest.raises(ValueError, match="max_offset=9 and length=10"):
        pj.encodings.abacus(length=10, max_offset=9)


def test_coupled_positions_of_the_paper():
    """653+49=207, the sum written from the ones on: digits of equal significance share an id."""
    np.testing.assert_array_equal(
        coupled_positions(tokens("^653+49=207$"), DIGITS, EQUALS), [0, 4, 3, 2, 1, 3, 2, 1, 2, 3, 4, 0]
    )
    np.testing.assert_array_equal(coupled_positions(tokens("65+4="), DIGITS, EQUALS), [3, 2, 1, 2, 0])
