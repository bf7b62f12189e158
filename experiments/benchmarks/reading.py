"""What pipelines read, and how fast. Imported by interpreters that have neither jax nor posjax."""

import io
import itertools
import os
import pathlib
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from experiments.benchmarks.contender import Call, Seconds, Skip

# Of ImageNet's pictures, the usual ones.
_SIZES = ((375, 500), (375, 500), (500, 375), (333, 500), (300, 400), (480, 640))
_CLASSES = 8
OPENS = 50_256  # GPT-2's token between documents


def pictures(case: Mapping[str, Any]) -> pathlib.Path:
    """Writes `case["pictures"]` JPEGs once: <folder>/train/<class>/<number>.jpg, and the same as <tars>/train.tar.

    They are smooth colours with grain, 375 x 500 pixels and the like, with as many bytes a pixel as photographs (a third).

    Returns:
      The directory that holds "folder" and "tars", in `case["folder"]`.
    """
    from PIL import Image

    def paint(number: int) -> bytes:
        rng, (h, w) = np.random.default_rng(number), size_of(number)
        small = Image.fromarray(rng.integers(0, 256, (h // 50, w // 50, 3), np.uint8))
        smooth = np.asarray(small.resize((w, h), Image.Resampling.BICUBIC))
        pixels = np.clip(smooth + rng.normal(0, 7, (h, w, 1)), 0, 255).astype(np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "JPEG", quality=90)
        return buffer.getvalue()

    def write(root: pathlib.Path) -> None:
        (root / "tars").mkdir(parents=True)
        with tarfile.open(root / "tars/train.tar", "w") as archive:
            for number in range(case["pictures"]):
                path = root / f"folder/train/{number % _CLASSES}/{number:05}.jpg"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(paint(number))
                archive.add(path, path.relative_to(root / "folder/train").as_posix())

    return _once(pathlib.Path(case["folder"], f"pictures-{case['pictures']}"), write)


def size_of(number: int) -> tuple[int, int]:
    """Returns the height and width of a picture by its number."""
    return _SIZES[number % len(_SIZES)]


def tokens(case: Mapping[str, Any]) -> pathlib.Path:
    """Writes `case["tokens"]` random tokens once, a shard of llm.c with documents of about 1,000 tokens; returns its path."""

    def write(root: pathlib.Path) -> None:
        root.mkdir(parents=True)
        drawn = np.random.default_rng(0).integers(OPENS, size=case["tokens"]).astype("<u2")
        drawn[::1000] = OPENS
        head = np.array([20240520, 1, len(drawn)], "<i4").tobytes().ljust(1024, b"\0")
        (root / "train.bin").write_bytes(head + drawn.tobytes())

    return _once(pathlib.Path(case["folder"], f"tokens-{case['tokens']}"), write) / "train.bin"


def _once(root: pathlib.Path, write: Callable[[pathlib.Path], None]) -> pathlib.Path:
    if not root.exists():
        part = root.with_name(f"{root.name}.{os.getpid()}")
        write(part)
        part.rename(root)
    return root


def reading(batches: Callable[[], Iterator], case: Mapping[str, Any], items: int, unit: str) -> Call:
    """Returns a call that reads `case["count"]` batches of a pipeline, opened anew and warm, and times them itself.

    Args:
      batches: opens the pipeline, which goes on longer than it is read.
      items: number of images or tokens of a batch.
      unit: "images" or "tokens".

    Raises:
      Skip: the pipeline has processes, whose time Linux alone tells.
    """
    if case["workers"] and not pathlib.Path("/proc/self/stat").exists():
        raise Skip("the time of other processes is not known here")

    def run() -> Seconds:
        opened = batches()
        for _ in itertools.islice(opened, 2 * case["workers"] + 2):
            pass
        began = Seconds(cpu_seconds(), time.perf_counter())
        for _ in itertools.islice(opened, case["count"]):
            pass
        taken = Seconds(cpu_seconds() - began.cpu, time.perf_counter() - began.wall)
        if hasattr(opened, "close"):
            opened.close()
        return taken

    return Call(run, figures={"runs": case["count"], "items": items, "unit": unit})


def cpu_seconds() -> float:
    """Returns the seconds of computing of this process and of all processes below it that are alive."""
    return time.process_time() + sum(_ticks(child) for child in _below("self")) / os.sysconf("SC_CLK_TCK")


def _below(process: str) -> Iterator[str]:
    for path in pathlib.Path(f"/proc/{process}/task").glob("*/children"):
        for child in path.read_text().split():
            yield child
            yield from _below(child)


def _ticks(process: str) -> int:
    after_name = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(after_name[11]) + int(after_name[12])
