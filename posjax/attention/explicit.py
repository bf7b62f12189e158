"""Meshes with explicit axes, the default of `jax.make_mesh`: the compiler splits attention, whose type says how at its ends.

Loops over tiles and look-ups have no sharding that JAX can tell from the types of their operands.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec


def explicit_mesh(tree: Any) -> AbstractMesh | None:
    """The mesh in the type of any array of a tree if it has explicit axes, else None."""
    meshes = (jax.typeof(leaf).sharding.mesh for leaf in jax.tree.leaves(tree))
    return next((mesh for mesh in meshes if mesh.explicit_axes), None)


def split_by_compiler(function: Callable[[Any], Any], tree: Any, specs: Any) -> Any:
    """Returns function(tree), computed with the explicit axes of the arrays' mesh as automatic ones.

    Args:
      tree: of arrays; those without explicit axes, as of NumPy, come to `function` as they are.
      specs: the partitions of the result, a tree of its structure.
    """
    mesh = explicit_mesh(tree)
    leaves, structure = jax.tree.flatten(tree)
    where = [n for n, leaf in enumerate(leaves) if explicit_mesh(leaf) is not None]

    def run(*some):
        for n, leaf in zip(where, some, strict=True):
            leaves[n] = leaf
        return function(structure.unflatten(leaves))

    of_mesh = lambda spec: NamedSharding(mesh, spec)  # noqa: E731
    out_sharding = jax.tree.map(of_mesh, specs, is_leaf=lambda x: isinstance(x, PartitionSpec))
    split = jax.sharding.auto_axes(run, axes=mesh.explicit_axes, out_sharding=out_sharding)
    return split(*(leaves[n] for n in where))


def spec_of(x: Any) -> PartitionSpec:
    """The partition in the type of an array."""
    return jax.typeof(x).sharding.spec


def split_as(x: Any, tree: Any) -> Any:
    """The arrays [B, ...] of a tree with their batch split over explicit axes as that of x, which `jax.vmap` asks for."""
    mesh = explicit_mesh(x)
    if mesh is None:
        return tree
    of_leaf = lambda leaf: NamedSharding(mesh, PartitionSpec(spec_of(x)[0], *spec_of(leaf)[1:]))  # noqa: E731
    return jax.tree.map(lambda leaf: jax.sharding.reshard(leaf, of_leaf(leaf)), tree)
