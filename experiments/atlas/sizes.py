"""Scores of rows along an axis that studies vary: the size of the model, the share of the data, the number of heads."""

from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from experiments.atlas.measured import point
from experiments.records import Records
from experiments.report.overview import Results
from experiments.report.page import capital
from experiments.report.table import headline_columns
from experiments.report.trends import Trend, trends, trends_table
from experiments.report.units import title_of, unit_of


def sizes(results: Results) -> list[dict[str, Any]]:
    """Returns the studies along an axis that have records, with their charts and the table of leads.

    A chart is {"title", "rows": {row: [{"x", "text", "mean", "half"}]}}. The first one is the headline of the study; the
    others are leads, one for each length. "names" has the name of each place on the axis.
    """
    return [
        _study(study.name, results.folders[study.name], study.config.axis)
        for study in results.studies
        if "axis" in study.config and study.name in results.folders
    ]


def _study(folder: str, records: Records, axis: ConfigDict) -> dict[str, Any]:
    places = {name: float(x) for name, x in axis["values"].items() if name in records.studies}
    found = trends(records, axis) if "against" in axis else {}
    head, lines = trends_table(found, axis) if found else ([], [])
    return {
        "folder": folder,
        "axis": axis.title,
        "names": [[x, name.replace("_", " ")] for name, x in places.items()],
        "charts": [_headline(records, places), *_leads(found, records, axis)],
        "head": head,
        "lines": lines,
    }


def _headline(records: Records, places: dict[str, float]) -> dict[str, Any]:
    column = headline_columns(records.studies[next(iter(places))])[0]
    rows: dict[str, list[dict[str, Any]]] = {}
    for name, x in places.items():
        for row in records.studies[name].rows:
            if made := point(records.studies[name].values(row, *column), unit_of(column.metric)):
                rows.setdefault(row, []).append({"x": x} | made)
    return {"title": capital(title_of(column.metric, records[0].unit)), "rows": rows}


def _leads(found: dict[tuple[int, str], Trend], records: Records, axis: ConfigDict) -> Iterator[dict[str, Any]]:
    for length in dict.fromkeys(at for at, _ in found):
        rows = {
            row: [
                {"x": x, "text": lead.text(signed=True), "mean": lead.mean, "half": lead.half_width}
                for x, lead in ((x, verdict.estimate.interval()) for x, verdict in trend.leads.items())
            ]
            for (at, row), trend in found.items()
            if at == length
        }
        title = f"Lead over {axis.against} at {length:,} {records[0].unit}s (nats per {records[0].unit})"
        yield {"title": title, "rows": rows}
