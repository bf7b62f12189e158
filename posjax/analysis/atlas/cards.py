"""What each encoding is, for its card: all of it read off its class, the table of goldens, the scorecard and the errata."""

import pathlib
from typing import Any

from posjax.analysis.encoding.catalogue import Facts, catalogue
from posjax.analysis.report.families import family_of


def cards(results: pathlib.Path) -> list[dict[str, Any]]:
    """A card for each registered encoding.

    Args:
      results: the folder of committed records.
    """
    del results
    return [card(row) for row in catalogue()]


def card(row: Facts) -> dict[str, Any]:
    """What the class itself says."""
    spec = row.name if row.example is None else str(row.example)
    return {
        "name": row.name,
        "spec": spec,
        "family": family_of(spec),
        "file": row.family,
        "summary": row.summary,
        "hooks": list(row.hooks),
        "learned": row.count if row.parameters is not None else None,
        "axes": list(row.dimensions),
        "relative": row.relative,
        "needs": list(row.needs),
        "reach": row.reach,
        "citation": row.citation,
        "arxiv": row.arxiv,
    }
