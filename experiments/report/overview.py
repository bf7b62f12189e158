"""results/README.md, from the records: encodings for each purpose, verdicts on claims, and how each study was run."""

import collections
import dataclasses
import functools
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from experiments.records import TUNING, Record, read_records, read_study
from experiments.report import figures, page
from experiments.report.claims import (
    CONTROL,
    FAILS,
    HOLDS,
    NOT_RUN,
    PUBLISHED,
    REPEAT,
    UNSETTLED,
    Answer,
    Folders,
    Judged,
    answer_to,
    judge_claims,
)
from experiments.report.families import FAMILIES, family_of
from experiments.report.studies import KnownStudy, studies
from posjax.describe.figures import save
from posjax.describe.markdown import escape_markdown, grid
from posjax.files import replace_file
from posjax.jsonl import parse_json

PICTURE = "questions.png"
# Pages without seeded runs: (description, command) of each.
_OTHERS = (
    (
        "scorecard/README.md",
        "every encoding as initialised, against ideal properties",
        "scorecard --out=results/scorecard",
    ),
    ("benchmark/table.md", "time and memory beside other libraries", "benchmark SUITE --out=results/benchmark"),
    ("accelerator/table.md", "attention on an H100", "benchmark accelerator --out=results/accelerator"),
    ("training/table.md", "training steps on an H200", "benchmark training --out=results/training"),
    ("pipelines/table.md", "reading of pictures and tokens on a CPU", "benchmark pipelines --out=results/pipelines"),
    ("compiled/README.md", "programs for TPUs and H100s, compiled", "benchmark compiled --out=results/compiled"),
    (
        "context/table.md",
        "how long an input fits in memory and time",
        "benchmark context --config=configs/decoder.py --out=results/context",
    ),
    ("analyse/learned/README.md", "pictures of trained ViTs", "analyse --checkpoint=RUN --out=results/analyse/ROW"),
)


@dataclasses.dataclass(frozen=True)
class Results:
    """The content of a folder of results.

    Attributes:
      studies: all studies of configs/.
      folders: records of the studies that were run, by folder.
      cards: cards of the scorecard, by spec.
      points: tuning points by folder.
    """

    studies: list[KnownStudy] = dataclasses.field(default_factory=list)
    folders: Folders = dataclasses.field(default_factory=dict)
    cards: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    points: Mapping[str, Sequence[Record]] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def judged(self) -> list[Judged]:
        """All claims with their verdicts."""
        return judge_claims([claim for study in self.studies for claim in study.claims], self.folders)

    @functools.cached_property
    def answers(self) -> list[Answer]:
        """The answers to all questions that have records."""
        asked = [question for study in self.studies for question in study.questions]
        return [found for question in asked if (found := answer_to(question, self.folders, self.judged))]

    def hours(self, folder: str) -> collections.Counter[str]:
        """Returns the cost of a study that was run; see `page.hours_of`."""
        return page.hours_of(self.folders[folder], self.points.get(folder, ()))


def read_results(directory: pathlib.Path) -> Results:
    """Reads the records of all studies of configs/ in a folder of results.

    Raises:
      ValueError: there are no records, or a study's records make no table; the message names the study.
    """
    known, folders, points = studies(), {}, {}
    for study in known:
        place = directory / study.name
        try:
            found = page.in_config_order(read_study(place, study.has_parts), study.config)
        except ValueError as error:
            raise ValueError(f"{place / 'results.jsonl'}: {error}") from error
        if len(found):
            folders[study.name], points[study.name] = found, read_records(place / TUNING)
    if not folders:
        names = ", ".join(study.name for study in known)
        raise ValueError(f"{directory} holds no records of a study; a folder of results has folders named {names}")
    cards = directory / "scorecard" / "scorecard.json"
    return Results(known, folders, parse_json(cards.read_bytes(), cards)["cards"] if cards.exists() else {}, points)


def write_overview(directory: pathlib.Path) -> list[pathlib.Path]:
    """Writes README.md and its figure; returns their paths. Raises the errors of `read_results`."""
    results = read_results(directory)
    replace_file(directory / page.NAME, render(results).encode())
    drawn = figure(results)
    return [directory / page.NAME, *([save(drawn, directory / PICTURE, dpi=200)] if drawn else [])]


