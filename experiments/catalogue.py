"""Lists every encoding: its hooks, parameters, position axes, declarations and source.

    python -m experiments.catalogue
    python -m experiments.catalogue --family=rotary
    python -m experiments.catalogue --import=my_encoding.py
    python -m experiments.catalogue --write               # docs/catalogue.md, and the names that editors complete

The facts come from the classes and their docstrings. Errors are one line and exit code 2.
"""

import pathlib
import sys

from experiments import cli

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
    from rich.markdown import Markdown

    from posjax.describe.catalogue import catalogue, defining_module, to_markdown, values
    from posjax.spec import nearest

    rows, kinds = catalogue(), values()
    families = sorted({row.family for row in rows} | {defining_module(cls) for cls in kinds})
    if family is not None and family not in families:
        raise ValueError(f"no family is named {family!r}; {nearest(family, families)}")
    chosen = families if family is None else [family]
    text = to_markdown(
        [row for row in rows if row.family in chosen], [cls for cls in kinds if defining_module(cls) in chosen]
    )
    Console(width=None if sys.stdout.isatty() else 120).print(Markdown(text))


if __name__ == "__main__":
    sys.exit(main())
