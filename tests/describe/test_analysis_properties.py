"""`properties.check`: what holds passes, and each property fails for an encoding that was broken for it."""

import dataclasses
import functools
import math

import jax.numpy as jnp
import numpy as np
import pytest

import posjax as pj
from posjax import cli
from posjax.describe.properties import PROPERTIES, check, check_one
from posjax.describe.runs import Runs
from posjax.describe.worlds import default_dims, make_world


@pytest.mark.slow
def test_what_holds_passes():
    rows = check(pj.parse("learned()"), num_axes=2)
    assert [row.name for row in rows] == list(PROPERTIES)
    assert [str(row) for row in rows if not row.ok] == []
    assert sum(math.isnan(row.error) for row in rows) == 2  # it is not relative, and its table ends


def test_axes_that_it_does_not_take(capsys):
    assert cli.main(["check", "laplacian(pos_enc_dim=6) + tree(depth=2, degree=3)"]) == 2
    error = capsys.readouterr().err
    assert "no number of position axes suits all parts" in error
    assert "laplacian(pos_enc_dim=6) takes 6; tree(depth=2, degree=3) takes 2" in error
    with pytest.raises(ValueError, match="takes positions of"):
        check(pj.parse("raster(width=7) >> alibi()"), num_axes=1)


def hook(name, function, **more):
    """An encoding that has one hook, without self and parameters."""
    hooks = {name: lambda self, params, *arguments: function(*arguments)}
    return dataclasses.dataclass(frozen=True)(type("One", (pj.Encoding,), hooks | more))()


def first_axis(site):
    return jnp.asarray(site.position, jnp.float32).reshape(len(site.position), -1)[:, 0]


def by_index(q, q_site, k, k_site):
    return -0.3 * jnp.abs(jnp.arange(len(q))[:, None] - jnp.arange(len(k))[None])[None].astype(jnp.float32)


def root_at_zero(q, q_site, k, k_site):
    return -0.1 * jnp.sqrt(jnp.square(first_axis(q_site)[:, None] - first_axis(k_site)[None]))[None]


def by_what_comes_later(q, q_site, k, k_site):
    last = jnp.max(jnp.where(k_site.segment > 0, k_site.position, 0))
    return q, k * jnp.cos(k_site.position / (1.0 + last))[:, None, None]


def in_the_type_of_tokens(q, q_site, k, k_site):
    query, key = (jnp.asarray(site.position).astype(q.dtype) for site in (q_site, k_site))
    return -0.1 * jnp.abs(query[:, None] - key[None])[None].astype(jnp.float32)


def in_half_precision(x, site):
    return x + jnp.sin(jnp.asarray(site.position).astype(jnp.bfloat16))[:, None].astype(x.dtype)


def of_a_batch(x, site):
    """Makes something else of positions that a batch brings."""
    return x * (1.1 if type(x).__name__ == "BatchTracer" else 1.0)


def takes_segments_for_known(x, site):
    return x * float(np.asarray(site.segment).max() < 3) if isinstance(site.position, np.ndarray) else x


def untraceable(q, q_site, k, k_site):
    return -0.1 * float(np.asarray(k_site.position).max() > 3) * jnp.ones((1, len(q), len(k)))


ABSOLUTE = hook("bias", lambda q, q_site, k, k_site: jnp.sin(first_axis(k_site))[None, None] * jnp.ones((1, len(q), 1)))
LEAKY = hook("embed", lambda x, site: x + x.mean(0))  # of other documents and padding too
BY_INDEX = hook("bias", by_index)
ROUNDED = hook("bias", in_the_type_of_tokens)
UNTRACEABLE = hook("bias", untraceable)
BROKEN = {
    "hooks return their shapes": hook("sink", lambda site, num_heads: jnp.zeros(1)),
    "positions are not rounded to bfloat16": ROUNDED,
    "placed sites are well formed": hook("place", lambda site: site._replace(position=1.0 * site.position)),
    "sites may be traced": hook("embed", lambda x, site: x * (1.1 if isinstance(site.segment, np.ndarray) else 1.0)),
    "any part of a site may be traced": hook("embed", takes_segments_for_known),
    "prefix tokens stand nowhere": ABSOLUTE,
    "jit is eager": UNTRACEABLE,
    "vmap is a loop": hook("embed", of_a_batch),
    "tokens and sites permute together": BY_INDEX,
    "moving all tokens changes nothing": ABSOLUTE,
    "packed documents are alone": LEAKY,
    "causal queries see no later tokens": LEAKY,
    "left padding is invisible": LEAKY,
    "blockwise is dense": BY_INDEX,
    "blockwise gradients are dense": BY_INDEX,
    "grouped queries share a key": hook(
        "rotate", lambda q, q_site, k, k_site: (q, k * jnp.arange(1.0, 1 + k.shape[1])[:, None])
    ),
    "gradients are finite": hook("bias", root_at_zero),
    "decoding token by token is the full pass": hook("rotate", by_what_comes_later),
}


