"""What `experiments.context` has found, as markdown, as JSON and as panels of a plot."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.cost.plots import Curve, Panel
from posjax.describe.markdown import escape_markdown, grid
from posjax.jsonl import strict

Row = Mapping[str, Any]

_NO_LIMIT = 2**31 - 1  # tokens: positions are int32
_COLUMNS = ("memory: predicted", "measured", "ratio", "time: predicted", "measured", "ratio")
_ABOUT_ANSWERS = (
    "Lengths in tokens. What follows one with an x is how many times the longest input that was compiled (memory) or timed "
    "(time) it is: so far is it extrapolated. A call is a pass over the whole input, and of decoding one step behind it."
)
_ABOUT_POINTS = (
    "Memory is what XLA says that a program holds: arguments, results and temporaries. Ratios are predicted / measured; "
    "in brackets where the length was calibrated on, else of a prediction that rests on those alone. Nothing measured: "
    "predicted to need twice the memory, or, of times, not to fit the limits. Not predicted is what a compiler does only "
    "with longer arrays."
)


def to_markdown(rows: Sequence[Row], about: Mapping[str, Any]) -> str:
    """The answer first, then every length; ends with a newline."""
    model = ", ".join(f"{name}={value}" for name, value in about["model"].items() if value is not None)
    head = (
        f"{about['model']['encoding']}, {about['batch']} x length tokens, window {about['window']}; {about['device']} "
        f"({about['cpus']} CPUs), jax {about['jax']}, posjax at {about['commit']}, allocator {about['allocator']}."
    )
    parts = [
        "# How long may the input be?",
        escape_markdown(head),
        grid(("attention", "work", "longest input", "what runs out", *_limits(about)), _answers(rows), left=2),
        escape_markdown(_ABOUT_ANSWERS),
        "## By length",
        grid(
            ("attention", "work", "length", *_COLUMNS),
            _points(rows),
            left=2,
        ),
        escape_markdown(_ABOUT_POINTS),
        f"Model: {escape_markdown(model)}.",
        f"Made by `{about['command']}`.",
    ]
    return "\n\n".join(parts) + "\n"


def _limits(about: Mapping[str, Any]) -> tuple[str, str]:
    return f"within {gib(about['memory'])}", f"within {about['seconds']:g} s a call"


def _answers(rows: Sequence[Row]) -> list[Sequence[str]]:
    lines = []
    for row in rows:
        memory, time = row["longest_of_memory"], row["longest_of_time"]
        longest = memory if time is None else min(memory, time)
        runs_out = "memory" if longest == memory else "time"
        lines.append(
            (
                row["attention"],
                row["work"],
                f"**{tokens(longest)}**",
                "nothing" if longest >= _NO_LIMIT else runs_out,
                _with_reach(memory, row, "bytes"),
                _with_reach(time, row, "seconds"),
            )
        )
    return lines


def _with_reach(length: int | None, row: Row, quantity: str) -> str:
    """A length, and how far beyond what was measured it lies."""
    if length is None:
        return "not run"
    reached = max((point["length"] for point in row["points"] if point[quantity]), default=None)
    if reached is None or length <= reached or length >= _NO_LIMIT:
        return tokens(length)
    beyond = length / reached
    return f"{tokens(length)} ({beyond:,.{0 if beyond >= 10 else 1}f}x)"


def _points(rows: Sequence[Row]) -> list[Sequence[str]]:
    lines = []
    for row in rows:
        for point in row["points"]:
            shown = [row["attention"], row["work"], f"{point['length']:,}"]
            for quantity, text in (("bytes", gib), ("seconds", duration)):
                predicted, measured = point[f"predicted_{quantity}"], point[quantity]
                ratio = f"{predicted / measured:.2f}" if predicted and measured else ""
                told = [text(value) if value else "" for value in (predicted, measured)]
                shown += [*told, _bracketed(ratio, point["calibrating"])]
            lines.append(shown)
    return lines


def _bracketed(text: str, really: bool) -> str:
    return f"({text})" if text and really else text


def panels(rows: Sequence[Row], about: Mapping[str, Any]) -> list[Panel]:
    """Memory and time of each kind of work."""
    found = []
    for work in dict.fromkeys(row["work"] for row in rows):
        own = [row for row in rows if row["work"] == work]
        memory = _curves(own, "bytes", 1 / 2**30)
        found.append(Panel(f"{work}: memory", "GiB", memory, (about["memory"] / 2**30, gib(about["memory"]))))
        limit = (about["seconds"], f"{about['seconds']:g} s")
        found.append(Panel(f"{work}: time of a call", "seconds", _curves(own, "seconds", 1.0), limit))
    return found


def _curves(rows: Sequence[Row], quantity: str, unit: float) -> list[Curve]:
    curves = []
    for row in rows:
        for predicted in (False, True):
            name = f"predicted_{quantity}" if predicted else quantity
            values = {p["length"]: p[name] * unit for p in row["points"] if p[name]}
            curves.append(Curve(f"{row['attention']} (dashed: predicted)", values, predicted))
    return curves


def json_line(record: Mapping[str, Any]) -> str:
    return json.dumps(strict(record), allow_nan=False) + "\n"


def gib(size: float) -> str:
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size / 2**10:.3g} KiB"


def duration(seconds: float) -> str:
    if seconds >= 120:
        return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def tokens(length: int) -> str:
    """A length to three digits: it is no more certain than that."""
    if length >= _NO_LIMIT:
        return "no limit"
    if length == 0:
        return "none"
    digits = max(0, len(str(length)) - 3)
    return f"{length // 10**digits * 10**digits:,}"
