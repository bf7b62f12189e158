"""One page of pictures in a single HTML file, with the PNGs beside it."""

import base64
import html
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from posjax.analysis.report import plots
from posjax.analysis.report.page import STYLE

_DPI = 110


class Section(NamedTuple):
    """A heading, what is to be seen, and the pictures by file name without ".png"."""

    heading: str
    text: str
    figures: Mapping[str, Figure]


def write_page(
    directory: str | os.PathLike, title: str, sections: Sequence[Section], facts: Mapping[str, str], command: str
) -> list[Path]:
    """Writes a PNG per figure and report.html, which holds them all; the paths, report.html last.

    A function of its arguments: no clock, no host name. Files appear whole or not at all.

    Args:
      facts: what a reader must know of the model and the images, by name.
      command: which makes the page again.

    Raises:
      ValueError: two figures of one name.
    """
    directory = Path(directory)
    names = [name for section in sections for name in section.figures]
    if len(set(names)) < len(names):
        raise ValueError(f"figures share file names: {sorted(names)}")
    directory.mkdir(parents=True, exist_ok=True)
    rows = "".join(f"<tr><td>{html.escape(k)}</td><td>{html.escape(v)}</td></tr>" for k, v in facts.items())
    parts, paths = [f"<h1>{html.escape(title)}</h1>", f'<div class="wide"><table>{rows}</table></div>'], []
    for section in sections:
        parts.append(f"<h2>{html.escape(section.heading)}</h2>\n<p>{html.escape(section.text)}</p>")
        for name, figure in section.figures.items():
            paths.append(plots.save(figure, directory / f"{name}.png", dpi=_DPI))
            data = base64.b64encode(paths[-1].read_bytes()).decode("ascii")
            parts.append(f'<p><img alt="{html.escape(name)}" src="data:image/png;base64,{data}"></p>')
    parts.append(f"<h2>How to reproduce</h2>\n<pre>{html.escape(command)}</pre>")
    head = f'<meta charset="utf-8">\n<meta name="viewport" content="width=device-width">\n<title>{html.escape(title)}'
    page = (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n{head}</title>\n<style>\n{STYLE}\ntd {{ white-space: normal; }}\n'
        "</style>\n</head>\n<body>\n" + "\n".join(parts) + "\n</body>\n</html>\n"
    )
    partial = directory / ".report.html.partial"
    partial.write_text(page, encoding="utf-8")
    os.replace(partial, directory / "report.html")
    return [*paths, directory / "report.html"]
