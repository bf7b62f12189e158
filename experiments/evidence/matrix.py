"""Encodings by tasks: each cell is the difference to no encoding, judged after Holm's correction over a study's cells."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from experiments.evidence.contrast import Contrast, Table, evaluate, mean, unit_of
from experiments.evidence.inventory import Folder, seconds_of_step
from experiments.evidence.numbers import ink
from experiments.evidence.verdicts import Judged, judge_beside
from experiments.report.families import FAMILIES, family_of
from experiments.report.lengths import CHUNKED
from experiments.report.statistics import Record, Rows, Verdict
from experiments.report.table import Unit
from posjax.describe.figures import GREY, SMALL
from posjax.describe.markdown import escape_markdown, grid


class Column(NamedTuple):
    """A task: the mean over `tables` of a metric at a length or resolution, from the first source that has records."""

    title: str
    sources: tuple[tuple[tuple[Table, int | None], ...], ...]


def _one(folder: str, table: str, metric: str, at: int | None = None) -> tuple[tuple[Table, int | None], ...]:
    return ((Table(folder, table, metric), at),)


COLUMNS = (
    Column("ViT, Fashion-MNIST (points)", (_one("fashion_vit", "fashion_vit", "accuracy"),)),
    Column("ViT, CIFAR-10 (points)", (_one("vit_table8", "stem", "accuracy"),)),
    Column("resolution 2×, Caltech-101 (points)", (_one("resolutions", "caltech101", "accuracy", 256),)),
    Column(
        "text 1× (nats)",
        (_one("train_short_test_long", CHUNKED, "loss", 128),),
    ),
    Column(
        "text 8× (nats)",
        (_one("train_short_test_long", CHUNKED, "loss", 1024),),
    ),
    Column("pass keys 1× (points)", (_one("retrieval", "passkey", "exact match", 128),)),
    Column("pass keys 4× (points)", (_one("retrieval", "passkey", "exact match", 512),)),
    Column(
        "longer problems (points)",
        (
            tuple(
                (Table("length_generalization", task, "accuracy"), None)
                for task in ("addition", "copy", "sort", "scan")
            ),
        ),
    ),
    Column(
        "counting (points)", (_one("contextual_counting", "flip_flop", "accuracy by length, flip_flop_sparse", 128),)
    ),
)
ENCODINGS = (
    "none",
    "sinusoidal",
    "learned",
    "learned_factorized",
    "sincos2d_mae",
    "rope",
    "axial_rope",
    "rope_mixed",
    "dinov3",
    "xpos",
    "alibi",
    "lookhere",
    "kerple",
    "sandwich",
    "t5",
    "swin",
    "fire",
    "shaw",
    "cope",
    "fox",
)
_PROPERTIES = ("uniqueness", "determinism", "extrapolation", "relative", "dimensions")
_FLAT = "raster >> "
QUIET = Table("quickstart", "pydoc_decoder", "loss")  # ran alone, so that times can be compared
AHEAD, BEHIND, TIED, NONE_THERE = "🔵↑", "🟠↓", "⚪≈", "-"  # colours that red-green blind readers tell apart


def name_of(spec: str) -> str:
    """``rope(base=100)`` -> ``rope``; ``raster(width=8) >> learned()`` -> ``learned``, which is flat in a ViT anyway."""
    while (outer := re.sub(r"\([^()]*\)", "", spec)) != spec:
        spec = outer
    return spec.strip().removeprefix(_FLAT)


def trained(rows: Rows, name: str) -> str | None:
    """The row that was trained with the encoding of this name and is read as it was trained.

    Of several the first, and rather one that sees a grid than its raster.
    """
    found = []
    for label, runs in rows.items():
        as_trained = runs[0].get("kind", "trained") == "trained" and runs[0].get("policy", "as trained") == "as trained"
        if as_trained and name_of(runs[0]["encoding"]) == name:
            found.append(label)
    return min(found, key=lambda label: rows[label][0]["encoding"].startswith("raster"), default=None)


class Matrix(NamedTuple):
    """Verdicts on differences to `none`, by encoding and column; sources are those that had records."""

    cells: Mapping[tuple[str, str], Verdict]
    sources: Mapping[str, tuple[tuple[Table, int | None], ...]]

    @property
    def encodings(self) -> list[str]:
        """Those with a cell at all, and `none`."""
        found = {name for name, _ in self.cells}
        return [name for name in ENCODINGS if name in found or name == "none"]


def matrix(folders: Mapping[str, Folder], judged: Sequence[Judged]) -> Matrix:
    """All cells that have records, corrected over the cells and claims of a study."""
    tables = {name: folder.tables for name, folder in folders.items()}
    sources = {column.title: _source(column, tables) for column in COLUMNS}
    family: dict[str, dict] = {}
    for column in COLUMNS:
        source = sources[column.title]
        if not source:
            continue
        for name in ENCODINGS[1:]:
            difference = _difference(name, source, tables)
            found = evaluate(difference, tables) if difference else None
            if found is not None:
                family.setdefault(source[0][0].folder, {})[name, column.title] = found
    found = {
        key: verdict for folder, cells in family.items() for key, verdict in judge_beside(cells, judged, folder).items()
    }
    return Matrix(found, {title: source for title, source in sources.items() if source})


def _source(column: Column, tables: Mapping[str, Any]) -> tuple:
    there = [s for s in column.sources if any(t.table in tables.get(t.folder, {}) for t, _ in s)]
    return there[0] if there else ()


def _difference(name: str, source: Sequence[tuple[Table, int | None]], tables: Mapping[str, Any]) -> Contrast | None:
    """The row less `none`, mean over the tables that have both; None where there are none."""
    found = []
    for table, at in source:
        rows = tables[table.folder].get(table.table, {})
        row, none = trained(rows, name), trained(rows, "none")
        if row and none:
            found.append(table(row, at) - table(none, at))
    return mean(found) if found else None


def sign_of(verdict: Verdict, unit: Unit) -> str:
    """Whether an encoding is ahead of `none`, behind it, or not separable from it."""
    if not verdict.separated:
        return TIED
    better = verdict.estimate.value > 0 if unit.best is max else verdict.estimate.value < 0
    return AHEAD if better else BEHIND


def to_markdown(made: Matrix, folders: Mapping[str, Folder], cards: Mapping[str, Any]) -> str:
    """The matrix with properties, cost and parameters beside it."""
    titles = [column.title for column in COLUMNS]
    header = ("encoding", *titles, *_PROPERTIES, "step", "parameters")
    rows = []
    for name in made.encodings:
        cells = [_cell(made, name, title) for title in titles]
        rows.append(
            (
                f"{FAMILIES[family_of(name)].glyph} `{name}`",
                *cells,
                *_properties(name, cards),
                *cost(name, made, folders),
            )
        )
    return grid(tuple(ink(escape_markdown(title)) for title in header), rows)


def _cell(made: Matrix, name: str, title: str) -> str:
    if (name, title) not in made.cells:
        return "reference" if name == "none" and title in made.sources else NONE_THERE
    verdict, unit = made.cells[name, title], unit_of(made.sources[title][0][0].metric)
    interval = verdict.estimate.interval().scaled(unit.scale)
    return f"{sign_of(verdict, unit)} {ink(interval.text(unit.digits - (unit.scale > 1), signed=True))}"


def _properties(name: str, cards: Mapping[str, Any]) -> list[str]:
    """Of each group of the scorecard how many measures are as an ideal encoding's, of those that apply."""
    from posjax.describe.scorecard.card import MEASURES

    card = next((card for spec, card in cards.items() if name_of(spec) == name and "measures" in card), None)
    if card is None:
        return [NONE_THERE] * len(_PROPERTIES)
    told = []
    for group in _PROPERTIES:
        verdicts = [cell["verdict"] for key, cell in card["measures"].items() if MEASURES[key].group == group]
        applies = [verdict for verdict in verdicts if verdict != "n/a"]
        told.append(ink(f"{applies.count('pass')}/{len(applies)}") if applies else NONE_THERE)
    return told


