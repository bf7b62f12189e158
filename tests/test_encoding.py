"""The contract: sites, and what + and >> make of encodings."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax as pj
from posjax.attention.dense import shown
from posjax.encoding import Encoding, Needs, Placed, PositionMap, Sum, axes, stands
from posjax.mask import everything

DIMS = pj.Dims(width=8, num_heads=2, head_dim=4, length=9)
KEY = jax.random.key(0)


@dataclass(frozen=True)
class Shift(PositionMap):
    """Moves tokens by a learned number, and by a random one in training."""

    by: int = 1

    def init(self, key, dims):
        return jax.random.normal(key, ())

    def place(self, params, site, key=None):
        drawn = 0 if key is None else jax.random.randint(key, (), 100, 10_000)
        return site._replace(position=site.position + self.by + drawn)


@dataclass(frozen=True)
class Gate(Encoding):
    """Cumulative sum of the content, kept as state; the bias is its difference."""

    def observe(self, params, x, site, past=None):
        return site._replace(state=jnp.cumsum(x[:, 0]))

    def bias(self, params, q, q_site, k, k_site):
        return (q_site.state[:, None] - k_site.state[None])[None]


def test_sites():
    site = pj.sites(3, start=5)
    np.testing.assert_array_equal([site.position, site.segment, site.prefix], [[5, 6, 7], [1] * 3, [0] * 3])
    assert {leaf.dtype for leaf in jax.tree.leaves(site)} == {np.dtype(np.int32)}
    assert site.state == ()
    assert (axes(site).shape, axes(pj.grid(2, 2)).shape) == ((3, 1), (4, 2))
    site.position[:] = 99
    np.testing.assert_array_equal(pj.sites(3, start=5).position, [5, 6, 7])


def test_grid():
    site = pj.grid(2, 3, prefix=2)
    np.testing.assert_array_equal(site.position[2:], [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]])
    np.testing.assert_array_equal(site.prefix, [1, 2, 0, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(site.segment, np.ones(8))
    np.testing.assert_array_equal(stands(site), [False] * 2 + [True] * 6)
    assert {leaf.dtype for leaf in jax.tree.leaves(site)} == {np.dtype(np.int32)}
    assert pj.grid(1, 1).position.shape == (1, 2)


def test_every_hook_of_the_base_is_the_identity():
    site, x, q = pj.sites(3), jnp.ones((3, 8)), jnp.ones((3, 2, 4))
    e = Encoding()
    assert e.init(KEY, DIMS) == ()
    assert e.place((), site) is site
    assert e.observe((), x, site) is site
    assert e.embed((), x, site) is x
    assert all(out is q for out in e.rotate((), q, site, q, site))
    assert e.bias((), q, site, q, site) == 0.0
    assert e.mask() == everything()
    assert shown(e, site, site) is True


def test_plus_flattens():
    a, b, c = (pj.parse(name) for name in ("rope", "alibi", "sinusoidal"))
    assert (a + b) + c == a + (b + c) == Sum((a, b, c))
    assert hash(a + b) == hash(pj.parse("rope") + pj.parse("alibi"))


def test_arrows_nest_to_the_right():
    i, s, rope = pj.parse("interpolate(2)"), Shift(), pj.parse("rope()")
    assert (i >> s) >> rope == i >> (s >> rope) == Placed(i, Placed(s, rope))


def test_only_maps_stand_left_of_an_arrow_and_encodings_beside_a_plus():
    with pytest.raises(TypeError, match="only a position map can stand left of >>"):
        pj.parse("interpolate(2) >> rope()") >> pj.parse("alibi()")
    with pytest.raises(TypeError):
        pj.parse("rope()") + "rope()"
    with pytest.raises(TypeError):
        pj.parse("interpolate(2)") >> None


def test_parameters_mirror_the_composition():
    encoding = (Shift() >> pj.parse("learned()")) + pj.parse("rope() + t5()")
    (shift, learned), rope, t5 = encoding.init(KEY, DIMS)
    assert shift.shape == ()
    assert learned.rows.shape == (9, 8)
    assert rope == ()
    assert t5["table"].shape == (32, 2)


def test_parts_draw_from_different_keys():
    one, two = pj.parse("learned() + learned()").init(KEY, DIMS)
    assert np.abs(one.rows - two.rows).max() > 1e-3
    encoding = (Shift() >> pj.parse("rope()")) + (Shift() >> pj.parse("alibi()"))
    site = encoding.place(encoding.init(KEY, DIMS), pj.sites(3), KEY)
    assert site.state[0].position[0] != site.state[1].position[0]
    nested = Shift() >> (Shift() >> pj.parse("rope()"))
    drawn = nested.place(nested.init(KEY, DIMS), pj.sites(1), KEY).position[0] - 2
    one = Shift().place((), pj.sites(1), KEY).position[0] - 1
    assert drawn != 2 * one


def test_parts_of_a_sum_move_alone():
    encoding = (Shift(5) >> pj.parse("learned()")) + pj.parse("learned() + none()")
    params = encoding.init(KEY, DIMS)
    site = encoding.place(params, pj.sites(3))
    np.testing.assert_array_equal(site.position, [0, 1, 2])
    np.testing.assert_array_equal([part.position[0] for part in site.state], [5, 0, 0])
    code = encoding.embed(params, jnp.zeros((3, 8)), site)
    np.testing.assert_allclose(code, params[0][1].rows[5:8] + params[1].rows[:3], rtol=1e-6)


def test_a_sum_that_moves_nobody_is_transparent():
    encoding = pj.parse("rope() + alibi()")
    site = pj.sites(3)
    assert encoding.place(((), ()), site) is site
    assert encoding.observe(((), ()), jnp.zeros((3, 8)), site) is site


@pytest.mark.parametrize(
    "parts", [(Gate(), pj.parse("rope")), (pj.parse("randomized(evaluate='keep') >> rope"), Gate())]
)
def test_the_state_of_a_sum_has_one_shape(parts):
    """A site for each part once a part places or observes, whether or not anything has moved."""
    encoding, site, x = Sum(parts), pj.sites(3), jnp.ones((3, 8))
    params = encoding.init(KEY, DIMS)
    placed = encoding.place(params, site)
    for each in (placed, encoding.observe(params, x, placed), encoding.observe(params, x, site)):
        assert [type(part) for part in each.state] == [pj.Site, pj.Site]
        np.testing.assert_array_equal(each.position, site.position)
    both = Shift() >> encoding
    assert len(both.place(both.init(KEY, DIMS), site).state) == 2


def test_state_of_one_part_is_not_seen_by_the_others():
    encoding = Gate() + (Shift(3) >> Gate()) + pj.parse("alibi()")
    params = encoding.init(KEY, DIMS)
    x, q = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32), np.zeros((4, 2, 4), np.float32)

    @jax.jit
    def run(x):
        site = encoding.observe(params, x, encoding.place(params, pj.sites(4)))
        assert site.state[2].state == ()
        alibi = pj.parse("alibi()").bias((), q, pj.sites(4), q, pj.sites(4))
        return encoding.bias(params, q, site, q, site), alibi

    bias, alibi = run(x)
    gate = np.cumsum(x[:, 0])
    np.testing.assert_allclose(bias, 2 * (gate[:, None] - gate[None]) + alibi, atol=1e-5)


def test_rotations_chain_and_biases_add():
    site = pj.sites(4, start=3)
    twice = site._replace(position=2 * site.position)

    @jax.jit
    def run(x):
        both, once = (
            pj.parse(spec).rotate(((), ()), x, at, x, at)[0] for spec, at in (("rope + rope", site), ("rope", twice))
        )
        specs = "alibi + alibi + none", "alibi"
        return both, once, [pj.parse(spec).bias(((),) * 3, x, site, x, site) for spec in specs]

    both, once, (sum_of_two, one) = run(np.random.default_rng(0).normal(size=(4, 2, 4)).astype(np.float32))
    np.testing.assert_allclose(both, once, atol=1e-5)
    np.testing.assert_allclose(sum_of_two, 2 * one)


class Absolute(Encoding):
    relative = False


class OfLength(Encoding):
    needs = Needs.DOCUMENT_LENGTH


def test_a_composition_needs_what_its_parts_need():
    rope, shift = pj.parse("rope()"), Shift()
    assert (rope + rope).relative
    assert (shift >> rope).relative
    assert not (rope + Absolute()).relative
    assert not (shift >> Absolute()).relative
    assert (rope + OfLength()).needs == (shift >> OfLength()).needs == Needs.DOCUMENT_LENGTH
    assert (shift >> (rope + rope)).needs == Needs(0)
    assert (OfLength() + pj.parse("pope")).needs == Needs.DOCUMENT_LENGTH | Needs.HEAD_DIM | Needs.EVERY_HEAD


def test_encodings_are_values():
    a = pj.encodings.rope(base=500)
    assert a == pj.parse("rope(base=500)")
    assert len({a, pj.parse("rope(500)"), pj.parse("rope()")}) == 2
    with pytest.raises(AttributeError):
        a.base = 3


def test_a_class_that_is_no_dataclass_equals_nothing_but_itself():
    """Programs are compiled once for all encodings that are equal."""

    class Plain(pj.Encoding):
        def __init__(self, strength):
            object.__setattr__(self, "strength", strength)

    one = Plain(1)
    assert one == one
    assert one != Plain(2)
    assert pj.parse("rope(base=100)") == pj.parse("rope(base=100)") != pj.parse("rope")
    assert pj.parse("none") == pj.parse("none")
