"""Colours and marks of families: every encoding has one, and red-green blind readers tell them apart."""

import itertools

import matplotlib.colors
import numpy as np
import pytest

import posjax as pj
from experiments.report.families import FAMILIES, MAPS, OTHER, RESCALED, WINDOWS, family_of
from experiments.report.paper import JUDGED
from posjax.spec import REGISTRY

# Linear RGB as seen with no long- or no middle-wave cones: Machado, Oliveira and Fernandes (2009), table 1, severity 1.
PROTANOPIA = [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
DEUTERANOPIA = [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)


def linear(color):
    rgb = np.array(matplotlib.colors.to_rgb(color))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    """CIELAB of linear sRGB [3], white D65."""
    share = XYZ @ np.clip(rgb, 0, 1) / XYZ.sum(axis=1)
    x, y, z = np.where(share > 0.008856, np.cbrt(share), 7.787 * share + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def nearest(seen):
    drawn = [*(family.color for family in FAMILIES.values()), *JUDGED.values()]
    colors = [lab(np.array(seen) @ linear(color)) for color in drawn]
    return min(np.linalg.norm(a - b) for a, b in itertools.combinations(colors, 2))


def test_lab_of_white_and_red():
    assert lab(linear("white")) == pytest.approx([100, 0, 0], abs=0.01)
    assert lab(linear("red")) == pytest.approx([53.2, 80.1, 67.2], abs=0.1)


@pytest.mark.parametrize("seen", [np.eye(3), PROTANOPIA, DEUTERANOPIA], ids=["all cones", "protanopia", "deuteranopia"])
def test_families_are_told_apart(seen):
    """2.3 is a just noticeable difference; the nine hues that were drawn before came as close as 1.2."""
    assert nearest(seen) > 15
    white = linear("white") @ XYZ[1] + 0.05
    assert all(white / (linear(family.color) @ XYZ[1] + 0.05) > 1.9 for family in FAMILIES.values())
    for mark in ("marker", "glyph"):
        assert len({getattr(family, mark) for family in FAMILIES.values()}) == len(FAMILIES)


def test_every_registered_encoding_has_a_family_or_moves_positions():
    assert {REGISTRY[name].family for name in pj.names()} <= {*FAMILIES, MAPS}


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
