"""The page of a study, results/NAME/README.md: two sentences, verdicts on claims, tables, figures and the command.

    page = write_study_page(config, records, workdir, command)      # README.md and its PNGs
    print_page(page)                                          # the same tables, for a terminal

A page is a function of its arguments: no clock, no host name. Equal records give equal files.
"""

import collections
import dataclasses
import math
import pathlib
import re
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ml_collections import ConfigDict

from experiments.records import TUNING, Record, Records, read_records
from experiments.report import figures, paper, table, trends
from experiments.report.claims import FAILS, NOT_RUN, Expectation, Folders, Judged, judge_claims, looked_at
from experiments.report.figures import Drawn
from experiments.report.statistics import LEVEL, Estimate, finite_values, is_whole
from experiments.report.studies import study_of
from experiments.report.table import StudyTable
from experiments.report.units import Unit, words
from posjax.describe.figures import save
from posjax.describe.markdown import escape_markdown, grid
from posjax.files import replace_file

NAME = "README.md"
_DPI, _COLORS = 200, 256  # line drawings then take 20 to 60 KB


class Page(NamedTuple):
    """A page: its Markdown, its figures, its tables for a terminal, and the paths of its files once they are written."""

    markdown: str
    drawn: list[Drawn]
    tables: list[StudyTable]
    paths: tuple[pathlib.Path, ...] = ()


def make_page(
    config: ConfigDict, records: Iterable[Record], command: str | None, points: Sequence[Record] = ()
) -> Page:
    """Returns the page of a study, which need not be finished.

    Args:
      config: of the study; `title`, `point`, `notes`, `paper`, `axis`, `curves`, `against` (labels of the rows that every
        row is compared with, `none` by default) and `page` (says, headings, headline, links; tables=False leaves the tables
        and figures of studies out, deviations=True shows standard deviations of seeds) are shown if given.
      records: of all rows. They decide the claims of the study of this name in configs/.
      command: runs the study.
      points: of its tuning.

    Raises:
      ValueError: there are no records, or they make no table (`experiments.records.Records`).
    """
    records = in_config_order(records, config)
    if not len(records):
        raise ValueError("there are no records: run at least one row before asking for its page")
    known = study_of(config.get("name", ""))
    folders = {known.name: records} if known else {}
    judged = judge_claims(known.claims if known else (), folders)
    says = _page_of(config).get("says") or config.get("point", "")
    parts = [f"# {escape_markdown(config.get('title', 'A study'))}", escape_markdown(says)]
    if links := _page_of(config).get("links"):
        parts.append("\n".join(f"- [{escape_markdown(name)}]({path})" for name, path in links.items()))
    if any(claim.verdict != NOT_RUN for claim in judged):
        parts += ["## What papers claim", "\n".join(_claim(claim, folders) for claim in judged)]
    all_drawn, all_tables = [], []
    for drawn, below in _across(records, config):
        parts += [_image(drawn), below]
        all_drawn.append(drawn)
    look, (records, unlearned) = figures.styles(records), _learned(records)
    for study in records.studies.values() if _page_of(config).get("tables", True) else ():
        own = _page_of(config).get("headings", {}).get(study.name) or capital(study.name.replace("_", " "))
        name = own if len(records.studies) > 1 else ""
        deviations = _page_of(config).get("deviations", False)
        tables = table.tables(study, name, config.get("against", ()), deviations)
        drawn = figures.study_figures(study, look)
        if "curves" in config and (beside := paper.beside_curves(study, config.curves, look)):
            drawn.insert(1, beside)
        start = f"{re.sub(r'[^A-Za-z0-9.-]+', '_', study.name)}_" if name else ""
        drawn = [figure._replace(name=f"{start}{figure.name}") for figure in drawn]
        parts += _section(name, tables, drawn)
        all_drawn, all_tables = all_drawn + drawn, all_tables + tables
    specs = dict.fromkeys((record.row, record.encoding) for record in records if not record.each)
    specs = [f"- {escape_markdown(row)}: `{spec}`" for row, spec in specs if spec.removesuffix("()") != row]
    parts += ["## The rows", "\n".join(specs)] if specs else []
    parts += ["## How it was run", f"```\n{command}\n```" if command else ""]
    hours = f"At most {hours_text(hours_of(records, points))}, of choosing rates and measuring too."
    parts += [f"{capital(regime(records))}. {hours}"]
    notes = [config.get("notes", ""), *unlearned, *_notes(records), *_tuning_notes(records)]
    parts += map(escape_markdown, notes)
    parts += ["## How to read it", how_to_read(records, all_tables, judged)]
    return Page("\n\n".join(filter(None, parts)) + "\n", all_drawn, all_tables)


