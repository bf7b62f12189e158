"""Trains the same model with one encoding after another, over several seeds, and lays them side by side.

    python -m experiments.ablate --config=configs/quickstart.py
    python -m experiments.ablate --config=configs/quickstart.py --config.seeds="(0,1,2,3,4,5,6,7)" --workdir=runs/eight
    python -m experiments.ablate --config=configs/vit.py --encodings none learned "rope(base=100)" alibi --seeds 0,1,2 \
        --config.data.name=folder --config.data.data_dir=DIR --config.data.image_size="(32, 32)"
    python -m experiments.ablate --config=configs/decoder.py --sweep config.optimizer.learning_rate=1e-3,3e-3 \
        --sweep config.seeds=0,1,2 --workdir=runs/rates

--encodings and --seeds make a study of the config of a single run: a row for each encoding, in the table by its spec. In a
config of studies they take the place of its encodings and seeds. docs/your_own_data.md goes through it.

All seeds of a row train at once. Under the workdir (runs/<name of the config> by default, with -ablation behind the name of a
single run's): results.jsonl, one record per
run; README.md and its PNG figures; config.json; and a folder per row with its checkpoints. Killed and started
again, it goes on: finished rows are not run again, the row under way resumes from its checkpoint. Ctrl-C or SIGTERM saves,
stops and exits with 75. What is wrong with any row, its data too, is told before the first one trains: one line, exit 2.

--sweep trains every row at each of the values of a field (several fields: all combinations), each point a row with records
of its own. Fields are those of a single run's config, or of all studies that have them; config.studies.NAME.x is of one.
The best point of a row is chosen on a tenth of the training split, which is then not trained on (--choose_by=0.2: a
fifth; --choose_by=SPLIT: another split); the table says so, and reports the evaluation split, which chose nothing.

Labels of rows may hold dots, in a config's ConfigDict({"rope(base=0.5)": ...}, allow_dotted_keys=True) and on the command
line in brackets: '--config.studies.digits_vit.encodings["rope(base=0.5)"]=rope(base=0.7)'
"""

import argparse
import pathlib
from collections.abc import Sequence

from ml_collections import ConfigDict

from experiments import cli


def main(
    config: ConfigDict,
    workdir: pathlib.Path,
    sweeps: Sequence[str] = (),
    choose_by: str = "0.1",
    encodings: Sequence[str] = (),
    seeds: str | None = None,
    part: tuple[int, int] | None = None,
) -> None:
    from experiments.studies.ablation import Ablation, with_rows
    from experiments.studies.position_probes import PositionProbes

    kind = PositionProbes if "probe" in config else Ablation
    cli.run_study(kind(with_rows(config, encodings, seeds), sweeps, choose_by), workdir, "ablate", part)


def default_workdir(config: ConfigDict, given: str) -> pathlib.Path:
    """runs/quickstart for configs/quickstart.py, runs/vit-ablation for configs/vit.py: a training writes runs/vit."""
    plain = cli.runs_of(config, given)
    return plain if "studies" in config else plain.with_name(f"{plain.name}-ablation")


def options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this command alone."""
    sweep = "config.a.b=1,2: trains every row at each of these; may be repeated"
    parser.add_argument("--sweep", dest="sweeps", action="append", default=[], help=sweep)
    parser.add_argument("--choose_by", default="0.1", help="a share of the training split, or a split, to choose by")
    parser.add_argument("--encodings", nargs="*", action="extend", default=[], help="specs: a row for each")
    parser.add_argument("--seeds", help="0,1,2: the seeds of every row")


if __name__ == "__main__":
    cli.run(main, __doc__, default_workdir, options=options, rows=True)
