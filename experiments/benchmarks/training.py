"""The cases and the table of training steps as `experiments.train` runs them: decoders and ViTs, beside torch."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from experiments.benchmarks.accelerator import SMALL
from experiments.benchmarks.cases import Contender, Suite
from experiments.benchmarks.findings import Record, relative_spread, seconds
from experiments.benchmarks.table import skipped
from experiments.benchmarks.units import mib
from posjax.describe.markdown import escape_markdown, grid

_TITLES = {
    "A": "decoder",
    "B": "decoder, by encoding",
    "C": "decoder, long rows",
    "D": "ViT-S/16",
    "E": "ViT-B/16",
    "F": "decoder, in other ways",
}
# Sizes by run.
_DECODER = dict(width=768, heads=12, depth=12, vocabulary=50304, dtype="bfloat16", steps=80)
_IMAGES = dict(image=224, patch=16, classes=1000, batch=256, dtype="bfloat16", steps=80)
_ACCELERATOR = {
    **{run: dict(**_DECODER, length=1024, batch=64) for run in "ABF"},
    "C": dict(**_DECODER, length=8192, batch=8),
    "D": dict(width=384, heads=6, depth=12, **_IMAGES),
    "E": dict(width=768, heads=12, depth=12, **_IMAGES),
}
_SMALL_DECODER = dict(width=64, heads=2, depth=1, vocabulary=512, dtype="float32", steps=16)
_SMALL_IMAGES = dict(image=32, patch=4, classes=10, batch=16, dtype="float32", steps=16)
_CPU = {
    **{run: dict(**_SMALL_DECODER, length=128, batch=8) for run in "ABF"},
    "C": dict(**_SMALL_DECODER, length=512, batch=2),
    "D": dict(width=64, heads=2, depth=1, **_SMALL_IMAGES),
    "E": dict(width=128, heads=4, depth=1, **_SMALL_IMAGES),
}
# Parts of a batch by encoding. In one part, these five hold from 100 to 266 GiB when compiled for an H100, which has 80.
_ENCODINGS = dict.fromkeys(("none", "learned", "alibi", "t5", "kerple"), 1)
_ENCODINGS |= {"fire": 4, "fox": 4, "path": 8, "cope": 8, "sinks": 1, "inkling": 8}
_SEEDS = 4
# Targets: tokens or images a second by run, on one H100; the most that a step may cost over `none`, on any accelerator.
_SPEEDS = {"A": 400_000, "C": 200_000, "D": 7_000, "E": 2_200}
_COSTS = {"rope": 0.02, "alibi": 0.05, "t5": 0.15, "kerple": 0.15, "fox": 0.15}
_ROPE, _NONE = "posjax rope", "posjax none"
_NOTE = (
    "Compiling is tracing and compiling of the step (posjax), or the first step (torch). Temporaries are the compiler's "
    "count for one program, the peak is that of the device's memory in a whole process. The MFU of a peer counts the "
    "operations of posjax' model. `speed over` is the ratio of tokens or images a second."
)


def training(platform: str, peers: bool = False) -> Suite:
    """Training steps as `experiments.train` runs them, by AdamW, on random data that stay on the device."""
    sizes = _CPU if platform == "cpu" else _ACCELERATOR
    cells = [
        {"title": f"{run}: {title}", "mode": "training", "run": run, **sizes[run]} for run, title in _TITLES.items()
    ]
    contenders = [*_contenders(sizes["A"]["batch"]), *(_peers() if peers else ())]
    note = f"{_NOTE}\n\n{SMALL}" if platform == "cpu" else _NOTE
    return Suite(contenders, cells, note=note, one_by_one=True)


def _contenders(rows: int) -> Iterator[Contender]:
    def own(run: str, spec: str, note: str = "", **case: Any) -> Contender:
        case = {"kind": "config_step", "spec": spec, **case}
        return Contender(f"posjax {spec}{note}", "jax", case, {"run": [run]}, fresh=True)

    yield own("A", "rope")
    for spec, parts in _ENCODINGS.items():
        yield own("B", spec, _parts(spec), fields={"accumulate": parts})
    yield own("C", "rope")
    yield from (own("D", spec) for spec in ("learned", "axial_rope"))
    yield own("D", "rope_mixed", ", 4 registers", fields={"model.num_registers": 4})
    yield own("E", "learned")
    for batch in (rows // _SEEDS, rows):  # as many rows in all as in A, and as many for each seed
        yield own("F", "rope", f", {_SEEDS} seeds of {batch} rows", seeds=_SEEDS, batch=batch)
    yield own("F", "rope", ", scan", fields={"model.scan": True})
    yield own("F", "rope", ", remat", fields={"model.remat": "full"})


def _parts(spec: str) -> str:
    return f", {_ENCODINGS[spec]} parts" if _ENCODINGS.get(spec, 1) > 1 else ""


def _peers() -> Iterator[Contender]:
    """Yields the contenders in torch; a name ends with the encoding."""

    def peer(runs: str, name: str, kind: str, spec: str, **case: Any) -> Contender:
        case = {"kind": kind, "spec": spec, **case}
        return Contender(f"{name}, {spec}", "torch", case, {"run": [*runs]}, fresh=True)

    yield peer("AC", "torch SDPA", "decoder_step", "rope", attention="sdpa")
    yield peer("AC", "torch FlexAttention", "decoder_step", "rope", attention="flex")
    yield from (peer("B", "torch SDPA", "decoder_step", spec, attention="sdpa") for spec in ("none", "learned"))
    yield peer("B", "torch FlexAttention", "decoder_step", "alibi", attention="flex")
    yield peer("DE", "timm", "timm_step", "learned")


def training_text(doc: str, suite: Suite, records: Sequence[Record]) -> str:
    """Returns the table, what became of the targets, and what was not measured; the latest record of a contender counts."""
    latest = {(record["cell"]["run"], record["contender"]): record for record in records}
    measured = {key: latest[key] for key in sorted(latest, key=lambda key: key[0]) if not latest[key]["skip"]}
    header = ("run", "contender", "a second", "MFU", "ms a step", "IQR", "steps", "compiling s", "temporaries MiB")
    header = (*header, "peak MiB", "speed over", "kernels", "target on one H100")
    rows = [[escape_markdown(text) for text in _row(key, measured)] for key in measured]
    parts = [f"{doc} {suite.note}", "### Steps", grid(header, rows, left=2)]
    flags = {f"{name}={value}" for record in latest.values() for name, value in record["given"]["flags"].items()}
    parts += [f"Flags of XLA's compilers: `{'`, `'.join(sorted(flags))}`."] if flags else []
    if all(_is_own(name) for _, name in latest):
        parts.append("No peers were asked for: --peers_python names a Python that has torch and timm.")
    if lines := targets(measured):
        parts += ["### Targets", "\n".join(f"* {line}" for line in lines)]
    if reasons := skipped(list(latest.values())):
        parts += ["### Not measured", reasons]
    return "\n\n".join(parts)


Key = tuple[str, str]  # run, contender


def _row(key: Key, measured: Mapping[Key, Record]) -> list[str]:
    record, (run, name) = measured[key], key
    unit, speed = rate(record)
    over, ratio, kernels, share = _reference(key, measured), "", record.get("kernels", {}), record.get("mfu")
    if over not in (None, key):
        ratio = f"{speed / rate(measured[over])[1]:.2f} x {over[1] if over[0] == run else ': '.join(over)}"
    if over and not _is_own(name) and (theirs := measured[over]["mfu"]) is not None:
        share = theirs * speed / rate(measured[over])[1]
    return [
        record["cell"]["title"],
        name,
        f"{speed:,.0f} {unit}",
        "none" if share is None else f"{share:.1%}",
        f"{1e3 * seconds(record):.4g}",
        f"{relative_spread(record['wall']):.1%}",
        str(len(record["wall"])),
        f"{record['compile_seconds']:.1f}",
        mib(record["temp_bytes"]),
        mib(record["peak_bytes"]),
        ratio,
        ", ".join(f"{kernel} x{calls}" for kernel, calls in kernels.items()),
        f"{_SPEEDS[run]:,}" if _has_target(key, record) else "",
    ]


def rate(record: Record) -> tuple[str, float]:
    """Returns ("tokens" or "images", how many of them a second)."""
    return next((unit, record[f"{unit}_per_s"]) for unit in ("tokens", "images") if f"{unit}_per_s" in record)


def _reference(key: Key, measured: Mapping[Key, Record]) -> Key | None:
    """Returns what the speed is compared with; None where that was not measured on the same device.

    posjax is compared with the fastest peer of the run, in B with `none`, in F with A; a peer with posjax under its encoding.
    """
    (run, name), device = key, measured[key]["device"]
    if not _is_own(name):
        wanted = [(run, f"posjax {name.rpartition(', ')[2]}")]
    elif run in "BF":
        wanted = [("B", _NONE) if run == "B" else ("A", _ROPE)]
    else:
        wanted = [other for other in measured if other[0] == run and not _is_own(other[1])]
    there = [other for other in wanted if other in measured and measured[other]["device"] == device]
    return max(there, key=lambda other: rate(measured[other])[1], default=None)


def _is_own(name: str) -> bool:
    return name.startswith("posjax ")


def _has_target(key: Key, record: Record) -> bool:
    run, name = key
    return run in _SPEEDS and _is_own(name) and "H100" in record["device"] and record["versions"]["devices"] == "1"


def targets(measured: Mapping[Key, Record]) -> list[str]:
    """Returns a sentence for each target that can be judged; none on a CPU."""
    lines = []
    for key, record in measured.items():
        if _has_target(key, record):
            (unit, speed), least = rate(record), _SPEEDS[key[0]]
            held = _verdict(speed >= least)
            lines.append(f"{': '.join(key)}: at least {least:,} {unit} a second: {held}, {speed:,.0f}.")
    none = measured.get(("B", _NONE))
    for spec, most in _COSTS.items():
        record = measured.get(("A" if spec == "rope" else "B", f"posjax {spec}{_parts(spec)}"))
        if record and none and record["device"] == none["device"] and record["versions"]["platform"] != "cpu":
            cost = seconds(record) / seconds(none) - 1
            lines.append(f"{spec} within {most:.0%} of none: {_verdict(cost <= most)}, {cost:+.1%} a step.")
    return lines


def _verdict(holds: bool) -> str:
    return "held" if holds else "**not held**"
