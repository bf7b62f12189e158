"""Trains decoders at one length, or takes a trained one, and measures them at many others.

    python -m experiments.extrapolate --config=configs/extrapolate.py
    python -m experiments.extrapolate --config=configs/extrapolate.py --checkpoint=runs/decoder
    python -m experiments.extrapolate --config=configs/extrapolate.py --config.data.name=mine --config.data.files=DIR

Every model is read as it was trained, under other encodings without training (`variants`), and after a short fine-tune
(`finetune`): loss in sliding windows and in windows that do not overlap, loss by position, retrieval by depth and length,
time and memory. --checkpoint takes the workdir of a run of experiments.train or of a row, and trains only fine-tunes.

Under the workdir (runs/<name of the config> by default): results.jsonl, one record per row and seed; table.md, PNG plots and
report.html; config.json; and a folder per model with its checkpoints. Killed and started again, it goes on. Ctrl-C or
SIGTERM saves, stops and exits with 75. What is wrong with any row, its data too, is told before the first one trains: one
line, exit 2.
"""

import json
import pathlib
import shlex
import sys

from absl import flags
from ml_collections import ConfigDict

from experiments import cli, tune_allocator
from posjax.studies.running import bar, caption


def main(config: ConfigDict, workdir: pathlib.Path, checkpoint: pathlib.Path | None = None) -> None:
    from posjax.studies import environment
    from posjax.studies import extrapolate_models
    from posjax.studies import running
    from posjax.studies.extrapolate_plan import first_scored
    from posjax import data
    from posjax.training.loop import Stopped

    least = first_scored(config.evaluation) + config.evaluation.bytes + 1
    source = dict(data_dir=config.data.data_dir, files=config.data.files)
    documents = data.load_documents(config.data.name, config.data.eval_split, **source)
    documents = documents.longest(config.evaluation.documents, least)
    planned = extrapolate_models.planned(config, checkpoint, documents)
    environment.compilation_cache(workdir / "compiled")
    running.write_config(config, workdir)
    with running.StopRequest() as should_stop:
        try:
            models = extrapolate_models.models(planned, workdir, should_stop)
        except Stopped as stopped:
            raise cli.StoppedRun(stopped) from None
        if not _measured(config, models, documents, workdir, should_stop):
            raise cli.StoppedRun("stopped between two rows")
    _show(config, models, documents, workdir)


def _measured(config: ConfigDict, models, documents, workdir: pathlib.Path, should_stop) -> bool:
    """Appends the records that are not there yet, row by row; False if it was asked to stop."""
    from posjax.studies import environment
    from posjax.studies.extrapolate_evaluate import bytes_read, evaluate_row
    from posjax.studies.extrapolate_models import record
    from posjax.studies.extrapolate_plan import lengths_of
    from posjax.training.metrics import append_jsonl

    waiting = []
    for row, trained in models.rows:
        finished = {each["seed"] for each in _finished(config, row, trained, documents, workdir)}
        seeds = tuple(seed for seed in trained.params if seed not in finished)
        size = sum(bytes_read(length, config, documents) for length in lengths_of(row, config.evaluation))
        waiting += [(row, trained, seeds, len(seeds) * size)] if seeds else []
    described = environment.describe(tune_allocator())
    with bar(sum(size for *_, size in waiting), "B", unit_scale=True) as progress:
        for row, trained, seeds, _ in waiting:
            if should_stop():
                return False
            caption(progress, row.label)
            found = evaluate_row(row, trained, config, documents, models.sizes, seeds, progress.update)
            records = [
                record(config, row, trained, seed, documents, described) | measured
                for seed, measured in zip(seeds, found, strict=True)
            ]
            append_jsonl(workdir / "results.jsonl", records)
    return True


def _finished(config: ConfigDict, row, trained, documents, workdir: pathlib.Path) -> list[dict]:
    """The records that this very row has left of these documents."""
    from posjax.studies.extrapolate_models import evaluation_hash
    from posjax.training.metrics import read_jsonl

    path, wanted = workdir / "results.jsonl", (row.label, evaluation_hash(config, row, trained), list(documents.titles))
    records = read_jsonl(path) if path.exists() else []
    return [record for record in records if (record["label"], record["config_hash"], record["documents"]) == wanted]


def _show(config: ConfigDict, models, documents, workdir: pathlib.Path) -> None:
    from rich.console import Console

    from posjax.analysis.report.length_report import views, write_length_report
    from posjax.analysis.report.table import summarize, to_rich

    records = [
        record
        for row, trained in models.rows
        for record in _finished(config, row, trained, documents, workdir)
        if record["seed"] in trained.params
    ]
    console = Console(width=None if sys.stdout.isatty() else 120)
    for table in summarize(list(views(records))):
        console.print(to_rich(table, console.width))
    text = json.dumps(config.to_dict(), indent=2, default=list)
    given = [argument for argument in sys.argv[1:] if not argument.startswith(("--workdir", "-workdir"))]
    command = shlex.join(["python", "-m", "experiments.extrapolate", *given])
    paths = write_length_report(records, workdir, config.title, config_text=text, notes=config.notes, command=command)
    print(f"{workdir / 'results.jsonl'}\n" + "\n".join(map(str, paths)))


if __name__ == "__main__":
    flags.DEFINE_string("checkpoint", None, "workdir of a trained decoder, instead of training some")

    def with_checkpoint(config: ConfigDict, workdir: pathlib.Path) -> None:
        given = flags.FLAGS.checkpoint
        main(config, workdir, pathlib.Path(given) if given else None)

    cli.run(with_checkpoint, __doc__)
