"""Measurements: tables of the committed records by length, resolution and depth, verdicts on claims, and every record.

Each number is a text, made by the functions of the results' tables, and the number itself for charts.
"""

import math
import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from experiments.records import At, Record, Records, StudyRecords
from experiments.report import page
from experiments.report.claims import Expectation, Judged, looked_at
from experiments.report.families import FAMILIES, family_of
from experiments.report.figures import Style, styles
from experiments.report.overview import Results
from experiments.report.statistics import LEVEL, Estimate, finite_values, is_whole, mean_interval
from experiments.report.studies import KnownStudy
from experiments.report.table import shown_metrics
from experiments.report.units import Unit, unit_of
from posjax.spec import REGISTRY

LENGTH, RESOLUTION, ONE = "length", "resolution", "one"
_WORD = re.compile(r"[a-z]\w*")


def measured(results: Results) -> dict[str, Any]:
    """Returns all studies, also the ones without results, and all claims."""
    shown = [study for study in results.studies if study.name in results.folders or study.claims]
    return {
        "studies": [_study(study, results) for study in shown],
        "claims": [_claim(each, results) for each in results.judged],
        "level": f"{1 - LEVEL:.0%}",
    }


def _study(study: KnownStudy, results: Results) -> dict[str, Any]:
    records = results.folders.get(study.name)
    about = {"folder": study.name, "title": study.config.title, "asks": study.config.point, "command": study.command}
    about["says"] = study.config.page.get("says", "")
    if records is None:
        return about | {"kinds": _KINDS.get(study.config.page.get("module"), [ONE]), "tables": {}}
    look = styles(records)
    tables = {name: _table(found) for name, found in records.studies.items()}
    depth = _by_depth(records)
    kinds = {each["kind"] for table in tables.values() for each in table["metrics"].values()}
    return about | {
        "kinds": sorted(kinds) + (["depth"] if depth else []),
        "count": len(records),
        "cost": page.hours_text(results.hours(study.name), 2),
        "commits": page.commits(records),
        "rows": {record.row: _row(record, look[record.row]) for record in records},
        "tables": tables,
        "depth": depth,
        "text": records[0].unit,
    }


_KINDS = {"extrapolate": [LENGTH, "depth"], "resolutions": [RESOLUTION]}  # of a study that has not been run


def _row(record: Record, style: Style) -> dict[str, Any]:
    """Returns the entry of a row: how it is drawn, and the card of the first encoding that its spec names."""
    names = [name for name in _WORD.findall(record.encoding) if name in REGISTRY]
    return {
        "encoding": record.encoding,
        "card": names[0] if names else None,
        "family": family_of(record.encoding),
        "color": style.color,
        "dash": [] if style.dash == "-" else list(style.dash[1]),
        "shape": _SHAPES[style.marker],
        "glyph": FAMILIES[family_of(record.encoding)].glyph,
    }


_SAW = "M-0.5,-1L0,-0.5L0.5,-1L1,-0.5L0.5,0L1,0.5L0.5,1L0,0.5L-0.5,1L-1,0.5L-0.5,0L-1,-0.5Z"  # a diagonal cross
_PENTAGON = "M0,-1L0.95,-0.31L0.59,0.81L-0.59,0.81L-0.95,-0.31Z"
_SHAPES = {
    **{"o": "circle", "s": "square", "D": "diamond", "^": "triangle-up", "v": "triangle-down", "P": "cross"},
    **{"<": "triangle-left", ">": "triangle-right", "X": _SAW, "p": _PENTAGON},
}
_AXES = {"pixel": "pixels a side", "patch": "patches"}


def _table(study: StudyRecords) -> dict[str, Any]:
    """Returns a metric of each row at each length, with the interval over seeds, and the values of the seeds."""
    return {
        "metrics": {name: _metric(study, name, ats) for name, ats in shown_metrics(study).items()},
        "trained": study.trained_at,
        "axis": _AXES.get(study.unit, ""),
        "runs": {row: [_run(record) for record in records] for row, records in study.rows.items()},
    }


