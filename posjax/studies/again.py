"""Tables, figures and page of a finished study once more, from its folder: nothing is trained and no data are loaded."""

import html
import json
import pathlib
import re

from ml_collections import ConfigDict

from posjax.studies.ablation import Ablation
from posjax.studies.extrapolation import Extrapolation
from posjax.studies.resolutions import Resolutions
from posjax.studies.study import Study, about_of
from posjax.studies.tuning import read_study

# By what records call their task; those of an ablation have the task of their training.
KINDS: dict[str, type[Study]] = {kind.task: kind for kind in (Extrapolation, Resolutions)}


def show_again(directory: pathlib.Path) -> list[pathlib.Path]:
    """Writes what a study's run has written beside its records, with the command that its page names; returns the paths.

    Args:
      directory: with config.json and results.jsonl.

    Raises:
      ValueError: says what a study's folder lacks, or which records cannot be shown in one table.
    """
    for name in ("config.json", "results.jsonl"):
        if not (directory / name).exists():
            raise ValueError(f"{directory} has no {name}: a study's folder, which can be shown again, holds both")
    config = ConfigDict(json.loads((directory / "config.json").read_text()), allow_dotted_keys=True, sort_keys=False)
    records = [record.fields() for record in read_study(directory)[0]]
    tasks = {record["task"] for record in records}
    kind = KINDS.get(next(iter(tasks))) if len(tasks) == 1 else None
    if kind is None and "studies" not in config:
        raise ValueError(f"{directory}: no kind of study has records of {sorted(tasks)} and a config without studies")
    try:
        study = (kind or Ablation).to_show(config)
        return study.show(records, directory, about_of(config, _command(directory / "report.html")))[1]
    except (ValueError, KeyError, AttributeError) as error:
        raise ValueError(f"{directory} cannot be shown again: {error}") from error


def _command(page: pathlib.Path) -> str | None:
    """The command that a page of ours names."""
    found = re.search(r"How to reproduce</h2>\s*<pre>(.*?)</pre>", page.read_text(), re.S) if page.exists() else None
    return html.unescape(found[1]) if found else None
