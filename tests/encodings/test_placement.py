"""Position maps: what training draws, and what evaluation makes of it."""

import jax
import numpy as np
import pytest

import posjax as pj
from posjax.encoding import Needs

KEYS = jax.random.split(jax.random.key(0), 300)


def row(position, segment=None, prefix=None):
    position = np.asarray(position, np.int32)
    segment = np.ones(len(position), np.int32) if segment is None else np.int32(segment)
    return pj.Site(position, segment, 0 * segment if prefix is None else np.int32(prefix))


def drawn(spec, site, keys=KEYS):
    """[draw, token]: where tokens stand in training."""
    encoding = pj.parse(spec)
    return np.asarray(jax.jit(jax.vmap(lambda key: encoding.place((), site, key).position))(keys))


@pytest.mark.parametrize(
    "spec",
    [
        "randomized(length=9, evaluate='keep')",
        "random_float(length=9, evaluate='keep')",
        "pose(length=9)",
        "shape(max_offset=3)",
        "cape",
        "position_coupling(max_position=9)",
    ],
)
def test_maps_of_training_return_the_very_site_elsewhere(spec):
    site, encoding = pj.sites(5), pj.parse(spec)
    assert encoding.place((), site) is site
    assert Needs.WHOLE_DOCUMENT not in encoding.needs


SHUFFLED = row([3, 0, 7, 2, 0, 1], [1, 1, 1, 2, 2, 0])  # documents of 3 and 2 positions, and padding


def test_randomized_is_a_sorted_sample_of_as_many_as_there_are_tokens():
    places = drawn("randomized(length=7)", SHUFFLED)
    assert places.dtype == np.int32
    assert (places[:, 5] == 1).all()  # padding stays
    first, second = places[:, [1, 0, 2]], places[:, [4, 3]]
    for document, subsets in ((first, 35), (second, 21)):
        assert (np.diff(document, axis=1) > 0).all()
        assert document.min() == 0
        assert document.max() == 6
        assert len({tuple(d) for d in document.tolist()}) == subsets  # all there are
        ranks = np.arange(1, document.shape[1] + 1)
        np.testing.assert_allclose(document.mean(axis=0), 8 * ranks / (document.shape[1] + 1) - 1, atol=0.35)


@pytest.mark.parametrize(
    ("spec", "training"),
    [("randomized(length=7)", True), ("randomized(length=7)", False), ("random_float(length=7)", True)],
)
def test_a_document_is_drawn_as_if_alone(spec, training):
    """Whatever else is in its row: neither padding nor other documents change its draws from a key."""
    encoding, documents = pj.parse(spec), ([0, 1, 2], [3, 4])

    @jax.jit
    def placed(key):
        rows = SHUFFLED, *(row(SHUFFLED.position[mine]) for mine in documents)
        return [encoding.place((), each, key if training else None).position for each in rows]

    packed, *alone = placed(KEYS[3])
    for mine, own in zip(documents, alone, strict=True):
        np.testing.assert_array_equal(np.asarray(packed)[mine], own)


def test_tokens_at_one_place_stay_together():
    places = drawn("randomized(length=5)", row([4, 2, 4, 2, 0]))
    np.testing.assert_array_equal(places[:, 0], places[:, 2])
    np.testing.assert_array_equal(places[:, 1], places[:, 3])
    assert (places[:, 4] < places[:, 1]).all()
    assert (places[:, 1] < places[:, 0]).all()


def test_randomized_grids_keep_their_rows_and_columns():
    places = drawn("randomized(length=9)", pj.grid(2, 3, prefix=1))[:, 1:].reshape(-1, 2, 3, 2)
    assert (places[:, :, :1, 0] == places[..., 0]).all()
    assert (places[:, :1, :, 1] == places[..., 1]).all()
    assert (np.diff(places[..., 0], axis=1) > 0).all()
    assert (np.diff(places[..., 1], axis=2) > 0).all()
    assert (places[:, 0, 0, 0] != places[:, 0, 0, 1]).any()


def test_randomized_evaluation_is_random_by_default_and_by_its_seed():
    site = pj.sites(5)
    specs = "randomized(length=99)", "randomized(length=99, seed=0)", "randomized(length=99, seed=1)"
    positions = jax.jit(lambda: [pj.parse(spec).place((), site).position for spec in specs])
    default, first, second = map(np.asarray, positions())
    np.testing.assert_array_equal(default, first)
    assert (first != second).any()
    assert Needs.WHOLE_DOCUMENT in pj.parse("randomized").needs
    assert Needs.WHOLE_DOCUMENT in pj.parse("randomized >> rope").needs


def test_randomized_documents_that_are_too_long():
    site = row([0, 1, 2, 3, 0], [1, 1, 1, 1, 2])
    with pytest.raises(
        ValueError, match=r"randomized\(length=3\) cannot place a document of 4 positions: raise length"
    ):
        pj.parse("randomized(length=3)").place((), site)
    unknown = np.asarray(jax.jit(lambda site: pj.parse("randomized(length=3)").place((), site).position)(site))
    np.testing.assert_array_equal(unknown[:4], [0, 1, 2, 3])
    assert unknown[4] in (0, 1, 2)
    one_place = row([5, 5, 5, 6], [1, 1, 1, 0])
    together = jax.jit(lambda: pj.parse("randomized(length=1)").place((), one_place).position)()
    assert np.asarray(together)[:3].tolist() == [0, 0, 0]


