"""How the devices of one process share batches, and the sequences in them."""

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from posjax.attention import ContextParallel


def make_context(devices_per_sequence: int) -> ContextParallel | None:
    """All devices, in groups that share a sequence within them and the batch between them; None for one device.

    Raises:
      ValueError: for a number of devices that is not a multiple of `devices_per_sequence`.
    """
    count = jax.device_count()
    if devices_per_sequence < 1 or count % devices_per_sequence:
        fits = [n for n in range(1, count + 1) if count % n == 0]
        raise ValueError(f"context_parallel={devices_per_sequence} does not divide {count} devices: it may be {fits}")
    if count == 1:
        return None
    mesh = Mesh(np.array(jax.devices()).reshape(-1, devices_per_sequence), ("data", "context"))
    return ContextParallel(mesh, "context", batch_axis="data")


def shardings(context: ContextParallel | None) -> tuple[NamedSharding, NamedSharding]:
    """(the same on all devices, batches [R, B, ...] split over them; [R, B, T] where they share sequences)."""
    if context is None:
        mesh, split = Mesh(np.array(jax.devices()), ("data",)), PartitionSpec(None, "data")
    else:
        tokens = (context.axis,) if context.size > 1 else ()
        mesh, split = context.mesh, PartitionSpec(None, context.batch_axis, *tokens)
    return NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, split)
