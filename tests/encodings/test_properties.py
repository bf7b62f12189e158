"""Every property of posjax/describe/properties.py holds for every registered encoding; the formulas of papers do, too.

Tests of one case run one after the other, so that they share its runs.
"""

import functools

import jax
import numpy as np
import oracle
import pytest
from cases import CASES, DEEP, FIRST, HEAD_DIM, HEADS, WIDTH, forward, params_of, params_of_long, setting, ways
from drawn import drawn
from members import MEMBERS, VALUES, Case

import posjax as pj
from posjax.describe.properties import PROPERTIES, NotApplicable, Property, check_one, gap
from posjax.describe.runs import Runs, layer
from posjax.describe.worlds import World, normal
from posjax.encoding import axes


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


def a_pass_in_tiles_is_dense(runs: Runs) -> float:
    """`blockwise is dense` without gradients, for encodings whose way to act another encoding shows."""
    causal, w = runs.world.site.position.ndim == 1, runs.world
    tiled = jax.jit(lambda blocks: layer(w, blocks, causal=causal, tile=5))(runs.sequences["blocks"])
    return gap((tiled, runs.batch[int(causal)]["blocks"]))


KEY = jax.random.key(0)
FORMULA, EAGER, DECODES = "attention is by the paper", "jit is eager", "decoding token by token is the full pass"
EACH = "positions are not rounded to bfloat16", "gradients are finite", "any part of a site may be traced"
TILES = "blockwise is dense", "blockwise gradients are dense", "grouped queries share a key", "vmap is a loop"
ALL = PROPERTIES | {
    FORMULA: Property(attention_is_by_the_paper),
    "whole positions are exact wherever they are": Property(whole_positions_are_exact_wherever_they_are, 2e-5),
    "a pass in tiles is dense": Property(a_pass_in_tiles_is_dense),
}
ALONE = "packed documents are alone", "left padding is invisible"  # a variant's rows are compared with its formula
APART = {FORMULA, EAGER, DECODES, "a pass in tiles is dense", *EACH, *TILES}
GROUPS = {
    "shallow": [name for name in ALL if name not in APART],
    "variant": [name for name in ALL if name not in {*APART, *ALONE}],
    "formula": [FORMULA],
    "decoding": [DECODES],
    "each": EACH,
    "tiles": TILES,
    "tiles of a member": TILES[:3],
    "pass in tiles": ["a pass in tiles is dense"],
    "eager": [EAGER],
}


@functools.lru_cache(maxsize=1)
def runs_of(case: Case) -> Runs:
    """No parameters are all zero, and all are NumPy arrays, as they come from files; programs may close over them."""
    encoding, dims, site = setting(case)
    params = drawn(functools.partial(encoding.init, dims=dims), KEY, encoding=case.spec)
    x, weights = normal(2, len(site.segment), WIDTH), 0.3 * np.asarray(normal(3, 3, WIDTH, HEADS, HEAD_DIM))
    return Runs(World(encoding, jax.device_get(params), x, site, weights))


def groups():
    """Every encoding is compared with its formula: by its first variant in the fast part, by all in the slow part.

    In the slow part all that act within attention also decode, have gradients and are computed in tiles: with gradients
    one encoding of each way to act.
    """
    shallow, deep = ({param.values[0]: param.marks for param in params} for params in (params_of(), params_of_long()))
    one_of_a_way, slow = ways(FIRST), pytest.mark.slow
    for case in CASES:
        hooks = pj.parse(case.spec).hooks
        first = case in FIRST and hooks - {"embed", "place", "rotate"}
        levels = {
            "shallow" if case in FIRST else "variant": shallow[case],
            "formula": [] if case in FIRST else slow,
            "decoding": slow if deep[case] and (case in one_of_a_way or (first and "observe" in hooks)) else deep[case],
            "each": slow if deep[case] and first and hooks != {"mask"} else deep[case],
            "tiles" if case in DEEP else "tiles of a member": deep[case],
            "eager": deep[case] if case in DEEP else pytest.mark.thorough,
        }
        if first and (*deep[case],) == (pytest.mark.thorough,):
            levels["pass in tiles"] = slow
        for group, level in levels.items():
            yield pytest.param(case, group, marks=level, id=f"{group}-{case}")


@pytest.mark.parametrize(("case", "group"), [*groups()])
def test_properties(case, group):
    rows = [check_one(name, runs_of(case), ALL) for name in GROUPS[group]]
    assert all(row.ok for row in rows), [str(row) for row in rows if not row.ok]


def test_every_encoding_is_a_member():
    assert sorted(MEMBERS) == pj.names(), "give a new encoding its entry in tests/members"
    for name, member in MEMBERS.items():
        assert member.variants
        assert all(name in case.spec for case in member.variants)


@pytest.mark.parametrize("name", VALUES)
def test_every_value_is_in_a_case(name):
    assert any(f"={name}(" in case.spec for case in CASES), f"give an encoding a variant with {name}(...)"


@pytest.mark.parametrize("name", pj.names())
def test_dimensions_are_as_declared(name):
    """A position of one more axis, or one less, is refused, by the name of the encoding."""
    encoding = pj.parse(MEMBERS[name].variants[0].spec)
    declared = [case for case in MEMBERS[name].variants if pj.parse(case.spec) == encoding]
    assert {axes(setting(case)[2]).shape[1] for case in declared} <= {*encoding.dimensions}
    _, dims, site = setting(declared[0])
    x, weights = np.zeros((14, WIDTH), np.float32), np.zeros((3, WIDTH, HEADS, HEAD_DIM), np.float32)
    for num_axes in {1, 2, 3} - {*encoding.dimensions}:
        position = site.position.reshape(14, -1)[:, :1] + np.zeros((1, num_axes), np.int32)
        elsewhere = site._replace(position=position if num_axes > 1 else position[:, 0])
        with pytest.raises(ValueError, match=r"\bax[ei]s\b"):
            jax.eval_shape(
                lambda key, site=elsewhere: forward(encoding, encoding.init(key, dims), x, site, weights), KEY
            )
