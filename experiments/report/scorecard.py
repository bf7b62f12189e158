"""Shows a scorecard as tables, for a terminal and in Markdown, and as a map of verdicts; encodings are sorted by family."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from rich import box
from rich.table import Table
from rich.text import Text

from experiments.report.families import FAMILIES, MAPS, family_of
from posjax.describe.figures import INK, SMALL, save
from posjax.describe.markdown import escape_markdown, grid
from posjax.describe.scorecard.card import MEASURES, Criterion
from posjax.files import replace_file
from posjax.spec import REGISTRY

Cards = Mapping[str, Mapping[str, Any]]  # {label: the result of `scorecard`, or {"encoding", "error"}}
MARKS = {"pass": "✓", "fail": "✗", "handled": "!", "n/a": "·"}
_STYLES = {"pass": "green", "fail": "red", "handled": "yellow", "n/a": "dim"}
CAPTION = (
    "✓ as an ideal encoding would be, ✗ not, ! not, but declared and acted on in decoding, · does not apply. "
    "What the columns are and when they are good stands below the table."
)


def number(value: float) -> str:
    """Returns a number with at most three digits: 0.0637, 12, 3e-06."""
    if value == 0 or value != value or abs(value) == float("inf"):
        return f"{value:g}"
    if abs(value) >= 1e4 or abs(value) < 1e-3:
        return f"{value:.0e}"
    return f"{value:.3g}" if abs(value) >= 0.1 else f"{value:.2g}"


def shown(cell: Mapping[str, Any]) -> str:
    """Returns the text of a cell without its mark."""
    return "" if cell["value"] is None else number(float(cell["value"]))  # JSON has inf as a text


def groups() -> dict[str, list[str]]:
    """Returns names of the measures by group, in order."""
    found: dict[str, list[str]] = {}
    for name, measure in MEASURES.items():
        found.setdefault(measure.group, []).append(name)
    return found


def measured(cards: Cards) -> dict[str, Mapping[str, Any]]:
    return {label: card for label, card in cards.items() if "measures" in card}


def to_rich(cards: Cards) -> list[Table]:
    """Returns a table for each group of measures."""
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


def by_family(cards: Cards) -> dict[str, list[str]]:
    """Returns labels of the measured encodings by family, in the order of families; `MAPS` is its own family."""
    found: dict[str, list[str]] = {name: [] for name in (*FAMILIES, MAPS)}
    for label, card in measured(cards).items():
        spec = card.get("encoding", label)
        first = REGISTRY.get(spec.partition("(")[0].split()[0])
        found[MAPS if first and first.family == MAPS else family_of(spec)].append(label)
    return {name: labels for name, labels in found.items() if labels}


def to_markdown(cards: Cards, heading: str, notes: Sequence[str] = ()) -> str:
    """A table for each group of measures, with a row for each encoding, and its legend; then measures that could not be

    taken. A table leaves out rows without any value.
    """
    parts = [f"# {escape_markdown(heading)}", "![Verdicts by encoding and property](scorecard.png)"]
    parts += [escape_markdown(CAPTION), *map(escape_markdown, notes)]
    ordered = [label for labels in by_family(cards).values() for label in labels]
    for group, names in groups().items():
        rows = []
        for label in ordered:
            cells = [cards[label]["measures"][name] for name in names]
            if any(cell["verdict"] != "n/a" for cell in cells):
                rows.append((f"`{label}`", *(f"{shown(c)} {MARKS[c['verdict']]}".strip() for c in cells)))
        told = [(MEASURES[name].title, MEASURES[name].about, good(MEASURES[name])) for name in names]
        legend = grid(("column", "what", "good"), [tuple(map(escape_markdown, line)) for line in told], left=3)
        titles = [escape_markdown(MEASURES[name].title) for name in names]
        parts += [f"## {escape_markdown(group)}", legend, grid(("encoding", *titles), rows)]
    if refused := [
        f"- `{label}`: {escape_markdown(card['error'])}" for label, card in cards.items() if "error" in card
    ]:
        parts.append("Could not be measured:\n\n" + "\n".join(refused))
    return "\n\n".join(parts) + "\n"


def write_pages(cards: Cards, directory: pathlib.Path, notes: Sequence[str] = ()) -> list[pathlib.Path]:
    """Writes README.md and scorecard.png; returns their paths."""
    table = directory / "README.md"
    replace_file(table, to_markdown(cards, "Scorecard of positional encodings", notes).encode())
    # With fewer colours, families would look too similar.
    return [table, save(heat_map(cards), directory / "scorecard.png", dpi=100)]


def show_again(directory: pathlib.Path) -> list[pathlib.Path]:
    """Writes the pages of a folder's scorecard.json.

    Raises:
      ValueError: that is no scorecard of ours.
    """
    try:
        saved = json.loads((directory / "scorecard.json").read_text())
        return write_pages(saved["cards"], directory, saved["notes"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{directory / 'scorecard.json'} is not a scorecard of the current form: {error!r}") from error


def good(measure: Criterion) -> str:
    """Returns the bound of a measure as text: ≤ 0.05, ≥ 1 or 0."""
    if measure.bound == 0:
        return "0"
    return f"{'≥' if measure.at_least else '≤'} {number(measure.bound)}"


COLOURS = {
    "pass": "#8fbbe0",
    "fail": "#f0a35e",
    "handled": "#f7e39b",
    "n/a": "#f5f5f5",
}  # also for red-green blind readers
_MEANING = {
    "pass": "✓ as an ideal encoding",
    "fail": "✗ not",
    "handled": "! not, but decoding acts on it",
    "n/a": "does not apply",
}
_ROW, _COLUMN = 0.165, 0.22  # inches
_GAP = 0.6  # between groups and between families, in cells
_LONGEST = 40  # longest label, in characters
_TITLES = 92  # height of the upright titles, in points


def heat_map(cards: Cards) -> Figure:
    """Draws a figure of a page's width: a row per encoding, by family, a column per measure, by group; values are in the
    tables.

    Raises:
      ValueError: no card holds measures.
    """
    rows = measured(cards)
    if not rows:
        raise ValueError("no card holds measures: nothing to draw")
    families = by_family(cards)
    x, y = _positions(groups()), _positions(families)
    width, height = max(x.values()) + 1, max(y.values()) + 1
    figure = Figure(figsize=(3.0 + _COLUMN * width, 2.4 + _ROW * height), layout="constrained")
    axes = figure.add_subplot()
    for label, card in rows.items():
        for name, cell in card["measures"].items():
            color = COLOURS[cell["verdict"]]
            cell_at = (x[name], y[label])
            axes.add_patch(Rectangle(cell_at, 0.94, 0.92, facecolor=color, linewidth=0, antialiased=False))
            if cell["verdict"] != "n/a":
                middle = (x[name] + 0.47, y[label] + 0.48)
                axes.text(*middle, MARKS[cell["verdict"]], ha="center", va="center", fontsize=SMALL - 2, color=INK)
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.spines[:].set_visible(False)
    _label_columns(axes, x)
    _label_rows(axes, y, families)
    handles = [Patch(facecolor=COLOURS[verdict], label=meaning) for verdict, meaning in _MEANING.items()]
    figure.legend(handles=handles, loc="outside upper left", ncols=4, frameon=False, fontsize=SMALL)
    return figure


def _positions(grouped: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """The start of each name, one cell after the other, with a gap between groups."""
    found, at = {}, 0.0
    for names in grouped.values():
        for name in names:
            found[name] = at
            at += 1
        at += _GAP
    return found


def _label_columns(axes: Axes, x: Mapping[str, float]) -> None:
    """Writes the title of each measure upright above its column, and the name of each group slanted above the titles."""
    titles = [MEASURES[name].title for name in x]
    axes.xaxis.tick_top()
    axes.set_xticks([at + 0.49 for at in x.values()], titles, rotation=90, fontsize=SMALL - 0.5, parse_math=False)
    axes.tick_params(length=0)
    for group, names in groups().items():
        middle = (x[names[0]] + x[names[-1]] + 0.97) / 2
        axes.annotate(
            group.replace(", ", ",\n"),
            (middle, 1),
            xycoords=axes.get_xaxis_transform(),
            xytext=(0, _TITLES),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=SMALL,
            fontweight="bold",
        )


def _label_rows(axes: Axes, y: Mapping[str, float], families: Mapping[str, Sequence[str]]) -> None:
    """Writes the spec of each row on its left; on the right a bar in its family's colour, and the family's name."""
    labels = [label if len(label) <= _LONGEST else f"{label[: _LONGEST - 1]}…" for label in y]
    axes.set_yticks([at + 0.5 for at in y.values()], labels, fontsize=SMALL - 0.5, parse_math=False)
    across = axes.get_yaxis_transform()
    for family, labels in families.items():
        color = FAMILIES[family].color if family in FAMILIES else INK
        low, high = y[labels[0]], y[labels[-1]] + 0.92
        axes.plot(
            [1.008, 1.008], [low, high], transform=across, color=color, linewidth=4, clip_on=False, antialiased=False
        )
        middle = (low + high) / 2
        axes.text(1.02, middle, family, transform=across, va="center", fontsize=SMALL, color=INK, parse_math=False)
