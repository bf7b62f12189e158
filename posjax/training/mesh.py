"""One mesh for all devices, and how batches, parameters and optimizer moments lie on it.

    config.mesh = {"data": -1, "fsdp": 2, "tensor": 2}      # -1: whatever number of devices is left

| axis | shares | costs |
|---|---|---|
| seed | the runs of an ensemble | nothing |
| data | the batch | a sum of gradients a step |
| fsdp | the batch, and parameters with their moments | parameters are gathered when a layer needs them |
| tensor | heads, and the channels inside an MLP | sums of activations; beside context, keys and values of all heads too |
| context | the tokens of a sequence (`posjax.attention.ContextParallel`) | keys and values are gathered a layer |

The axes stand in this order, with devices of one process next to each other: the axis with most traffic is last. All are of
type Auto: the compiler places every array that has no sharding. The same program runs on one device, in one process and in
many.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from posjax.attention import ContextParallel
from posjax.spec import nearest

AXES = ("seed", "data", "fsdp", "tensor", "context")
BATCH = ("data", "fsdp")  # the axes that share a batch
# (end of a parameter's path, axis of the mesh for each axis of the parameter). The first that matches in both counts, for
# moments of the optimizer too; a leaf that no rule matches is the same on all devices.
RULES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    (r"qkv/kernel", ("fsdp", "tensor", None, None)),  # [M, K, H / K + 2, D]: by key heads
    (r"qkv/bias", ("tensor", None, None)),
    (r"(query|key|value|output_gate)/kernel", ("fsdp", "tensor", None)),
    (r"(query|key|value|output_gate)/bias", ("tensor", None)),
    (r"query_up/kernel", ("fsdp", "tensor", None)),  # of latent attention, [L, H, D]: by heads
    (r"(key|value)_up_kernel", ("fsdp", "tensor", None)),
    (r"(query|kv)_down/kernel", ("fsdp", None)),  # [M, L]: all heads read the whole latent
    (r"out/kernel", ("tensor", None, "fsdp")),
    (r"(up|gate)/kernel", ("fsdp", "tensor")),
    (r"(up|gate)/bias", ("tensor",)),
    (r"down/kernel", ("tensor", "fsdp")),
    (r"(up|gate)_kernel", (None, "fsdp", "tensor")),  # of experts
    (r"(up|gate)_bias", (None, "tensor")),
    (r"down_kernel", (None, "tensor", "fsdp")),
    (r"head/kernel", ("fsdp", "tensor")),
    (r"token_embedding/embedding", ("tensor", None)),  # by fsdp too, looking tokens up would gather activations
    (r"encoding(_\d+)?(/.+)?", ("fsdp", None)),  # an encoding's own table: rows of positions, buckets or offsets
)


def mesh_sizes(given: Mapping[str, int] | None, devices: int) -> dict[str, int]:
    """Returns the size of every axis for a number of devices; axes that are not given have 1, "data" the devices left.

    Raises:
      ValueError: an unknown axis, a size below 1 that is not -1, two of -1, or sizes that do not make the devices.

    >>> mesh_sizes({"tensor": 2}, devices=8)
    {'seed': 1, 'data': 4, 'fsdp': 1, 'tensor': 2, 'context': 1}
    """
    given = dict(given or {})
    if unknown := sorted(given.keys() - set(AXES)):
        raise ValueError(f"no axis of the mesh is named {unknown[0]!r}; {nearest(unknown[0], list(AXES))}")
    sizes = dict.fromkeys(AXES, 1) | {"data": -1} | given
    shown = ", ".join(f"{axis}={sizes[axis]}" for axis in AXES)
    for axis, size in sizes.items():
        if size < 1 and size != -1:
            raise ValueError(f"mesh.{axis}={size!r} must be a number of devices of at least 1, or -1 for those left")
    open_axes = [axis for axis in AXES if sizes[axis] == -1]
    if len(open_axes) > 1:
        raise ValueError(f"mesh.{open_axes[0]} and mesh.{open_axes[1]} are both -1: give one of them ({shown})")
    known = math.prod(size for size in sizes.values() if size != -1)
    if devices % known or (not open_axes and known != devices):
        raise ValueError(f"the mesh ({shown}) does not fit {devices} devices: the sizes must multiply to it")
    return sizes | dict.fromkeys(open_axes, devices // known)


def make_mesh(given: Mapping[str, int] | None = None, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Returns the mesh of these devices, or of all devices of all processes; see `mesh_sizes`."""
    devices = jax.devices() if devices is None else devices
    sizes = mesh_sizes(given, len(devices))
    types = (AxisType.Auto,) * len(AXES)
    return jax.make_mesh(tuple(sizes[axis] for axis in AXES), AXES, axis_types=types, devices=devices)


def mesh_of(config: ConfigDict | Mapping[str, Any]) -> Mesh:
    """Returns the mesh of a config's group `mesh`; all devices share the batch where it has none.

    Raises:
      ValueError: as `mesh_sizes`.
    """
    return make_mesh(config.get("mesh"))


def context_of(mesh: Mesh) -> ContextParallel | None:
    """Returns the way in which attention shares batches and sequences; None for one device."""
    return None if mesh.size == 1 else ContextParallel(mesh, "context", batch_axis=BATCH, heads_axis="tensor")


