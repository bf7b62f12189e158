"""Ablations: one row per encoding, or per change of the config, measured by the scores at the end of its training."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from posjax.analysis.statistics import Record
from posjax.spec import nearest
from posjax.studies.records import encoding_of
from posjax.studies.study import Row, Study


class Ablation(Study):
    """`config.studies`: tables whose rows are `encodings`, {label: spec}, or `rows`, {label: fields}, which set any field.

    Across its tables a config may show `paper`, a published table, and `axis`, a quantity on which the tables lie.
    """

    def rows(self) -> list[Row]:
        """Raises ValueError for a spec that cannot be read, or a field that a table does not have."""
        rows = []
        for study, shared in self.config.studies.items():
            common = {
                name: value for name, value in shared.to_dict().items() if name not in ("encodings", "rows", "seed")
            }
            changes = {label: {"model": {"encoding": spec}} for label, spec in shared.get("encodings", {}).items()}
            changes |= {label: fields.to_dict() for label, fields in shared.get("rows", {}).items()}
            if not changes:
                raise ValueError(
                    f"study {study!r} has no rows: give encodings, {{label: spec}}, or rows, {{label: fields}}"
                )
            rows += [_row(study, label, ConfigDict(common), change) for label, change in changes.items()]
        return rows

    def show(self, records: Sequence[Record], directory: pathlib.Path, **about: Any):
        from posjax.analysis.report.across import Paper, accuracy_along, paper_table
        from posjax.analysis.report.page import write_report
        from posjax.analysis.report.table import summarize

        before, drawn = [], {}
        if "paper" in self.config:
            before.append(paper_table(records, Paper(**self.config.paper.to_dict())))
        if "axis" in self.config:
            studies = {record["study"] for record in records}
            values = {study: x for study, x in self.config.axis["values"].to_dict().items() if study in studies}
            drawn[next(iter(values))] = {"along": accuracy_along(records, values, self.config.axis.title)}
        paths = write_report(records, directory, drawn=drawn, before=before, **about)
        return [*summarize(records), *before], paths


def _row(study: str, label: str, config: ConfigDict, change: Mapping[str, Any]) -> Row:
    _change(config, change, f"row {label!r} of {study!r}")
    if config.get("init_from") is not None:
        raise ValueError(
            f"row {label!r} of {study!r} sets init_from: an ablation starts at random, fine-tune by experiments.train"
        )
    return Row(study, label, label, config.lock(), encoding_of(config))


def _change(group: ConfigDict, fields: Mapping[str, Any], whose: str) -> None:
    """Sets the fields, those of groups too."""
    for name, value in fields.items():
        if name not in group:
            raise ValueError(f"{whose} sets {name!r}: there is no such field; {nearest(name, list(group))}")
        if isinstance(value, dict):
            _change(group[name], value, whose)
        else:
            with group.ignore_type():
                group[name] = value
