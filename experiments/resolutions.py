"""Trains ViTs at one resolution, under several encodings and seeds, and tests them at many others, by policy.

    python -m experiments.resolutions --config=configs/resolutions.py
    python -m experiments.resolutions --config=configs/resolutions.py:cifar10 --config.seeds="(0,1,2,3,4)"

A policy is what becomes of an encoding at another resolution: nothing, tables resized, another spec that reads the same
weights, or a short fine-tune. Images are of one size, or in native aspects by their number of patches.

Under the workdir (runs/<name of the config> by default): results.jsonl, one record per row and seed; table.md, PNG plots and
report.html; config.json; and a folder per model with its checkpoints. Killed and started again, it goes on: rows that
are finished are not run again. Ctrl-C or SIGTERM saves, stops and exits with 75. What is wrong with any row, its data too,
is told before the first one trains: one line, exit 2.
"""

import json
import pathlib
import shlex
import sys

from ml_collections import ConfigDict

from experiments import cli, tune_allocator


def main(config: ConfigDict, workdir: pathlib.Path) -> None:
    from posjax.studies import environment
    from posjax.studies import running
    from posjax.studies.resolutions_check import check_study
    from posjax.studies.resolutions_models import Session
    from posjax.studies.resolutions_plan import plan
    from posjax.training.loop import Stopped

    if not config.seeds or len(set(config.seeds)) < len(config.seeds):
        raise ValueError(f"seeds must be given and differ, got {tuple(config.seeds)}")
    rows, seeds, splits = {name: plan(name, study) for name, study in config.sets.items()}, tuple(config.seeds), {}
    for name, study in config.sets.items():
        check_study(name, study, rows[name], seeds, splits)
    environment.compilation_cache(workdir / "compiled")  # a restart reuses programs
    running.write_config(config, workdir)
    shown = []
    with running.StopRequest() as should_stop, running.Progress(_steps(config)) as progress:
        session = Session(seeds, workdir, progress, should_stop, splits)
        for name, study in config.sets.items():
            try:
                shown += _run(name, study, rows[name], session)
            except Stopped as stopped:
                raise cli.StoppedRun(f"{stopped} in {name!r}") from None
    _show(config, shown, workdir)


def _steps(config: ConfigDict) -> int:
    """Of all trainings and fine-tunes."""
    tunings = [
        tuning for study in config.sets.values() for named in study.finetune.values() for tuning in named.values()
    ]
    trained = sum(study.steps * len(study.encodings) for study in config.sets.values())
    return trained + sum(tuning.steps for tuning in tunings)


def _run(name: str, study: ConfigDict, rows, session) -> list[dict]:
    """Trains and measures what has not been yet; the records of all rows and seeds, in their order.

    Raises:
      Stopped: it was asked to.
    """
    from posjax.studies import environment
    from posjax.studies.resolutions_evaluate import Evaluation
    from posjax.studies.resolutions_models import evaluation_hash, finetuned, record, trained
    from posjax.studies.resolutions_plan import FINE_TUNED, spec_of
    from posjax.training.loop import Stopped
    from posjax.training.metrics import append_jsonl

    described = environment.describe(tune_allocator())
    shown, evaluation, bases, seeds = [], None, {}, session.seeds
    for row in rows:
        if row.base not in bases:
            bases = {row.base: trained(name, row.base, study, session)}
        ensemble = bases[row.base]
        if row.kind == FINE_TUNED:
            ensemble = finetuned(row, ensemble, study, session)
        named = evaluation_hash(study, row, ensemble.about["training_hash"])
        found = _finished(session.workdir, row, named, ensemble, seeds)
        if len(found) < len(seeds):
            if session.should_stop():
                raise Stopped(ensemble.about["steps"])
            evaluation = evaluation or Evaluation(study, bases[row.base])
            spec, images = spec_of(row, ensemble.config), len(evaluation.originals.images)
            about = record(row, ensemble, spec, named, images, described)
            known = {each["seed"] for each in found}
            new = [about | measured for measured in evaluation(row, ensemble, seeds) if measured["seed"] not in known]
            append_jsonl(session.workdir / "results.jsonl", new)
            found += new
        shown += sorted(found, key=lambda each: seeds.index(each["seed"]))
    return shown


def _finished(workdir: pathlib.Path, row, named: str, ensemble, seeds) -> list[dict]:
    """The records that this very row has left of these weights."""
    from posjax.training.metrics import read_jsonl

    path, wanted = workdir / "results.jsonl", (row.study, row.label, named, ensemble.about["data_digest"])
    records = read_jsonl(path) if path.exists() else []
    keys = ("study", "label", "config_hash", "data_digest")
    return [each for each in records if tuple(each[key] for key in keys) == wanted and each["seed"] in seeds]


def _show(config: ConfigDict, records: list[dict], workdir: pathlib.Path) -> None:
    from rich.console import Console

    from posjax.analysis.report.resolution_report import tables, write_resolution_report
    from posjax.analysis.report.table import to_rich

    console = Console(width=None if sys.stdout.isatty() else 160)
    for table in tables(records):
        console.print(to_rich(table, console.width))
    text = json.dumps(config.to_dict(), indent=2, default=list)
    given = [argument for argument in sys.argv[1:] if not argument.startswith(("--workdir", "-workdir"))]
    command = shlex.join(["python", "-m", "experiments.resolutions", *given])
    paths = write_resolution_report(
        records, workdir, config.title, config_text=text, notes=config.notes, command=command
    )
    print(f"{workdir / 'results.jsonl'}\n" + "\n".join(map(str, paths)))


if __name__ == "__main__":
    cli.run(main, __doc__)
