"""The tables of programs that were compiled for described machines: of one config, and of every encoding and known models."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.benchmarks.compiled import GRID, LAYER, LAYERS, MACHINES, STEPS
from experiments.benchmarks.described import Machine, machine_of
from experiments.benchmarks.findings import Record
from experiments.benchmarks.table import about_text
from experiments.benchmarks.units import duration, gib, mib
from posjax.describe.markdown import escape_markdown, grid

_HOLDERS = {
    "parameters": "parameters",
    "optimizer": "state of the optimizer",
    "batch": "batch; in decoding caches and a token",
    "outputs": "outputs that replace no argument",
    "temporaries": "temporaries, gradients and activations among them",
    "code": "code",
    "held_bytes": "**all, with padding**",
}


def machines_text(records: Sequence[Record]) -> str:
    """Returns what each device of each machine holds, runs and sends."""
    return "\n\n".join(map(_machine_text, records))


def _machine_text(record: Record) -> str:
    machine = machine_of(record["cell"]["machine"])
    head = f"### {machine.name}\n\n{machine.size} x {machine.chip.title} of {gib(machine.chip.memory)}"
    if record["skip"]:
        return f"{head}: {escape_markdown(record['skip'])}"
    reports = record["programs"]
    failed = []
    for name, report in reports.items():
        if reason := report["error"] and escape_markdown(report["error"]):
            short = reason if reason.startswith("does not fit") else f"does not compile: {reason}"
            failed.append(f"The {name} {short}.")
    reports = {name: report for name, report in reports.items() if not report["error"]}
    rows = [
        (title, *(gib(report[holder]) if report.get(holder) else "" for report in reports.values()))
        for holder, title in _HOLDERS.items()
    ]
    rows.append(("fits", *(fits(report, machine) for report in reports.values())))
    rows.append(("attention kernels", *(_kernels(report) for report in reports.values())))
    for kind in sorted({kind for report in reports.values() for kind in report["collectives"]}):
        sent = (report["collectives"].get(kind) for report in reports.values())
        rows.append((kind, *(f"{of[0]:,}: {gib(of[1])}" if of else "" for of in sent)))
    rows.append(("compiled in", *(duration(report["compile_seconds"]) for report in reports.values())))
    parts = [f"{head}, by {record['compiler']}.", *failed]
    return "\n\n".join(parts + ([grid(("on each device", *reports), rows)] if reports else []))


def fits(report: Mapping[str, Any], machine: Machine) -> str:
    """Returns whether a program's arguments, outputs, temporaries and code fit the memory of a chip, and its share."""
    share = report["held_bytes"] / machine.chip.memory
    return f"{'yes' if share <= 1 else '**no**'}, {share:.1%}"


def _kernels(report: Mapping[str, Any]) -> str:
    return ", ".join(f"{number} x {escape_markdown(name)}" for name, number in report["kernels"].items()) or "none"


_HOW = """
Nothing was run, and no such device was there: these are the programs that jax's compilers make for described machines.
A layer has {heads} heads of {head_dim} channels, {length:,} tokens and a batch of {batch}, in bfloat16, with gradients of its
parameters; its tokens are one document, whose sites are known when it is traced. Encodings that need a grid stand in a ViT
of {height} x {wide} patches, the others in a decoder. MiB are temporaries: all but arguments and results.
`{command}` compiles what is missing here and writes this page.
"""
_CYCLES = """
**Cycles are an estimate by the compiler for TPUs, not a time.** Operations that overlap are added, and Pallas kernels are not
counted. So an encoding with a kernel is compared with `none` in a kernel: both numbers leave attention out. An encoding
without a kernel is compared with `none` in tiles of plain XLA: both numbers hold it, for one tile, since a loop counts once
where only the running program knows its length.
"""
_STEPS_ARE = """
The step that `experiments.train` runs, with AdamW, in bfloat16 with parameters in float32, and with a loop over the layers.
GPT-2 124M has its learned table, 1,024 tokens and 16 rows a chip. A Llama of 1.2B has 2,048 tokens and 4 rows a chip, and
computes each layer again in the backward pass. ViTs have images of 224 pixels, 16 a chip. Bytes are those of one chip. Sent
are the calls of collectives in a step, with the bytes of their larger end. Decoding is a step behind a cache of that batch
and length.
"""
_COMMAND = "python -m experiments.benchmark compiled --out=results/compiled"


def compiled_text(records: Sequence[Record], left: int = 0) -> str:
    """Returns the page of all records; `left` cells are still to be compiled."""
    layers, steps = ([r for r in records if r["cell"]["mode"] == mode] for mode in (LAYERS, STEPS))
    sizes = dict(height=GRID[0], wide=GRID[1], command=_COMMAND)
    parts = ["# What compilers say of accelerators that are not here", _learned(layers)]
    parts += [f"{left} programs are left: the same command goes on with them."] if left else []
    parts += [_HOW.strip().format(**LAYER, **sizes), "## One layer under every encoding", _CYCLES.strip()]
    for title, images in (("### Decoders", False), ("### On images", True)):
        if own := [record for record in layers if bool(record["cell"]["grid"]) == images]:
            parts += [title, _layer_table(own)]
    parts += ["### Not compiled", _reasons(layers) or "Every program compiles.", "## Training steps"]
    parts += [_STEPS_ARE.strip(), _step_table(steps), _reasons(steps), "## Machines and versions", about_text(records)]
    days = sorted({record["about"]["date"] for record in records})
    used = ", ".join(sorted({record["compiler"] for record in records if record.get("compiler")}))
    parts.append(f"Compiled by {used}, {' to '.join(dict.fromkeys((days[0], days[-1])))}.")
    return "\n\n".join(filter(None, parts)) + "\n"


