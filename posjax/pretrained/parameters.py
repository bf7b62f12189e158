"""Parameters by path, and the ones that a model expects."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from posjax.models.block import Block


def paths_of(params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the leaves of {"params": tree}, or of the tree alone, by path, "trunk/block_0/attention/qkv/kernel"."""
    leaves = jax.tree_util.tree_leaves_with_path(params["params"] if set(params) == {"params"} else params)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def is_encoding(path: str) -> bool:
    """Says whether a parameter is an encoding's, by its path."""
    return any(part.split("_")[0] == "encoding" for part in path.split("/"))


def refuse_overflow(path: str, array: Any, dtype: Any) -> None:
    """Raises ValueError for a parameter that holds numbers too large for a type of floats."""
    largest = max(float(array.max(initial=0)), -float(array.min(initial=0)))
    if float(np.finfo(dtype).max) < largest < np.inf:
        raise ValueError(f"{path} has {largest:.3g}, too large for {np.dtype(dtype).name}: load as bfloat16 or float32")


def tree_of(like: Any, leaves: Mapping[str, Any]) -> Any:
    """Returns a tree of the same form whose leaves are taken by their paths."""
    return jax.tree.unflatten(jax.tree.structure(like), [leaves[path] for path in paths_of(like)])


def expected_params(model: Any, channels: int | None = None) -> dict[str, Any]:
    """Returns the shapes and types of a model's parameters, {"params": tree}; a model of images needs their `channels`.

    Blocks with equal configs have equal parameters, so one of them is traced: a deep model takes seconds otherwise.
    """
    example = model.example() if channels is None else model.example(channels)
    init = model.with_fields(context=None, implementation="dense").init
    traced: dict[Any, Any] = {}

    def once(call, args, kwargs, context):
        block = context.module
        if not isinstance(block, Block) or context.method_name != "__call__":
            return call(*args, **kwargs)
        kind = block.config, block.causal, block.attention_norm, args[2] is None, kwargs.get("memory") is None
        if kind not in traced:
            out = call(*args, **kwargs)
            traced[kind] = block.variables["params"]
            return out
        for name, params in traced[kind].items():
            block.put_variable("params", name, params)
        return args[0], None

    with nn.intercept_methods(once):
        return {"params": jax.eval_shape(lambda: init(jax.random.key(0), *example))["params"]}


def checked_paths(model: Any, params: Mapping[str, Any], channels: int | None = None) -> dict[str, Any]:
    """Returns the parameters of a model by path.

    Raises:
      ValueError: the parameters are not the model's.
    """
    flat = paths_of(params)
    given, expected = (
        {path: tuple(leaf.shape) for path, leaf in leaves.items()}
        for leaves in (flat, paths_of(expected_params(model, channels)))
    )
    for path in sorted(given.keys() | expected.keys()):
        if given.get(path) != expected.get(path):
            raise ValueError(f"{path} is {given.get(path)} in the parameters and {expected.get(path)} in the model")
    return flat
