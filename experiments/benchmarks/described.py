"""Described machines: accelerators that are not here, for which their compilers compile on a CPU.

A name is that of a chip and how many there are: "h100:8", or for TPUs the sides of their mesh, "v5e:2x4".
"""

import importlib.metadata
import math
import re
from typing import TYPE_CHECKING, NamedTuple

from posjax.extras import require
from posjax.spec import nearest

if TYPE_CHECKING:
    import jax


class Chip(NamedTuple):
    """A kind of accelerator by its maker's data sheet."""

    title: str
    platform: str  # "tpu" or "cuda"
    memory: float  # bytes that a program may hold
    topology: str  # TPUs: the compiler's name; GPUs: its description of one


_H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
  block_dim_limit_z: 65535 memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 84929347584 shared_memory_per_block_optin: 232448 cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA" runtime_version { major: 12 minor: 8 } dnn_version_info { major: 9 minor: 7 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
# TPU v4 is left out: described, each of its chips is two devices, where a real one is one.
CHIPS = {
    "v5e": Chip("TPU v5e", "tpu", 15.75 * 2**30, "v5e"),
    "v5p": Chip("TPU v5p", "tpu", 95.74 * 2**30, "v5"),
    "v6e": Chip("TPU v6e", "tpu", 31.25 * 2**30, "v6e"),
    "h100": Chip("NVIDIA H100 80GB", "cuda", 84929347584, _H100),
}
# The packages of each platform's compiler, the one that says the version first; and the variables of a process that compiles.
# The compiler for TPUs asks no server where it is. Without real GPUs nothing can be timed, so no kernels of products are
# tried; XLA's products by Triton fail.
_COMPILERS = {"tpu": ("libtpu",), "cuda": ("jax_cuda12_plugin", "jax_plugins", "jax_plugins.xla_cuda12")}
_ENVIRONMENTS = {
    "tpu": {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_ACCELERATOR_TYPE": "v5litepod-8",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    },
    "cuda": {"XLA_FLAGS": "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false"},
}


class Machine(NamedTuple):
    """Chips of one kind that are connected; `sides` are those of a mesh of TPUs, or the number of GPUs."""

    name: str
    chip: Chip
    sides: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of chips."""
        return math.prod(self.sides)

    @property
    def environment(self) -> dict[str, str]:
        """Variables of a process that compiles for this machine; it has as many simulated devices."""
        shared = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(self.size)}
        return shared | {"JAX_INCLUDE_FULL_TRACEBACKS_IN_LOCATIONS": "0"} | _ENVIRONMENTS[self.chip.platform]

    def compiler(self) -> str:
        """Returns the package that compiles and its version."""
        package = _COMPILERS[self.chip.platform][0]
        return f"{package} {importlib.metadata.version(package)}"

    def devices(self) -> "list[jax.Device]":
        """Returns the described devices; in a process with `environment`."""
        from jax.experimental import topologies

        if self.chip.platform == "cuda":
            hosts = f"{self.size // 8}x8" if self.size > 8 else f"1x{self.size}"
            options = dict(target_config=self.chip.topology, topology=f"1x{hosts}")
            return topologies.get_topology_desc(platform="cuda", **options).devices
        # By default a host has several chips, and a single one is no part of it.
        alone = {"chips_per_host_bounds": (1,) * 3} if self.size == 1 else {}
        sides = "x".join(map(str, self.sides))
        return topologies.get_topology_desc(f"{self.chip.topology}:{sides}", platform="tpu", **alone).devices


def machine_of(name: str) -> Machine:
    """Returns the machine of a name.

    Raises:
      ValueError: for an unknown chip, or a number of chips that cannot be.
    """
    kind, _, size = name.partition(":")
    if kind not in CHIPS:
        raise ValueError(f"--compile={name}: no chip is named {kind!r}; {nearest(kind, list(CHIPS))}")
    chip = CHIPS[kind]
    axes, example = {"v5p": (3, "2x2x1"), "h100": (1, "8")}.get(kind, (2, "2x4"))
    sides = tuple(map(int, size.split("x"))) if re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", size) else ()
    if len(sides) != axes or (chip.platform == "cuda" and sides[0] > 8 and sides[0] % 8):
        wanted = "a number of chips, up to 8 or a multiple of 8" if axes == 1 else f"{axes} sides of a mesh of chips"
        raise ValueError(f"--compile={name}: {kind} needs {wanted} behind a colon, as in {kind}:{example}")
    return Machine(name, chip, sides)


def require_compilers(machines: list[Machine]) -> None:
    """Refuses machines whose compiler is not installed, with an ImportError that names its package."""
    for machine in machines:
        require(f"--compile={machine.name}", *_COMPILERS[machine.chip.platform])
