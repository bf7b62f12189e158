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
    encoding = pj.parse(spec)
    params = encoding.init(KEY, pj.Dims(width, 1, width, **sizes))
    return np.asarray(encoding.embed(params, jnp.zeros((len(site.segment), width)), site))


def test_sines_on_a_grid_differ_by_the_order_of_axes():
    """MAE tells the column first; `sinusoidal`, timm's interleaved code and transformers' ViTMAE tell the row first."""
    site = pj.grid(3, 5, prefix=1)
    columns_first = code("sincos2d_mae", site, 16)
    rows_first = code("sinusoidal(layout='concatenated')", site, 16)
    np.testing.assert_array_equal(columns_first, np.roll(rows_first, 8, axis=1))
    assert not np.any(columns_first[0])
    np.testing.assert_allclose(
        columns_first[2, :8], [*np.sin([1, 0.1, 0.01, 0.001]), *np.cos([1, 0.1, 0.01, 0.001])], atol=1e-6
    )
    np.testing.assert_array_equal(columns_first[2, 8:], [0] * 4 + [1] * 4)


def test_big_vision_divides_the_exponent_by_one_less():
    """Its last wave is 2 pi base patches long, unlike in MoCo v3 and MAE, which it claims to follow."""
    far = pj.grid(1, 1)._replace(position=np.int32([[0, 100]]))
    for spec, last in (("sincos2d_big_vision(base=100)", 1.0), ("sincos2d_mae(base=100)", 100 * 100**-0.75)):
        np.testing.assert_allclose(code(spec, far, 16)[0, 3], np.sin(last), atol=1e-6)


def test_scaled_sinusoidal_starts_with_one_norm_at_every_width():
    for width in (8, 64, 512):
        norms = np.linalg.norm(code("scaled_sinusoidal", pj.sites(9), width), axis=1)
        np.testing.assert_allclose(norms, 2**-0.5, rtol=1e-6)


@pytest.mark.parametrize("spec", ["sinusoidal", "sinusoidal(layout='concatenated')", "scaled_sinusoidal"])
def test_an_odd_width_ends_with_zeros(spec):
    """As in fairseq. On a grid one channel is left too, not three."""
    for site, width in ((pj.sites(5), 7), (pj.grid(2, 3), 9)):
        odd, even = (
            pj.parse(spec).embed({"scale": jnp.ones(1)}, jnp.zeros((len(site.segment), w)), site)
            for w in (width, width - 1)
        )
        np.testing.assert_array_equal(odd, np.pad(even, ((0, 0), (0, 1))))
    with pytest.raises(ValueError, match="a width of 10 cannot be shared by 2 position axes"):
        code(spec, pj.grid(2, 3), 11)


def test_gamma_is_a_length():
    """N(0, gamma^-2) names a variance: features of tokens at the distance gamma have exp(-1/2) of their norm in common."""
    gamma = 5.0
    wave = pj.encodings.fourier(features=100_000, gamma=gamma).init(KEY, pj.Dims(2, 1, 2))["wave"]
    np.testing.assert_allclose(wave.std(), 1 / gamma, rtol=0.01)
    np.testing.assert_allclose(jnp.cos(gamma * wave).mean(), np.exp(-0.5), atol=0.01)


def test_fourier_names_the_axes_it_has_learned():
    encoding = pj.parse("fourier(features=4)")
    params = encoding.init(KEY, pj.Dims(4, 1, 4, grid=(2, 2)))
    with pytest.raises(ValueError, match="learned waves for 2 position axes, got 1"):
        encoding.embed(params, jnp.zeros((3, 4)), pj.sites(3))


@pytest.mark.parametrize("combine", ["sum", "concatenate"])
@pytest.mark.parametrize("known", [True, False])
def test_factorized_positions_outside(combine, known):
    encoding = pj.encodings.learned_factorized(combine, stddev=1.0)
    params = encoding.init(KEY, pj.Dims(4, 1, 4, grid=(2, 3), prefix=1))
    for site, what in (
        (pj.grid(3, 2), r"position \[2 0\]"),
        (pj.grid(2, 4), r"position \[0 3\]"),
        (pj.grid(2, 3, prefix=2), "prefix token 2"),
        (pj.grid(2, 3)._replace(position=pj.grid(2, 3).position - np.int32(1)), r"position \[-1 -1\]"),
    ):
        embed = lambda site: encoding.embed(params, jnp.zeros((len(site.segment), 4)), site)  # noqa: E731
        if known:
            with pytest.raises(
                ValueError, match=f"learned_factorized has rows .* none for {what}: make the tables larger"
            ):
                embed(site)
        else:
            assert np.isnan(jax.jit(embed)(site)).any()


def test_factorized_without_prefix_rows_refuses_prefix_tokens():
    encoding = pj.parse("learned_factorized")
    params = encoding.init(KEY, pj.Dims(4, 1, 4, grid=(2, 2)))
    assert sorted(params) == ["column", "row"]
    with pytest.raises(ValueError, match="0 prefix tokens, none for prefix token 1"):
        encoding.embed(params, jnp.zeros((5, 4)), pj.grid(2, 2, prefix=1))
    with pytest.raises(ValueError, match="a width of 5 cannot be shared by 2 axes"):
        encoding.init(KEY, pj.Dims(5, 1, 5, grid=(2, 2)))
    with pytest.raises(ValueError, match=r"Dims\(grid=...\)"):
        encoding.init(KEY, pj.Dims(4, 1, 4, length=9))


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
    for seed in range(60):
        moved = encoding.place((), site, jax.random.key(seed)).position - site.position
        assert not np.any(moved[site.position == 0])
        offsets |= {*np.asarray(moved[site.position > 0]).tolist()}
        assert len({*np.asarray(moved[site.position > 0]).tolist()}) == 1
    assert offsets == set(range(10))
    with pytest.raises(ValueError, match=r"abacus has rows for positions below 20 .* none for position 20"):
        encoding.embed(encoding.init(KEY, pj.Dims(4, 1, 4)), jnp.zeros((1, 4)), pj.sites(1, start=20))
    with pytest.raises(ValueError, match="max_offset=9 and length=10"):
        pj.encodings.abacus(length=10, max_offset=9)


