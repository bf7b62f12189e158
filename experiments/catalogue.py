"""Lists every encoding: its hooks, parameters, position axes, declarations and source.

    python -m experiments.catalogue
    python -m experiments.catalogue --family=rotary
    python -m experiments.catalogue --import=my_encoding.py
    python -m experiments.catalogue --write               # docs/catalogue.md, and the names that editors complete

The facts come from the classes and their docstrings. Errors are one line and exit code 2.
"""

import pathlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments import cli

if TYPE_CHECKING:
    from rich.table import Table

_NARROW = 110  # columns; the table leaves out declarations below them
_HOME = pathlib.Path(__file__).parents[1]
PAGE, STUB = _HOME / "docs" / "catalogue.md", _HOME / "posjax" / "encodings" / "__init__.pyi"


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = cli.parser("catalogue", __doc__)
    parser.add_argument("--family", help="show only this family (module)")
    parser.add_argument("--write", action="store_true", help="write docs/catalogue.md and the names for editors, whole")
    args = parser.parse_args(argv)

    def work() -> None:
        if args.write and (args.family or args.imports):
            raise ValueError("--write is about all that the library has: leave --family and --import out")
        if args.write:
            for path, text in ((PAGE, page()), (STUB, stub())):
                path.write_text(text)
                print(f"wrote {path}")
        else:
            _show(args.family)

    return cli.answer(work, args.imports, traceback=args.traceback)


def page() -> str:
    """Returns the text of docs/catalogue.md."""
    from posjax.describe.catalogue import catalogue, to_markdown, values

    return to_markdown(
        [row for row in catalogue() if _of_library(row.cls)], [cls for cls in values() if _of_library(cls)]
    )


def stub() -> str:
    """Returns the text of posjax/encodings/__init__.pyi: type checkers do not see what is registered at import."""
    from posjax.spec import PATTERNS, REGISTRY

    known = {name: cls for name, cls in sorted((REGISTRY | PATTERNS).items()) if _of_library(cls)}
    lines = sorted(f"from {cls.__module__} import {cls.__name__} as {name}" for name, cls in known.items())
    about = '"""All names, for editors and type checkers: `python -m experiments.catalogue --write` makes this file."""'
    return "\n".join([about, "", *lines, "", "__all__ = [", *(f'    "{name}",' for name in known), "]", ""])


def _of_library(cls: type) -> bool:
    return cls.__module__.startswith("posjax.")


def _show(family: str | None) -> None:
    from rich.console import Console

    from posjax.describe.catalogue import (
        arxiv_number,
        catalogue,
        catalogue_cells,
        citation,
        defining_module,
        documentation,
        summary,
        summing_up,
        values,
    )
    from posjax.spec import nearest

    rows, kinds = catalogue(), values()
    families = sorted({row.family for row in rows} | {defining_module(cls) for cls in kinds})
    if family is not None and family not in families:
        raise ValueError(f"no family is named {family!r}; {nearest(family, families)}")
    chosen = families if family is None else [family]
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 120
    columns = ["summary", "acts", "learns", "axes", "relative", *(["declares"] if console.width >= _NARROW else [])]
    for name in chosen:
        lines = []
        for row in (row for row in rows if row.family == name):
            cells = catalogue_cells(row) | {"declares": catalogue_cells(row)["declares"].replace("_", " ")}
            lines.append([row.name, *(cells[column] for column in columns), row.arxiv or row.citation or ""])
        if lines:
            console.print(_table(name, ["encoding", *columns, "arXiv"], lines))
        if members := [cls for cls in kinds if defining_module(cls) == name]:
            texts = {cls.spec_name: documentation(cls) for cls in members}
            lines = [[key, summary(text), arxiv_number(text) or citation(text) or ""] for key, text in texts.items()]
            console.print(_table(f"{name}: arguments of encodings", ["value", "summary", "arXiv"], lines))
    shown = [row for row in rows if row.family in chosen], [cls for cls in kinds if defining_module(cls) in chosen]
    console.print(summing_up(*shown))


def _table(title: str, columns: Sequence[str], lines: Sequence[Sequence[str]]) -> "Table":
    """Returns a table for a terminal; columns of words share the width that the others leave."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    look = dict(title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), expand=True)
    view, ratios = Table(title=Text(title), **look), {"summary": 5, "acts": 2, "learns": 2, "declares": 2}
    for column in columns:
        view.add_column(column, ratio=ratios.get(column), no_wrap=column not in ratios)
    for line in lines:
        view.add_row(*map(Text, line))
    return view


if __name__ == "__main__":
    sys.exit(main())
