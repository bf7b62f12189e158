"""One page that a reviewer can check: tables, figures, config and versions of a set of runs, in a single HTML file.

Everything is a function of the arguments: no clock, no host name, so equal records give equal files.
"""

import base64
import functools
import html
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from experiments.report import plots
from experiments.report.statistics import (
    ACCURACY,
    Metric,
    Record,
    Rows,
    all_runs,
    group,
    is_none,
    line_of_curves,
    metric_values,
    metrics_of,
)
from experiments.report.table import BOLD, StudyTable, block_findings, shown, summarize, to_markdown, versions_text
from posjax.describe.figures import save
from posjax.describe.markdown import escape_markdown
from posjax.files import replace_file

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: separate; border-spacing: 0; font-size: .875rem; font-variant-numeric: tabular-nums; }
.wide { overflow: auto; max-height: 85vh; border: 1px solid #8884; width: fit-content; max-width: 100%; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid #8884; white-space: nowrap; background: Canvas; }
th { position: sticky; top: 0; z-index: 1; white-space: normal; vertical-align: bottom; min-width: 4.5rem; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; border-right: 1px solid #8884; }
th:first-child { z-index: 2; }
.small, figcaption { font-size: .875rem; opacity: .85; }
figure { margin: 1rem 0; }
img { max-width: 100%; background: white; padding: .5rem; box-sizing: border-box; border-radius: .25rem; }
pre { overflow-x: auto; padding: .75rem; border: 1px solid #8886; border-radius: .25rem; font-size: .8125rem; }
nav ul { columns: 16rem; padding-left: 1.25rem; }
.point { font-size: 1.125rem; }
.notes { white-space: pre-line; }
""".strip()

Draw = Callable[[Sequence[Record], dict[str, plots.Style]], Figure]


class Answer(NamedTuple):
    """A claim that the study decides: the claim, the verdict on it, and the numbers behind that."""

    claim: str
    verdict: str
    numbers: str


class About(NamedTuple):
    """What a page says beside its tables and figures."""

    title: str
    config_text: str | None = None  # the experiment's config, shown verbatim
    notes: str = ""  # plain text below the findings
    command: str | None = None  # the shell command that produced the records, shown under "How to reproduce"
    point: str = ""  # what the study is about, in a sentence; numbers are left to the findings
    answers: Sequence[Answer] = ()  # come before the findings of the tables


class Saved(NamedTuple):
    path: Path
    caption: str


def write_report(
    records: Sequence[Record],
    directory: str | os.PathLike,
    about: About,
    drawn: Mapping[str, Mapping[str, plots.Captioned]] = MappingProxyType({}),
    before: Sequence[StudyTable] = (),
    lead: Mapping[str, plots.Captioned] = MappingProxyType({}),
) -> list[Path]:
    """Writes table.md, a PNG per figure and the self-contained report.html into ``directory``.

    Files appear whole or not at all. Unfinished rows are shown with the seeds they have; a study gets the figures its
    records allow, that of its headline first.

    Args:
      records: runs of one or several studies, as in results.jsonl.
      directory: made if it does not exist.
      drawn: further figures of a study: {study: {name: figure}}.
      before: tables about several studies, which come before those of each.
      lead: figures about several studies, which come before all tables: {name: figure}.

    Returns:
      The paths written, report.html last.

    Raises:
      ValueError: no records, inconsistent ones (`experiments.report.statistics.group`) or studies that share a file name.
    """
    tables, directory = summarize(records), Path(directory)
    stems = _stems([table.study for table in tables])  # raises before anything is written
    directory.mkdir(parents=True, exist_ok=True)
    studies, look = group(records), plots.styles(records)
    saved = {LEAD: save_figures(lead, directory)}
    for table in tables:
        own = _figures(studies[table.study], table, look)
        last = {"learning_curves": own.pop("learning_curves")} if "learning_curves" in own else {}
        own = {**own, **drawn.get(table.study, {}), **last}
        saved[table.study] = save_figures(own, directory, stems[table.study])
    return write_pages([*before, *tables], saved, records, directory, about)


LEAD = ""  # under this name stand the figures that come before all tables


def write_pages(
    tables: Sequence[StudyTable],
    figures: Mapping[str, Sequence[Saved]],
    records: Sequence[Record],
    directory: Path,
    about: About,
) -> list[Path]:
    """Writes table.md and report.html of tables and figures that have been made: {name of a table: its figures}.

    Of a table's figures the first comes before it, the others behind; those of `LEAD` before all.

    Returns:
      The paths of table.md, the figures and report.html.
    """
    markdown = "\n".join([f"# {escape_markdown(about.title)}\n", *_answers_markdown(about), *map(to_markdown, tables)])
    page = _page(records, tables, figures, about)
    texts = {directory / "table.md": markdown, directory / "report.html": page}
    for path, text in texts.items():
        replace_file(path, text.encode())
    drawn = [each.path for saved in figures.values() for each in saved]
    return [directory / "table.md", *drawn, directory / "report.html"]


def _answers_markdown(about: About) -> list[str]:
    lines = [f"- {escape_markdown(a.claim)} **{a.verdict}**: {escape_markdown(a.numbers)}" for a in about.answers]
    return ["\n".join([*lines, "", ANSWERED, ""])] if lines else []


# What a reader needs beside the answers.
ANSWERED = (
    "Claims of the literature, judged after Holm's correction over the claims of this study. Differences with their 95 % "
    "intervals, and in brackets the range that the claim says: accuracies in points, losses in nats, errors of positions in "
    "bytes."
)


def save_figures(drawn: Mapping[str, plots.Captioned], directory: Path, stem: str = "") -> list[Saved]:
    """Writes a PNG for each: <stem>_<name>.png."""
    return [
        Saved(save(each.figure, directory / f"{stem}{'_' * bool(stem)}{name}.png", _DPI, _COLORS), each.caption)
        for name, each in drawn.items()
    ]


_DPI, _COLORS = 130, 256  # of line drawings, which then take 20 to 60 KB


def _figures(rows: Rows, table: StudyTable, look: dict[str, plots.Style]) -> dict[str, plots.Captioned]:
    """The figures for which a study has at least one finite value; the first one's caption is what the table's tests show."""
    finite = {metric for metric in metrics_of(rows) for runs in rows.values() if metric_values(runs, metric)[0]}
    drawn: dict[str, tuple[Draw, str]] = {}
    if ACCURACY in finite:
        drawn["accuracy"] = plots.points_by_encoding, _SEEDS
    for name in ("exact match", "accuracy", "accuracy by length", "exact match by length"):
        if not name.startswith("exact match") or _some_are_found(rows, name):
            draw = functools.partial(plots.accuracy_by_length, name=name)
            drawn = drawn | _by_length(finite, name, draw) | drawn
    drawn |= _by_length(finite, "loss", plots.loss_by_length)
    by_block = block_findings(rows)
    if drawn:
        first, (draw, told) = next(iter(drawn.items()))
        drawn[first] = draw, " ".join((*(text for text in table.findings if text not in by_block.values()), told))
    drawn = _by_block(rows, by_block) | drawn
    if any(np.isfinite(line_of_curves(runs).mean).any() for runs in rows.values()):
        drawn["learning_curves"] = plots.learning_curves, f"Training loss by step: {_OF_LOSS}"
    return {name: plots.Captioned(draw(all_runs(rows), look), told) for name, (draw, told) in drawn.items()}


_SEEDS, _BAND = "Every dot is a seed.", "mean and 95 % interval over seeds."
_OF_LOSS = "mean and 95 % interval over seeds, where the axis is logarithmic those of the logarithm."
_FEW = 0.01  # whole answers right, below which no figure shows them


def _some_are_found(rows: Rows, name: str) -> bool:
    """Whether a row has whole answers right, at a length, that a figure could show."""
    found = [metric_values(runs, m)[0] for m in metrics_of(rows) if m.name == name for runs in rows.values()]
    return any(np.mean(values) >= _FEW for values in found if values)


def _by_length(finite: set[Metric], name: str, draw: Draw) -> dict[str, tuple[Draw, str]]:
    """A figure over the lengths; where there is one alone, its rows as points."""
    lengths = [metric for metric in finite if metric.name == name and metric.length is not None]
    stem = name.removesuffix(" by length").replace(" ", "_")
    if len(lengths) == 1:
        return {stem: (functools.partial(plots.points_by_encoding, metric=lengths[0]), _SEEDS)}
    told = _OF_LOSS if name == "loss" else _BAND
    return {f"{stem}_by_length": (draw, told.capitalize())} if lengths else {}


def _by_block(rows: Rows, findings: Mapping[tuple[str, str], str]) -> dict[str, tuple[Draw, str]]:
    """A figure for each thing that is measured after every block of a model; its caption is what the tests show of it."""
    drawn = {}
    blind = (
        " Dotted: none before the blocks, where nothing tells positions." if any(map(is_none, rows.values())) else ""
    )
    for (what, of), finding in findings.items():
        draw = functools.partial(plots.metric_by_block, what=what, of=of)
        told = f"{what} of {of or 'text'} after each block: {_BAND}{blind} {finding}"
        drawn[re.sub(r"\W+", "_", f"{what}, {of or 'text'}")] = draw, told.strip()
    return drawn


def _stems(studies: list[str]) -> dict[str, str]:
    """study -> the start of its file names: letters, digits, dot, dash and underscore, never a path or hidden."""
    stems = {study: re.sub(r"[^A-Za-z0-9._-]+", "_", study).lstrip(".") or "study" for study in studies}
    if len(set(stems.values())) < len(stems):
        raise ValueError(f"studies {studies} share file names: rename them to differ in letters or digits")
    return stems


def _page(
    records: Sequence[Record],
    tables: Sequence[StudyTable],
    figures: Mapping[str, Sequence[Saved]],
    about: About,
) -> str:
    named = {table.study: f"study-{index}" for index, table in enumerate(tables)}
    parts = [f"<h1>{html.escape(about.title)}</h1>", *_findings_html(tables, about)]
    parts += [figure_html(each) for each in figures.get(LEAD, ())]
    if about.notes:
        parts.append(f'<p class="notes">{html.escape(about.notes)}</p>')
    parts.append(_contents_html({**named, "How to reproduce": "reproduce"}))
    for table in tables:
        first, *others = figures.get(table.study, ()) or (None,)
        parts.append(f'<h2 id="{named[table.study]}">{html.escape(table.study)}</h2>')
        parts += [figure_html(first)] if first else []
        parts.append(_table_html(table))
        parts += map(figure_html, others)
    parts.append(_reproduce_html(records, about.command))
    if about.config_text is not None:
        text = html.escape(about.config_text)
        parts.append(f"<details>\n<summary>Config</summary>\n<pre>{text}</pre>\n</details>")
    return html_page(about.title, parts)


def _findings_html(tables: Sequence[StudyTable], about: About) -> list[str]:
    """What the study is about, and what its tests show."""
    parts = [f'<p class="point">{html.escape(about.point)}</p>'] if about.point else []
    several = len(tables) > 1
    items = [f"{table.study}: {text}" if several else text for table in tables for text in table.findings]
    answers = [
        f"{html.escape(each.claim)} <strong>{html.escape(each.verdict)}</strong>: {html.escape(each.numbers)}"
        for each in about.answers
    ]
    if answers or items:
        parts.append("<h2>Findings</h2>")
    parts += [*_list_html(answers), f'<p class="small">{html.escape(ANSWERED)}</p>'] if answers else []
    return parts + _list_html(list(map(html.escape, items)))


def _list_html(items: Sequence[str]) -> list[str]:
    listed = "\n".join(f"<li>{item}</li>" for item in items)
    return [f"<ul>\n{listed}\n</ul>"] if items else []


def _contents_html(named: Mapping[str, str]) -> str:
    items = "\n".join(f'<li><a href="#{at}">{html.escape(name)}</a></li>' for name, at in named.items())
    return f"<nav>\n<h2>Contents</h2>\n<ul>\n{items}\n</ul>\n</nav>"


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
            f"<strong>{text}</strong>" if c.mark in BOLD else text for text, c in zip(cells, row.cells, strict=True)
        ]
        label = f'<td title="{html.escape(row.encoding)}">{html.escape(row.label)}</td>'
        lines.append(f"<tr>{label}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    below = "\n".join(f'<p class="small">{html.escape(text)}</p>' for text in (table.caption, *table.notes))
    return (
        f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n'
        + "\n".join(lines)
        + f"\n</tbody>\n</table></div>\n{below}"
    )


def image_html(path: Path, what: str) -> str:
    """The PNG within the page; `what` is said to who does not see it."""
    return f"<p>{_image(path, what)}</p>"


def figure_html(saved: Saved) -> str:
    """The PNG with its caption below, which is also said to who does not see it."""
    return (
        f"<figure>{_image(saved.path, saved.caption)}\n<figcaption>{html.escape(saved.caption)}</figcaption></figure>"
    )


def _image(path: Path, what: str) -> str:
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    return f'<img alt="{html.escape(what)}" src="data:image/png;base64,{data}">'


REPRODUCE = "How to reproduce"


def _reproduce_html(records: Sequence[Record], command: str | None) -> str:
    """Command, config hashes and versions: what a second person needs besides the repository."""
    hashes = dict.fromkeys(str(run["config_hash"]) for run in records if run.get("config_hash"))
    facts = {"config hash": ", ".join(hashes), "versions": versions_text(records)}
    lines = [f"{name}: {value}" for name, value in facts.items() if value]
    parts = [f'<h2 id="reproduce">{REPRODUCE}</h2>']
    parts.append(
        f"<pre>{html.escape(command)}</pre>" if command else "<p>Run the experiment's config with these versions.</p>"
    )
    parts += [f'<p class="small">{html.escape(line)}</p>' for line in lines]
    return "\n".join(parts)
