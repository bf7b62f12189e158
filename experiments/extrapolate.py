"""Trains decoders at one length, or takes a trained one, and measures them at many others.

    python -m experiments.extrapolate --config=configs/extrapolate.py
    python -m experiments.extrapolate --config=configs/extrapolate.py --checkpoint=runs/decoder
    python -m experiments.extrapolate --config=configs/extrapolate.py --config.data.name=mine --config.data.files=DIR
    python -m experiments.extrapolate --config=configs/extrapolate_pretrained.py --checkpoint=Llama-3.2-1B \
        --config.data.files=DIR --config.encoding="rope(scaling=yarn(factor={factor}, original_length={trained}))"

    python -m experiments.extrapolate --config=configs/extrapolate.py --checkpoint=runs/decoder \
        --variants YaRN "rerope(window=64) >> rope"

Every model is read as it was trained, under other encodings without training (`variants`), and after a short fine-tune
(`finetune`): loss in sliding windows and in windows that do not overlap, loss by position, retrieval by depth and length,
time and memory. --variants names those that are read, none behind it: no other than the trained one; --nofinetune leaves the
fine-tunes out. --checkpoint takes the workdir of a run of experiments.train or of a row, or a folder of transformers with
its tokenizer.json, and trains only fine-tunes. A checkpoint is read under --config.encoding too, in which {own} is its own
encoding: "{own}, {own}, {own}, none" takes positions out of every fourth layer, "{own} + window(512)" adds a window.
--config.init_encoding=new lets encodings be read that cannot take over what the model's has learned, as "none" in GPT-2.

Under the workdir (runs/<name of the config> by default): results.jsonl, one record per row and seed; README.md and
its PNG figures; config.json; and a folder per model with its checkpoints. Killed and started again, it goes on. Ctrl-C or
SIGTERM saves, stops and exits with 75. What is wrong with any row, its data too, is told before the first one trains: one
line, exit 2.
"""

import argparse
import pathlib
from collections.abc import Sequence

from ml_collections import ConfigDict

from experiments import cli


def main(
    config: ConfigDict,
    workdir: pathlib.Path,
    checkpoint: pathlib.Path | None = None,
    variants: Sequence[str] | None = None,
    finetune: bool = True,
    part: tuple[int, int] | None = None,
) -> None:
    from experiments.studies.extrapolation import Extrapolation

    cli.run_study(Extrapolation(config, checkpoint, variants, finetune), workdir, "extrapolate", part)


def options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this command alone."""
    checkpoint = "workdir of a trained decoder, or a folder of weights, instead of training some"
    parser.add_argument("--checkpoint", type=pathlib.Path, help=checkpoint)
    variants = "labels of the config's variants and fine-tunes, or specs: these alone"
    parser.add_argument("--variants", nargs="*", action="extend", help=variants)
    parser.add_argument("--nofinetune", dest="finetune", action="store_false", help="nothing is trained further")


if __name__ == "__main__":
    cli.run(main, __doc__, options=options, rows=True)
