"""Plain text for a terminal of 100 columns: paragraphs, numbers and aligned tables."""

import textwrap
from collections.abc import Sequence
from typing import Any, SupportsFloat

import numpy as np

WIDTH = 100


def title(text: str) -> list[str]:
    """A line that begins a part."""
    return ["", *textwrap.wrap(text, WIDTH), "=" * min(WIDTH, len(text))]


def subtitle(text: str) -> list[str]:
    """A line that begins a section."""
    return ["", text.upper(), "-" * len(text)]


def prose(text: str) -> list[str]:
    """A paragraph, wrapped; one with indented lines keeps its lines."""
    lines = text.splitlines()
    flat = any(line.startswith((" ", "* ", "- ")) for line in lines[1:])
    return [piece for line in (lines if flat else [" ".join(lines)]) for piece in textwrap.wrap(line, WIDTH) or [""]]


def decimal(value: SupportsFloat) -> str:
    """Four decimals, or four digits where those would say nothing."""
    value = float(value)
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value + 0.0:.4f}"
    return f"{value:.1e}" if abs(value) < 1 else f"{value:.3g}"


def digits(value: SupportsFloat) -> str:
    """Writes a number with the fewest digits for a label."""
    return f"{float(value):.5g}"


def decimals(values: Any) -> list[str]:
    """Numbers of one row or column."""
    return [decimal(value) for value in np.asarray(values).ravel()]


def place_text(position) -> str:
    """A position as a label: 5 or (1, 2)."""
    position = np.asarray(position)
    return digits(position) if position.ndim == 0 else f"({', '.join(map(digits, position))})"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], indent: int = 2) -> list[str]:
    """Right-aligned columns; "..." stands for columns that do not fit the width."""
    cells = [list(headers), *[list(map(str, row)) for row in rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headers))]
    keep = len(widths)
    while keep > 1 and indent + sum(widths[:keep]) + 2 * (keep - 1) + 5 * (keep < len(widths)) > WIDTH:
        keep -= 1
    rest = "  ..." if keep < len(widths) else ""
    return [
        " " * indent
        + ("  ".join(cell.rjust(width) for cell, width in zip(row[:keep], widths, strict=False)) + rest).rstrip()
        for row in cells
    ]


def picture(marks: Sequence[Sequence[str]], labels: Sequence[str], above: str) -> list[str]:
    """Rows of single characters behind labels."""
    margin = max(map(len, labels))
    lines = [f"  {label:>{margin}}  {' '.join(row)}" for label, row in zip(labels, marks, strict=True)]
    return [f"  {'':{margin}}  {above}", *lines]


def spans(numbers: Sequence[int], to: str = "-") -> str:
    """[0, 1, 2, 5] as "0-2, 5"."""
    found: list[list[int]] = []
    for each in numbers:
        if found and each == found[-1][1] + 1:
            found[-1][1] = each
        else:
            found.append([each, each])
    return ", ".join(str(a) if a == b else f"{a}{to}{b}" for a, b in found)
