"""Pages of docs/ in English and Chinese: a template for each beside this file, filled with the same numbers."""

import os
import pathlib
from collections.abc import Mapping

from posjax.files import replace_file

DOCS = pathlib.Path("docs")


def pages(name: str) -> dict[str, pathlib.Path]:
    """Returns {template: page} of a name: docs/NAME.md and docs/zh/NAME.md."""
    return {f"{name}.md": DOCS / f"{name}.md", f"{name}.zh.md": DOCS / "zh" / f"{name}.md"}


def render(template: str, values: Mapping[str, str], directory: pathlib.Path = pathlib.Path("results")) -> str:
    """Returns the Markdown of a page.

    Args:
      values: what stands in the braces of the template, beside `results`, the way to the folder of results.
      directory: that folder.
    """
    page = pages(template.split(".")[0])[template]
    text = pathlib.Path(__file__).with_name(template).read_text()
    return text.format(results=os.path.relpath(directory, page.parent), **values)


def write(name: str, values: Mapping[str, str], directory: pathlib.Path) -> list[pathlib.Path]:
    """Writes a page in both languages; returns the paths."""
    for template, page in pages(name).items():
        page.parent.mkdir(exist_ok=True)
        replace_file(page, render(template, values, directory).encode())
    return [*pages(name).values()]
