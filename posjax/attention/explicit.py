"""Meshes with explicit axes, the default of `jax.make_mesh`: the compiler splits attention, whose type says how at its ends.

Loops over tiles and look-ups have no sharding that JAX can tell from the types of their operands.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import jax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

_P, _R = ParamSpec("_P"), TypeVar("_R")


def split_by_compiler(specs: Callable[[Mapping[str, Any]], Any]) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Decorates a function, which then computes with the explicit axes of its arguments' mesh as automatic ones.

    Args:
      specs: takes the arguments by name, and returns the partitions of the result, a tree of its structure.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            leaves, structure = jax.tree.flatten((args, kwargs))
            where = [n for n, leaf in enumerate(leaves) if _explicit_mesh(leaf) is not None]
            if not where:
                return function(*args, **kwargs)

            def on_automatic_axes(*some):
                for n, leaf in zip(where, some, strict=True):
                    leaves[n] = leaf
                args, kwargs = structure.unflatten(leaves)
                return function(*args, **kwargs)

            mesh = _explicit_mesh(leaves[where[0]])
            of_result = specs(inspect.signature(function).bind(*args, **kwargs).arguments)
            sharding = jax.tree.map(lambda spec: NamedSharding(mesh, spec), of_result, is_leaf=_is_spec)
            split = jax.sharding.auto_axes(on_automatic_axes, axes=mesh.explicit_axes, out_sharding=sharding)
            return split(*(leaves[n] for n in where))

        return run

    return decorate


def spec_of(x: Any) -> PartitionSpec:
    """Returns the PartitionSpec in an array's type (explicit meshes only)."""
    return jax.typeof(x).sharding.spec


def split_as(x: Any, tree: Any) -> Any:
    """The arrays [B, ...] of a tree with their batch split over explicit axes as that of x, which `jax.vmap` asks for."""
    mesh = _explicit_mesh(x)
    if mesh is None:
        return tree

    def split(leaf: Any) -> Any:
        return jax.sharding.reshard(leaf, NamedSharding(mesh, PartitionSpec(spec_of(x)[0], *spec_of(leaf)[1:])))

    return jax.tree.map(split, tree)


def _explicit_mesh(x: Any) -> AbstractMesh | None:
    """The mesh in the type of an array if it has explicit axes, else None."""
    mesh = jax.typeof(x).sharding.mesh if isinstance(x, jax.Array) else None
    return mesh if mesh is not None and mesh.explicit_axes else None


def _is_spec(x: Any) -> bool:
    return isinstance(x, PartitionSpec)
