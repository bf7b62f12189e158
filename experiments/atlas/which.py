"""Advice on encodings: the questions of the studies, the leader of each by the records, and the doubts."""

from typing import Any

from experiments.atlas.sources import Sources
from experiments.report.claims import Answer, Judged, Question
from experiments.report.overview import lead_text, packed
from experiments.report.page import regime

PACKED = "Packed documents"
_DOUBT = "Measured as initialised, on logits; no study trains on packed rows."


def which(sources: Sources) -> list[dict[str, Any]]:
    """Returns an entry for each question; questions without records have no answer."""
    judged = sources.judged()
    known = {each.claim.id: each for each in judged}
    answers = {each.question: each for each in sources.results.answers(judged)}
    found = [
        _answer(question, answers.get(question), known, sources)
        for study in sources.results.studies
        for question in study.questions
    ]
    return [*found, _packed(sources)]


def _answer(question: Question, found: Answer | None, judged: dict[str, Judged], sources: Sources) -> dict[str, Any]:
    study = next(study for study in sources.results.studies if study.name == question.folder)
    missing = [] if found else [{"folder": study.name, "command": study.command}]
    return {
        "question": question.asks,
        "title": question.asks,
        "told": [_told(found)] if found else [],
        "claims": [name for name in question.claims if name in judged],
        "doubt": question.doubt,
        "regime": _regime(found, sources) if found else "",
        "missing": missing,
    }


def _regime(found: Answer, sources: Sources) -> str:
    rows = {found.leader, found.question.reference, *found.tied}
    records = sources.results.folders[found.question.folder]
    studies = {table.study for table in found.question.tables}
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


def _packed(sources: Sources) -> dict[str, Any]:
    measured, moved = packed(sources.scorecard)
    about = {
        "question": PACKED,
        "title": PACKED,
        "claims": [],
        "doubt": _DOUBT,
        "told": [],
        "regime": "",
        "missing": [],
    }
    return about | {"packed": {"measured": len(measured), "moved": moved}}