def test_abacus_beside_an_encoding_of_the_order():
    encoding = pj.parse("(axis(index=0) >> alibi()) + (axis(index=1) >> abacus(length=8, max_offset=2, stddev=1))")
    line, places = pj.sites(4), np.int32([1, 2, 0, 1])
    site = line._replace(position=np.stack([line.position, places], axis=1))
    params = encoding.init(KEY, pj.Dims(4, 1, 4))
    placed = encoding.place(params, site)
    rows = params[1][1].rows
    np.testing.assert_array_equal(encoding.embed(params, jnp.zeros((4, 4)), placed), rows[places])
    q = jnp.zeros((4, 1, 4))
    np.testing.assert_array_equal(encoding.bias(params, q, placed, q, placed)[0, 3], [-3 / 256, -2 / 256, -1 / 256, 0])


def test_coupled_positions_of_the_paper():
    """653+49=207, the sum written from the ones on: digits of equal significance share an id."""
    np.testing.assert_array_equal(
        coupled_positions(tokens("^653+49=207$"), DIGITS, EQUALS), [0, 4, 3, 2, 1, 3, 2, 1, 2, 3, 4, 0]
    )
    np.testing.assert_array_equal(coupled_positions(tokens("65+4="), DIGITS, EQUALS), [3, 2, 1, 2, 0])


def peg(kernel_size, site, x):
    """With a kernel that tells its offsets apart: 1, 10, 100, ..."""
    encoding = pj.encodings.peg(kernel_size)
    params = encoding.init(KEY, pj.Dims(1, 1, 1))
    params["kernel"] = 10.0 ** jnp.arange(kernel_size)[:, None]
    embed = lambda x, site: encoding.embed(params, x, site)  # noqa: E731
    x = jnp.asarray(x, jnp.float32)[:, None]
    known, unknown = embed(x, site), jax.jit(embed)(x, site)
    np.testing.assert_array_equal(known, unknown)
    return np.asarray(known)[:, 0] - np.asarray(x)[:, 0]


def test_peg_reads_neighbours_and_nobody_else():
    np.testing.assert_array_equal(peg(3, pj.sites(3), [1, 2, 3]), [210, 321, 32])
    gap = pj.sites(3)._replace(position=np.int32([0, 1, 3]))
    np.testing.assert_array_equal(peg(3, gap, [1, 2, 3]), [210, 21, 30])
    np.testing.assert_array_equal(peg(5, gap, [1, 2, 3]), [2100, 30210, 302])
    documents = pj.sites(3)._replace(segment=np.int32([1, 1, 2]))
    np.testing.assert_array_equal(peg(3, documents, [1, 2, 3]), [210, 21, 30])
    padded = pj.sites(3)._replace(segment=np.int32([1, 1, 0]))
    np.testing.assert_array_equal(peg(3, padded, [1, 2, 3]), [210, 21, 0])


def test_tokens_that_share_a_place_count_together():
    shared = pj.sites(3)._replace(position=np.int32([7, 6, 7]))
    np.testing.assert_array_equal(peg(3, shared, [1, 2, 3]), [42, 420, 42])


def test_peg_far_apart_and_below_zero():
    """Addresses are compared, not packed into one integer that could overflow."""
    site = pj.sites(4)._replace(position=np.int32([2**30, -(2**30), 2**30 + 1, 1 - 2**30]))
    np.testing.assert_array_equal(peg(3, site, [1, 2, 3, 4]), [310, 420, 31, 42])


def test_peg_refuses():
    encoding = pj.parse("peg")
    params = encoding.init(KEY, pj.Dims(2, 1, 2, grid=(3, 3)))
    with pytest.raises(ValueError, match="kernel over 2 position axes, got 1"):
        encoding.embed(params, jnp.zeros((3, 2)), pj.sites(3))
    with pytest.raises(ValueError, match="whole positions, got float32"):
        site = pj.grid(1, 3)
        encoding.embed(params, jnp.zeros((3, 2)), site._replace(position=site.position.astype(np.float32)))


@pytest.mark.parametrize(
    ("spec", "width", "least"), [("sincos2d_mae", 6, 4), ("sincos2d_big_vision", 6, 8), ("sincos2d_big_vision", 4, 8)]
)
def test_widths_that_cannot_be(spec, width, least):
    with pytest.raises(ValueError, match=f"{spec}: a width of {width} is no multiple of 4 from {least} on"):
        code(spec, pj.grid(1, 2), width)


def test_factorized_tables_need_no_prefix_tokens():
    encoding = pj.parse("learned_factorized(stddev=1)")
    params = encoding.init(jax.random.key(0), pj.Dims(8, 2, 4, grid=(2, 3)))
    code = encoding.embed(params, jnp.zeros((6, 8)), pj.grid(2, 3))
    np.testing.assert_array_equal(code[4], np.concatenate([params["row"][1], params["column"][1]]))
    with pytest.raises(ValueError, match="none for prefix token 1"):
        encoding.embed(params, jnp.zeros((7, 8)), pj.grid(2, 3, prefix=1))
    unknown = jax.jit(encoding.embed)(params, jnp.zeros((7, 8)), pj.grid(2, 3, prefix=1))
    assert np.isnan(unknown[0]).all()
    np.testing.assert_array_equal(unknown[1:], code)