def cost(name: str, made: Matrix, folders: Mapping[str, Folder]) -> tuple[str, str]:
    """Time of a step over that of `none` where the machine was not shared, and parameters more than `none` has."""
    timed, where = _beside_none(name, QUIET, folders), NONE_THERE
    time = _ratio(*timed) if timed else NONE_THERE
    for source in made.sources.values():
        if found := _beside_none(name, source[0][0], folders):
            where = ink(f"{found[0][0]['parameters'] - found[1][0]['parameters']:+,}")
            break
    return time, where


def _beside_none(name: str, table: Table, folders: Mapping[str, Folder]) -> tuple[Sequence[Record], ...]:
    """The runs of a row and those of `none`; nothing where there are not both."""
    rows = folders[table.folder].tables.get(table.table, {}) if table.folder in folders else {}
    row, none = trained(rows, name), trained(rows, "none")
    return (rows[row], rows[none]) if row and none else ()


def _ratio(runs: Sequence[Record], none: Sequence[Record]) -> str:
    a, b = seconds_of_step(runs), seconds_of_step(none)
    return ink(f"{a / b:.2f}×") if a and b else NONE_THERE


_COLOURS = LinearSegmentedColormap.from_list("behind and ahead", ("#d9822b", "#ffffff", "#2b6cb0"))
_GLYPHS = {AHEAD: "↑", BEHIND: "↓", TIED: "≈"}


