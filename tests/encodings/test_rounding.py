"""Positions that a map has divided are rounded: no whole distance may fall into another bucket or out of a window."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, forward, world
from members import LINE, MEMBERS

import posjax as pj
from posjax.encoding import Needs
from posjax.mask import offset

FACTOR = 7
FAST = [MEMBERS[name].variants[0] for name in ("t5", "dilated", "rerope")]
# Others that count in steps: buckets, rows of a table, blocks and windows.
NAMES = (
    "shaw deberta inkling window chunked sinks longformer self_extend shifted dual_chunk streaming llama4_temperature"
)
SLOW = [MEMBERS[name].variants[0] for name in NAMES.split()]


def divided():
    """Yields the encodings that accept fractional 1-D positions."""
    for case in CASES:
        encoding = pj.parse(case.spec)
        if case.kind == LINE and not encoding.needs & (Needs.WHOLE_POSITIONS | Needs.RELATION):
            level = [] if case in FAST else pytest.mark.slow if case in SLOW else pytest.mark.thorough
            yield pytest.param(case, marks=level, id=str(case))


@pytest.mark.parametrize("case", list(divided()))
def test_a_divided_distance_is_whole(case):
    """Tokens at (7 p + r) / 7: as at p for a relative encoding, and the same whether sites are known or traced."""
    w = world(case)
    w = w._replace(encoding=pj.parse(f"interpolate(factor={FACTOR})") >> w.encoding, params=((), w.params))
    places = FACTOR * np.arange(14) + np.array([0, 1, 5])[:, None]
    sites = jax.vmap(lambda position: w.site._replace(position=position))(jnp.int32(places))
    known = w.site._replace(position=np.int32(places[2]))

    @jax.jit
    def run(x, sites):
        layer = functools.partial(forward, w.encoding, w.params, x, weights=w.weights)
        return jax.vmap(lambda site: layer(site=site))(sites), layer(site=known)

    traced, alone = jax.device_get(run(w.x, sites))
    np.testing.assert_allclose(traced[2], alone, atol=2e-5)
    if w.encoding.relative:
        np.testing.assert_allclose(traced, np.broadcast_to(traced[:1], traced.shape), atol=5e-5)


@pytest.mark.parametrize("far", [0, 2**10, 2**18])
def test_offsets_are_whole_as_far_as_float32_goes(far):
    position = np.float32((far + np.arange(60)) / np.float32(3))
    found = np.asarray(jax.jit(offset)(position[:, None], position[None]))
    wanted = (np.arange(60)[None] - np.arange(60)[:, None]) / 3
    whole = wanted == np.round(wanted)
    np.testing.assert_array_equal(found[whole], wanted[whole])
    assert np.all(found[~whole] != np.round(found[~whole]))


def test_offsets_keep_their_gradient():
    slope = jax.grad(lambda k: offset(jnp.float32(1 / 3), k))
    assert slope(jnp.float32(7 / 3)) == 1
    assert offset(np.int32(3), np.int32(5)) == 2