@functools.cache
def runs_of(encoding, num_axes):
    return Runs(make_world(encoding, default_dims(encoding, num_axes), num_axes))


def one(encoding, name):
    return check_one(name, runs_of(encoding, 2 if name.startswith("prefix") else 1))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name.startswith("blockwise") else []) for name in BROKEN]
)
def test_what_is_broken_fails(name):
    row = one(BROKEN[name], name)
    assert not row.ok
    assert str(row).startswith("FAILS")


def test_every_property_can_fail():
    assert {*BROKEN, "text form is read back"} == {*PROPERTIES}


@pytest.mark.parametrize(
    ("encoding", "name", "note"),
    [
        (
            hook("embed", lambda x, site: x, relative=False),
            "moving all tokens changes nothing",
            "declared relative=False, yet",
        ),
        (
            hook("init", lambda dims: {"dead": jnp.ones(3)}),
            "gradients are finite",
            "parameters that nothing depends on: dead",
        ),
    ],
)
def test_the_note_says_what_is_wrong(encoding, name, note):
    row = one(encoding, name)
    assert not row.ok
    assert note in row.note


WRONG = [
    (hook("place", lambda site: site.position), "place returned ndarray, expected the site: site._replace(...)"),
    (hook("observe", lambda x, site: site._replace(state=x.T)), "observe returned a site with a leaf of [24, 14]"),
    (hook("embed", lambda x, site: x.T), "embed returned [24, 14], expected [T, M], here [14, 24]"),
    (hook("rotate", lambda q, q_site, k, k_site: q), "expected the pair of queries and keys"),
    (hook("rotate", lambda q, q_site, k, k_site: (q, k[..., :3])), "rotate returned [14, 3, 3], expected keys [14, 3]"),
    (hook("value", lambda v, site: v[0]), "value returned [3, 8], expected [S, K, E], here [14, 3, 8]"),
    (
        hook("bias", lambda q, q_site, k, k_site: None),
        "bias returned NoneType, expected [H, T, S], [1, T, S] or a number",
    ),
    (
        hook("bias", lambda q, q_site, k, k_site: jnp.zeros((14, 14, 3))),
        "bias returned [14, 14, 3], expected [H, T, S]",
    ),
    (hook("bias", lambda q, q_site, k, k_site: q + "a"), "TypeError: unsupported operand"),
    (hook("weigh", lambda logits, seen, q_site, k_site: logits[0]), "weigh returned [5, 14], expected [H, T, S]"),
    (hook("read", lambda weights, q_site, k_site: weights), "read returned [3, 5, 14], expected [T, H, E] or a number"),
    (hook("output", lambda out, q_site: out[0]), "output returned [3, 8], expected [T, H, E], here [5, 3, 8]"),
]


@pytest.mark.parametrize(("encoding", "message"), WRONG, ids=[message[:20] for _, message in WRONG])
def test_a_hook_that_returns_something_else_is_named_and_nothing_more_is_asked(encoding, message):
    (row,) = check(encoding)
    assert (row.name, row.ok) == ("hooks return their shapes", False)
    assert message in row.note
    assert ("TypeError" in message) == (f" of {__file__}" in row.note)


@pytest.mark.parametrize(
    ("encoding", "note"),
    [(ROUNDED, "at positions from 300"), (hook("embed", in_half_precision, relative=False), "computes in bfloat16")],
)
def test_positions_in_half_precision_say_the_mend(encoding, note):
    row = one(encoding, "positions are not rounded to bfloat16")
    assert note in row.note
    assert "float32" in row.note


def test_what_cannot_be_traced_is_asked_no_further():
    """One line tells it, with the place in the encoding's file."""
    rows = check(UNTRACEABLE)
    assert [row.ok for row in rows] == [True] * (len(rows) - 1) + [False]
    assert rows[-1].name == "jit is eager"
    assert f" of {__file__}" in rows[-1].note