def write_study_page(config: ConfigDict, records: Iterable[Record], workdir: pathlib.Path, command: str | None) -> Page:
    """Writes README.md and its figures into the folder of a study, and removes figures that only the earlier page showed.

    Raises the errors of `make_page`.
    """
    page = make_page(config, records, command, read_records(workdir / TUNING))
    workdir.mkdir(parents=True, exist_ok=True)
    path = workdir / NAME
    earlier = re.findall(r"\]\(([\w.-]+\.png)\)", path.read_text()) if path.exists() else ()
    pictures = [save(picture.figure, workdir / f"{picture.name}.png", _DPI, _COLORS) for picture in page.drawn]
    for old in {workdir / name for name in earlier} - {*pictures}:
        old.unlink(missing_ok=True)
    replace_file(path, page.markdown.encode())
    return page._replace(paths=(path, *pictures))


def print_page(page: Page) -> None:
    """Prints the tables of a page, and the paths of its files."""
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console(width=None if sys.stdout.isatty() else 160)
    for made in page.tables:
        title, finding = escape_markdown(made.title), escape_markdown(made.finding)
        console.print(Markdown(f"**{title}**\n\n{table.table_markdown(made)}\n\n{finding}"))
    print("\n".join(map(str, page.paths)))


def in_config_order(records: Iterable[Record], config: ConfigDict) -> Records:
    """Sorts studies and rows of the records in the config's order, others last, and metrics with its headline first."""
    tables = config.get("studies") or {config.get("name", ""): config}
    order = [(study, row) for study, rows in tables.items() for row in (*_labels(rows), None)]  # None: any other row
    places = {place: index for index, place in reversed([*enumerate(order)])}
    first = _page_of(config).get("headline", "accuracy")

    def place(record: Record) -> int:
        return places.get((record.study, record.row), places.get((record.study, None), len(order)))

    def metrics(record: Record) -> dict:
        return dict(sorted(record.metrics.items(), key=lambda item: item[0] != first))

    return Records(dataclasses.replace(each, metrics=metrics(each)) for each in sorted(records, key=place))


def _learned(records: Records) -> tuple[Records, list[str]]:
    """Returns the records without the retrieval tasks that no row of a study ever solves, and a sentence on each."""
    kept, said = [], []
    for study in records.studies.values():
        solved = {
            metric.removesuffix(_EXACT): any(
                any(finite_values(study.values(r, metric, at))) for r in study.rows for at in ats
            )
            for metric, ats in study.metrics.items()
            if metric.endswith(_EXACT)
        }
        failed = tuple(f"{task} " for task, is_solved in solved.items() if not is_solved)
        for record in study.records:
            metrics = {name: value for name, value in record.metrics.items() if not name.startswith(failed)}
            kept.append(dataclasses.replace(record, metrics=metrics))
        if failed:
            tasks = ", ".join(words(task).strip() for task in failed)
            said.append(f"No row of {study.name} solves {tasks}: not learned; train with data.retrieval.share above 0.")
    return Records(kept), said


_EXACT = " exact match"  # ends the name of a retrieval task's metric


def _page_of(config: ConfigDict) -> ConfigDict:
    return config.get("page") or ConfigDict()


def _labels(table: ConfigDict) -> list[str]:
    """Returns the rows of a table: each base, followed by the rows that read or fine-tune its weights."""
    found = []
    for base in [*table.get("encodings", {}), *table.get("rows", {})]:
        others = (table.get(section, {}).get(base, {}) for section in ("variants", "finetune"))
        found += [base, *(label for labels in others for label in labels)]
    return found


