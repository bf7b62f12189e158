"""Trains ViTs at one resolution, under several encodings and seeds, and tests them at many others, by policy.

    python -m experiments.resolutions --config=configs/resolutions.py
    python -m experiments.resolutions --config=configs/resolutions.py:cifar10 --config.seeds="(0,1,2,3,4)"

A policy is what becomes of an encoding at another resolution: nothing, tables resized, another spec that reads the same
weights, or a short fine-tune. Images are of one size, or in native aspects by their number of patches.

Under the workdir (runs/<name of the config> by default): results.jsonl, one record per row and seed; README.md and
its PNG figures; config.json; and a folder per model with its checkpoints. Killed and started again, it goes on: rows that
are finished are not run again. Ctrl-C or SIGTERM saves, stops and exits with 75. What is wrong with any row, its data too,
is told before the first one trains: one line, exit 2.
"""

import pathlib

from ml_collections import ConfigDict

from experiments import cli


def main(config: ConfigDict, workdir: pathlib.Path, part: tuple[int, int] | None = None) -> None:
    from experiments.studies.resolutions import Resolutions

    cli.run_study(Resolutions(config), workdir, "resolutions", part)


if __name__ == "__main__":
    cli.run(main, __doc__, rows=True)