def figure(made: Matrix) -> Figure:
    """The matrix as a heat map: orange and ↓ behind `none`, blue and ↑ ahead, white and ≈ not separable."""
    titles = [column.title for column in COLUMNS if column.title in made.sources]
    names = [name for name in made.encodings if name != "none"]
    shade = np.zeros((len(names), len(titles)))
    drawn = Figure(figsize=(2.0 + 1.25 * len(titles), 1.6 + 0.32 * len(names)), layout="constrained")
    axes = drawn.add_subplot()
    for x, title in enumerate(titles):
        unit = unit_of(made.sources[title][0][0].metric)
        found = {name: made.cells[name, title] for name in names if (name, title) in made.cells}
        most = max((abs(v.estimate.value) for v in found.values()), default=1.0) or 1.0
        for y, name in enumerate(names):
            text = "-"
            if name in found:
                verdict, sign = found[name], sign_of(found[name], unit)
                good = 1.0 if unit.best is max else -1.0
                shade[y, x] = 0.0 if sign == TIED else good * verdict.estimate.value / most
                text = f"{_GLYPHS[sign]} {verdict.estimate.value * unit.scale:+.{unit.digits - (unit.scale > 1)}f}"
            dark = abs(shade[y, x]) > 0.75
            axes.text(x, y, text, ha="center", va="center", fontsize=SMALL, color="white" if dark else "black")
    axes.imshow(shade, cmap=_COLOURS, vmin=-1, vmax=1, aspect="auto")
    axes.set_xticks(
        range(len(titles)), [title.replace(", ", ",\n").replace(" (", "\n(") for title in titles], fontsize=SMALL
    )
    axes.xaxis.tick_top()
    looks = [FAMILIES[family_of(name)] for name in names]
    marked = [f"{look.glyph} {name}" for look, name in zip(looks, names, strict=True)]
    axes.set_yticks(range(len(names)), marked, fontsize=SMALL + 1)
    for tick, look in zip(axes.get_yticklabels(), looks, strict=True):
        tick.set_color(look.color)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("difference to no encoding: ↑ ahead, ↓ behind, ≈ not separable", fontsize=SMALL, color=GREY)
    return drawn