def shards(mesh: Mesh | AbstractMesh) -> int:
    """Returns the number of parts of a batch."""
    return math.prod(mesh.shape[axis] for axis in BATCH)


def replicated(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of an array that is whole on every device."""
    return NamedSharding(mesh, PartitionSpec())


def layout(mesh: Mesh | AbstractMesh, tree: Any) -> Any:
    """Returns the shardings of a state, or of its parameters, whose leaves [R, ...] start with the axis of seeds."""

    def one(path, leaf):
        axes = _wanted(_name(path), len(leaf.shape))
        return NamedSharding(mesh, PartitionSpec(*(_fitting(mesh, axes, leaf.shape))))

    return jax.tree.map_with_path(one, tree)


def left_out(mesh: Mesh | AbstractMesh, tree: Any) -> list[str]:
    """Returns a line for each leaf that `layout` keeps whole, because an axis of the mesh does not divide it."""
    lines = []
    for path, leaf in jax.tree.leaves_with_path(tree):
        name = _name(path)
        axes = _wanted(name, len(leaf.shape))
        for axis, size in zip(axes, leaf.shape, strict=False):
            if axis and size % mesh.shape[axis]:
                lines.append(f"{name} {list(leaf.shape)}: {axis}={mesh.shape[axis]} does not divide {size}")
    return lines


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _wanted(name: str, rank: int) -> tuple[str | None, ...]:
    """Returns the axes of the mesh for a leaf by the rules, the axis of seeds among them."""
    matching = (axes for end, axes in RULES if len(axes) == rank - 1 and re.search(rf"(^|/){end}$", name))
    return ("seed", *next(matching, ()))[:rank]


def _fitting(mesh: Mesh | AbstractMesh, axes, shape: tuple[int, ...]) -> Iterator[Any]:
    """Yields the axes of the mesh, None for an axis that does not divide the shape."""
    for axis, size in zip(axes, shape, strict=False):
        names = axis if isinstance(axis, tuple) else (axis,) if axis else ()
        yield axis if size % math.prod(mesh.shape[name] for name in names) == 0 else None


# Batches


class Share(NamedTuple):
    """The part of every batch that this process reads: the `index`-th of `count` equal parts."""

    index: int = 0
    count: int = 1


WHOLE = Share()


def share_of(mesh: Mesh, batch_size: int) -> Share:
    """Returns the smallest share that holds the rows of all devices of this process.

    Processes whose devices share sequences or heads, or train other seeds, read the same rows.
    """
    held = NamedSharding(mesh, PartitionSpec(BATCH)).addressable_devices_indices_map((batch_size,))
    bounds = [index[0].indices(batch_size)[:2] for index in held.values()]
    first, last = min(start for start, _ in bounds), max(stop for _, stop in bounds)
    size = last - first
    even = batch_size % size == 0 and first % size == 0
    return Share(first // size, batch_size // size) if even else WHOLE


def batch_sharding(mesh: Mesh | AbstractMesh, shape: tuple[int, ...], *, runs: bool) -> NamedSharding:
    """Returns the sharding of a leaf [B, ...], or [R, B, ...] of all `runs`; tokens [B, T] are shared where T divides."""
    lead = ("seed",) if runs else ()
    tokens = ("context",) if len(shape) == len(lead) + 2 else ()
    return NamedSharding(mesh, PartitionSpec(*_fitting(mesh, (*lead, BATCH, *tokens), shape)))


def on_devices(mesh: Mesh, batch: Mapping[str, np.ndarray], *, runs: bool, share: Share = WHOLE) -> dict[str, Any]:
    """Returns the leaves of a batch on the devices; this process has read `share` of it."""
    axis = int(runs)

    def one(x: np.ndarray) -> jax.Array:
        x = np.asarray(x, jax.dtypes.canonicalize_dtype(x.dtype))
        shape = (*x.shape[:axis], x.shape[axis] * share.count, *x.shape[axis + 1 :])
        sharding = batch_sharding(mesh, shape, runs=runs)
        if sharding.is_fully_addressable:
            return jax.device_put(x, sharding)
        first = share.index * x.shape[axis]

        def read(index):
            start, stop, _ = index[axis].indices(shape[axis])
            return x[(*index[:axis], slice(start - first, stop - first), *index[axis + 1 :])]

        return jax.make_array_from_callback(shape, sharding, read)

    return {name: one(x) for name, x in batch.items()}


def filled_up(mesh: Mesh | AbstractMesh, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns a batch padded by rows of zeros, hence of weight 0, until the devices divide it."""
    parts = shards(mesh)
    return {name: np.pad(x, [(0, -len(x) % parts)] + [(0, 0)] * (np.ndim(x) - 1)) for name, x in batch.items()}


def fetched(tree: Any) -> Any:
    """Returns the leaves as numpy arrays, also where other processes hold parts: every process calls this."""

    def one(leaf):
        if isinstance(leaf, jax.Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated):
            leaf = jax.jit(lambda x: x, out_shardings=replicated(leaf.sharding.mesh))(leaf)
        return np.asarray(leaf)

    return jax.tree.map(one, tree)
