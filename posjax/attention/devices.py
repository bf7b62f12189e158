"""The devices that will run a program: their platform, and how many share an array."""

import math
from typing import NamedTuple

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding

from posjax.encoding import Array

Tokens = Array | jax.ShapeDtypeStruct  # an array of tokens, or its shape and dtype

_HOPPERS = ("H100", "H200", "GH200")  # GPUs of compute capability 9.0


class Device(NamedTuple):
    """A kind of device: "cpu", "gpu" or "tpu", the compute capability of a GPU, as "9.0", and the name that jax gives it."""

    platform: str
    capability: str | None = None
    name: str = ""


def device_of(x: Tokens | Mesh | AbstractMesh) -> Device:
    """Returns the kind of the devices of a mesh, or of the mesh in an array's type; else of jax's default backend.

    A program that is compiled for described devices (`jax.experimental.topologies`) has their kernels.
    """
    mesh = x if isinstance(x, Mesh | AbstractMesh) else mesh_of(x)
    device = None if mesh is None else mesh.devices.flat[0] if isinstance(mesh, Mesh) else mesh.abstract_device
    if device is None:
        device = jax.devices()[0]
    platform = "gpu" if device.platform in ("cuda", "rocm") else device.platform
    capability = getattr(device, "compute_capability", None)
    hopper = any(name in device.device_kind for name in _HOPPERS)
    return Device(platform, "9.0" if capability is None and hopper else capability, device.device_kind)


def automatic_devices(x: Tokens) -> int:
    """The number of devices among which the compiler splits an array, or may."""
    mesh = mesh_of(x)
    axes = () if mesh is None else zip(mesh.axis_types, mesh.shape.values(), strict=True)
    return math.prod(size for kind, size in axes if kind == AxisType.Auto)


def mesh_of(x: Tokens) -> Mesh | AbstractMesh | None:
    """The mesh in the sharding of an array, a tracer or a `jax.ShapeDtypeStruct`."""
    sharding = getattr(x if isinstance(x, jax.ShapeDtypeStruct) else jax.typeof(x), "sharding", None)
    return None if sharding is None or not isinstance(sharding, NamedSharding) or sharding.mesh.empty else sharding.mesh
