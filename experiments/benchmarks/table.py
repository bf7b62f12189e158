"""A benchmark as markdown: goals and verdicts first, then every measurement, then the contenders left out and why."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.benchmarks.cases import Suite
from experiments.benchmarks.findings import Record, by_cell, cell_text, relative_spread, seconds, times, verdicts
from experiments.benchmarks.units import duration, mib
from posjax.describe.markdown import escape_markdown, grid

TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2}  # of the largest number of an output or a gradient


def suite_text(doc: str, suite: Suite, records: Sequence[Record]) -> str:
    """Returns the tables of a suite under the words about it."""
    parts = [" ".join(filter(None, (doc, suite.note)))]
    if compared := agreement_text(records):
        parts += ["### Does it agree with dense attention?", compared]
    if findings := verdicts(records, suite.goals):
        parts.append(_table(("ratio", "cell", "measured", "wanted", "verdict", "A/A"), findings))
    if fastest := _fastest(records) if suite.one_by_one else "":
        parts += ["### The fastest by encoding and length", fastest]
    parts += ["### Measurements", measurements(records, suite.base)]
    if reasons := skipped(records):
        parts += ["### Not measured", reasons]
    return "\n\n".join(parts)


def agrees(record: Record, result: Mapping[str, Any]) -> bool:
    """Whether an implementation was run and every error is within the tolerance."""
    limit = TOLERANCE[record["cell"]["dtype"]]
    return "errors" in result and all(float(error) <= limit for error in result["errors"].values())


def agreement_text(records: Sequence[Record]) -> str:
    """Returns the table and the lines of errors; empty without comparisons."""
    results: dict[tuple[str, str], list[tuple[Record, Mapping[str, Any]]]] = {}
    problems = []
    for record in records:
        for name, result in record.get("found", {}).items():
            results.setdefault((name, record["cell"]["dtype"]), []).append((record, result))
            if "refused" not in result and not agrees(record, result):
                errors = [f"{part} {float(error):.1e}" for part, error in result.get("errors", {}).items()]
                text = f"{record['cell']['title']}, {name}: {result.get('error') or ', '.join(errors)}"
                problems.append(f"* {escape_markdown(text)}")
    if not results:
        return ""
    rows = []
    for (name, dtype), own in sorted(results.items()):
        count = {kind: sum(kind in result for _, result in own) for kind in ("errors", "error", "refused")}
        agreeing = sum(agrees(*one) for one in own)
        numbers = (agreeing, count["errors"] - agreeing, count["error"], count["refused"])
        worst = max(((_worst(result), r["cell"]["spec"]) for r, result in own if "errors" in result), default=None)
        largest = f"{worst[0]:.1e}, {escape_markdown(worst[1])}" if worst else ""
        rows.append((escape_markdown(name), dtype, *map(str, numbers), largest))
    limits = ", ".join(f"{value:g} in {dtype}" for dtype, value in TOLERANCE.items())
    head = ("implementation", "dtype", "agree", "differ", "fail", "refuse", "largest error")
    text = (
        f"Output and gradients of one layer, largest difference over the largest number; agreed is up to {limits}. "
        "Refused is what an implementation says it cannot compute."
    )
    return "\n\n".join(filter(None, (text, grid(head, rows), "\n".join(problems))))


def _worst(result: Mapping[str, Any]) -> float:
    errors = [float(error) for error in result["errors"].values()]
    return math.inf if any(map(math.isnan, errors)) else max(errors)


def measurements(records: Sequence[Record], base: str = "") -> str:
    """A row per cell and contender: median time, its spread, memory, and the time over that of `base` if that is given."""
    header = ("cell", "contender", "ms", "IQR", "rounds", "temporaries MiB", "peak MiB")
    has_speeds, rows = any("items" in record for record in records), []
    for contenders in by_cell(records).values():
        measured = [record for record in contenders.values() if not record["skip"] and "found" not in record]
        first = next(filter(seconds, [*(r for r in measured if r["contender"] == base), *measured]), None)
        for index, record in enumerate(measured):
            label, figures, over = "" if index else cell_text(record), ("",) * 3, ""
            if time := seconds(record):
                rounds = times(record)
                spread = f"{relative_spread(rounds):.1%}" if len(rounds) > 1 else "-"  # one round has none
                figures = f"{1e3 * time:.4g}", spread, str(len(rounds))
                over = f"{time / seconds(first):.2f}"
            row = (label, record["contender"], *figures, mib(record["temp_bytes"]), mib(record["peak_bytes"]))
            row += (_speed(record) if time else "",) if has_speeds else ()
            rows.append((*row, over) if base else row)
    header += ("a second",) if has_speeds else ()
    return _table((*header, f"over {base}, or the first") if base else header, rows)


def _speed(record: Record) -> str:
    """Returns the images or tokens that a pipeline reads in a second."""
    return f"{record['items'] / seconds(record):,.0f} {record['unit']}"


def _fastest(records: Sequence[Record]) -> str:
    """Our fastest implementation by encoding, mode and length; contenders are named "encoding, implementation"."""
    rows = []
    for cell in by_cell(record for record in records if record["cell"]["mode"] in ("f", "fb")).values():
        ranks: dict[str, list[tuple[float, str]]] = {}
        for name, record in cell.items():
            spec, _, implementation = name.rpartition(", ")
            if seconds(record) and not name.startswith("jax.nn"):
                ranks.setdefault(spec, []).append((seconds(record), implementation))
                mode, length = record["cell"]["mode"], f"{record['cell']['length']:,}"
        for spec, ranked in ranks.items():
            (first, fastest), *others = sorted(ranked)
            lead = f"{others[0][0] / first:.2f}x {others[0][1]}" if others else ""
            rows.append((spec, mode, length, fastest, lead))
    return _table(("encoding", "mode", "length", "fastest", "ahead of the next by"), rows) if rows else ""


def outcome(record: Record) -> str:
    """The result in a few words: a time, an agreement, or the reason that there is neither."""
    if record["skip"]:
        return record["skip"]
    if seconds(record):
        units = [unit for unit in ("tokens", "images") if f"{unit}_per_s" in record]
        speeds = [f"{record[f'{unit}_per_s']:,.0f} {unit}/s" for unit in units]
        speeds += [f"{_speed(record)}/s"] if "items" in record else []
        return ", ".join([*speeds, duration(seconds(record))])
    results = {name: result for name, result in record.get("found", {}).items() if "refused" not in result}
    texts = [f"{name} {'agrees' if agrees(record, result) else 'DIFFERS'}" for name, result in results.items()]
    return ", ".join(texts) or "compiled"


def skipped(records: Sequence[Record]) -> str:
    """Groups why cells were left out, by contender; a shared reason is listed once."""
    cells: dict[tuple[str, str], list[str]] = {}
    for record in records:
        if record["skip"]:
            cells.setdefault((record["contender"], record["skip"]), []).append(cell_text(record))
    lines = [f"{contender}, {'; '.join(where)}: {reason}" for (contender, reason), where in cells.items()]
    return "\n".join(f"* {escape_markdown(line)}" for line in lines)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [[text if text.startswith("**") else escape_markdown(text) for text in row] for row in rows]
    return grid(header, cells, left=2)


HOW = (
    "Each contender runs in a process of its own, in turn with the others (A B C A B C). On 1 core all share the "
    "same pinned core with one thread, and time is that of the CPU; on all cores it is that of the clock. Figures "
    "are medians over rounds, IQR their interquartile range; A/A is the time of the same code in a second process "
    "over that of the first. Temporaries are what XLA's compiled program says; peak is the growth of a process by "
    "inputs and one call. A load above 1 means that others were at work."
)


def about_text(records: Sequence[Record]) -> str:
    """A line for each machine and commit."""
    machines: dict[str, list[Record]] = {}
    for record in records:
        about = record["about"]
        machine = f"{about['processor']}, {about['cpus']} cores, {about['memory']}, {about['platform']}"
        machines.setdefault(f"{machine}; posjax at {about['commit']}", []).append(record)
    lines = []
    for machine, own in machines.items():
        suites = ", ".join(dict.fromkeys(record["suite"] for record in own))
        versions: dict[str, str] = {}
        for record in own:
            versions |= record.get("versions") or {}
        used = ", ".join(f"{package} {version}" for package, version in sorted(versions.items()) if version)
        allocators = " / ".join(sorted({record["allocator"] for record in own if record.get("allocator")}))
        loads = [record["load"] for record in own if record["load"] is not None]
        load = f"; load of the system {min(loads):.1f} to {max(loads):.1f}" if loads else ""
        lines.append(f"* {suites}: {machine}; {used}; allocator on all sides: {allocators}{load}.")
    return "\n".join(lines)
