"""Accelerators by name: what their makers' data sheets say of one chip."""

from typing import NamedTuple

from posjax.spec import nearest


class Accelerator(NamedTuple):
    """Operations a second in dense products, bytes a second to and from its memory, and bytes of that.

    `single` is of float32 as jax multiplies it by default: in TF32 on GPUs, in passes of bfloat16 on TPUs.
    """

    half: float  # bfloat16
    single: float
    bandwidth: float
    memory: float


ACCELERATORS = {
    "a100-40": Accelerator(312e12, 156e12, 1.555e12, 40e9),
    "a100-80": Accelerator(312e12, 156e12, 2.039e12, 80e9),
    "h100": Accelerator(989e12, 494e12, 3.35e12, 80e9),
    "h200": Accelerator(989e12, 494e12, 4.8e12, 141e9),
    "b200": Accelerator(2250e12, 1125e12, 8e12, 180e9),
    "tpu-v4": Accelerator(275e12, 275e12, 1.228e12, 32 * 2**30),
    "tpu-v5e": Accelerator(197e12, 197e12, 0.819e12, 16 * 2**30),
    "tpu-v5p": Accelerator(459e12, 459e12, 2.765e12, 95 * 2**30),
    "tpu-v6e": Accelerator(918e12, 918e12, 1.64e12, 32 * 2**30),
}


def accelerator(name: str) -> Accelerator:
    """
    Raises:
      ValueError: for an unknown name; the message names the nearest known one.
    """
    if name not in ACCELERATORS:
        raise ValueError(f"no accelerator is named {name!r}; {nearest(name, list(ACCELERATORS))}")
    return ACCELERATORS[name]
