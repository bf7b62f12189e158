"""Trains the same model with one encoding after another, over several seeds, and lays them side by side.

    python -m experiments.ablate --config=configs/quickstart.py
    python -m experiments.ablate --config=configs/quickstart.py --config.seeds="(0,1,2,3,4,5,6,7)" --workdir=runs/eight

All seeds of a row train at once. Under the workdir (runs/<name of the config> by default): results.jsonl, one record per
run; table.md, PNG plots and report.html; config.json; and a folder per row with its checkpoints. Killed and started
again, it goes on: finished rows are not run again, the row under way resumes from its checkpoint. Ctrl-C or SIGTERM saves,
stops and exits with 75. What is wrong with any row, its data too, is told before the first one trains: one line, exit 2.

Labels of rows may hold dots, in a config's ConfigDict({"rope(base=0.5)": ...}, allow_dotted_keys=True) and on the command
line in brackets: '--config.studies.digits_vit.encodings["rope(base=0.5)"]=rope(base=0.7)'
"""

import json
import pathlib
import shlex
import sys
from typing import Any

from ml_collections import ConfigDict

from experiments import cli, tune_allocator


def main(config: ConfigDict, workdir: pathlib.Path) -> None:
    from posjax.studies import environment
    from posjax.studies import running
    from posjax.training.loop import Stopped

    rows = plan(config)
    waiting = _waiting(rows, tuple(config.seeds), workdir)
    environment.compilation_cache(workdir / "compiled")  # rows share programs, and a restart reuses them
    running.write_config(config, workdir)
    diverged = []
    with running.StopRequest() as should_stop, running.Progress(sum(row.steps for _, _, row in rows)) as progress:
        for study, label, row in rows:
            if (study, label) not in waiting:
                progress.skip(row.steps)
                continue
            try:
                _run_row(study, label, row, *waiting[study, label], workdir, progress, should_stop)
            except Stopped as stopped:
                raise cli.StoppedRun(f"{stopped} of row {label!r}") from None
            except FloatingPointError as error:  # the other rows are worth having all the same
                diverged.append(f"{study}, row {label!r}: {error}")
    if len(diverged) < len(rows):
        _show(config, rows, workdir)
    if diverged:
        raise FloatingPointError("; ".join(diverged))


def plan(config: ConfigDict) -> list[tuple[str, str, ConfigDict]]:
    """(study, label, configuration) of every row, in order; specs are read now, so that a typo costs no training.

    A study names its rows as `encodings`, {label: spec}, or as `rows`, {label: fields}, which may set any of its fields.

    Raises:
      ValueError: for no seeds, a repeated seed, a spec that cannot be read, or a field that a study does not have.
    """
    from posjax.spec import parse_layers

    if not config.seeds or len(set(config.seeds)) < len(config.seeds):
        raise ValueError(f"seeds must be given and differ, got {tuple(config.seeds)}")
    rows = []
    for study, shared in config.studies.items():
        common = {name: value for name, value in shared.to_dict().items() if name not in ("encodings", "rows", "seed")}
        changes = {label: {"model": {"encoding": spec}} for label, spec in shared.get("encodings", {}).items()}
        changes |= {label: fields.to_dict() for label, fields in shared.get("rows", {}).items()}
        if not changes:
            raise ValueError(
                f"study {study!r} has no rows: give encodings, {{label: spec}}, or rows, {{label: fields}}"
            )
        for label, fields in changes.items():
            row = ConfigDict(common)
            _change(row, fields, f"row {label!r} of {study!r}")
            if row.get("init_from") is not None:
                raise ValueError(
                    f"row {label!r} of {study!r} sets init_from: an ablation starts at random, fine-tune by "
                    "experiments.train"
                )
            parse_layers(row.model.encoding)
            rows.append((study, label, row.lock()))
    return rows


def _change(group: ConfigDict, fields: dict, whose: str) -> None:
    """Sets the fields, those of groups too."""
    from posjax.spec import nearest

    for name, value in fields.items():
        if name not in group:
            raise ValueError(f"{whose} sets {name!r}: there is no such field; {nearest(name, list(group))}")
        if isinstance(value, dict):
            _change(group[name], value, whose)
        else:
            with group.ignore_type():
                group[name] = value


