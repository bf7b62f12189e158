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

    from posjax.describe.catalogue import Facts

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

    from posjax.describe.catalogue import catalogue, defining_module, summing_up, values
    from posjax.spec import nearest

    rows, kinds = catalogue(), values()
    families = sorted({row.family for row in rows} | {defining_module(cls) for cls in kinds})
    if family is not None and family not in families:
        raise ValueError(f"no family is named {family!r}; {nearest(family, families)}")
    chosen = families if family is None else [family]
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 120
    for name in chosen:
        if members := [row for row in rows if row.family == name]:
            console.print(_encodings_table(name, members, console.width))
        if members := [cls for cls in kinds if defining_module(cls) == name]:
            console.print(_values_table(name, members))
    shown = [row for row in rows if row.family in chosen], [cls for cls in kinds if defining_module(cls) in chosen]
    console.print(summing_up(*shown))


def _encodings_table(family: str, rows: "Sequence[Facts]", width: int) -> "Table":
    """One family for a terminal of `width` columns."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from posjax.describe.catalogue import catalogue_cells

    view = Table(title=Text(family), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), expand=True)
    ratios = {"summary": 5, "acts": 2, "learns": 2, "declares": 2}
    names = ["summary", "acts", "learns", "axes", "relative", *(["declares"] if width >= _NARROW else [])]
    for name in ("encoding", *names, "arXiv"):
        view.add_column(name, ratio=ratios.get(name), no_wrap=name not in ratios)
    for row in rows:
        shown = catalogue_cells(row) | {"declares": catalogue_cells(row)["declares"].replace("_", " ")}
        view.add_row(*map(Text, [row.name, *(shown[name] for name in names), row.arxiv or row.citation or ""]))
    return view


def _values_table(family: str, kinds: Sequence[type]) -> "Table":
    """Registered values of one family, for a terminal."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from posjax.describe.catalogue import arxiv_number, citation, documentation, summary

    title = Text(f"{family}: arguments of encodings")
    view = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, expand=True)
    view.add_column("value", no_wrap=True)
    view.add_column("summary", ratio=1)
    view.add_column("arXiv", no_wrap=True)
    for cls in kinds:
        text = documentation(cls)
        view.add_row(*map(Text, (cls.spec_name, summary(text), arxiv_number(text) or citation(text) or "")))
    return view


if __name__ == "__main__":
    sys.exit(main())
