"""Flax's own serialisation takes the parameters of every encoding."""

import functools

import jax
import numpy as np
import pytest
from cases import FIRST, setting
from drawn import drawn
from flax.serialization import from_bytes, to_bytes

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
    for case in FIRST:
        encoding, dims, _ = setting(case)
        params = drawn(functools.partial(encoding.init, jax.random.key(1), dims))
        found = from_bytes(jax.tree.map(np.zeros_like, params), to_bytes(params))
        assert jax.tree.structure(found) == jax.tree.structure(params), case.spec
        jax.tree.map(np.testing.assert_array_equal, found, params)
