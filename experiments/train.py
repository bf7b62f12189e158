"""Trains one model, or resumes its training.

    python -m experiments.train --config=configs/vit.py
    python -m experiments.train --config=configs/decoder.py --config.model.encoding=alibi --workdir=runs/alibi
    python -m experiments.train --config=configs/vit.py --config.init_from=runs/vit --config.data.image_size="(12, 12)" \
        --config.steps=100 --workdir=runs/vit12
    python -m experiments.train --config=configs/finetune.py --config.init_from=runs/decoder --config.data.name=mine \
        --config.data.files=DIR

The last two are fine-tunes of another run, or of a file or folder of pretrained weights: on larger images, and on the user's
own text.

    python -m experiments.train --config=configs/decoder.py --coordinator=HOST:PORT --processes=2 --process=0

This is the first of two processes that train one model together; the other has --process=1. TPU pods and SLURM take
--coordinator=auto. --config.mesh.fsdp=2 and similar fields share parameters between devices. See docs/cluster.md.

The workdir is runs/<name of the config's file> by default, such as runs/vit; another config needs another --workdir. It gets
run.json (the config, its hash, versions and device), metrics.jsonl (a line every `log_every` steps), checkpoints/ (the latest
and the best), and result.jsonl at the end. Ctrl-C or SIGTERM saves, stops and exits with 75; the same command resumes.
kill -9 loses the steps since the last checkpoint. The workdir and data may lie in a bucket, as s3://bucket/run or gs://bucket/texts
(docs/cluster.md). Mistakes are one line and exit code 2.
"""

import argparse
import pathlib
import sys

from ml_collections import ConfigDict

from experiments import cli
from experiments.studies import environment


def main(
    config: ConfigDict, workdir: pathlib.Path, profile: pathlib.Path | None = None, fast_flags: bool = False
) -> None:
    """Trains the model of a config and writes its record."""
    if fast_flags:
        environment.set_fast_flags(config)
    from experiments.progress import Progress, StopRequest
    from experiments.records import Record, append_records
    from experiments.studies.engine import fields_of
    from experiments.studies.measures import Subject, scores
    from experiments.studies.plan import Row
    from experiments.studies.weights import Weights
    from posjax.training.identity import read_run
    from posjax.training.initial import as_started, initial_params, options_of, start_of
    from posjax.training.loop import Programs, Stopped, train
    from posjax.training.processes import is_first
    from posjax.training.runs import Run
    from posjax.training.tasks import make_task

    if config.steps == 0:
        raise ValueError(
            "steps=0 trains nothing: experiments.ablate and experiments.evaluate measure weights as they are"
        )
    seeds, start, options = (config.seed,), start_of(config), options_of(config)
    config = as_started(config, start)
    task = make_task(config)
    programs = Programs(task, config, seeds)
    programs.trace()  # refuses what the model refuses, before anything is computed
    initial = None if start is None else initial_params(start, task, seeds, **options)
    environment.compilation_cache(workdir / "compiled")  # a restart need not compile again
    for line in programs.left_out() if is_first() else ():
        print("kept whole on every device:", line, file=sys.stderr)
    with StopRequest() as should_stop, Progress(config.steps) as progress:
        try:
            on_step = {"on_step": progress.row(config.model.encoding)} if is_first() else {}
            given = {"initial": initial, "programs": programs, "should_stop": should_stop, "profile": profile}
            result = train(task, config, seeds, workdir, **given, **on_step)
        except Stopped as stopped:
            raise cli.StoppedRun(stopped) from None
    run = Run.of_result(task, config, seeds, result)
    if not is_first():
        return
    weights = Weights(run, read_run(workdir)["hash"], result.metrics, workdir)
    row = Row("train", config.model.encoding, config.model.encoding, config)
    (metrics,) = scores(Subject(row, config, weights, weights, seeds), ConfigDict())
    fields = fields_of(row, weights, weights, {}) | environment.recorded()
    record = Record(**fields, seed=config.seed, metrics=metrics)
    (workdir / "result.jsonl").unlink(missing_ok=True)
    append_records(workdir / "result.jsonl", [record])
    shown = {name: value for name, value in record.metrics.items() if name != "training loss"}
    print(f"{record.encoding}: {shown} after {config.steps} steps, in {workdir}")


def options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that only trainings have."""
    parser.add_argument("--profile", type=cli.directory, metavar="DIR", help="directory for a trace of five steps")
    environment.add_fast_flags(parser)


if __name__ == "__main__":
    cli.run(main, __doc__, options=options, many_processes=True)
