"""What was measured: tables of the committed records by length, resolution and depth, verdicts on claims, and every record.

Numbers are texts made by the same functions as the tables of results, and beside them the numbers that charts draw.
"""

import math
import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from experiments.atlas.sources import Sources
from experiments.evidence import page
from experiments.evidence.claims import Expectation
from experiments.evidence.contrast import unit_of
from experiments.evidence.inventory import STUDIES, Folder, Study, commits, core_hours, regime_of
from experiments.evidence.numbers import plain
from experiments.evidence.verdicts import Judged, looked_at
from experiments.report.families import FAMILIES, family_of
from experiments.report.plots import Style, styles
from experiments.report.statistics import (
    LEVEL,
    Estimate,
    Metric,
    Record,
    Rows,
    all_runs,
    mean_interval,
    metric_values,
    metrics_of,
    unit_of_text,
)
from experiments.report.table import Unit
from posjax.spec import REGISTRY

LENGTH, RESOLUTION, ONE = "length", "resolution", "one"
_WORD = re.compile(r"[a-z]\w*")


def measured(sources: Sources) -> dict[str, Any]:
    """All studies, those that have not been run among them, and all claims."""
    claimed = {each.claim.folder for each in sources.judged()}
    shown = [study for study in STUDIES if study.folder in sources.folders or study.folder in claimed]
    return {
        "studies": [_study(study, sources.folders.get(study.folder)) for study in shown],
        "claims": [_claim(each, sources) for each in sources.judged()],
        "level": f"{1 - LEVEL:.0%}",
    }


def _study(study: Study, folder: Folder | None) -> dict[str, Any]:
    told = {"folder": study.folder, "asks": study.asks, "command": study.command}
    if folder is None:
        return told | {"kinds": _KINDS_OF.get(study.module, [ONE]), "tables": {}}
    runs = all_runs({f"{table} {label}": r for table, rows in folder.tables.items() for label, r in rows.items()})
    look = styles(runs)
    rows = {label: _row(label, each[0], look[label]) for t in folder.tables.values() for label, each in t.items()}
    tables = {name: _table(found) for name, found in folder.tables.items()}
    depth = _by_depth(folder.records)
    kinds = {each["kind"] for table in tables.values() for each in table["metrics"].values()}
    return told | {
        "kinds": sorted(kinds) + (["depth"] if depth else []),
        "count": len(folder.records),
        "core_hours": f"{core_hours(folder):.2f}",
        "commits": list(commits(folder.records)),
        "rows": rows,
        "tables": tables,
        "depth": depth,
        "text": unit_of_text(folder.records),
    }


_KINDS_OF = {"extrapolate": [LENGTH, "depth"], "resolutions": [RESOLUTION]}  # of a study that has not been run


def _row(label: str, run: Record, style: Style) -> dict[str, Any]:
    """How a row looks, and the card of the first encoding that its spec names."""
    names = [name for name in _WORD.findall(run["encoding"]) if name in REGISTRY]
    return {
        "encoding": run["encoding"],
        "card": names[0] if names else None,
        "family": family_of(run["encoding"]),
        "color": style.color,
        "dash": [] if style.dash == "-" else list(style.dash[1]),
        "shape": _SHAPES[style.marker],
        "glyph": FAMILIES[family_of(run["encoding"])].glyph,
    }


_SAW = "M-0.5,-1L0,-0.5L0.5,-1L1,-0.5L0.5,0L1,0.5L0.5,1L0,0.5L-0.5,1L-1,0.5L-0.5,0L-1,-0.5Z"  # a diagonal cross
_SHAPES = {
    **{"o": "circle", "s": "square", "D": "diamond", "^": "triangle-up", "v": "triangle-down", "P": "cross"},
    **{
        "<": "triangle-left",
        ">": "triangle-right",
        "X": _SAW,
        "p": "M0,-1L0.95,-0.31L0.59,0.81L-0.59,0.81L-0.95,-0.31Z",
    },
}


def _table(rows: Rows) -> dict[str, Any]:
    """A metric of each row at each length, with the interval over seeds, and the values of the seeds."""
    metrics: dict[str, list[Metric]] = {}
    for metric in metrics_of(rows):
        metrics.setdefault(metric.name, []).append(metric)
    first = next(iter(rows.values()))[0]
    trained = first.get("trained_at") if first["task"] == "resolutions" else first.get("train_length")
    axis = ("patches" if first.get("native") else "pixels a side") if first["task"] == "resolutions" else ""
    return {
        "metrics": {name: _metric(rows, name, found) for name, found in metrics.items()},
        "trained": trained,
        "axis": axis,
        "runs": {label: _runs(runs) for label, runs in rows.items()},
    }


