"""Which encoding to take, by situation: the answers of `evidence.advice`, what they rest on, what speaks against them."""

from typing import Any

from experiments.atlas.cards import record_of
from experiments.atlas.sources import Sources
from experiments.evidence import advice
from experiments.evidence.contrast import unit_of
from experiments.evidence.inventory import STUDIES
from experiments.evidence.numbers import plain

# What somebody would say -> the situation's title; those that nobody says here come behind them.
QUESTIONS = {
    "I have images of changing size": "Images of several sizes",
    "I have long text": "Text longer than in training, nothing tuned",
    "I have packed documents": advice.PACKED,
    "I have a pretrained RoPE model": "A trained RoPE to be read further",
    "I have digits to add": "Digits and algorithms",
    "I have images of one size": "Images of one size",
    "I have text of the trained length": "Text at the trained length",
    "I have to count": "Counting",
}


def which(sources: Sources) -> list[dict[str, Any]]:
    """An answer to each question."""
    judged = {each.claim.id: each for each in sources.judged()}
    found = {each.title: advice.answer(each, sources.folders, judged) for each in advice.SITUATIONS}
    return [
        {"question": question, "title": title} | (_packed(sources) if title == advice.PACKED else _answer(found[title]))
        for question, title in QUESTIONS.items()
    ]


def _answer(found: advice.Answer) -> dict[str, Any]:
    situation = found.situation
    return {
        "told": [_told(field, standing) for field, standing in found.told],
        "claims": [each.claim.id for each in found.claims],
        "doubt": situation.doubt,
        "regime": plain(found.regime.text()) if found.regime else "",
        "missing": _missing(found),
    }


def _missing(found: advice.Answer) -> list[dict[str, str]]:
    """The commands of studies that would tell more and have not been run."""
    told = {field.table.folder for field, _ in found.told}
    asked = [alternatives[0].table.folder for alternatives in found.situation.fields]
    commands = {study.folder: study.command for study in STUDIES}
    return [{"folder": folder, "command": commands[folder]} for folder in dict.fromkeys(asked) if folder not in told]


def _told(field: advice.Field, found: advice.Standing) -> dict[str, Any]:
    """Who leads, by how much, who is not separable from it and who is worse than the reference."""
    unit = unit_of(field.table.metric)
    lead = found.lead
    text = (
        lead.estimate.interval().scaled(unit.scale).text(unit.digits - (unit.scale > 1), signed=True) if lead else None
    )
    return {
        "what": field.what,
        "reference": field.reference,
        "leader": found.leader,
        "lead": text,
        "separated": bool(lead and lead.separated),
        "tied": list(found.tied),
        "behind": list(found.behind),
        **record_of(field.table, field.at),
    }


def _packed(sources: Sources) -> dict[str, Any]:
    measured, moved = advice.packed(sources.scorecard)
    return {
        "packed": {"measured": len(measured), "moved": moved},
        "claims": [],
        "doubt": advice.PACKED_DOUBT[0].upper() + advice.PACKED_DOUBT[1:],
        "told": [],
    }
