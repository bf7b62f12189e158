"""One page that a reviewer can check: tables, figures, config and versions of a set of runs, in a single HTML file.

Everything is a function of the arguments: no clock, no host name, so equal records give equal files.
"""

import base64
import html
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from posjax.analysis.report import plots
from posjax.analysis.report.markdown import escape_markdown
from posjax.analysis.report.table import StudyTable, shown, summarize, to_markdown, versions_text
from posjax.analysis.statistics import Metric, Record, Rows, all_runs, group, line_of_curves, metric_values, metrics_of
from posjax.files import replace_file

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; }
th, td { padding: .25rem .75rem; text-align: right; border-bottom: 1px solid #8886; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
.small { font-size: .875rem; opacity: .85; }
img { max-width: 100%; background: white; padding: .5rem; box-sizing: border-box; border-radius: .25rem; }
pre { overflow-x: auto; padding: .75rem; border: 1px solid #8886; border-radius: .25rem; font-size: .8125rem; }
.notes { white-space: pre-line; }
""".strip()

Draw = Callable[[Sequence[Record], dict[str, plots.Style]], Figure]


class About(NamedTuple):
    """What a page says beside its tables and figures."""

    title: str
    config_text: str | None = None  # the experiment's config, shown verbatim
    notes: str = ""  # plain text under the title
    command: str | None = None  # the shell command that produced the records, shown under "How to reproduce"


def write_report(
    records: Sequence[Record],
    directory: str | os.PathLike,
    about: About,
    drawn: Mapping[str, Mapping[str, Figure]] = MappingProxyType({}),
    before: Sequence[StudyTable] = (),
) -> list[Path]:
    """Writes table.md, a PNG per figure and the self-contained report.html into ``directory``.

    Files appear whole or not at all. Unfinished rows are shown with the seeds they have; a study gets the figures its
    records allow.

    Args:
      records: runs of one or several studies, as in results.jsonl.
      directory: made if it does not exist.
      drawn: further figures of a study: {study: {name: figure}}.
      before: tables about several studies, which come before those of each.

    Returns:
      The paths written, report.html last.

    Raises:
      ValueError: no records, inconsistent ones (`posjax.analysis.statistics.group`) or studies that share a file name.
    """
    tables, directory = summarize(records), Path(directory)
    _stems([table.study for table in tables])  # raises before anything is written
    directory.mkdir(parents=True, exist_ok=True)
    figures = _save_figures(records, directory, drawn)
    return write_pages([*before, *tables], figures, records, directory, about)


def write_pages(
    tables: Sequence[StudyTable],
    figures: Mapping[str, Sequence[Path]],
    records: Sequence[Record],
    directory: Path,
    about: About,
) -> list[Path]:
    """Writes table.md and report.html of tables and figures that have been made: {name of a table: PNGs below it}.

    Returns:
      The paths of table.md, the figures and report.html.
    """
    markdown = "\n".join([f"# {escape_markdown(about.title)}\n", *map(to_markdown, tables)])
    page = _page(records, tables, figures, about)
    texts = {directory / "table.md": markdown, directory / "report.html": page}
    for path, text in texts.items():
        replace_file(path, text.encode())
    drawn = [path for paths in figures.values() for path in paths]
    return [directory / "table.md", *drawn, directory / "report.html"]


def _save_figures(records: Sequence[Record], directory: Path, drawn) -> dict[str, list[Path]]:
    """study -> its PNGs; an encoding has one look in all of them."""
    studies, look = group(records), plots.styles(records)
    stems = _stems(list(studies))
    saved = {}
    for study, rows in studies.items():
        figures = {name: draw(all_runs(rows), look) for name, draw in _figures(rows).items()} | dict(
            drawn.get(study, {})
        )
        saved[study] = [
            plots.save(figure, directory / f"{stems[study]}_{name}.png") for name, figure in figures.items()
        ]
    return saved


def _figures(rows: Rows) -> dict[str, Draw]:
    """The figures for which a study has at least one finite value."""
    metrics = metrics_of(rows)
    finite = {metric for metric in metrics for runs in rows.values() if metric_values(runs, metric)[0]}
    found: dict[str, Draw] = {}
    if Metric("accuracy") in finite:
        found["accuracy"] = plots.accuracy_by_encoding
    if any(metric.name == "loss" and metric.length is not None for metric in finite):
        found["loss_by_length"] = plots.loss_by_length
    if any(np.isfinite(line_of_curves(runs).mean).any() for runs in rows.values()):
        found["learning_curves"] = plots.learning_curves
    return found


def _stems(studies: list[str]) -> dict[str, str]:
    """study -> the start of its file names: letters, digits, dot, dash and underscore, never a path or hidden."""
    stems = {study: re.sub(r"[^A-Za-z0-9._-]+", "_", study).lstrip(".") or "study" for study in studies}
    if len(set(stems.values())) < len(stems):
        raise ValueError(f"studies {studies} share file names: rename them to differ in letters or digits")
    return stems


def _page(
    records: Sequence[Record],
    tables: Sequence[StudyTable],
    figures: Mapping[str, Sequence[Path]],
    about: About,
) -> str:
    parts = [f"<h1>{html.escape(about.title)}</h1>"]
    if about.notes:
        parts.append(f'<p class="notes">{html.escape(about.notes)}</p>')
    for table in tables:
        parts.append(_table_html(table))
        parts += [
            image_html(path, f"{table.study}: {path.stem}".replace("_", " ")) for path in figures.get(table.study, ())
        ]
    parts.append(_reproduce_html(records, about.command))
    if about.config_text is not None:
        parts.append(f"<h2>Config</h2>\n<pre>{html.escape(about.config_text)}</pre>")
    return html_page(about.title, parts)


def html_page(title: str, parts: Sequence[str], style: str = "") -> str:
    """A whole page that needs no other file.

    Args:
      parts: of its body, HTML.
      style: CSS behind that of all pages.
    """
    head = f'<meta charset="utf-8">\n<meta name="viewport" content="width=device-width">\n<title>{html.escape(title)}'
    css = "\n".join(filter(None, (STYLE, style)))
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n{head}</title>\n<style>\n{css}\n</style>\n</head>\n<body>\n'
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def _table_html(table: StudyTable) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in ("encoding", *table.columns))
    lines = []
    for row in table.rows:
        cells = [html.escape(shown(cell)) for cell in row.cells]
        cells = [
            f"<strong>{text}</strong>" if c.mark == "best" else text for text, c in zip(cells, row.cells, strict=True)
        ]
        label = f'<td title="{html.escape(row.encoding)}">{html.escape(row.label)}</td>'
        lines.append(f"<tr>{label}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    below = "\n".join(f'<p class="small">{html.escape(text)}</p>' for text in (table.caption, *table.notes))
    return (
        f'<h2>{html.escape(table.study)}</h2>\n<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n'
        + "\n".join(lines)
        + f"\n</tbody>\n</table></div>\n{below}"
    )


def image_html(path: Path, what: str) -> str:
    """The PNG within the page; `what` is said to who does not see it."""
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    return f'<p><img alt="{html.escape(what)}" src="data:image/png;base64,{data}"></p>'


def _reproduce_html(records: Sequence[Record], command: str | None) -> str:
    """Command, config hashes and versions: what a second person needs besides the repository."""
    hashes = dict.fromkeys(str(run["config_hash"]) for run in records if run.get("config_hash"))
    facts = {"config hash": ", ".join(hashes), "versions": versions_text(records)}
    lines = [f"{name}: {value}" for name, value in facts.items() if value]
    parts = ["<h2>How to reproduce</h2>"]
    parts.append(
        f"<pre>{html.escape(command)}</pre>" if command else "<p>Run the experiment's config with these versions.</p>"
    )
    parts += [f'<p class="small">{html.escape(line)}</p>' for line in lines]
    return "\n".join(parts)
