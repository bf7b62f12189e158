"""Shows a scorecard as tables and as a map of verdicts; encodings are sorted by family."""

import itertools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from experiments.report.families import FAMILIES, MAPS, family_of
from posjax.describe.figures import INK, SMALL, save
from posjax.describe.markdown import escape_markdown, grid
from posjax.describe.scorecard.card import MEASURES
from posjax.files import replace_file
from posjax.jsonl import parse_json
from posjax.spec import REGISTRY

Cards = Mapping[str, Mapping[str, Any]]  # {label: the result of `scorecard`, or {"encoding", "error"}}
MARKS = {"pass": "✓", "fail": "✗", "handled": "!", "n/a": "·"}
CAPTION = (
    "✓ as an ideal encoding would be, ✗ not, ! not, but declared and acted on in decoding, · does not apply. "
    "What the columns are and when they are good stands below the table."
)
GROUPS = {group: list(names) for group, names in itertools.groupby(MEASURES, lambda name: MEASURES[name].group)}


def short_number(value: float) -> str:
    """Returns a number with at most three digits: 0.0637, 12, 3e-06."""
    if value == 0 or value != value or abs(value) == float("inf"):
        return f"{value:g}"
    if abs(value) >= 1e4 or abs(value) < 1e-3:
        return f"{value:.0e}"
    return f"{value:.3g}" if abs(value) >= 0.1 else f"{value:.2g}"


def value_text(cell: Mapping[str, Any]) -> str:
    """Returns the value of a cell as text; "" without a value."""
    return "" if cell["value"] is None else short_number(float(cell["value"]))  # JSON has inf as a text


def by_family(cards: Cards) -> dict[str, list[str]]:
    """Returns labels of the measured encodings by family, in the order of families; `MAPS` is its own family."""
    found: dict[str, list[str]] = {name: [] for name in (*FAMILIES, MAPS)}
    for label, card in cards.items():
        if "measures" in card:
            spec = card.get("encoding", label)
            first = REGISTRY.get(spec.partition("(")[0].split()[0])
            found[MAPS if first and first.family == MAPS else family_of(spec)].append(label)
    return {name: labels for name, labels in found.items() if labels}


def group_table(cards: Cards, names: Sequence[str]) -> str:
    """Returns a table in Markdown: a row for each encoding by family, without rows that have no value; measures by name."""
    rows = []
    for label in itertools.chain(*by_family(cards).values()):
        cells = [cards[label]["measures"][name] for name in names]
        if any(cell["verdict"] != "n/a" for cell in cells):
            rows.append((f"`{label}`", *(f"{value_text(cell)} {MARKS[cell['verdict']]}".strip() for cell in cells)))
    return grid(("encoding", *(escape_markdown(MEASURES[name].title) for name in names)), rows)


def scorecard_page(cards: Cards, notes: Sequence[str] = ()) -> str:
    """Returns the Markdown of the page: the legend and the table of each group of measures, and refused encodings."""
    parts = ["# Scorecard of positional encodings", "![Verdicts by encoding and property](scorecard.png)"]
    parts += [escape_markdown(CAPTION), *map(escape_markdown, notes)]
    for group, names in GROUPS.items():
        columns = []
        for measure in map(MEASURES.__getitem__, names):
            sign = "" if measure.bound == 0 else "≥ " if measure.at_least else "≤ "
            columns.append((measure.title, measure.about, f"{sign}{short_number(measure.bound)}"))
        legend = grid(("column", "what", "good"), [tuple(map(escape_markdown, line)) for line in columns], left=3)
        parts += [f"## {escape_markdown(group)}", legend, group_table(cards, names)]
    refused = [f"- `{label}`: {escape_markdown(card['error'])}" for label, card in cards.items() if "error" in card]
    if refused:
        parts.append("Could not be measured:\n\n" + "\n".join(refused))
    return "\n\n".join(parts) + "\n"


def write_scorecard(cards: Cards, directory: pathlib.Path, notes: Sequence[str] = ()) -> list[pathlib.Path]:
    """Writes README.md and scorecard.png; returns their paths."""
    page = directory / "README.md"
    replace_file(page, scorecard_page(cards, notes).encode())
    # With fewer colours, families would look too similar.
    return [page, save(heat_map(cards), directory / "scorecard.png", dpi=100)]


def rewrite_scorecard(directory: pathlib.Path) -> list[pathlib.Path]:
    """Writes the page of a folder's scorecard.json.

    Raises:
      ValueError: the file is not a scorecard of the current form.
    """
    try:
        saved = parse_json((directory / "scorecard.json").read_bytes(), "it")
        return write_scorecard(saved["cards"], directory, saved["notes"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{directory / 'scorecard.json'} is not a scorecard of the current form: {error!r}") from error


# Colour and meaning of each verdict, also for red-green blind readers.
VERDICTS = {
    "pass": ("#8fbbe0", "✓ as an ideal encoding"),
    "fail": ("#f0a35e", "✗ not"),
    "handled": ("#f7e39b", "! not, but decoding acts on it"),
    "n/a": ("#f5f5f5", "does not apply"),
}
_ROW, _COLUMN = 0.165, 0.22  # inches
_GAP = 0.6  # between groups and between families, in cells
_LONGEST = 40  # longest label, in characters
_TITLES = 92  # height of the upright titles, in points


def heat_map(cards: Cards) -> Figure:
    """Draws a row per encoding, by family, and a column per measure, by group; values are in the tables.

    Raises:
      ValueError: no card holds measures.
    """
    families = by_family(cards)
    if not families:
        raise ValueError("no card holds measures: nothing to draw")
    x, y = _positions(GROUPS), _positions(families)
    width, height = max(x.values()) + 1, max(y.values()) + 1
    figure = Figure(figsize=(3.0 + _COLUMN * width, 2.4 + _ROW * height), layout="constrained")
    axes = figure.add_subplot()
    for label in filter(y.__contains__, cards):
        for name, cell in cards[label]["measures"].items():
            left, top, verdict = x[name], y[label], cell["verdict"]
            look = dict(facecolor=VERDICTS[verdict][0], linewidth=0, antialiased=False)
            axes.add_patch(Rectangle((left, top), 0.94, 0.92, **look))
            if verdict != "n/a":
                centred = dict(ha="center", va="center", fontsize=SMALL - 2, color=INK)
                axes.text(left + 0.47, top + 0.48, MARKS[verdict], **centred)
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.spines[:].set_visible(False)
    _label_columns(axes, x)
    _label_rows(axes, y, families)
    handles = [Patch(facecolor=color, label=meaning) for color, meaning in VERDICTS.values()]
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
    for group, names in GROUPS.items():
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
        bar = dict(color=color, linewidth=4, clip_on=False, antialiased=False)
        axes.plot([1.008, 1.008], [low, high], transform=across, **bar)
        middle = (low + high) / 2
        axes.text(1.02, middle, family, transform=across, va="center", fontsize=SMALL, color=INK, parse_math=False)
