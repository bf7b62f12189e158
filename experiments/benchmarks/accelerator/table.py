"""Checks of an accelerator as markdown: verdicts first, then every figure, then the checks that were not measured."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiments.benchmarks.pool import median, spread
from experiments.benchmarks.units import mib
from posjax.describe import markdown
from posjax.describe.markdown import escape_markdown

Record = Mapping[str, Any]

TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2}  # of the largest number of an output or a gradient
_BARE = "jax.nn, cuDNN, no encoding"
_SMALL = (
    "**This was run on a CPU, in small: it shows that everything runs, and nothing of what an accelerator does or how fast "
    "it is.**"
)


def to_markdown(records: Sequence[Record], left: int) -> str:
    """The whole page; ends with a newline. `left`: how many checks are still to be made."""
    parts = ["# Accelerator", _about(records)]
    if any(record["versions"]["platform"] == "cpu" for record in records):
        parts.append(_SMALL)
    if left:
        parts.append(f"{left} checks of this part are left: the same command goes on with them.")
    parts += ["## Does it agree with dense attention?", _agreement(records), _disagreements(records)]
    for title, rows in _groups(records):
        parts += [f"## {title[:1].upper()}{title[1:]}", _timed(rows)]
    if fastest := _fastest(records):
        parts += ["## The fastest by encoding and length", fastest]
    if skipped := [f"* {r['name']}: {r['skip']}" for r in records if r.get("skip")]:
        parts += ["## Not measured", "\n".join(_plain(line) for line in skipped)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _about(records: Sequence[Record]) -> str:
    machines = dict.fromkeys(
        (tuple(sorted(r["versions"].items())), r["commit"], r["date"]) for r in records
    )  # in the order in which they came
    lines = []
    for versions, commit, date in machines:
        named = ", ".join(f"{name} {value}" for name, value in versions if value)
        lines.append(f"* {named}; posjax at {commit}; {date}")
    return "\n".join(lines)


def results(records: Iterable[Record]) -> Iterable[tuple[Record, str, Mapping[str, Any]]]:
    """(record, implementation, its errors or refusal) of every comparison."""
    for record in records:
        for name, found in record.get("found", {}).items():
            yield record, name, found


def agrees(record: Record, found: Mapping[str, Any]) -> bool:
    """Whether an implementation was run and every error is within the tolerance."""
    limit = TOLERANCE[record["case"]["dtype"]]
    return "errors" in found and all(float(error) <= limit for error in found["errors"].values())


def _agreement(records: Sequence[Record]) -> str:
    rows: dict[tuple[str, str], list[tuple[Record, Mapping[str, Any]]]] = {}
    for record, name, found in results(records):
        rows.setdefault((name, record["case"]["dtype"]), []).append((record, found))
    lines = []
    for (name, dtype), own in sorted(rows.items()):
        run = [(record, found) for record, found in own if "errors" in found]
        agreeing = sum(agrees(*one) for one in own)
        refused = sum("refused" in found for _, found in own)
        failed = sum("error" in found for _, found in own)
        worst = max(((_worst(found), record["case"]["spec"]) for record, found in run), default=None)
        told = f"{worst[0]:.1e}, {worst[1]}" if worst else ""
        lines.append((name, dtype, str(agreeing), str(len(run) - agreeing), str(failed), str(refused), told))
    if not lines:
        return "Nothing was compared."
    limits = ", ".join(f"{value:g} in {dtype}" for dtype, value in TOLERANCE.items())
    head = ("implementation", "dtype", "agree", "differ", "fail", "refuse", "largest error")
    return (
        f"Output and gradients of one layer, largest difference over the largest number; agreed is up to {limits}. "
        "Refused is what an implementation says it cannot compute.\n\n" + grid(head, lines)
    )


def _worst(found: Mapping[str, Any]) -> float:
    errors = [float(error) for error in found["errors"].values()]
    return math.inf if any(map(math.isnan, errors)) else max(errors)


def _disagreements(records: Sequence[Record]) -> str:
    lines = []
    for record, name, found in results(records):
        if "error" in found:
            lines.append(f"* {record['name']}, {name}: {found['error']}")
        elif "errors" in found and not agrees(record, found):
            told = ", ".join(f"{part} {float(error):.1e}" for part, error in found["errors"].items())
            lines.append(f"* {record['name']}, {name}: {told}")
    return "\n".join(_plain(line) for line in lines)


def _groups(records: Sequence[Record]) -> list[tuple[str, list[Record]]]:
    """Records with times, by group."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        if record.get("wall"):
            groups.setdefault(record["group"], []).append(record)
    return list(groups.items())


def seconds(record: Record) -> float:
    """Seconds of one run of a program, or of one step of all seeds; a call makes several runs."""
    return median(record["wall"]) / record.get("runs", 1)


def _timed(records: Sequence[Record]) -> str:
    """A row per contender; the last columns are its time over that of cuDNN, or of the first one."""
    base = next((r for r in records if r["name"].endswith(_BARE)), records[0])
    lines = []
    for record in records:
        name = record["name"].removeprefix(f"{record['group']}: ")
        ratio = f"{seconds(record) / seconds(base):.2f}"
        peak = mib(record.get("device_peak_bytes"))
        shown = f"{1e3 * seconds(record):.4g}", f"{spread(record['wall']):.0%}", ratio
        lines.append((name, *shown, mib(record.get("temp_bytes")), peak))
    against = base["name"].removeprefix(f"{base['group']}: ")
    return grid(("", "ms", "IQR", f"over {against}", "temporaries MiB", "device's peak MiB"), lines)


def _fastest(records: Sequence[Record]) -> str:
    """The fastest implementation of ours for each encoding, mode and length."""
    cells: dict[tuple, list[Record]] = {}
    for record in records:
        case = record["case"]
        if record.get("wall") and case["kind"] == "attend":
            cells.setdefault((case["spec"], case["mode"], case["length"]), []).append(record)
    lines = []
    for (spec, mode, length), own in cells.items():
        ranked = sorted(own, key=seconds)
        second = (
            f"{seconds(ranked[1]) / seconds(ranked[0]):.2f}x {ranked[1]['case']['implementation']}" if own[1:] else ""
        )
        lines.append((spec, mode, f"{length:,}", ranked[0]["case"]["implementation"], second))
    return grid(("encoding", "mode", "length", "fastest", "ahead of the next by"), lines) if lines else ""


def grid(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return markdown.grid(header, [[escape_markdown(cell) for cell in row] for row in rows])


def _plain(line: str) -> str:
    return f"* {escape_markdown(line[2:])}"
