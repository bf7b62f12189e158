"""Many processes, one run: they find each other, agree, and end together by JAX's own runtime.

Every process runs the same program on its share of each batch. The first one writes records, metrics and progress; all of
them write checkpoints. With one process nothing here does anything.
"""

import pathlib
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

HEARTBEAT = 30  # seconds without a sign of life after which a process counts as dead
PATIENCE = 30.0  # seconds until a file that one host has made counts as absent on another: NFS may show it late
# Words in the errors of collectives and of the coordinator once a process is gone.
_SIGNS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Connection refused",
    "Broken pipe",
    "Gloo",
    "heartbeat",
    "coordination service",
    "Barrier timed out",
    "Shutdown barrier",
)


def join(coordinator: str, processes: int | None = None, process: int | None = None) -> None:
    """Makes this one of `processes` processes; before anything else asks jax for devices.

    Args:
      coordinator: HOST:PORT of the first process; "auto" on TPU pods and under SLURM or Open MPI, which tell all three.
      processes, process: how many there are, and which one this is, from 0 on.

    Raises:
      ValueError: numbers that do not fit, or numbers beside "auto".
    """
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    timeouts = dict(heartbeat_timeout_seconds=HEARTBEAT, shutdown_timeout_seconds=HEARTBEAT)
    if coordinator == "auto":
        if processes is not None or process is not None:
            raise ValueError("--coordinator=auto finds --processes and --process itself: leave them out")
        jax.distributed.initialize(**timeouts)
        return
    if processes is None or process is None or not 0 <= process < processes:
        raise ValueError(f"--processes={processes} and --process={process} must be N and one of 0 to N - 1")
    if not coordinator.rpartition(":")[2].isdigit() or ":" not in coordinator:
        raise ValueError(f"--coordinator={coordinator} must be HOST:PORT of the first process, or auto")
    jax.distributed.initialize(coordinator, processes, process, **timeouts)


def is_first() -> bool:
    """Says whether this process writes records, metrics and progress."""
    return jax.process_index() == 0


def synced(name: str) -> None:
    """Waits until all processes are here."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def is_shared(folder: pathlib.Path) -> bool:
    """Says whether a folder, which the first process has made, is the same for all processes; all of them call this."""
    if jax.process_count() == 1:
        return True
    token = str(multihost_utils.broadcast_one_to_all(np.uint32(time.time_ns() % 2**32)))
    mark = folder / ".shared"
    if is_first():
        mark.write_text(token)
    synced("the folder is marked")
    end = time.monotonic() + PATIENCE
    while not (seen := mark.is_file() and mark.read_text() == token) and time.monotonic() < end:
        time.sleep(0.1)
    unseen = any_process(not seen)
    if is_first():
        mark.unlink()
    return not unseen


def any_process(found: bool) -> bool:
    """Says whether `found` is true in any process; all of them call this."""
    return bool(np.any(multihost_utils.process_allgather(np.array(found)))) if jax.process_count() > 1 else found


def is_loss(error: BaseException) -> bool:
    """Says whether an error means that another process is gone."""
    return jax.process_count() > 1 and any(sign in str(error) for sign in _SIGNS)


class AnyStop:
    """Says whether any process was asked to stop; all processes get the same answer at the same step.

    With one process the answer is immediate. With several it is a step late: it comes with the program of the last step.

    Args:
      should_stop: says whether this process was asked.
      mesh: of all devices.
    """

    def __init__(self, should_stop: Callable[[], bool], mesh: Mesh):
        self._should_stop, self._count = should_stop, mesh.size
        self._spread = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        self._any = jax.jit(jnp.any, out_shardings=NamedSharding(mesh, PartitionSpec()))
        self._asked = None

    def __call__(self) -> bool:
        if jax.process_count() == 1:
            return self._should_stop()
        own = np.array([self._should_stop()])
        before = self._asked
        self._asked = self._any(jax.make_array_from_callback((self._count,), self._spread, lambda index: own))
        return before is not None and bool(np.asarray(before))