def _waiting(rows, seeds: tuple[int, ...], workdir: pathlib.Path) -> dict[tuple[str, str], tuple[Any, tuple[int, ...]]]:
    """{(study, label): (task, seeds)} of what is not finished.

    Raises:
      ValueError: names a row that cannot be trained, for its data or its model.
    """
    from posjax.training.loop import check
    from posjax.training.tasks import make_task

    waiting, splits = {}, {}
    for study, label, row in rows:
        finished = {record["seed"] for record in _finished(workdir, study, label, row)}
        if left := tuple(seed for seed in seeds if seed not in finished):
            with running.about(f"row {label!r} of {study!r}"):
                task = make_task(row, splits)
                _refuse_other_data(task, study, row, workdir)
                check(task, row, left)
            waiting[study, label] = task, left
    return waiting


def _run_row(study, label, row: ConfigDict, task, seeds, workdir: pathlib.Path, progress, should_stop) -> None:
    from posjax.studies import environment
    from posjax.studies.records import records_of
    from posjax.studies import running
    from posjax.training.loop import train
    from posjax.training.metrics import append_jsonl

    directory = running.row_directory(workdir, study, label, row, seeds)
    on_step = progress.row(f"{study} {label}")
    result = train(task, row, seeds, directory, on_step=on_step, should_stop=should_stop)
    described = environment.describe(tune_allocator())
    found = records_of(study, label, task, row, seeds, result, directory, described)
    append_jsonl(workdir / "results.jsonl", found)


def _refuse_other_data(task, study: str, row: ConfigDict, workdir: pathlib.Path) -> None:
    """Rows of one table are trained on the same bytes, also when Python or a prepared set was replaced in between."""
    digests = {r["data_digest"] for r in _records_in(workdir) if r["study"] == study and r["data"] == row.data.name}
    if digests - {task.digest}:
        raise ValueError(
            f"the data set {row.data.name!r} is not what the finished rows of {study!r} in {workdir} were trained on "
            f"(digest {task.digest}, theirs {', '.join(digests)}): use another --workdir"
        )


def _finished(workdir: pathlib.Path, study: str, label: str, row: ConfigDict) -> list[dict]:
    """The records that this very configuration has left."""
    from posjax.studies.records import row_hash

    wanted = (study, label, row_hash(row))
    return [
        record for record in _records_in(workdir) if (record["study"], record["label"], record["config_hash"]) == wanted
    ]


def _records_in(workdir: pathlib.Path) -> list[dict]:
    from posjax.training.metrics import read_jsonl

    path = workdir / "results.jsonl"
    return read_jsonl(path) if path.exists() else []


def _show(config: ConfigDict, rows, workdir: pathlib.Path) -> None:
    from rich.console import Console

    from posjax.analysis.report.page import write_report
    from posjax.analysis.report.table import summarize, to_rich

    records = [
        record
        for study, label, row in rows
        for record in _finished(workdir, study, label, row)
        if record["seed"] in config.seeds
    ]
    before, drawn = _across(config, records)
    console = Console(width=None if sys.stdout.isatty() else 120)
    for table in [*summarize(records), *before]:
        console.print(to_rich(table, console.width))
    text = json.dumps(config.to_dict(), indent=2, default=list)
    given = [argument for argument in sys.argv[1:] if not argument.startswith(("--workdir", "-workdir"))]
    command = shlex.join(["python", "-m", "experiments.ablate", *given])
    about = dict(config_text=text, notes=config.notes, command=command)
    paths = write_report(records, workdir, config.title, drawn=drawn, before=before, **about)
    print(f"{workdir / 'results.jsonl'}\n" + "\n".join(map(str, paths)))


def _across(config: ConfigDict, records: list[dict]):
    """What a config asks to see across its studies: `paper`, a published table, and `axis`, on which the studies lie."""
    from posjax.analysis.report.across import Paper, accuracy_along, paper_table

    before, drawn = [], {}
    if "paper" in config:
        before.append(paper_table(records, Paper(**config.paper.to_dict())))
    if "axis" in config:
        studies = {record["study"] for record in records}
        values = {study: value for study, value in config.axis["values"].to_dict().items() if study in studies}
        drawn[next(iter(values))] = {"along": accuracy_along(records, values, config.axis.title)}
    return before, drawn


if __name__ == "__main__":
    cli.run(main, __doc__)
