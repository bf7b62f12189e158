"""The speed of a training: tokens or images a second, and its share of what the devices can compute (MFU)."""

import math
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from posjax.attention.devices import device_of
from posjax.models.decoder import Decoder
from posjax.models.transformer import BlockModel
from posjax.pretrained.parameters import is_encoding, paths_of

# Operations a second of a chip in dense products of bfloat16, from its maker's data sheet, by a part of jax's name for it.
PEAKS: Mapping[str, float] = {
    "A100": 312e12,
    "H100": 989e12,
    "H200": 989e12,
    "B200": 2250e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5": 459e12,
    "TPU v6 lite": 918e12,
}
_LOOK_UP = "token_embedding"
_TRACED = 5  # steps


class Work(NamedTuple):
    """What a step computes, all runs of an ensemble together.

    Attributes:
      unit: "tokens" or "images".
      count: of them in a step.
      flops: of the model in a step, forward and backward; None for a model that is no `BlockModel`.
      peak: operations a second of all devices; None where one is unknown, as a CPU's.
    """

    unit: str
    count: int
    flops: float | None
    peak: float | None

    def speed(self, seconds: float) -> dict[str, float]:
        """Returns {"tokens_per_s": number}, or "images_per_s", for a step of so many seconds, and "mfu" where it is known."""
        if not seconds > 0:
            return {}
        speed = {f"{self.unit}_per_s": self.count / seconds}
        known = self.flops is not None and self.peak is not None
        return speed | ({"mfu": self.flops / seconds / self.peak} if known else {})


def work_of(model: Any, params: Any, batch: Mapping[str, Any], mesh: jax.sharding.Mesh) -> Work:
    """Returns the work of a step of training.

    A token costs 6 N + 6 L d T operations in a decoder, 6 N + 12 L d T elsewhere. N are the parameters without what is
    looked up (a token embedding that is not the head too, and encodings), L the layers, d the channels of all heads, and T
    the tokens of a row. Operations that rematerialisation repeats do not count; the keys that a window or documents hide do.

    Args:
      params, batch: arrays or their shapes, leaves [R, ...] and [R, B, ...].
    """
    if "image" in batch:
        unit, (runs, rows, height, width) = "images", batch["image"].shape[:4]
        length = model.sites(height, width).segment.shape[-1] if isinstance(model, BlockModel) else 0
        count = runs * rows
    else:
        runs, rows, length = batch["tokens" if "tokens" in batch else "patches"].shape[:3]
        unit, count = "tokens", runs * rows * length
    device = device_of(mesh).name
    peak = next((PEAKS[name] for name in sorted(PEAKS, key=len, reverse=True) if name in device), None)
    flops = None
    if isinstance(model, BlockModel):
        looked_up = () if getattr(model, "tied_embedding", False) else (_LOOK_UP,)
        sizes = {path: math.prod(leaf.shape[1:]) for path, leaf in paths_of(params).items()}
        multiplied = sum(
            n for path, n in sizes.items() if not is_encoding(path) and path.split("/")[0] not in looked_up
        )
        channels = model.block.num_heads * model.block.channels
        attention = (6 if isinstance(model, Decoder) else 12) * model.depth * channels * length
        flops = (6 * multiplied + attention) * runs * rows * length
    return Work(unit, count, flops, None if peak is None else peak * mesh.size)


class Trace:
    """A trace of five steps, from the step `first` on, in a directory that TensorBoard, xprof and Perfetto read.

    Used as a context, which ends the trace of a training that stops before. Nothing is traced without a directory.
    """

    def __init__(self, directory: pathlib.Path | None, first: int):
        self._directory, self._first, self._runs = directory, first, False

    def __enter__(self) -> "Trace":
        return self

    def __exit__(self, *_) -> None:
        if self._runs:
            jax.profiler.stop_trace()
            self._runs = False

    def before(self, step: int, state: Any) -> None:
        """Starts or ends the trace before a step that reads this state."""
        if self._directory is None or step not in (self._first, self._first + _TRACED):
            return
        jax.block_until_ready(state)
        if step == self._first:
            jax.profiler.start_trace(self._directory)
            self._runs = True
        else:
            self.__exit__()