def _learned(layers: Sequence[Record]) -> str:
    """Returns what the table of layers comes to, in a sentence or two."""
    counts, ratios = [], []
    for machine in map(machine_of, MACHINES):
        own = [r for r in layers if r["cell"]["machine"] == machine.name and r["cell"]["implementation"] == "auto"]
        fused = sum(bool(_layer(record)["kernels"]) for record in own if _layer(record))
        if own:
            counts.append(f"{fused} of {len(own)} on one {machine.chip.title}")
    base = _bases(layers)
    for record in layers:
        if record["cell"]["machine"] == "v5e:1x1" and _layer(record) and not _layer(record)["kernels"]:
            ratios.append(_over_none(record, base) or 1.0)
    text = f"Encodings whose attention runs as a fused kernel: {', '.join(counts)}."
    if max(ratios, default=1) > 1:
        most = f"{max(ratios):.1f} times the cycles of `none` in tiles"
        text += f" On a TPU v5e a layer without a kernel is estimated at up to {most}."
    return text


def _layer(record: Record) -> Mapping[str, Any] | None:
    """Returns the report of a layer, or None if it was not compiled."""
    report = None if record["skip"] else record["programs"]["layer"]
    return report if report and not report["error"] else None


def _bases(layers: Sequence[Record]) -> dict[tuple[str, bool, bool], int]:
    """Returns the cycles of no encoding by machine, kind of model, and whether a kernel runs."""
    bases = {}
    for record in layers:
        if (cell := record["cell"])["spec"] == "none()" and (report := _layer(record)):
            bases[cell["machine"], bool(cell["grid"]), bool(report["kernels"])] = report["cycles"]
    return bases


def _over_none(record: Record, bases: Mapping[tuple[str, bool, bool], int]) -> float | None:
    cell, report = record["cell"], _layer(record)
    base = bases.get((cell["machine"], bool(cell["grid"]), bool(report["kernels"])))
    return report["cycles"] / base if base else None


def _layer_table(layers: Sequence[Record]) -> str:
    """Returns a row for each encoding with its kernel, temporaries and cycles on each machine."""
    bases = _bases(layers)
    rows: dict[str, dict[str, Record]] = {}
    for record in layers:
        name = record["cell"]["spec"] + ", in tiles" * (record["cell"]["implementation"] == "blockwise")
        rows.setdefault(name, {})[record["cell"]["machine"]] = record
    header, table = ["encoding"], [[f"`{_short(name)}`"] for name in rows]
    for machine in MACHINES:
        chip, width = machine.partition(":")[0], 2 if machine.startswith("h100") else 4
        header += [f"{chip}: kernel", "MiB", "M cycles", "over none"][:width]
        for cells, own in zip(table, rows.values(), strict=True):
            cells += (_layer_cells(own[machine], bases) if machine in own else [""] * 4)[:width]
    return grid(header, table)


def _layer_cells(record: Record, bases: Mapping[tuple[str, bool, bool], int]) -> list[str]:
    """Returns the kernel of a layer by posjax's name for it, the temporaries, and the cycles with their ratio to none's."""
    if (report := _layer(record)) is None:
        return ["**not compiled**", "", "", ""]
    ratio = _over_none(record, bases)
    names = {"fmha": "cuDNN", "mosaic_gpu": "pallas", "splash": "splash"}
    names |= dict.fromkeys(("tpu_attention", "tpu_custom_call"), "pallas_tpu")  # on a mesh, and on one chip
    short = {next((name for part, name in names.items() if part in kernel), kernel) for kernel in report["kernels"]}
    cycles = f"{report['cycles'] / 1e6:.2f}", f"{ratio:.2f}" if ratio else ""
    return [", ".join(sorted(short)), mib(report["temporaries"]), *cycles]


def _short(spec: str) -> str:
    """Returns a spec without long tuples."""
    return re.sub(r"\((?:[\d.]+, ){7,}[^)]*\)", "(...)", spec)


def _step_table(steps: Sequence[Record]) -> str:
    """Returns a row for each model, machine and mesh."""
    header = ("model", "machine", "mesh", "fits", "state", "temporaries", "kernels", "sent", "decoding", "compiled in")
    rows = []
    for record in steps:
        cell, machine = record["cell"], machine_of(record["cell"]["machine"])
        if record["skip"] or (report := record["programs"]["training step"])["error"]:
            rows.append((cell["model"], cell["machine"], cell["mesh"], "**no**", *[""] * 6))
            continue
        sent = "; ".join(f"{number:,} {kind}: {gib(size)}" for kind, (number, size) in report["collectives"].items())
        decoding = record["programs"].get("decoding step")
        held = "" if decoding is None else "**no**" if decoding["error"] else fits(decoding, machine)
        state, temporaries = gib(report["parameters"] + report["optimizer"]), gib(report["temporaries"])
        figures = fits(report, machine), state, temporaries, _kernels(report), sent
        seconds = duration(report["compile_seconds"])
        rows.append((cell["model"], cell["machine"], cell["mesh"], *figures, held, seconds))
    return grid(header, rows, left=3)


def _reasons(records: Sequence[Record]) -> str:
    """Returns a line for each program that was not compiled."""
    lines = []
    for record in records:
        failed = {"": record["skip"]} if record["skip"] else {}
        failed |= {name: of["error"] for name, of in record.get("programs", {}).items() if of["error"]}
        for name, reason in failed.items():
            which = f" ({name})" if name not in ("", "layer") else ""
            lines.append(f"* {escape_markdown(_short(record['cell']['title']) + which)}: {escape_markdown(reason)}")
    return "\n".join(lines)
