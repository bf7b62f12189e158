"""Positions without a row, arguments and sizes that cannot be: refused with the value and the mend, never clamped."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from members import MEMBERS

import posjax as pj
from posjax.spec import registered

WIDTH = 8
KEY = jax.random.key(0)
LEARNED = pj.parse("learned(stddev=1)")


def table(**sizes):
    return LEARNED.init(KEY, pj.Dims(WIDTH, 2, 4, **sizes))


def embed(params, site):
    return LEARNED.embed(params, jnp.zeros((len(site.segment), WIDTH)), site)


OUTSIDE = {
    "behind the end": (dict(length=5), pj.sites(6), "position 5"),
    "another shape of as many patches": (dict(grid=(14, 14)), pj.grid(7, 28), r"position \[ 0 14\]"),
    "no such prefix token": (dict(grid=(2, 2), prefix=1), pj.grid(2, 2, prefix=2), "prefix token 2"),
    "far enough to overflow": (
        dict(grid=(300, 300)),
        pj.grid(1, 1)._replace(position=np.int32([[2**30, 4]])),
        "position",
    ),
}


@pytest.mark.parametrize(("sizes", "site", "what"), OUTSIDE.values(), ids=OUTSIDE)
def test_known_positions_are_refused_and_unknown_ones_give_nan(sizes, site, what):
    params = table(**sizes)
    with pytest.raises(ValueError, match=f"none for {what}.*make the table larger"):
        jax.eval_shape(lambda params: embed(params, site), params)
    code = np.asarray(jax.jit(embed)(params, site))
    bad = np.isnan(code).all(axis=1)
    assert bad.any()
    assert (np.isnan(code).any(axis=1) == bad).all()
    rows = {row.tobytes() for row in np.asarray(params.rows)}
    assert all(row.tobytes() in rows for row in code[~bad])


def test_padding_may_stand_outside():
    """Left padding stands at positions before 0."""
    site = pj.sites(5, start=-2)._replace(segment=np.array([0, 0, 1, 1, 1], np.int32))
    params = table(length=3)
    known = jax.jit(lambda params: embed(params, site))(params)
    code, pull = jax.vjp(lambda params: jax.jit(embed)(params, site), params)
    for found in (known, code):
        np.testing.assert_array_equal(found, np.concatenate([np.zeros((2, WIDTH)), params.rows]))
    np.testing.assert_array_equal(pull(jnp.ones_like(code))[0].rows, np.ones((3, WIDTH)))


def test_known_positions_with_unknown_documents():
    """A packed batch whose segments are data: positions cannot be refused before they are known to be no padding."""
    params, site = table(length=3), pj.sites(4)
    code = jax.jit(lambda segment: embed(params, site._replace(segment=segment)))(np.array([1, 1, 1, 0], np.int32))
    np.testing.assert_array_equal(code[:3], params.rows)
    assert not np.any(code[3])


def test_columns_beyond_the_width_are_refused():
    """raster(width=14) on a 7 x 28 image would take column 14 for the start of the next row."""
    with pytest.raises(ValueError, match=r"raster\(width=14\) got columns 0 to 27: set the grid's width"):
        pj.parse("raster(width=14)").place((), pj.grid(7, 28))
    placed = pj.parse("raster(width=28)").place((), pj.grid(7, 28, prefix=1))
    np.testing.assert_array_equal(placed.position, [0, *range(196)])


def first_of(encoding: pj.Encoding, cls: type) -> pj.Encoding | None:
    """The first encoding of a class in a composition."""
    if type(encoding) is cls:
        return encoding
    return next((found for part in getattr(encoding, "members", ()) if (found := first_of(part, cls))), None)


RANGES = [
    (name, text)
    for name in pj.names()
    for cls in registered(name).__mro__
    for text in vars(cls).get("ranges", ())
    if text.split()[0] in {field.name for field in dataclasses.fields(registered(name))}
]


@pytest.mark.parametrize(("name", "text"), RANGES)
def test_arguments_out_of_their_ranges_are_refused(name, text):
    """Each bound that a class declares."""
    encoding = next(
        found for case in MEMBERS[name].variants if (found := first_of(pj.parse(case.spec), registered(name)))
    )
    argument, sign, bound = text.split()
    wrong = int(bound) - (sign == ">=") + (sign == "<=")
    with pytest.raises(ValueError, match=rf"{name}\({argument}=...\) must be .*, got {wrong}"):
        dataclasses.replace(encoding, **{argument: wrong})


def test_there_are_ranges():
    assert len(RANGES) >= 60