def render(results: Results) -> str:
    """Returns the Markdown of the page."""
    parts = ["# Results", "## Which one?", _answers(results)]
    if any(answer.question.column for answer in results.answers):
        families = "; ".join(f"{family.glyph} {family.about}" for family in FAMILIES.values())
        parts += [f"![Encodings by tasks, as differences to no encoding]({PICTURE})"]
        parts += [
            "*Better than no encoding (blue, a positive number) or worse (orange); ≈ is not settled, and nothing stands "
            f"where nothing was measured. Marks are of families: {families}.*"
        ]
    parts += [
        *_along_axes(results),
        "## Claims",
        _summary(results),
        "A claim *holds* if ours lies in the range that it says, and *fails at this size* if ours lies outside, each after "
        "Holm's correction over the claims of its study; else it is *not settled*. The page of each study has the numbers, "
        "its doubts, and what was tried where ours is against the paper.",
        *_claims(results),
    ]
    parts += ["## How each study was run", _inventory(results)]
    return "\n\n".join(parts) + "\n"


def _along_axes(results: Results) -> list[str]:
    """Returns the figure and the finding of each study along an axis, such as the size of the model or of the data."""
    parts = []
    for study in results.studies:
        if "axis" in study.config and study.name in results.folders:
            parts += [
                f"![{escape_markdown(study.config.title)}]({study.name}/along.png)",
                f"*{escape_markdown(study.config.page.says)}* [Numbers]({study.name}/{page.NAME})",
            ]
    return ["## Does it hold at other sizes?", *parts] if parts else []


def _summary(results: Results) -> str:
    verdicts = collections.Counter(judged.verdict for judged in results.judged)
    held = collections.Counter(judged.claim.role for judged in results.judged if judged.verdict == HOLDS)
    count = sum(map(len, results.folders.values()))
    cost = sum(map(results.hours, results.folders), collections.Counter())
    return (
        f"Of {len(results.judged)} claims of papers {verdicts[HOLDS]} hold at this size, {verdicts[FAILS]} fail, "
        f"{verdicts[UNSETTLED]} are not settled and {verdicts[NOT_RUN]} have not been run. Those that hold are "
        f"{held[PUBLISHED]} published ones, {held[REPEAT]} repeats on other data and {held[CONTROL]} controls of our own; "
        f"behind all of them are {count:,} records and at most {page.hours_text(cost, 0)}.\n\n"
        "`python -m experiments.report` writes this page from the records, and a test checks that it is current."
    )


def _answers(results: Results) -> str:
    lines = [_answer(answer) for answer in results.answers if answer.question.main]
    lines.append(
        "- **Packed documents**: every encoding reads them as documents alone, as `posjax check` says of yours."
    )
    return "\n".join(lines)


def _answer(found: Answer) -> str:
    """Returns ``- **Images of one size**: `sinusoidal` (11.27 ± 1.36 points better than none); as good: `rope`.``"""
    question = found.question
    reference = "no encoding" if question.reference == "none" else f"`{question.reference}`"
    if found.lead is None:
        sentence = f"nothing is better than {reference}"
    else:
        clear = "" if found.lead.separated else ", which is not settled"
        sentence = f"`{found.leader}` ({lead_text(found)} than {reference}{clear})"
    sentence += f"; not clearly behind: {_codes(found.tied)}" if found.tied else "; every other row is behind"
    sentence += f"; worse than {reference}: {_codes(found.behind)}" if found.behind else ""
    link = f"[{page.capital(question.what)}]({question.folder}/README.md)"
    return f"- **{question.asks}**: {sentence}. {link}. {question.doubt}"


def lead_text(found: Answer) -> str:
    """Returns the leader's gain on the reference: ``0.31 ± 0.02 nats better``."""
    unit, lead = found.question.unit, found.gain(found.leader).interval()
    digits = unit.digits - (unit.scale == 100)
    return f"{lead.mean:.{digits}f} ± {lead.half_width:.{digits}f} {unit.of_differences} better"


def _codes(rows: Sequence[str]) -> str:
    return f"{len(rows)} rows" if len(rows) > 6 else ", ".join(f"`{row}`" for row in rows)


def matrix(results: Results) -> dict[str, dict[str, tuple[Answer, str]]]:
    """Returns {encoding: {column: (answer, row)}} of encodings that were trained in several columns, by family.

    Columns are of questions. The first row of an encoding stands for it.
    """
    rows: dict[str, dict[str, tuple[Answer, str]]] = {}
    for found in results.answers:
        question = found.question
        for record in results.folders[question.folder] if question.column else ():
            if record.study == question.tables[0].study and record.base == record.row:
                rows.setdefault(name_of(record.encoding), {}).setdefault(question.column, (found, record.row))
    order = list(FAMILIES)
    names = [name for name, columns in rows.items() if len(columns) > 1 and name != "none"]
    return {name: rows[name] for name in sorted(names, key=lambda name: order.index(family_of(name)))}


