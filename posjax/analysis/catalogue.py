"""The catalogue of encodings as tables: for a terminal and as a page of markdown."""

import itertools
import math
from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from posjax.analysis.describe import (
    GRID,
    HOOKS,
    LINE,
    Facts,
    arxiv_number,
    citation,
    declared_meanings,
    documentation,
    family_of,
    summary,
)
from posjax.analysis.table import escape_markdown
from posjax.encoding import Dims

_BY_ARGUMENTS = "*"
_NARROW = 110  # columns; below them the table leaves out what is declared


def acts(row: Facts) -> str:
    """Where it enters a model."""
    return ", ".join(HOOKS[hook] for hook in row.hooks) or "nowhere"


def learns(row: Facts) -> str:
    """Shapes and count of what it learns, in the model that `row.dims` describes."""
    if row.parameters is None:
        return "depends on its arguments"
    if not row.parameters:
        return "nothing"
    shapes = " + ".join("x".join(map(str, shape)) or "1" for shape in row.parameters.values())
    return f"{row.count:,} ({shapes})" if len(row.parameters) <= 4 else f"{row.count:,} in {len(row.parameters)} arrays"


def on_axes(row: Facts) -> str:
    """Numbers of position axes."""
    return ", ".join(map(str, row.dimensions)) + _BY_ARGUMENTS * ("dimensions" in row.depends)


def is_relative(row: Facts) -> str:
    """Yes or no; a map of positions leaves that to what it shows them to."""
    return ("yes" if row.relative else "no") + _BY_ARGUMENTS * ("relative" in row.depends)


def declares(row: Facts) -> str:
    """What it needs, and how far out it may stand."""
    known = [*row.needs]
    if "needs" in row.depends:
        known = [f"{need}{_BY_ARGUMENTS}" for need in known] or ["some by its arguments"]
    return ", ".join(known + ([f"reach {row.reach:g}"] if math.isfinite(row.reach) else []))


def to_rich(family: str, rows: Sequence[Facts], width: int) -> Table:
    """One family for a terminal of `width` columns."""
    view = Table(title=Text(family), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), expand=True)
    view.add_column("encoding", no_wrap=True)
    view.add_column("what it is", ratio=5)
    view.add_column("acts", ratio=2)
    view.add_column("learns", ratio=2)
    view.add_column("axes", no_wrap=True)
    view.add_column("relative", no_wrap=True)
    if width >= _NARROW:
        view.add_column("declares", ratio=2)
    view.add_column("arXiv", no_wrap=True)
    for row in rows:
        cells = [row.name, row.summary, acts(row), learns(row), on_axes(row), is_relative(row)]
        cells += [declares(row).replace("_", " ")] if width >= _NARROW else []
        view.add_row(*map(Text, [*cells, row.arxiv or row.citation or ""]))
    return view


def values_to_rich(family: str, kinds: Sequence[type]) -> Table:
    """Registered values of one family, for a terminal."""
    view = Table(
        title=Text(f"{family}: arguments of encodings"), title_justify="left", box=box.SIMPLE_HEAD, expand=True
    )
    view.add_column("value", no_wrap=True)
    view.add_column("what it is", ratio=1)
    view.add_column("arXiv", no_wrap=True)
    for cls in kinds:
        text = documentation(cls)
        view.add_row(*map(Text, (cls.spec_name, summary(text), arxiv_number(text) or citation(text) or "")))
    return view


def summing_up(rows: Sequence[Facts], kinds: Sequence[type]) -> str:
    """How many there are."""
    learned = sum(bool(row.parameters) for row in rows)
    relative = sum(row.relative for row in rows if "place" not in row.hooks)
    families = len({row.family for row in rows} | {family_of(cls) for cls in kinds})
    return (
        f"{len(rows)} encodings and position maps, {len(kinds)} values that they take, in {families} families; "
        f"{learned} learn something, {relative} (position maps not counted) are relative. "
        f"Parameters are counted in a model of {_sizes(LINE)}, or, without an axis for lines, {_sizes(GRID)}. "
        f"{_BY_ARGUMENTS} depends on the arguments; shown as with the defaults."
    )


def _sizes(dims: Dims) -> str:
    where = f"{dims.length} positions" if dims.grid is None else f"{dims.grid[0]}x{dims.grid[1]} patches"
    return f"width {dims.width}, {dims.num_heads} heads of {dims.head_dim} and {where}"


def to_markdown(rows: Sequence[Facts], kinds: Sequence[type]) -> str:
    """The page: a table for each family, one of values, and what the words mean."""
    lines = [
        "# Catalogue",
        "",
        "Generated from the classes and their docstrings by `python -m experiments.catalogue --write`; "
        "`python -m experiments.explain NAME` explains one with numbers.",
        "",
        escape_markdown(summing_up(rows, kinds)),
    ]
    headers = ["encoding", "what it is", "acts", "learns", "axes", "relative", "declares", "reference"]
    for family, members in itertools.groupby(rows, key=lambda row: row.family):
        lines += ["", f"## {family}", "", _line(headers), _line(["---"] * len(headers))]
        for row in members:
            cells = [row.summary, acts(row), learns(row), on_axes(row), is_relative(row), declares(row)]
            lines.append(_line([f"`{row.name}`", *map(escape_markdown, cells), _link(row.citation, row.arxiv)]))
    if kinds:
        lines += ["", "## Arguments of encodings", "", _line(["value", "what it is", "family", "reference"])]
        lines.append(_line(["---"] * 4))
        for cls in kinds:
            text = documentation(cls)
            cells = [f"`{cls.spec_name}`", escape_markdown(summary(text)), escape_markdown(family_of(cls))]
            lines.append(_line([*cells, _link(citation(text), arxiv_number(text))]))
    lines += ["", "## What is declared", ""]
    lines += [f"- `{name}`: {escape_markdown(meaning)}" for name, meaning in declared_meanings().items()]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _link(text_citation: str | None, number: str | None) -> str:
    link = f"[{number}](https://arxiv.org/abs/{number})" if number else ""
    return ", ".join(part for part in (escape_markdown(text_citation or ""), link) if part)
