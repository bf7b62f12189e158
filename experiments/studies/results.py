"""The folder of results as a whole: its records, and the page that judges them."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from experiments.evidence import page
from experiments.evidence.claims import CLAIMS
from experiments.evidence.inventory import STUDIES, Folder, Study, folder_of
from experiments.evidence.verdicts import NOT_RUN, Judged, judge_claims
from experiments.report.page import Answer
from experiments.report.statistics import Record
from experiments.studies.tuning import read_study


class Results(NamedTuple):
    """What a folder of results holds: its studies by name, and the cards of the scorecard by spec."""

    folders: Mapping[str, Folder]
    cards: Mapping[str, Any]


def read_results(directory: pathlib.Path) -> Results:
    """All studies of `evidence.inventory.STUDIES` that have records there; the others have not been run.

    Raises:
      ValueError: there is none, or the records of one make no tables; names it.
    """
    folders = {}
    for study in STUDIES:
        place = directory / study.folder
        records, points = ([each.fields() for each in found] for found in read_study(place))
        if records:
            config = place / "config.json"
            told = json.loads(config.read_text()) if config.exists() else {}
            try:
                folders[study.folder] = folder_of(records, told, points)
            except ValueError as error:
                raise ValueError(f"{place / 'results.jsonl'}: {error}") from error
    if not folders:
        known = ", ".join(study.folder for study in STUDIES)
        raise ValueError(f"{directory} holds no records of a study; a folder of results has folders named {known}")
    cards = directory / "scorecard" / "scorecard.json"
    return Results(folders, json.loads(cards.read_text())["cards"] if cards.exists() else {})


def listed(name: str) -> Study | None:
    """The study of ours whose results lie in a folder of this name; None for a study of a user's own."""
    return next((study for study in STUDIES if study.folder == name), None)


def answers(name: str, records: Sequence[Record], config: Mapping[str, Any]) -> tuple[Answer, ...]:
    """The claims that the study of a folder's name decides, judged by its records; none for a study of a user's own."""
    claims = [claim for claim in CLAIMS if claim.folder == name]
    if not claims:
        return ()
    judged = judge_claims(claims, {name: folder_of(records, config).tables})
    # A folder of which no claim can be judged has the name alone.
    return () if all(each.verdict == NOT_RUN for each in judged) else tuple(map(_answer, judged))


def _answer(judged: Judged) -> Answer:
    claim = judged.claim
    # A claim that is not run has no estimates.
    told = [page.ours(*each, claim.unit) for each in zip(claim.expects, judged.estimates, strict=False)]
    says = f"{claim.says} Doubt: {claim.doubt}" if claim.doubt else claim.says
    return Answer(says, judged.verdict, "; ".join(told) or "rows are missing")


def write_page(directory: pathlib.Path) -> list[pathlib.Path]:
    """Writes README.md and its picture from the records; returns their paths. Raises as `read_results`."""
    return page.write(*read_results(directory), directory)
