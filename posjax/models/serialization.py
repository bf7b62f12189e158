"""Flax's serialisation (`flax.serialization.to_bytes`) of parameters that are more than arrays: tables with their extents."""

import dataclasses
from typing import Any

import jax
import numpy as np
from flax.serialization import from_state_dict, register_serialization_state, to_state_dict

from posjax.encodings.bias_grid import OffsetTable
from posjax.encodings.bias_network import LogCpb
from posjax.encodings.gates import Frequencies
from posjax.encodings.tables import Table


def _learned(params: Any) -> dict[str, Any]:
    fields = dataclasses.fields(params)
    return {field.name: getattr(params, field.name) for field in fields if not field.metadata.get("static")}


def _state_of(params: Any) -> dict[str, Any]:
    return {name: to_state_dict(value) for name, value in _learned(params).items()}


def _restored(params: Any, state: dict[str, Any]) -> Any:
    found = {name: from_state_dict(value, state[name], name=name) for name, value in _learned(params).items()}
    restored = dataclasses.replace(params, **found)
    shapes = [[np.shape(leaf) for leaf in jax.tree.leaves(each)] for each in (params, restored)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"a {type(params).__name__} of the shapes {shapes[1]} was written, not {shapes[0]}: resize it first"
        )
    return restored


for _kind in (Table, OffsetTable, LogCpb, Frequencies):
    register_serialization_state(_kind, _state_of, _restored)
