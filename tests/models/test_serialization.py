"""Flax's own serialisation takes the parameters of every encoding."""

import functools

import jax
import numpy as np
import pytest
from flax.serialization import from_bytes, to_bytes
from members import GRID, LINE, MEMBERS

import posjax as pj
import posjax.models


def test_a_table_of_another_length_is_refused():
    of = lambda length: pj.parse("learned").init(jax.random.key(0), pj.Dims(8, 2, 4, length=length))  # noqa: E731
    with pytest.raises(
        ValueError, match=r"a Table of the shapes \[\(16, 8\)\] was written, not \[\(32, 8\)\]: resize it"
    ):
        from_bytes(of(32), to_bytes(of(16)))


@pytest.mark.slow
def test_flax_writes_and_reads_the_parameters_of_every_encoding():
    rng, dims = np.random.default_rng(0), {LINE: dict(length=24), GRID: dict(grid=(6, 7), prefix=2)}
    for name, member in MEMBERS.items():
        kind = LINE if member.on(LINE) else GRID
        encoding, sizes = pj.parse(member.on(kind)), pj.Dims(24, 3, 8, **dims[kind])
        shapes = jax.eval_shape(functools.partial(encoding.init, dims=sizes), jax.random.key(0))
        params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(leaf.dtype), shapes)
        restored = from_bytes(jax.tree.map(np.zeros_like, params), to_bytes(params))
        assert jax.tree.structure(restored) == jax.tree.structure(params), name
        jax.tree.map(np.testing.assert_array_equal, restored, params)
