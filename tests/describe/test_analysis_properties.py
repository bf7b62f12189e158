"""`properties.check`: what holds passes, and each property fails for an encoding that was broken for it."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import experiments.check as command
import posjax as pj
from posjax.describe.properties import PROPERTIES, check, check_one
from posjax.describe.scorecard.card import scorecard
from posjax.describe.worlds import default_dims, make_world


@pytest.mark.parametrize(
    ("spec", "num_axes"),
    [
        pytest.param("rope() + t5()", 1, marks=pytest.mark.slow),
        pytest.param("learned()", 2, marks=pytest.mark.slow),
        pytest.param("raster(width=7) >> alibi()", 2, marks=pytest.mark.thorough),
    ],
)
def test_what_holds_passes(spec, num_axes):
    rows = check(pj.parse(spec), num_axes=num_axes)
    assert [row.name for row in rows] == list(PROPERTIES)
    assert [str(row) for row in rows if not row.ok] == []
    assert sum(math.isnan(row.error) for row in rows) == (spec == "learned()")  # which is not relative


def test_parts_that_take_no_number_of_axes_alike_are_refused(capsys):
    spec = "laplacian(pos_enc_dim=6) + tree(depth=2, degree=3)"
    for run in (check, scorecard):
        with pytest.raises(ValueError, match="no number of position axes suits all parts"):
            run(pj.parse(spec))
    assert command.main([spec]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "laplacian(pos_enc_dim=6) takes 6; tree(depth=2, degree=3) takes 2" in told.err


def each(count, first=0):
    return jnp.arange(first, first + count, dtype=jnp.float32)


@dataclasses.dataclass(frozen=True)
class Untraceable(pj.Encoding):
    def bias(self, params, q, q_site, k, k_site):
        return -0.1 * float(np.asarray(k_site.position).max() > 3) * jnp.ones((1, 1, 1))


@dataclasses.dataclass(frozen=True)
class Unvectorised(pj.Encoding):
    """Makes something else of positions that a batch brings."""

    def embed(self, params, x, site):
        return x + jnp.where(isinstance(site.position, jax.core.Tracer), 0.1, 0.0) * x


@dataclasses.dataclass(frozen=True)
class ByIndex(pj.Encoding):
    """Reads where a token stands off the array."""

    def bias(self, params, q, q_site, k, k_site):
        return -0.3 * jnp.abs(each(len(q))[:, None] - each(len(k))[None])[None]


@dataclasses.dataclass(frozen=True)
class Absolute(pj.Encoding):
    """Claims to be relative."""

    def bias(self, params, q, q_site, k, k_site):
        return jnp.sin(jnp.asarray(k_site.position, jnp.float32))[None, None] * jnp.ones((1, len(q), 1))


@dataclasses.dataclass(frozen=True)
class NotAbsolute(pj.Encoding):
    """Claims not to be relative."""

    relative = False


@dataclasses.dataclass(frozen=True)
class Leaky(pj.Encoding):
    """Adds the mean of the row, of other documents and padding too."""

    def embed(self, params, x, site):
        return x + x.mean(0)


@dataclasses.dataclass(frozen=True)
class BadGradient(pj.Encoding):
    """sqrt at 0."""

    def bias(self, params, q, q_site, k, k_site):
        offset = jnp.asarray(q_site.position, jnp.float32)[:, None] - k_site.position[None]
        return -0.1 * jnp.sqrt(jnp.square(offset))[None]


@dataclasses.dataclass(frozen=True)
class Unused(pj.Encoding):
    """Learns what it never reads."""

    def init(self, key, dims):
        return {"dead": jnp.ones(3)}


@dataclasses.dataclass(frozen=True)
class Growing(pj.Encoding):
    """Turns keys by what comes later, without a word of it."""

    def rotate(self, params, q, q_site, k, k_site):
        last = jnp.max(jnp.where(k_site.segment > 0, k_site.position, 0))
        return q, k * jnp.cos(k_site.position / (1.0 + last))[:, None, None]


@dataclasses.dataclass(frozen=True)
class ByHead(pj.Encoding):
    """Tells heads apart, without a word of it."""

    def rotate(self, params, q, q_site, k, k_site):
        return q, k * jnp.arange(1.0, 1 + k.shape[1])[:, None]


BROKEN = {
    "jit is eager": Untraceable,
    "vmap is a loop": Unvectorised,
    "tokens and sites permute together": ByIndex,
    "moving all tokens changes nothing": Absolute,
    "packed documents are alone": Leaky,
    "causal queries see no later tokens": Leaky,
    "left padding is invisible": Leaky,
    "blockwise is dense": ByIndex,
    "blockwise gradients are dense": ByIndex,
    "grouped queries share a key": ByHead,
    "gradients are finite": BadGradient,
    "decoding token by token is the full pass": Growing,
}


def one(encoding, name):
    return check_one(name, make_world(encoding, default_dims(encoding, 1), 1))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name.startswith("blockwise") else []) for name in BROKEN]
)
def test_what_is_broken_fails(name):
    row = one(BROKEN[name](), name)
    assert not row.ok
    assert str(row).startswith("FAILS")


def test_every_property_can_fail():
    assert {*BROKEN, "text form is read back"} == {*PROPERTIES}


@pytest.mark.parametrize(
    ("encoding", "name", "note"),
    [
        (NotAbsolute(), "moving all tokens changes nothing", "declared relative=False, yet"),
        (Unused(), "gradients are finite", "parameters that nothing depends on: dead"),
    ],
)
def test_the_note_says_what_is_wrong(encoding, name, note):
    row = one(encoding, name)
    assert not row.ok
    assert note in row.note


def test_axes_that_it_does_not_take():
    with pytest.raises(ValueError, match="takes positions of"):
        check(pj.parse("raster(width=7) >> alibi()"), num_axes=1)