def _section(name: str, tables: Sequence[StudyTable], drawn: Sequence[Drawn]) -> list[str]:
    """Returns the first table of a study with its finding and figure, then other tables, folded, then other figures."""
    first, *others = tables
    parts = [f"## {name or capital(first.title)}", escape_markdown(first.finding), table.table_markdown(first)]
    parts += [_image(figure) for figure in drawn[:1]]
    for made in others:
        body = "\n\n".join(filter(None, (escape_markdown(made.finding), table.table_markdown(made))))
        title = made.title.removeprefix(f"{name}, ")
        parts.append(folded(f"{capital(title)}, in numbers", body))
    for index, figure in enumerate(drawn[1:], 1):
        shown = not figure.aside and index < _OPEN
        parts.append(_image(figure) if shown else folded(_short(figure), _image(figure)))
    return parts


_OPEN = 3  # figures of a study that stand unfolded


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def folded(title: str, body: str) -> str:
    """Returns Markdown that a click on its title shows."""
    return f"<details><summary>{escape_markdown(title)}</summary>\n\n{body}\n\n</details>"


def _image(drawn: Drawn) -> str:
    return f"![{escape_markdown(_short(drawn))}]({drawn.name}.png)\n\n*{escape_markdown(drawn.caption)}*"


def _short(drawn: Drawn) -> str:
    """Returns the first sentence of a caption."""
    return drawn.caption.partition(". ")[0]


def _across(records: Records, config: ConfigDict) -> list[tuple[Drawn, str]]:
    """Returns figures about several studies, each with a table below it."""
    found = []
    if "paper" in config and "metric" in config.paper and (compared := paper.compared(records, config.paper)):
        beside = folded("Beside the paper, in numbers", paper.compared_markdown(compared, config.paper))
        found.append((paper.forest(compared, config.paper), beside))
    if "axis" in config and (along := trends.along(records, config.axis)):
        found.append((along, ""))
        if "against" in config.axis and (leads := trends.trends(records, config.axis)):
            below = trends.trends_markdown(leads, records, config.axis)
            if others := trends.trends(records, config.axis, others=True):
                below += f"\n\n{folded('Every other pair of rows', grid(*trends.trends_table(others, config.axis)))}"
            found.append((trends.trends_figure(leads, records, config.axis), below))
    return found


def _claim(judged: Judged, folders: Folders) -> str:
    """Returns the verdict and the claim, then lines with our numbers, the paper's, and remarks on them."""
    claim = judged.claim
    ours = "; ".join(ours_text(*pair, claim.unit) for pair in zip(claim.expects, judged.estimates, strict=False))
    theirs = "; ".join(f"{what} {value:g}" for what, value in claim.paper.items())
    looked = looked_at(claim, folders) if judged.estimates else []
    lines = {"Ours": f"{ours}{p_text(judged)}" if ours else "", "Paper": f"{claim.source}, {claim.place}"}
    lines["Paper"] += f": {theirs}" if theirs else ""
    lines["Doubt"] = claim.doubt
    if judged.verdict == FAILS:
        lines |= {"Tried": claim.tried, "Open": claim.remains}
    lines["Beside it"] = "; ".join(looked)
    notes = "".join(f"\n  - *{name}*: {escape_markdown(text)}" for name, text in lines.items() if text)
    return f'- <a id="{claim.id}"></a>**{capital(judged.verdict)}.** {escape_markdown(claim.says)}{notes}'


def ours_text(expected: Expectation, found: Estimate, unit: Unit) -> str:
    """Returns ``alibi at 4096 - alibi at 128: +0.012 ± 0.003 nats (claimed: below 0.02)``."""
    name = (expected.name or str(expected.contrast)).replace("@", "at ")
    value = found.interval().scaled(unit.scale).text(unit.digits, signed=True)
    return f"{name}: {value} {unit.of_differences}".strip() + f" (claimed: {claimed_range(expected, unit)})"


def claimed_range(expected: Expectation, unit: Unit) -> str:
    """Returns the claimed range as text: ``below 0.02``."""
    ends = [("above", expected.low), ("below", expected.high)]
    return " and ".join(f"{word} {end * unit.scale:g}" for word, end in ends if math.isfinite(end))


def p_text(judged: Judged) -> str:
    if not judged.estimates:
        return ""
    if math.isnan(judged.p):
        return " (no test: too few seeds)"
    return ", p < 0.001" if judged.p < 0.001 else f", p = {judged.p:.2g}"


