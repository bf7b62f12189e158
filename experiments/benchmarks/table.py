"""A benchmark as markdown: goals and verdicts first, then every measurement, then the contenders left out and why."""

from collections.abc import Sequence

from experiments.benchmarks.findings import Finding, Record, by_cell, cell_text, seconds
from experiments.benchmarks.plots import Curve, Panel
from experiments.benchmarks.pool import spread
from experiments.benchmarks.units import mib
from posjax.describe import markdown
from posjax.describe.markdown import escape_markdown


def to_markdown(name: str, records: Sequence[Record], findings: Sequence[Finding], note: str) -> str:
    """The section of one suite; ends with a newline."""
    parts = [f"## {name}", note, goals(findings), "### Measurements", measurements(records)]
    if left_out := skipped(records):
        parts += ["### Not measured", left_out]
    return "\n\n".join(part for part in parts if part) + "\n"


def goals(findings: Sequence[Finding]) -> str:
    if not findings:
        return ""
    header = ("ratio", "cell", "measured", "wanted", "verdict", "A/A")
    rows = [(f.title, f.cell, f.value, f.wanted, f.verdict, f.control) for f in findings]
    return grid(header, rows)


def measurements(records: Sequence[Record]) -> str:
    """A row per cell and contender: median time, its spread, and the memory beside."""
    header = ("cell", "contender", "ms", "IQR", "rounds", "temporaries MiB", "peak MiB")
    rows = []
    for contenders in by_cell(records).values():
        cell = ""
        for record in contenders.values():
            if record["skip"]:
                continue
            times = record["cpu" if record["threads"] == 1 else "wall"]
            figures = (f"{1e3 * seconds(record):.4g}", _spread(times), str(len(times))) if times else ("",) * 3
            label = cell_text(record)
            shown = "" if label == cell else label
            cell = label
            rows.append((shown, record["contender"], *figures, mib(record["temp_bytes"]), mib(record["peak_bytes"])))
    return grid(header, rows)


def _spread(times: Sequence[float]) -> str:
    """The interquartile range; one round has none."""
    return f"{spread(times):.1%}" if len(times) > 1 else "-"


def skipped(records: Sequence[Record]) -> str:
    """Reasons by contender; those that hold for several cells are said once."""
    cells: dict[tuple[str, str], list[str]] = {}
    for record in records:
        if record["skip"]:
            cells.setdefault((record["contender"], record["skip"]), []).append(cell_text(record))
    lines = [f"* {contender}, {'; '.join(where)}: {reason}" for (contender, reason), where in cells.items()]
    return "\n".join(f"* {escape_markdown(line[2:])}" for line in lines)


def grid(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return markdown.grid(header, [[_cell(text) for text in row] for row in rows], left=2)


def about_text(records: Sequence[Record]) -> str:
    """A line for each machine and commit, and how figures are to be read."""
    machines: dict[str, list[Record]] = {}
    for record in records:
        about = record["about"]
        machine = f"{about['processor']}, {about['cpus']} cores, {about['memory']}, {about['platform']}"
        machines.setdefault(f"{machine}; posjax at {about['commit']}", []).append(record)
    lines = [_made_with(machine, own) for machine, own in machines.items()]
    return "\n".join(lines) + (
        "\n\nEach contender runs in a process of its own, in turn with the others (A B C A B C). On 1 core all share the "
        "same pinned core with one thread, and time is that of the CPU; on all cores it is that of the clock. Figures "
        "are medians over rounds, IQR their interquartile range; A/A is the time of the same code in a second process "
        "over that of the first. Temporaries are what XLA's compiled program says; peak is the growth of a process by "
        "inputs and one call. A load above 1 means that others were at work."
    )


def _made_with(machine: str, records: Sequence[Record]) -> str:
    versions: dict[str, str] = {}
    for record in records:
        versions |= record.get("versions") or {}
    used = ", ".join(f"{package} {version}" for package, version in sorted(versions.items()))
    allocators = sorted({record["allocator"] for record in records if record.get("allocator")})
    suites = dict.fromkeys(record["suite"] for record in records)
    loads = [record["load"] for record in records if record["load"] is not None]
    load = f"; load of the system {min(loads):.1f} to {max(loads):.1f}" if loads else ""
    return f"* {', '.join(suites)}: {machine}; {used}; allocator on all sides: {' / '.join(allocators)}{load}."


def panels(records: Sequence[Record]) -> list[Panel]:
    """Time and memory against length on one core, for each mode, with the fewest heads; none without two lengths."""
    kept = [record for record in records if record["threads"] == 1 and not record["skip"]]
    heads = min((record["cell"].get("heads", 0) for record in kept), default=0)
    kept = [r for r in kept if r["cell"].get("heads", 0) == heads and not r["contender"].endswith("again")]
    found = []
    for mode in dict.fromkeys(record["cell"]["mode"] for record in kept):
        own = [record for record in kept if record["cell"]["mode"] == mode]
        if len({record["cell"]["length"] for record in own}) < 2:
            continue
        shown = [
            (f"{mode}: time of a call, 1 core", "ms", lambda record: 1e3 * (seconds(record) or 0)),
            (f"{mode}: growth of the process", "MiB", lambda record: (record["peak_bytes"] or 0) / 2**20),
            (f"{mode}: XLA's temporaries", "MiB", lambda record: (record["temp_bytes"] or 0) / 2**20),
        ]
        names = list(dict.fromkeys(record["contender"] for record in own))
        for title, unit, value in shown:
            curves = [
                Curve(name, {r["cell"]["length"]: value(r) for r in own if r["contender"] == name and value(r) > 0})
                for name in names
            ]
            found.append(Panel(title, unit, [curve for curve in curves if curve.values]))
    return [panel for panel in found if panel.curves]


def _cell(text: str) -> str:
    return text if text.startswith("**") else escape_markdown(text)
