"""Families of encodings: every encoding has one, and a spec with several has that of the part that decides."""

import pytest

import posjax as pj
from experiments.report.families import FAMILIES, MAPS, OTHER, RESCALED, WINDOWS, family_of
from posjax.spec import REGISTRY


def test_every_registered_encoding_has_a_family_or_moves_positions():
    assert {REGISTRY[name].family for name in pj.names()} <= {*FAMILIES, MAPS}
    for mark in ("color", "marker", "glyph"):
        assert len({getattr(family, mark) for family in FAMILIES.values()}) == len(FAMILIES)


@pytest.mark.parametrize(
    ("encoding", "family"),
    [
        ("none()", "none"),
        ("raster(width=8) >> shaw(max_relative_position=63, values=False)", "learned bias"),
        ("interpolate(factor={scale}) >> sincos2d_mae", "waves"),
        ("rope(base=500000)", "rotary"),
        ("rope(scaling=yarn(factor={factor}, original_length={trained}))", RESCALED),
        ("self_extend(group={2*factor}, window={trained/2}) >> rope()", WINDOWS),
        ("none() + window({trained})", WINDOWS),
        ("learned(resize='jax_linear')", "tables"),
        ("rope(), rope(), none()", "rotary"),
        ("randomized() >> none()", "none"),
        ("(axis(index=0) >> rope()) + (axis(index=1) >> abacus(length=64))", "tables"),
        ("none() + rope() + none()", "rotary"),
        ("-", OTHER),
    ],
)
def test_the_family_of_a_spec(encoding, family):
    assert family_of(encoding) == family