def regime(records: Iterable[Record]) -> str:
    """Returns the spans over records: ``116,480 parameters, 800 steps, 0.58 passes, 5 seeds, learning rate 0.01, cpu``."""
    records = list(records)
    seeds = {len({record.seed for record in rows}) for rows in Records(records).rows}
    parts = [
        _span({record.parameters for record in records}, "{:,}", "parameter"),
        _span({record.steps for record in records if record.steps}, "{:,}", "step"),
        _span({record.passes for record in records if record.passes}, "{:.3g}", "pass"),
        *(_span({r.guess[what] for r in records if r.guess}, "{:,}", noun) for what, noun in _TESTED.items()),
        "" if records[0].each else _span(seeds, "{}", "seed"),
    ]
    rates = _span({record.learning_rate for record in records if record.learning_rate}, "{:g}", "")
    parts += [f"learning rate {rates.strip()}"] if rates else []
    return ", ".join([*filter(None, parts), *dict.fromkeys(record.device for record in records)])


_TESTED = {"classes": "class", "examples": "test example"}


def _units_of_repetition(records: Iterable[Record]) -> str:
    """Returns "seeds", or what a published model is measured on: "texts", or "texts and images"."""
    units = dict.fromkeys(record.each or "seed" for record in records)
    return " and ".join(f"{unit}s" for unit in units if unit in ("seed", "text", "image"))


def _span(values: set, form: str, noun: str) -> str:
    if not values:
        return ""
    many = noun if values == {1} or not noun else f"{noun}es" if noun.endswith("s") else f"{noun}s"
    ends = dict.fromkeys(form.format(value) for value in (min(values), max(values)))
    return f"{' to '.join(ends)} {many}"


def hours_of(records: Iterable[Record], points: Iterable[Record] = ()) -> collections.Counter[str]:
    """Returns {device: hours} of training, tuning and measuring: "cpu" in hours of a core, others in hours of the device.

    Runs that train together share their time. It is an upper bound: a device may have waited, or served other processes.
    """
    records = list(records)

    def count(record: Record) -> int:
        return record.versions.get("cpus" if record.device == "cpu" else "devices", 1)

    # Seeds and rates that train together have the same wall time, to the last digit.
    taken = {record.wall_time: (record, record.wall_time) for record in (*records, *points)}
    found: collections.Counter[str] = collections.Counter()
    for record, seconds in (*taken.values(), *((record, record.evaluation_time or 0.0) for record in records)):
        found[record.device] += seconds * count(record) / 3600
    return found


def hours_text(hours: Mapping[str, float], digits: int = 1) -> str:
    """Returns "19.6 core-hours", or "19.6 core-hours and 0.8 hours of NVIDIA H100 80GB HBM3"."""
    of_device = [f"{each:.1f} hours of {device}" for device, each in sorted(hours.items()) if device != "cpu"]
    of_cores = [f"{hours.get('cpu', 0.0):.{digits}f} core-hours"] if "cpu" in hours or not of_device else []
    return " and ".join(of_cores + of_device)


def commits(records: Iterable[Record]) -> list[str]:
    """Returns short hashes of the commits that made the records; `-dirty` if files had been changed."""
    found = dict.fromkeys(str(record.versions.get("commit") or "unknown") for record in records)
    return [commit[:7] + ("-dirty" if commit.endswith("-dirty") else "") for commit in found]


def _notes(records: Records) -> list[str]:
    """Returns notes on rows that are not quite comparable, and on the choice of learning rates."""
    notes = []
    for study in records.studies.values():
        guess = study.guess.get("loss", math.inf)
        if above := [
            row for row in study.rows if statistics.mean(finite_values(study.values(row, "loss")) or [0.0]) > guess
        ]:
            notes.append(
                f"The held-out loss of {table.listed(above)} in {study.name} is above that of guessing ({guess:.3f} nats): "
                "trained for too long on too few examples."
            )
        equal = {record.row: record.equal_to for record in study.records if record.equal_to}
        for twin in dict.fromkeys(equal.values()):
            same = table.listed([row for row, other in equal.items() if other == twin])
            notes.append(
                f"Not measured but equal to {twin} at all lengths of {study.name}, by their encodings: {same}."
            )
        if study.records[0].each:  # one model on each text: a row has the unit of repetition that suits it
            continue
        seeds = {row: sorted(record.seed for record in found) for row, found in study.rows.items()}
        if len({tuple(found) for found in seeds.values()}) > 1:
            listed = "; ".join(f"{row}: {', '.join(map(str, found))}" for row, found in seeds.items())
            notes.append(f"Rows of {study.name} differ in their seeds ({listed}).")
        trained = [record for record in study.records if record.base == record.row]
        for what, field in (("data", "data_digest"), ("steps", "steps")):
            values = sorted({str(getattr(record, field)) for record in trained})
            if len(values) > 1:
                notes.append(f"Rows of {study.name} were trained with different {what} ({', '.join(values)}).")
    if not all(is_whole(cell) for study in records.studies.values() for cell in study.cells()):
        notes.append("Where some seeds are not finite, the mean is that of the finite ones; such a row is never best.")
    return notes


