"""Every property of posjax/describe/properties.py holds for every registered encoding; the formulas of papers do, too.

Tests of one case run one after the other, so that they share its runs.
"""

import functools

import jax
import numpy as np
import oracle
import pytest
from cases import CASES, FIRST, HEAD_DIM, HEADS, WIDTH, forward, params_of, params_of_long, setting, world
from members import LINE, MEMBERS, VALUES, Case

import posjax as pj
from posjax.describe.properties import PROPERTIES, NotApplicable, Property, check_one, gap
from posjax.describe.runs import Runs
from posjax.describe.worlds import awake


def attention_is_by_the_paper(runs: Runs) -> float:
    """The oracle in float64, token by token and pair by pair: see tests/members."""
    w, (x, site) = runs.world, runs.sequences["documents"]
    expected = [oracle.attention(w.encoding, w.params, x, site, w.weights, causal=causal) for causal in (False, True)]
    return gap((runs.documents, np.stack(expected)))


def whole_positions_are_exact_wherever_they_are(runs: Runs) -> float:
    """Also where float32 holds every 64th whole number only. Not asked of a user's encoding, whose angles may be float32."""
    if str(runs.world.encoding).startswith("xpos"):
        raise NotApplicable("it counts from a middle, in float32")
    return gap((runs.batch[0]["remote"], runs.batch[0]["standing"]))


FORMULA, DECODES = "attention is by the paper", "decoding token by token is the full pass"
ALL = PROPERTIES | {
    FORMULA: Property(attention_is_by_the_paper),
    "whole positions are exact wherever they are": Property(whole_positions_are_exact_wherever_they_are, 2e-5),
}


@functools.lru_cache(maxsize=1)
def runs_of(case: Case) -> Runs:
    """No parameters are all zero, and all are NumPy arrays, as they come from files; programs may close over them."""
    w = world(case)
    return Runs(w._replace(params=jax.device_get(awake(w.params)[0])))


def properties():
    """Every encoding is compared with its formula: by its first variant in the fast part, by all in the slow part.

    In the slow part all that act within attention are also computed in tiles, and all decode.
    """
    marks = [{param.values[0]: param.marks for param in params} for params in (params_of(), params_of_long())]
    for case in CASES:
        for name, each in ALL.items():
            level = marks[each.deep][case]
            if name == FORMULA:
                level = [] if case in FIRST else pytest.mark.slow
            elif name == DECODES or (each.deep and pj.parse(case.spec).hooks - {"embed", "place", "rotate"}):
                level = pytest.mark.slow if level and case in FIRST else level
            yield pytest.param(case, name, marks=level, id=f"{name}-{case}")


@pytest.mark.parametrize(("case", "name"), [*properties()])
def test_property(case, name):
    row = check_one(name, runs_of(case), ALL)
    assert row.ok, row


def test_every_encoding_is_a_member():
    assert sorted(MEMBERS) == pj.names(), "give a new encoding its entry in tests/members"
    for name, member in MEMBERS.items():
        assert member.variants
        assert all(name in case.spec for case in member.variants)


@pytest.mark.parametrize("name", VALUES)
def test_every_value_is_in_a_case(name):
    assert any(f"={name}(" in case.spec for case in CASES), f"give an encoding a variant with {name}(...)"


KEY = jax.random.key(0)


@pytest.mark.parametrize("name", pj.names())
def test_dimensions_are_as_declared(name):
    """A position of one more axis, or one less, is refused, by the name of the encoding."""
    encoding = pj.parse(MEMBERS[name].variants[0].spec)
    declared = [case for case in MEMBERS[name].variants if pj.parse(case.spec) == encoding]
    assert {1 if case.kind == LINE else 2 for case in declared} <= {*encoding.dimensions}
    _, dims, site = setting(declared[0])
    x, weights = np.zeros((14, WIDTH), np.float32), np.zeros((3, WIDTH, HEADS, HEAD_DIM), np.float32)
    for num_axes in {1, 2, 3} - {*encoding.dimensions}:
        position = site.position.reshape(14, -1)[:, :1] + np.zeros((1, num_axes), np.int32)
        elsewhere = site._replace(position=position if num_axes > 1 else position[:, 0])
        with pytest.raises(ValueError, match="axes"):
            jax.eval_shape(
                lambda key, site=elsewhere: forward(encoding, encoding.init(key, dims), x, site, weights), KEY
            )


def test_none_counts_only_under_causality():
    w = world(Case("none()"))
    flipped = w._replace(x=w.x[::-1])
    assert gap((forward(*flipped)[::-1], forward(*w))) < 1e-5
    assert np.abs(forward(*flipped, causal=True)[::-1] - forward(*w, causal=True)).max() > 1e-2