def name_of(spec: str) -> str:
    """Returns a spec's name: ``rope`` of ``rope(base=100)``, ``learned`` of ``raster(width=8) >> learned()``."""
    while (outer := re.sub(r"\([^()]*\)", "", spec)) != spec:
        spec = outer
    return spec.strip().removeprefix("raster >> ")


_COLOURS = LinearSegmentedColormap.from_list("worse and better", ("#d9822b", "#ffffff", "#2b6cb0"))


def figure(results: Results) -> Figure | None:
    """Draws the matrix as a heat map: blue is better than no encoding, orange worse, white not settled."""
    made = matrix(results)
    titles = list(dict.fromkeys(answer.question.column for answer in results.answers if answer.question.column))
    if not made:
        return None
    names = list(made)
    shade = np.zeros((len(names), len(titles)))
    drawn = Figure(figsize=(figures.WIDTH, 1.9 + 0.23 * len(names)), layout="constrained")
    axes = drawn.add_subplot()
    for x, title in enumerate(titles):
        cells = {y: made[name][title] for y, name in enumerate(names) if title in made[name]}
        gains = {y: found.gain(row).value for y, (found, row) in cells.items() if row in found.against}
        most = max(map(abs, gains.values()), default=1.0) or 1.0
        for y, gain in gains.items():
            found, row = cells[y]
            clear, digits = found.against[row].separated, 1 if found.question.unit.scale == 100 else 2
            shade[y, x] = gain / most if clear else 0.0
            text = f"{gain:+.{digits}f}" if clear else "≈"
            color = "white" if abs(shade[y, x]) > 0.75 else "black"
            axes.text(x, y, text, ha="center", va="center", fontsize=figures.SMALL - 1, color=color)
    axes.imshow(shade, cmap=_COLOURS, vmin=-1, vmax=1, aspect="auto")
    axes.set_xticks(range(len(titles)), titles, rotation=90, fontsize=figures.SMALL)
    axes.xaxis.tick_top()
    looks = [FAMILIES[family_of(name)] for name in names]
    labels = [f"{look.glyph} {name}" for look, name in zip(looks, names, strict=True)]
    axes.set_yticks(range(len(names)), labels, fontsize=figures.SMALL)
    for tick, look in zip(axes.get_yticklabels(), looks, strict=True):
        tick.set_color(look.color)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return drawn


def _claims(results: Results) -> list[str]:
    """Returns the claims of each study, folded."""
    parts = []
    for study in results.studies:
        own = [judged for judged in results.judged if judged.claim.folder == study.name]
        if not own:
            continue
        verdicts = collections.Counter(judged.verdict for judged in own)
        counts = [f"{verdicts[name]} {name}" for name in (HOLDS, FAILS, UNSETTLED, NOT_RUN) if verdicts[name]]
        lines = [f"[Table and figures]({study.name}/README.md).\n"]
        if study.name not in results.folders:
            lines = [f"`{study.command}`\n"]
        for claim, estimates, _, _, verdict, _ in own:
            says = escape_markdown(f"{claim.says} ({claim.source})")
            link = f" [Numbers]({study.name}/README.md#{claim.id})" if estimates else ""
            lines.append(f'- <a id="{claim.id}"></a>**{page.capital(verdict)}.** {says}{link}')
        parts.append(page.folded(f"{study.config.title}: {', '.join(counts)}", "\n".join(lines)))
    return parts


def _inventory(results: Results) -> str:
    """Returns a row for each study that was run or has claims; then the other folders."""
    rows = []
    for study in results.studies:
        title, command = escape_markdown(study.config.title), f"`{study.command}`"
        if study.name in results.folders:
            count, hours = len(results.folders[study.name].rows), page.hours_text(results.hours(study.name))
            rows.append((f"[{title}]({study.name}/README.md)", str(count), hours.removesuffix(" core-hours"), command))
        elif study.claims:
            rows.append((title, "not run", "", command))
    others = "\n".join(
        f"- [{path.partition('/')[0]}]({path}): {about}. `python -m experiments.{command}`"
        for path, about, command in _OTHERS
    )
    sentence = (
        "Core-hours are wall time times the cores that were there, two in most studies, on machines that may have been "
        "shared: upper bounds. "
        "Versions, device, data digest and hash of the config stand in every record. Beside the studies:"
    )
    return "\n\n".join([grid(("study", "rows", "core-hours", "command"), rows), sentence, others])
