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

import pathlib

from ml_collections import ConfigDict

from experiments import cli


def main(config: ConfigDict, workdir: pathlib.Path) -> None:
    from posjax.studies.ablation import Ablation

    cli.run_study(Ablation(config), workdir, "ablate")


if __name__ == "__main__":
    cli.run(main, __doc__)
