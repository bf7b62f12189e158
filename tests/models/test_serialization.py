"""Flax's own serialisation takes the parameters of every encoding."""

import jax
import numpy as np
from cases import FIRST, world
from flax.serialization import from_bytes, to_bytes

import posjax.models  # noqa: F401


def test_flax_writes_and_reads_the_parameters_of_every_encoding():
    for case in FIRST:
        params = jax.tree.map(lambda leaf: leaf + 1, world(case).params)
        found = from_bytes(jax.tree.map(np.zeros_like, params), to_bytes(params))
        assert jax.tree.structure(found) == jax.tree.structure(params), case.spec
        jax.tree.map(np.testing.assert_array_equal, found, params)
