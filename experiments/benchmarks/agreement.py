"""Comparisons with dense attention as markdown: counts by implementation, then the errors of those that differ."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.benchmarks.findings import Record
from posjax.describe.markdown import escape_markdown, grid

TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2}  # of the largest number of an output or a gradient


def agrees(record: Record, result: Mapping[str, Any]) -> bool:
    """Whether an implementation was run and every error is within the tolerance."""
    limit = TOLERANCE[record["cell"]["dtype"]]
    return "errors" in result and all(float(error) <= limit for error in result["errors"].values())


def agreement_text(records: Sequence[Record]) -> str:
    """Returns the table and the lines of errors; empty without comparisons."""
    rows: dict[tuple[str, str], list[tuple[Record, Mapping[str, Any]]]] = {}
    problems = []
    for record in records:
        for name, result in record.get("found", {}).items():
            rows.setdefault((name, record["cell"]["dtype"]), []).append((record, result))
            if "refused" not in result and not agrees(record, result):
                errors = [f"{part} {float(error):.1e}" for part, error in result.get("errors", {}).items()]
                text = f"{record['cell']['title']}, {name}: {result.get('error') or ', '.join(errors)}"
                problems.append(f"* {escape_markdown(text)}")
    if not rows:
        return ""
    lines = []
    for (name, dtype), own in sorted(rows.items()):
        count = {kind: sum(kind in result for _, result in own) for kind in ("errors", "error", "refused")}
        agreeing = sum(agrees(*one) for one in own)
        numbers = (agreeing, count["errors"] - agreeing, count["error"], count["refused"])
        worst = max(((_worst(result), r["cell"]["spec"]) for r, result in own if "errors" in result), default=None)
        largest = f"{worst[0]:.1e}, {escape_markdown(worst[1])}" if worst else ""
        lines.append((escape_markdown(name), dtype, *map(str, numbers), largest))
    limits = ", ".join(f"{value:g} in {dtype}" for dtype, value in TOLERANCE.items())
    head = ("implementation", "dtype", "agree", "differ", "fail", "refuse", "largest error")
    text = (
        f"Output and gradients of one layer, largest difference over the largest number; agreed is up to {limits}. "
        "Refused is what an implementation says it cannot compute."
    )
    return "\n\n".join(filter(None, (text, grid(head, lines), "\n".join(problems))))


def _worst(result: Mapping[str, Any]) -> float:
    errors = [float(error) for error in result["errors"].values()]
    return math.inf if any(map(math.isnan, errors)) else max(errors)