def _tuning_notes(records: Records) -> list[str]:
    """Notes on the choice of learning rates, and on rows that might do better at rates that were not tried."""
    tuned = {(r.study, r.row): r for r in records if r.tuned}
    notes, edge = {}, []
    for (study, row), record in tuned.items():
        how, (field, chosen) = record.tuned, next(iter(record.tuned["chosen"].items()))
        values, seeds = ", ".join(how["scores"]), ", ".join(map(str, how["seeds"]))
        held = "which those runs are not trained on" if "% of" in how["on"] else "other problems than the reported ones"
        name = field.rpartition(".")[2].replace("_", " ")
        chose = f"by {how['metric']} on {how['on']}, {held} (seed {seeds})"
        notes[f"Each row is trained at the best of its values of the {name} ({values}) {chose}."] = None
        ends = list(how["scores"])
        if len(ends) > 1 and record.base == row and isinstance(chosen, float) and f"{chosen:g}" in (ends[0], ends[-1]):
            where = f" of {study}" if len(records.studies) > 1 else ""
            edge.append(f"{row}{where} ({chosen:g})")
    edges = f"The best value is at the edge of those tried, and might be better beyond: {', '.join(edge)}."
    return [*notes, *([edges] if edge else [])]


def how_to_read(records: Records, tables: Sequence[StudyTable], judged: Sequence[Judged]) -> str:
    """Returns the footnotes of all tables and figures."""
    tests = sorted({made.tests for made in tables})
    runs = [frozenset(record.run for record in rows) for rows in records.rows]
    units, tested = _units_of_repetition(records), "Welch's t tests"
    if len(runs) > len(set(runs)):
        tested = f"t tests, paired by {units[:-1]} where rows read the same weights and else Welch's"
    left_out = " and leave out the sampling of the test set" if units == "seeds" else ""
    parts = [
        f"Numbers are means over {units} ± half-widths of 95 % Student t intervals, which are not corrected{left_out}."
    ]
    if tests and tests[-1]:
        parts.append(
            f"The best mean of a column is bold and {table.TIED} stands before what is not clearly behind it; *better* and "
            f"*worse* are clear differences to the row that the column names, *not settled* are unclear ones: {tested}, at "
            f"{LEVEL:g} after Holm's correction over the tests of a table "
            f"({' to '.join(map(str, sorted({tests[0], tests[-1]})))})."
        )
    if judged:
        family = f"{judged[0].tests} claims of this study" if judged[0].tests > 1 else "one claim of this study"
        parts.append(
            "A claim *holds* if ours lies in the range that it says and *fails at this size* if ours lies outside, each "
            f"after Holm's correction over the {family} with records; else it is *not settled*."
        )
    times = [record.step_time for record in records if record.step_time is not None]
    parts += ["A step is one of all seeds together, divided by their number."] if times else []
    if any(record.speed for record in records):
        parts.append(
            "Tokens and images a second are of all seeds together, as is the share of the device's peak (MFU). Goodput is "
            "the share of a training's time in steps that were kept; the wait for data is the mean over steps."
        )
    versions = {
        f"{name} {value}": None for record in records for name, value in record.versions.items() if name in _SHOWN
    }
    made = f"Made with {', '.join(versions)}; commits {', '.join(f'`{commit}`' for commit in commits(records))}."
    return " ".join([*parts, made])


_SHOWN = ("posjax", "python", "jax", "flax", "numpy", "platform", "cpus")
