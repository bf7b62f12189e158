"""The rows of docs/errata.md, where sources disagree, as data."""

import pathlib
import re
from typing import NamedTuple


class Erratum(NamedTuple):
    """One row: cells are Markdown of one line."""

    section: str
    what: str
    who: str  # who says or does what
    posjax: str
    pinned: str  # the tests that hold posjax to it

    @property
    def slug(self) -> str:
        """Its name in an address."""
        return "-".join(re.findall(r"[a-z0-9]+", self.what.lower()))


def errata(docs: pathlib.Path) -> list[Erratum]:
    """All rows in their order.

    Args:
      docs: the folder of documents.

    Raises:
      ValueError: for a row that has not four cells.
    """
    rows, section = [], ""
    for number, line in enumerate((docs / "errata.md").read_text().splitlines(), start=1):
        if line.startswith("## "):
            section = line.removeprefix("## ")
        if not line.startswith("| ") or line.startswith(("| what |", "| --- |")):
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if len(cells) != 4:
            raise ValueError(f"errata.md, line {number}: a row has four cells, this one {len(cells)}")
        rows.append(Erratum(section, *cells))
    return rows


def page(docs: pathlib.Path) -> list[dict[str, str]]:
    """The rows as the site shows them."""
    return [row._asdict() | {"slug": row.slug} for row in errata(docs)]
