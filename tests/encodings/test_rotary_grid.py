"""The axes and coordinates of channels, as sources print them, and their differences."""

import jax
import numpy as np
import pytest

import posjax as pj
from posjax.encodings.rotary_grid import spread_directions

GRID = pj.grid(3, 5)


def coordinates(spec, site, key=None):
    return np.asarray(pj.parse(spec).place((), site, key).position)


def test_axial_frequencies_as_published():
    """rope-vit: both axes have theta^(-4c/D); Pixtral deals theta^(-2c/D) out, even ones to rows, odd ones to columns."""
    shared, split = (pj.parse(f"axial_rope(10000, '{name}')").wave(2, 4) for name in ("shared", "split"))
    np.testing.assert_allclose(shared, [[1, 0.01, 0, 0], [0, 0, 1, 0.01]])
    np.testing.assert_allclose(split, [[1, 0.01, 0, 0], [0, 0, 0.1, 0.001]])
    np.testing.assert_allclose(pj.parse("axial_rope(10000, 'split')").wave(1, 4), [[1, 0.1, 0.01, 0.001]])


def test_time_last_has_the_lowest_frequencies():
    """(16, 24, 24) of 64 in VideoRoPE: x, y, x, y, ... and then t; a port of it gives channel 0 to time."""
    wave = pj.parse("mrope(base=100, sections=(2, 2, 1), time_last=True)").wave(3, 5)
    axis, frequency = np.nonzero(wave.T)[1], wave.sum(axis=0)
    assert axis.tolist() == [1, 2, 1, 0, 0]
    np.testing.assert_allclose(frequency, 100.0 ** (-np.arange(5) / 5))


@pytest.mark.parametrize(
    ("sections", "channels", "counts"),
    [((8, 12, 12), 32, [11, 11, 10]), ((12, 12, 12), 36, [12, 12, 12]), ((24, 20, 20), 64, [24, 20, 20])],
)
def test_interleaved_sections_are_cut_at_the_last_channel(sections, channels, counts):
    wave = pj.parse(f"mrope(sections={sections}, interleaved=True)").wave(3, channels)
    assert np.count_nonzero(wave, axis=1).tolist() == counts
    assert (np.count_nonzero(wave, axis=0) == 1).all()
    chunks = pj.parse(f"mrope(sections={sections})").wave(3, channels)
    assert np.count_nonzero(chunks, axis=1).tolist() == list(sections)


def test_periods_are_exact():
    """100^(2c/(D/2)) for D = 16; the released weights hold 3.1623 as bfloat16 3.1562."""
    wave = pj.parse("dinov3()").wave(2, 8)
    np.testing.assert_allclose(2 * np.pi / wave[0, :4], [1, 3.16227766, 10, 31.6227766], rtol=1e-9)


def test_each_augmentation_moves_an_image_as_a_whole_and_in_training_only():
    pair = jax.tree.map(lambda *leaves: np.concatenate(leaves), GRID, GRID._replace(segment=2 * GRID.segment))
    plain = coordinates("dinov3()", pair)
    some = plain[:, 0] != 0, plain[:, 1] != 0
    shared = {"shift_coords=0.5": False, "jitter_coords=1.5": False, "rescale_coords=2": True}
    for argument, same_on_both_axes in shared.items():
        spec = f"dinov3({argument})"
        np.testing.assert_array_equal(coordinates(spec, pair), plain)
        drawn = []
        place = jax.jit(jax.vmap(lambda key, spec=spec: pj.parse(spec).place((), pair, key).position))
        for moved in np.asarray(place(jax.random.split(jax.random.key(0), 20))):
            if "shift" in argument:
                change, bound = moved - plain, 0.5
            else:
                ratio = [np.log(moved[keep, a] / plain[keep, a]) for a, keep in enumerate(some)]
                np.testing.assert_allclose(moved[~some[0], 0], 0, atol=1e-6)
                ratio = [np.interp(np.arange(30), np.flatnonzero(keep), r) for r, keep in zip(ratio, some, strict=True)]
                change, bound = np.stack(ratio, axis=1), np.log(1.5 if "jitter" in argument else 2)
            one, two = change[:13], change[17:]  # off the border, where the zeros of one image meet the other
            np.testing.assert_allclose(one, one[:1] + 0 * one, atol=1e-5)
            np.testing.assert_allclose(two, two[:1] + 0 * two, atol=1e-5)
            assert not np.allclose(one[0], two[0])
            assert np.allclose(one[0, 0], one[0, 1], atol=1e-5) == same_on_both_axes
            drawn += [*one[0], *two[0]]
        assert np.abs(drawn).max() <= bound + 1e-5
        assert min(drawn) < -bound / 2
        assert max(drawn) > bound / 2


def test_three_axes_take_a_third_each():
    wave = pj.parse("axial_rope(base=1e4)").wave(3, 6)
    np.testing.assert_allclose(wave, np.kron(np.eye(3), [1, 0.01]))


# Golden gate RoPE


def test_golden_directions_are_spread_evenly():
    """Their mean outer product is that of uniform directions: 1/A on the diagonal, nothing beside it."""
    for num_axes in (2, 3):
        directions = spread_directions(num_axes, 600)
        np.testing.assert_allclose(np.linalg.norm(directions, axis=0), 1)
        np.testing.assert_allclose(directions @ directions.T / 600, np.eye(num_axes) / num_axes, atol=0.01)


def test_a_model_without_registers_has_none_to_turn():
    with pytest.raises(ValueError, match=r"of the 1 that stand nowhere: give the model registers, num_registers=4"):
        pj.parse("register_rope()").init(jax.random.key(0), pj.Dims(8, 1, 8, grid=(2, 2), prefix=1))
