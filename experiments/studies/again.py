"""Tables, figures and page of a finished study once more, from its folder: nothing is trained and no data are loaded."""

import html
import json
import pathlib
import re
from collections.abc import Sequence

from ml_collections import ConfigDict

from experiments.report.statistics import Record
from experiments.studies.ablation import Ablation
from experiments.studies.extrapolation import Extrapolation
from experiments.studies.resolutions import Resolutions
from experiments.studies.results import listed
from experiments.studies.study import Study, about_of
from experiments.studies.tuning import read_study

# By what records call their task; those of an ablation have the task of their training.
KINDS: dict[str, type[Study]] = {kind.task: kind for kind in (Extrapolation, Resolutions)}


def show_again(directory: pathlib.Path, today: ConfigDict | None = None) -> list[pathlib.Path]:
    """Writes what a study's run has written beside its records, with the command that its page names; returns the paths.

    Args:
      directory: with config.json and results.jsonl.
      today: the study's config as it is now. Rows stand in its order, which config.json does not keep, and it adds the
        `_SHOWN` that the study was run without. That of a study of another name is not looked at.

    Raises:
      ValueError: says what a study's folder lacks, or which records cannot be shown in one table.
    """
    for name in ("config.json", "results.jsonl"):
        if not (directory / name).exists():
            raise ValueError(f"{directory} has no {name}: a study's folder, which can be shown again, holds both")
    config = ConfigDict(json.loads((directory / "config.json").read_text()), allow_dotted_keys=True, sort_keys=False)
    records = [record.fields() for record in read_study(directory)[0]]
    if today is not None and today.get("name") != config.get("name"):
        today = None
    for name in _SHOWN if today else ():
        if name in today and name not in config:
            config[name] = today[name]
    tasks = {record["task"] for record in records}
    kind = KINDS.get(next(iter(tasks))) if len(tasks) == 1 else None
    if kind is None and "studies" not in config:
        raise ValueError(f"{directory}: no kind of study has records of {sorted(tasks)} and a config without studies")
    try:
        kind = kind or Ablation
        if today is not None:
            records = _in_order(records, kind.to_show(today).labels())
        about = about_of(config, _command(directory), records, directory)
        return kind.to_show(config).show(records, directory, about)[1]
    except (ValueError, KeyError, AttributeError) as error:
        raise ValueError(f"{directory} cannot be shown again: {error}") from error


_SHOWN = ("point", "axis", "paper")  # fields of a config that pages alone read


def _in_order(records: Sequence[Record], labels: Sequence[tuple[str, str]]) -> list[Record]:
    """The records in the order of these (study, label); those of others stand last, in the order that they have."""
    studies, rows = (list(dict.fromkeys(found)) for found in ((study for study, _ in labels), labels))

    def place(record: Record) -> tuple[int, int]:
        study, row = record["study"], (record["study"], record["label"])
        return (
            studies.index(study) if study in studies else len(studies),
            rows.index(row) if row in rows else len(rows),
        )

    return sorted(records, key=place)


def _command(directory: pathlib.Path) -> str | None:
    """The command that a page of ours names; where it names none, that of the study of ours whose folder this is."""
    page, study = directory / "report.html", listed(directory.resolve().name)
    found = re.search(r"How to reproduce</h2>\s*<pre>(.*?)</pre>", page.read_text(), re.S) if page.exists() else None
    if found is None:
        return study and study.command
    command = html.unescape(found[1])
    if study is None or directory.resolve().parent.name != "results" or "--workdir" in command:
        return command
    return f"{command} --workdir=results/{study.folder}"