def test_random_floats_are_sorted_and_uniform():
    places = drawn("random_float(length=10)", pj.sites(4))
    assert places.dtype == np.float32
    assert (np.diff(places, axis=1) > 0).all()
    assert places.min() >= 0
    assert places.max() < 10
    np.testing.assert_allclose(places.mean(axis=0), [2, 4, 6, 8], atol=0.4)
    assert (places != np.round(places)).all()
    assert (np.diff(drawn("random_float(length=1)", pj.sites(50), KEYS[:2]), axis=1) > 0).all()  # more than length


@pytest.mark.parametrize("count", [1, 7, 8])
def test_pose_skips_once(count):
    length = 12
    moved = drawn(f"pose(length={length})", row(np.r_[3 + np.arange(count), 0], [1] * count + [0]))
    assert (moved[:, -1] == 0).all()
    shift = moved[:, :-1] - 3 - np.arange(count)
    cut = (shift == 0).sum(axis=1)
    skips = shift.max(axis=1)
    assert (shift == np.where(np.arange(count) < cut[:, None], 0, skips[:, None])).all()
    assert set(cut[skips > 0]) == set(range(1, (count + 1) // 2 + 1)) - ({1} if count == 1 else set())
    assert set(skips) == (set(range(length - count + 1)) if count > 1 else {0})


def test_shape_moves_all_tokens_alike():
    moved = drawn("shape(max_offset=4)", pj.sites(3)) - np.arange(3)
    assert (moved == moved[:, :1]).all()
    assert set(moved[:, 0]) == set(range(5))


def test_cape_shifts_jitters_and_scales():
    site = pj.grid(3, 4)
    shifted = drawn("cape(max_global_shift=5, max_local_shift=0, max_global_scaling=1)", site) - site.position
    np.testing.assert_allclose(shifted, np.broadcast_to(shifted[:, :1], shifted.shape), atol=1e-5)
    assert -5 <= shifted.min() < -4
    assert 4 < shifted.max() <= 5
    assert (shifted[:, 0, 0] != shifted[:, 0, 1]).all()
    jittered = drawn("cape(max_global_shift=0, max_local_shift=0.5, max_global_scaling=1)", site) - site.position
    assert -0.5 <= jittered.min() < -0.49
    assert 0.49 < jittered.max() <= 0.5
    assert abs(jittered.mean()) < 0.02
    assert (jittered[:, 0] != jittered[:, 1]).all()
    scaled = drawn("cape(max_global_shift=0, max_local_shift=0, max_global_scaling=4)", site)[:, -1] / [2, 3]
    np.testing.assert_allclose(scaled[:, 0], scaled[:, 1], rtol=1e-6)
    assert 0.25 <= scaled.min() < 0.28
    assert 3.6 < scaled.max() <= 4
    np.testing.assert_allclose(np.median(scaled), 1, atol=0.2)


def test_coupled_tokens_start_together_anywhere():
    """The official code counts from 1 in evaluation; in training as far as the largest id stays within max_position."""
    site = row([0, 3, 2, 1, 2, 0], [1, 1, 1, 1, 1, 0])
    moved = drawn("position_coupling(max_position=6)", site) - site.position
    assert not moved[:, [0, 5]].any()
    assert (moved[:, 1:5] == moved[:, 1:2]).all()
    assert set(moved[:, 1]) == {0, 1, 2, 3}


def test_reset_and_unpad():
    site = row([9, 4, 5, 7, 8, 2], [0, 1, 1, 2, 2, 0])
    np.testing.assert_array_equal(pj.parse("reset").place((), site).position[1:5], [0, 1, 0, 1])
    np.testing.assert_array_equal(pj.parse("unpad").place((), site).position[1:5], [0, 1, 3, 4])
    for spec in ("reset", "unpad"):
        encoding = pj.parse(spec)
        known, unknown = encoding.place((), site).position, jax.jit(encoding.place)((), site).position
        assert isinstance(known, np.ndarray)  # so an encoding can refuse it as out of range
        np.testing.assert_array_equal(known, unknown)
        grid = pj.grid(2, 3, prefix=1)
        away = grid._replace(position=grid.position + np.int32([[5, -2]]) * (grid.prefix == 0)[:, None])
        np.testing.assert_array_equal(encoding.place((), away).position[1:], grid.position[1:])
        nobody = encoding.place((), site._replace(segment=0 * site.segment))
        np.testing.assert_array_equal(nobody.position, site.position)
        assert Needs.WHOLE_DOCUMENT in encoding.needs


@pytest.mark.parametrize(
    ("spec", "line", "grid"),
    [
        ("randomized(length=30)", 30, (30, 30)),
        ("randomized(length=3)", 8, (4, 5)),
        ("pose(length=30)", 30, (30, 30)),
        ("shape(max_offset=3)", 11, (7, 8)),
        ("position_coupling(max_position=30)", 31, (31, 31)),
        ("reset", 8, (4, 5)),
        ("cape", 8, (4, 5)),
    ],
)
def test_tables_have_room_for_what_is_drawn(spec, line, grid):
    dims = pj.Dims(4, 1, 4, length=8)
    assert pj.parse(spec).dims(dims).length == line
    assert pj.parse(spec).dims(dims._replace(length=None, grid=(4, 5)))._replace(length=None).grid == grid
    assert pj.parse("shape(max_offset=0)").dims(dims._replace(length=None)).length is None
