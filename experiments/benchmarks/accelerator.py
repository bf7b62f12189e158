"""The cases of an accelerator: agreement with dense attention, then times of attention and training steps."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from experiments.benchmarks.cases import Contender, Suite
from experiments.benchmarks.findings import Cell
from posjax.attention.backends import backend
from posjax.describe.scorecard.specs import every_spec
from posjax.spec import parse

Case = Mapping[str, Any]


class Sizes(NamedTuple):
    """The sizes of a check."""

    compared: Case  # a layer under each encoding
    kernels: tuple[Case, ...]  # a layer under the encodings that the kernel computes itself
    attention: Case
    tokens: int  # of all sequences of a call: as many sequences as fit
    lengths: tuple[int, ...]
    held: int  # the greatest length at which arrays of n x n are tried without a kernel
    decoder: Case


_LAYER = {"heads": 4, "kv_heads": 2, "head_dim": 32}
ACCELERATOR = Sizes(
    compared={**_LAYER, "length": 320},
    kernels=({**_LAYER, "head_dim": 64, "length": 777}, {**_LAYER, "head_dim": 128, "length": 777}),
    attention={"heads": 16, "head_dim": 64, "dtype": "bfloat16"},
    tokens=16384,
    lengths=(1024, 4096, 16384, 32768),
    held=4096,
    decoder=dict(width=1024, heads=16, depth=8, length=2048, batch=8, dtype="bfloat16"),
)
# For a machine without one: shows that everything runs, and is of no account for how fast an accelerator is.
CPU = Sizes(
    compared={**_LAYER, "length": 64},
    kernels=({**_LAYER, "length": 70},),
    attention={"heads": 2, "head_dim": 16, "dtype": "bfloat16"},
    tokens=256,
    lengths=(128, 256),
    held=256,
    decoder=dict(width=32, heads=2, depth=2, length=128, batch=2),
)

# (encoding, implementations) of attention by length.
_TIMED = {
    "none": ("dense", "blockwise", "pallas", "cudnn", "splash"),
    "rope": ("blockwise", "pallas", "cudnn", "splash"),
    "alibi": ("dense", "blockwise", "pallas"),
    "t5": ("blockwise", "pallas"),
    "kerple": ("blockwise", "pallas"),
    "window(size=512)": ("blockwise", "pallas", "cudnn", "splash"),
}
# jax's own attention with the encoding's bias as an array, or without one: (its name, encoding, implementation).
_LIBRARY = (
    ("cuDNN, no encoding", "none", "cudnn"),
    ("cuDNN, ALiBi as an array", "alibi", "cudnn"),
    ("cuDNN, T5 as an array", "t5", "cudnn"),
    ("XLA, ALiBi as an array", "alibi", "xla"),
    ("cuDNN, no encoding, again", "none", "cudnn"),
)
_KERNELS = (
    "none",
    "rope()",
    "alibi()",
    "alibi(direction='split') + window(100)",
    "t5()",
    "t5(num_buckets=6, max_distance=8, bidirectional=False) + sinks(2, 40)",
    "kerple()",
    "kerple(kind='power') + dilated(8)",
    "rope() + alibi(direction='offset') + t5(num_buckets=8, max_distance=6)",
)
_STEPS = {
    "none": ("auto", "dense"),
    "rope": ("auto", "pallas"),
    "alibi": ("auto", "pallas"),
    "t5": ("auto", "pallas"),
    "kerple": ("auto", "pallas"),
    "cope": ("auto",),
}
_NOTE = (
    "Temporaries are the compiler's count for one program. In steps the peak is that of the device's memory, as "
    "its allocator counts it for a whole process."
)
SMALL = (
    "**This was run on a CPU, in small: it shows that everything runs, and nothing of what an accelerator does or how fast "
    "it is.**"
)


def accelerator(platform: str) -> Suite:
    """Encodings by every implementation against dense attention; times of attention and training steps."""
    sizes = CPU if platform == "cpu" else ACCELERATOR
    note = f"{_NOTE}\n\n{SMALL}" if platform == "cpu" else _NOTE
    contenders, base = [*_contenders(sizes, platform)], "jax.nn, cuDNN, no encoding"
    return Suite(contenders, [*_cells(sizes)], note=note, one_by_one=True, base=base)


def _cells(sizes: Sizes) -> Iterator[Cell]:
    def compared(title: str, spec: str, dtype: str, size: Case, axes: int = 1) -> Cell:
        return {"title": title, "mode": "compare", "spec": spec, "dtype": dtype, "axes": axes, **size}

    for size in sizes.kernels:
        for spec in _KERNELS:
            yield compared(f"kernel, {spec}, head dim {size['head_dim']}", spec, "bfloat16", size)
    for length in sizes.lengths:
        for mode in ("f", "fb"):
            shared = {"mode": mode, **sizes.attention, "batch": max(1, sizes.tokens // length), "length": length}
            yield {"title": f"attention, {mode}, {length}", **shared}
    yield {"title": "decoder step", "mode": "decoder step", **sizes.decoder}
    for spec in every_spec(sizes.compared["length"])[0]:
        for axes in parse(spec).dimensions[:2]:  # a line, a grid
            for dtype in ("float32", "bfloat16"):
                where = "" if axes == 1 else f", {axes} axes"
                yield compared(f"{spec}, {dtype}{where}", spec, dtype, sizes.compared, axes)


def _contenders(sizes: Sizes, platform: str) -> Iterator[Contender]:
    def runs(implementation: str) -> bool:
        return implementation == "auto" or backend(implementation).platform in (None, platform)

    def attention(name: str, quadratic: bool, **case: Any) -> Contender:
        lengths = [length for length in sizes.lengths if length <= sizes.held or not quadratic]
        only = {"mode": ["f", "fb"], "length": lengths}
        return Contender(name, "jax", {"repeat": True, **case}, only)

    yield Contender("against dense", "jax", {"kind": "compare"}, {"mode": ["compare"]})
    for spec, implementations in _TIMED.items():
        for name in filter(runs, implementations):
            case = {"kind": "attend", "spec": spec, "implementation": name, "known": True}
            yield attention(f"{spec}, {name}", name == "dense", **case)
    for name, spec, implementation in _LIBRARY:
        if implementation == "xla" or platform == "gpu":
            case = {"kind": "library", "bias": spec, "implementation": implementation}
            yield attention(f"jax.nn, {name}", implementation == "xla", **case)
    for spec, implementations in _STEPS.items():
        for name in filter(runs, implementations):
            case = {"kind": "train_decoder", "spec": spec, "implementation": name}
            yield Contender(f"{spec}, {name}", "jax", case, {"mode": ["decoder step"]}, fresh=True)
