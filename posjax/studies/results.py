"""The folder of results as a whole: its records, and the page that judges them."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from posjax.analysis.evidence import page
from posjax.analysis.evidence.inventory import STUDIES, Folder, folder_of
from posjax.studies.tuning import read_study


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


def write_page(directory: pathlib.Path) -> list[pathlib.Path]:
    """Writes README.md and its picture from the records; returns their paths. Raises as `read_results`."""
    return page.write(*read_results(directory), directory)
