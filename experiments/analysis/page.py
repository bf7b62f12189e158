"""Writes the page of an analysis: a table of facts, sections with pictures, and the command."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from posjax.describe.figures import save
from posjax.describe.markdown import escape_markdown, grid
from posjax.files import replace_file

_DPI = 110


class Section(NamedTuple):
    """A heading, its text, the pictures by file name without ".png", and a table in Markdown."""

    heading: str
    text: str
    figures: Mapping[str, Figure] = {}
    table: str = ""


def write_sections(
    directory: pathlib.Path, title: str, sections: Sequence[Section], facts: Mapping[str, str], command: str
) -> list[pathlib.Path]:
    """Writes README.md and a PNG per figure; returns the paths, README.md last.

    The page is a function of the arguments: no clock, no host name. Files appear whole or not at all.

    Args:
      directory: the folder.
      title: the page's title.
      sections: the sections.
      facts: {name: fact} about the model and the images.
      command: the command line that makes the page again.

    Raises:
      ValueError: two figures have the same name.
    """
    names = [name for section in sections for name in section.figures]
    if len(set(names)) < len(names):
        raise ValueError(f"figures share file names: {sorted(names)}")
    directory.mkdir(parents=True, exist_ok=True)
    rows = [(escape_markdown(name), escape_markdown(value)) for name, value in facts.items()]
    parts, paths = [f"# {escape_markdown(title)}", grid(("about", "value"), rows, left=2)], []
    for section in sections:
        parts += [f"## {escape_markdown(section.heading)}", escape_markdown(section.text)]
        for name, figure in section.figures.items():
            paths.append(save(figure, directory / f"{name}.png", dpi=_DPI))
            parts.append(f"![{name.replace('_', ' ')}]({name}.png)")
        parts += [section.table] if section.table else []
    parts.append(f"## How to reproduce\n\n```\n{command}\n```")
    replace_file(directory / "README.md", ("\n\n".join(parts) + "\n").encode())
    return [*paths, directory / "README.md"]
