"""Runs a study: trains the rows of its config, reads their weights under other encodings, and compares the results.

    python -m experiments.ablate --config=configs/quickstart.py
    python -m experiments.ablate --config=configs/quickstart.py --seeds 0,1,2,3,4,5,6,7 --workdir=runs/eight
    python -m experiments.ablate --config=configs/vit.py --encodings none learned "rope(base=100)" alibi --seeds 0,1,2 \
        --config.data.name=folder --config.data.data_dir=DIR --config.data.image_size="(32, 32)"
    python -m experiments.ablate --config=configs/decoder.py --tune optimizer.learning_rate=1e-3,3e-3 --seeds 0,1,2
    python -m experiments.ablate --config=configs/extrapolate.py --config.data.name=mine --config.data.files=DIR
    python -m experiments.ablate --config=configs/extrapolate_pretrained.py --checkpoint=Llama-3.2-1B \
        --config.data.files=DIR --variants YaRN "rerope(window=64) >> {own}"
    python -m experiments.ablate --config=configs/resolutions.py:cifar10

--encodings and --seeds turn the config of a single run into a study with a row for each encoding, labelled by its spec. In a
config of studies they replace its encodings and seeds. docs/your_own_data.md has a walk-through.

--tune trains each row at the values of a field (several fields: all combinations), chooses the best value on a tenth of the
training split that these trainings do not see (--choose_by=0.2: a fifth; --choose_by=SPLIT: another split), and trains the
row with it.

--checkpoint takes the workdir of a run of experiments.train or of a row, or a folder of transformers with its tokenizer.json,
and trains only fine-tunes. --variants names the variants and fine-tunes to read beside the trained models; no name reads
none. With --checkpoint it also takes specs, in which {own} is the model's encoding. --nofinetune leaves fine-tunes out.
--config.init_encoding=new allows encodings that cannot take over the learned parameters of the model's encoding.

All seeds of a row train at once. Under the workdir (runs/<name of the config> by default, with -ablation behind the name of a
single run's): results.jsonl, one record per row and seed; README.md and its PNG figures; config.json; and a folder per row
with its checkpoints. Killed and started again, it goes on: finished rows are not run again, the row under way resumes from
its checkpoint. Ctrl-C or SIGTERM saves, stops and exits with 75. A mistake in any row, or its data, is reported before the
first one trains: one line, exit 2.

Labels of rows may hold dots, in a config's ConfigDict({"rope(base=0.5)": ...}, allow_dotted_keys=True) and on the command
line in brackets: '--config.studies.digits_vit.encodings["rope(base=0.5)"]=rope(base=0.7)'
"""

import argparse
import pathlib

from ml_collections import ConfigDict

from experiments import cli
from experiments.studies import environment


def main(
    config: ConfigDict, workdir: pathlib.Path, part: tuple[int, int] | None = None, fast_flags: bool = False, **given
) -> None:
    """Runs a study; `given` are the arguments of `experiments.studies.engine.plan`."""
    if fast_flags:
        environment.set_fast_flags(*config.get("studies", {"": config}).values())
    from experiments.studies.engine import plan

    cli.run_study(plan(config, **given), workdir, "ablate", part)


def default_workdir(config: ConfigDict, given: str) -> pathlib.Path:
    """Returns runs/quickstart for configs/quickstart.py, runs/vit-ablation for configs/vit.py: a training writes runs/vit."""
    plain = cli.runs_of(config, given)
    return plain if "seeds" in config else plain.with_name(f"{plain.name}-ablation")


def options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that only this command has."""
    many, field = {"nargs": "*", "action": "extend"}, "FIELD=V1,V2: each row is trained at the best; may be repeated"
    variants = "labels of the config's variants and fine-tunes, or specs for a checkpoint: only these are read"
    specs = "specs with spaces between them: a row for each; commas make a pattern over layers"
    parser.add_argument("--encodings", **many, default=[], metavar="SPEC", help=specs)
    parser.add_argument("--seeds", help="0,1,2: the seeds of every row")
    parser.add_argument("--tune", action="append", default=[], metavar="FIELD=VALUES", help=field)
    parser.add_argument("--choose_by", help="a share of the training split, or a split, that --tune chooses by")
    parser.add_argument("--checkpoint", type=cli.directory, help="a trained decoder, run or folder, in place of rows")
    parser.add_argument("--variants", **many, metavar="LABEL", help=variants)
    parser.add_argument("--nofinetune", dest="finetune", action="store_false", help="nothing is trained further")
    environment.add_fast_flags(parser)


if __name__ == "__main__":
    cli.run(main, __doc__, default_workdir, options=options, rows=True)
