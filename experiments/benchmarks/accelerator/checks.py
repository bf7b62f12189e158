"""The checks of an accelerator, as data: names, groups that belong on one machine, and cases for side.py."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from posjax.attention.backends import backend
from posjax.describe.scorecard.specs import every_spec
from posjax.spec import parse

Case = Mapping[str, Any]


class Check(NamedTuple):
    """One figure or one set of errors. `group`: checks that are compared with each other; a part has all of them or none."""

    name: str
    group: str
    case: Case
    fresh: bool = False  # in a process of its own, whose peak of memory is that of the check


class Sizes(NamedTuple):
    """The sizes of a check."""

    compared: Case  # a layer under each encoding
    kernels: tuple[Case, ...]  # a layer under what the kernel computes itself
    attention: Case
    tokens: int  # of all sequences of a call: as many sequences as fit
    lengths: tuple[int, ...]
    held: int  # the greatest length at which arrays of n x n are tried without a kernel
    decoder: Case
    vit: Case
    seeds: Case


_LAYER = {"heads": 4, "kv_heads": 2, "head_dim": 32}
ACCELERATOR = Sizes(
    compared={**_LAYER, "length": 320},
    kernels=({**_LAYER, "head_dim": 64, "length": 777}, {**_LAYER, "head_dim": 128, "length": 777}),
    attention={"heads": 16, "head_dim": 64, "dtype": "bfloat16"},
    tokens=16384,
    lengths=(1024, 4096, 16384, 32768),
    held=4096,
    decoder=dict(width=1024, heads=16, depth=8, length=2048, batch=8, dtype="bfloat16"),
    vit=dict(width=384, heads=6, depth=12, length=65, batch=512, dtype="bfloat16"),
    seeds=dict(width=128, heads=4, depth=4, length=65, batch=128, seeds=8),
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
    vit=dict(width=32, heads=2, depth=2, length=65, batch=2),
    seeds=dict(width=16, heads=2, depth=1, length=65, batch=2, seeds=4),
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
# What jax itself does with the encoding's bias as an array, or without one: (its name, encoding, implementation).
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


def all_checks(platform: str) -> list[Check]:
    """Everything, in the order in which it matters."""
    sizes = CPU if platform == "cpu" else ACCELERATOR
    found = [*_kernels(sizes), *_attention(sizes, platform), *_steps(sizes, platform), *_seeds(sizes)]
    return [*found, *_encodings(sizes)]


def part_of(checks: list[Check], index: int, count: int) -> list[Check]:
    """The `index`-th (from 1) of `count` parts: whole groups, each kind of them spread over the parts."""
    groups = list(dict.fromkeys(check.group for check in checks))
    own = set(groups[index - 1 :: count])
    return [check for check in checks if check.group in own]


def _kernels(sizes: Sizes) -> Iterator[Check]:
    for size in sizes.kernels:
        for spec in _KERNELS:
            yield _compared(f"kernel, {spec}, head dim {size['head_dim']}", spec, "bfloat16", size)


def _encodings(sizes: Sizes) -> Iterator[Check]:
    specs, _ = every_spec(sizes.compared["length"])
    for spec in specs:
        for axes in parse(spec).dimensions[:2]:  # a line, a grid
            for dtype in ("float32", "bfloat16"):
                where = "" if axes == 1 else f", {axes} axes"
                yield _compared(f"{spec}, {dtype}{where}", spec, dtype, sizes.compared, axes)


def _compared(name: str, spec: str, dtype: str, size: Case, axes: int = 1) -> Check:
    return Check(name, name, {"kind": "compare", "spec": spec, "dtype": dtype, "axes": axes, **size})


def _attention(sizes: Sizes, platform: str) -> Iterator[Check]:
    for length in sizes.lengths:
        for mode in ("f", "fb"):
            shared = {**sizes.attention, "mode": mode, "length": length, "batch": max(1, sizes.tokens // length)}
            group = f"attention, {mode}, {length}"
            for spec, implementations in _TIMED.items():
                for name in _here(implementations, platform):
                    if name != "dense" or length <= sizes.held:
                        case = {"kind": "attend", "spec": spec, "implementation": name, "known": True, **shared}
                        yield Check(f"{group}: {spec}, {name}", group, case)
            for name, spec, implementation in _LIBRARY:
                if (implementation == "xla" and length > sizes.held) or (
                    implementation == "cudnn" and platform != "gpu"
                ):
                    continue
                case = {"kind": "library", "bias": spec, "implementation": implementation, **shared}
                yield Check(f"{group}: jax.nn, {name}", group, case)


def _steps(sizes: Sizes, platform: str) -> Iterator[Check]:
    for spec, implementations in _STEPS.items():
        for name in _here(implementations, platform):
            case = {"kind": "train_decoder", "spec": spec, "implementation": name, **sizes.decoder}
            yield Check(f"decoder step: {spec}, {name}", "decoder step", case, fresh=True)
    for spec in ("learned", "axial_rope", "alibi"):
        case = {"kind": "train_vit", "spec": spec, **sizes.vit}
        yield Check(f"ViT step: {spec}", "ViT step", case, fresh=True)


def _seeds(sizes: Sizes) -> Iterator[Check]:
    for together in (True, False):
        case = {"kind": "seeds", "model": "vit", "spec": "learned", "together": together, **sizes.seeds}
        how = "in one vmap" if together else "one by one"
        yield Check(f"{sizes.seeds['seeds']} seeds {how}", "seeds", case)


def _here(implementations: tuple[str, ...], platform: str) -> list[str]:
    """The checks that run on this platform."""
    return [name for name in implementations if name == "auto" or backend(name).platform in (None, platform)]
