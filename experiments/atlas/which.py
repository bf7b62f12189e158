"""Advice on encodings: the questions of the studies, the leader of each by the records, and the doubts."""

from typing import Any

from experiments.report.claims import Answer, Question
from experiments.report.overview import Results, lead_text
from experiments.report.page import regime

PACKED = "Packed documents"
_PACKED = {
    "question": PACKED,
    "title": PACKED,
    "packed": True,
    "told": [],
    "claims": [],
    "doubt": "Measured as initialised, on one layer; no study trains on packed rows.",
    "regime": "",
    "missing": [],
}


def which(results: Results) -> list[dict[str, Any]]:
    """Returns an entry for each question; questions without records have no answer. The last is on packed documents."""
    answers = {each.question: each for each in results.answers}
    entries = []
    for study in results.studies:
        for question in study.questions:
            found = answers.get(question)
            entries.append(
                {
                    "question": question.asks,
                    "title": question.asks,
                    "told": [_told(found)] if found else [],
                    "claims": list(question.claims),
                    "doubt": question.doubt,
                    "regime": _regime(found, results) if found else "",
                    "missing": [] if found else [{"folder": study.name, "command": study.command}],
                }
            )
    return [*entries, _PACKED]


def _regime(found: Answer, results: Results) -> str:
    rows = {found.leader, found.question.reference, *found.tied}
    studies = {table.study for table in found.question.tables}
    records = results.folders[found.question.folder]
    return regime(record for record in records if record.row in rows and record.study in studies)


def _told(found: Answer) -> dict[str, Any]:
    """The leader and its lead, rows not clearly behind it, and rows worse than the reference."""
    return {
        "what": found.question.what,
        "reference": found.question.reference,
        "leader": found.leader,
        "lead": lead_text(found) if found.lead else None,
        "separated": bool(found.lead and found.lead.separated),
        "tied": list(found.tied),
        "behind": list(found.behind),
        **record_of(found.question),
    }


def record_of(question: Question) -> dict[str, Any]:
    """The page that shows the records of a question."""
    table = question.tables[0]
    return {"folder": table.folder, "table": table.study, "metric": table.metric, "at": question.at}
