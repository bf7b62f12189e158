"""Scorecards side by side, for the terminal (`to_rich`) and for a file (`to_markdown`)."""

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from posjax.analysis.report.table import escape_markdown
from posjax.analysis.scorecard.card import MEASURES, Measure

Cards = Mapping[str, Mapping[str, Any]]  # label -> what `scorecard` returned, or {"encoding", "error"}
MARKS = {"pass": "✓", "fail": "✗", "handled": "!", "n/a": "·"}
_STYLES = {"pass": "green", "fail": "red", "handled": "yellow", "n/a": "dim"}
CAPTION = (
    "✓ as an ideal encoding would be, ✗ not, ! not, but declared and acted on in decoding, · does not apply. "
    "What the columns are and when they are good stands below the table."
)


def number(value: float) -> str:
    """Three digits at most: 0.0637, 12, 3e-06."""
    if value == 0 or value != value or abs(value) == float("inf"):
        return f"{value:g}"
    if abs(value) >= 1e4 or abs(value) < 1e-3:
        return f"{value:.0e}"
    return f"{value:.3g}" if abs(value) >= 0.1 else f"{value:.2g}"


def shown(cell: Mapping[str, Any]) -> str:
    """The text of a cell without its mark."""
    return "" if cell["value"] is None else number(cell["value"])


def groups() -> dict[str, list[str]]:
    """Names of the measures by group, in order."""
    found: dict[str, list[str]] = {}
    for name, measure in MEASURES.items():
        found.setdefault(measure.group, []).append(name)
    return found


def measured(cards: Cards) -> dict[str, Mapping[str, Any]]:
    return {label: card for label, card in cards.items() if "measures" in card}


def to_rich(cards: Cards) -> list[Table]:
    """A table for each group of measures."""
    views = []
    for group, names in groups().items():
        view = Table(title=Text(group), box=box.SIMPLE_HEAD, title_justify="left")
        view.add_column("encoding", overflow="fold")
        for name in names:
            view.add_column(Text(MEASURES[name].title), justify="right")
        for label, card in measured(cards).items():
            cells = [card["measures"][name] for name in names]
            texts = [Text(f"{shown(c)} {MARKS[c['verdict']]}".strip(), _STYLES[c["verdict"]]) for c in cells]
            view.add_row(Text(label), *texts)
        views.append(view)
    return views


def to_markdown(cards: Cards, heading: str, notes: tuple[str, ...] = ()) -> str:
    """One row for each encoding, the legend, and what could not be measured."""
    titles = [f"{escape_markdown(m.group)}<br>{escape_markdown(m.title)}" for m in MEASURES.values()]
    lines = [("encoding", *titles), ("---", *["---:"] * len(titles))]
    for label, card in measured(cards).items():
        cells = [f"{shown(c)} {MARKS[c['verdict']]}".strip() for c in card["measures"].values()]
        lines.append((f"`{label}`", *cells))
    legend = [("column", "what", "good"), ("---", "---", "---")]
    legend += [(f"{m.group}: {m.title}", m.about, good(m)) for m in MEASURES.values()]
    legend = legend[:2] + [tuple(map(escape_markdown, line)) for line in legend[2:]]
    refused = [f"- `{label}`: {escape_markdown(card['error'])}" for label, card in cards.items() if "error" in card]
    parts = [f"# {escape_markdown(heading)}", escape_markdown(CAPTION), _grid(lines), _grid(legend)]
    parts += [escape_markdown(note) for note in notes]
    if refused:
        parts.append("Could not be measured:\n\n" + "\n".join(refused))
    return "\n\n".join(parts) + "\n"


def good(measure: Measure) -> str:
    """≤ 0.05, ≥ 1 or 0."""
    if measure.bound == 0:
        return "0"
    return f"{'≥' if measure.at_least else '≤'} {number(measure.bound)}"


def _grid(lines: list[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