def _metric(study: StudyRecords, name: str, ats: Sequence[At]) -> dict[str, Any]:
    unit = unit_of(name)
    points = {row: [point(study.values(row, name, at), unit) for at in ats] for row in study.rows}
    kind = RESOLUTION if study.unit in _AXES else LENGTH if len(ats) > 1 else ONE
    best = {max: "higher", min: "lower"}.get(unit.best, "")
    return {"kind": kind, "at": list(ats), "suffix": unit.suffix, "best": best, "points": points}


def point(found: Mapping[int, float | None], unit: Unit) -> dict[str, Any] | None:
    """Returns the mean over seeds with its interval; None if it was not measured or a seed is not finite."""
    if not is_whole(found):
        return None
    values = finite_values(found)
    interval = mean_interval(values).scaled(unit.scale)
    half = None if math.isnan(interval.half_width) else interval.half_width
    seeds = [value * unit.scale for value in values]
    return {"text": interval.text(unit.digits), "mean": interval.mean, "half": half, "seeds": seeds}


def _run(record: Record) -> dict[str, Any]:
    """The provenance of a record."""
    return {
        "seed": record.seed,
        "steps": record.steps,
        "parameters": record.parameters,
        "config": record.config_hash,
        "data": f"{record.data} ({record.data_digest[:12]})",
        "device": record.device,
        "commit": str(record.versions.get("commit", "unknown")),
    }


_BY_DEPTH = re.compile(r"(\w+) exact match by depth")


def _by_depth(records: Records) -> dict[str, Any]:
    """Returns {task: {row: cells [length, depth, share of whole answers, of parts]}} (%), means over the seeds."""
    found: dict[str, dict[str, list]] = {}
    for study in records.studies.values():
        for metric, ats in study.metrics.items():
            if task := _BY_DEPTH.fullmatch(metric):
                found[task[1]] = {row: [_cell(study, row, task[1], at) for at in ats] for row in study.rows}
    return found


def _cell(study: StudyRecords, row: str, task: str, at: tuple) -> list[Any]:
    found = [study.values(row, f"{task} {share} by depth", at) for share in ("exact match", "accuracy")]
    means = [mean_interval(finite_values(values)).scaled(100) if is_whole(values) else None for values in found]
    shown = [None if each is None else each.mean for each in means]
    return [*at, *shown, *["not finite" if each is None else each.text(1) for each in means]]


def _claim(judged: Judged, results: Results) -> dict[str, Any]:
    """Returns a claim as on the page of results: source, our numbers, verdict, and the training of the rows that it reads."""
    claim = judged.claim
    rows = {(cell.study, cell.row) for cell in claim.cells}
    records = [each for each in results.folders.get(claim.folder, ()) if (each.study, each.row) in rows]
    return {
        "id": claim.id,
        "says": claim.says,
        "source": str(claim.source),
        "arxiv": claim.source.arxiv,
        "place": claim.place,
        "paper": [f"{what} {value:g}" for what, value in claim.paper.items()],
        "ours": [_ours(expected, each, claim.unit) for expected, each in zip_longest(claim.expects, judged.estimates)],
        "verdict": judged.verdict,
        "p": None if math.isnan(judged.p) else page.p_text(judged).removeprefix(", "),
        "tests": judged.tests,
        "regime": page.regime(records) if judged.estimates else "",
        "doubt": claim.doubt,
        "tried": claim.tried,
        "remains": claim.remains,
        "looked": looked_at(claim, results.folders),
        "folder": claim.folder,
    }


def _ours(expected: Expectation, found: Estimate | None, unit: Unit) -> dict[str, Any]:
    """Returns a contrast's name, its value (None without results), the claimed range, and the folder of the records."""
    tables = dict.fromkeys((cell.folder, cell.study, cell.metric) for _, cell in expected.contrast.terms)
    return {
        "name": expected.name or str(expected.contrast).replace("@", "at "),
        "text": found.interval().scaled(unit.scale).text(unit.digits, signed=True) if found else "",
        "asked": page.claimed_range(expected, unit),
        "records": [{"folder": folder, "table": study, "metric": metric} for folder, study, metric in tables],
    }
