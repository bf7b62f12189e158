"""A scorecard as tables, for a terminal and in markdown, and as a heat map."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from rich import box
from rich.table import Table
from rich.text import Text

from posjax.analysis.report.markdown import escape_markdown, grid
from posjax.analysis.report.plots import GREY, SMALL
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
    rows = []
    for label, card in measured(cards).items():
        cells = [f"{shown(c)} {MARKS[c['verdict']]}".strip() for c in card["measures"].values()]
        rows.append((f"`{label}`", *cells))
    told = [(f"{m.group}: {m.title}", m.about, good(m)) for m in MEASURES.values()]
    legend = grid(("column", "what", "good"), [tuple(map(escape_markdown, line)) for line in told], left=3)
    refused = [f"- `{label}`: {escape_markdown(card['error'])}" for label, card in cards.items() if "error" in card]
    parts = [f"# {escape_markdown(heading)}", escape_markdown(CAPTION), grid(("encoding", *titles), rows), legend]
    parts += [escape_markdown(note) for note in notes]
    if refused:
        parts.append("Could not be measured:\n\n" + "\n".join(refused))
    return "\n\n".join(parts) + "\n"


def good(measure: Measure) -> str:
    """≤ 0.05, ≥ 1 or 0."""
    if measure.bound == 0:
        return "0"
    return f"{'≥' if measure.at_least else '≤'} {number(measure.bound)}"


COLOURS = {"pass": "#a9d5c0", "fail": "#f4b6a0", "handled": "#f5e08c", "n/a": "#f3f3f3"}
_MEANING = {
    "pass": "as an ideal encoding",
    "fail": "not",
    "handled": "not, but decoding acts on it",
    "n/a": "does not apply",
}
_ROW, _COLUMN = 0.19, 0.5  # inches
_GAP = 0.5  # between groups and between families, in cells
_LONGEST = 52  # characters of a label
_TITLES = 112  # points that the upright titles take


def heat_map(cards: Cards, families: Mapping[str, str]) -> Figure:
    """A figure with a row per measured encoding, by family (label -> family), and a column per measure, by group.

    Raises:
      ValueError: no card holds measures.
    """
    rows = measured(cards)
    if not rows:
        raise ValueError("no card holds measures: nothing to draw")
    by_family: dict[str, list[str]] = {}
    for label in rows:
        by_family.setdefault(families.get(label, ""), []).append(label)
    x, y = _positions(groups()), _positions(by_family)
    width, height = max(x.values()) + 1, max(y.values()) + 1
    figure = Figure(figsize=(5 + _COLUMN * width, 3 + _ROW * height), layout="constrained")
    axes = figure.add_subplot()
    for label, card in rows.items():
        for name, cell in card["measures"].items():
            axes.add_patch(Rectangle((x[name], y[label]), 0.97, 0.94, facecolor=COLOURS[cell["verdict"]], linewidth=0))
            middle = (x[name] + 0.485, y[label] + 0.5)
            axes.text(*middle, shown(cell), ha="center", va="center", fontsize=SMALL - 1.5)
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.spines[:].set_visible(False)
    _label_columns(axes, x)
    _label_rows(axes, y, by_family)
    handles = [Patch(facecolor=COLOURS[verdict], label=meaning) for verdict, meaning in _MEANING.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=SMALL + 1)
    return figure


def _positions(grouped: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Where each name starts, one cell after the other, with a gap between groups."""
    found, at = {}, 0.0
    for names in grouped.values():
        for name in names:
            found[name] = at
            at += 1
        at += _GAP
    return found


def _label_columns(axes: Axes, x: Mapping[str, float]) -> None:
    """Title and threshold of each measure, upright above its column, and the name of each group above those."""
    titles = [f"{MEASURES[name].title}  ({good(MEASURES[name])})" for name in x]
    axes.xaxis.tick_top()
    axes.set_xticks([at + 0.49 for at in x.values()], titles, rotation=90, fontsize=SMALL, parse_math=False)
    axes.tick_params(length=0)
    for group, names in groups().items():
        middle = (x[names[0]] + x[names[-1]] + 0.97) / 2
        axes.annotate(
            group,
            (middle, 1),
            xycoords=axes.get_xaxis_transform(),
            xytext=(0, _TITLES),
            textcoords="offset points",
            ha="center",
            fontsize=SMALL + 2,
            fontweight="bold",
        )


def _label_rows(axes: Axes, y: Mapping[str, float], by_family: Mapping[str, Sequence[str]]) -> None:
    """The spec of each row on its left, the family on the right."""
    labels = [label if len(label) <= _LONGEST else f"{label[: _LONGEST - 1]}…" for label in y]
    axes.set_yticks([at + 0.5 for at in y.values()], labels, fontsize=SMALL, parse_math=False)
    for family, labels in by_family.items():
        middle = (y[labels[0]] + y[labels[-1]] + 1) / 2
        axes.text(
            1.008,
            middle,
            family,
            transform=axes.get_yaxis_transform(),
            va="center",
            fontsize=SMALL + 1,
            color=GREY,
            parse_math=False,
        )
