"""Text and tables in GitHub's markdown."""

import html
import re
from collections.abc import Sequence


def escape_markdown(text: str) -> str:
    """Text that GitHub shows letter by letter, also in a table: no markup, no HTML, no cell borders, one line."""
    text = html.escape(" ".join(str(text).split()), quote=False)
    return re.sub(r"([\\`*\[\]|~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))", r"\\\1", text)


def grid(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A table of cells that are markdown already; so many columns are aligned left, the others right."""
    rule = ["---"] * left + ["---:"] * (len(header) - left)
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *rows))