def _metric(rows: Rows, name: str, found: Sequence[Metric]) -> dict[str, Any]:
    unit = unit_of(name)
    points = {label: [_point(runs, metric, unit) for metric in found] for label, runs in rows.items()}
    resolution = any(run["task"] == "resolutions" for run in all_runs(rows))
    kind = RESOLUTION if resolution else LENGTH if len(found) > 1 else ONE
    best = {max: "higher", min: "lower"}.get(unit.best, "")
    return {"kind": kind, "at": [each.length for each in found], "suffix": unit.suffix, "best": best, "points": points}


def _point(runs: Sequence[Record], metric: Metric, unit: Unit) -> dict[str, Any] | None:
    """The mean over seeds with its interval; None where it was not measured or a seed is not finite."""
    values, count = metric_values(runs, metric)
    if not count or len(values) < count:
        return None
    interval = mean_interval(values).scaled(unit.scale)
    half = None if math.isnan(interval.half_width) else interval.half_width
    seeds = [value * unit.scale for value in values]
    return {"text": interval.text(unit.digits), "mean": interval.mean, "half": half, "seeds": seeds}


def _runs(runs: Sequence[Record]) -> list[dict[str, Any]]:
    """What each seed's record says of how it was made."""
    return [
        {
            "seed": run["seed"],
            "steps": run["steps"],
            "parameters": run["parameters"],
            "config": run["config_hash"],
            "data": f"{run['data']} ({run['data_digest'][:12]})",
            "device": run["device"],
            "commit": str(run["versions"].get("commit", "unknown")),
        }
        for run in runs
    ]


def _by_depth(records: Sequence[Record]) -> dict[str, Any]:
    """task -> row -> cells [length, depth, share of whole answers, of parts] (%), means over the seeds."""
    found: dict[str, dict[str, dict]] = {}
    for record in records:
        for task, lengths in (record.get("retrieval") or {}).items():
            for length, cells in lengths.items():
                for cell in cells:
                    key = (int(length), cell["depth"])
                    found.setdefault(task, {}).setdefault(record["label"], {}).setdefault(key, []).append(cell)
    return {
        task: {label: [_cell(*key, cells) for key, cells in at.items()] for label, at in rows.items()}
        for task, rows in found.items()
    }


def _cell(length: int, depth: float, cells: Sequence[Mapping[str, Any]]) -> list[Any]:
    means = []
    for key in ("exact", "accuracy"):
        values = [cell[key] for cell in cells]
        means.append(None if None in values else mean_interval(values).scaled(100))
    shown = [None if each is None else each.mean for each in means]
    return [length, depth, *shown, *["not finite" if each is None else each.text(1) for each in means]]


def _claim(judged: Judged, sources: Sources) -> dict[str, Any]:
    """A claim as the page of results has it: source, ours, verdict."""
    claim = judged.claim
    tables = {name: folder.tables for name, folder in sources.folders.items()}
    return {
        "id": claim.id,
        "says": claim.says,
        "source": str(claim.source),
        "arxiv": claim.source.arxiv,
        "place": claim.place,
        "paper": [f"{what} {value:g}" for what, value in claim.paper.items()],
        "ours": [_ours(expected, each, claim.unit) for expected, each in zip_longest(claim.expects, judged.estimates)],
        "verdict": judged.verdict,
        "p": None if math.isnan(judged.p) else "p < 0.001" if judged.p < 0.001 else f"p = {judged.p:.2g}",
        "tests": judged.tests,
        "regime": plain(regime_of(claim.cells, sources.folders).text()) if judged.estimates else "",
        "doubt": claim.doubt,
        "tried": claim.tried,
        "remains": claim.remains,
        "looked": looked_at(claim, tables),
        "folder": claim.folder,
    }


def _ours(expected: Expectation, found: Estimate | None, unit: Unit) -> dict[str, Any]:
    """A contrast's name, its value (none where nothing has been run), the range that is claimed, and where it is from."""
    cells = [cell for _, cell in expected.contrast.terms]
    tables = dict.fromkeys((cell.folder, cell.table, cell.metric) for cell in cells)
    return {
        "name": expected.name or str(expected.contrast).replace("@", "at "),
        "text": found.interval().scaled(unit.scale).text(unit.digits, signed=True) if found else "",
        "asked": page.asked(expected, unit),
        "records": [{"folder": folder, "table": table, "metric": metric} for folder, table, metric in tables],
    }
