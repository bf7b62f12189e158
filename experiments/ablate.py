"""Trains the same model with one encoding after another, over several seeds, and lays them side by side.

    python -m experiments.ablate --config=configs/quickstart.py
    python -m experiments.ablate --config=configs/quickstart.py --config.seeds="(0,1,2,3,4,5,6,7)" --workdir=runs/eight
    python -m experiments.ablate --config=configs/decoder.py --sweep config.optimizer.learning_rate=1e-3,3e-3 \
        --sweep config.seeds=0,1,2 --workdir=runs/rates

All seeds of a row train at once. Under the workdir (runs/<name of the config> by default): results.jsonl, one record per
run; table.md, PNG plots and report.html; config.json; and a folder per row with its checkpoints. Killed and started
again, it goes on: finished rows are not run again, the row under way resumes from its checkpoint. Ctrl-C or SIGTERM saves,
stops and exits with 75. What is wrong with any row, its data too, is told before the first one trains: one line, exit 2.

--sweep trains every row at each of the values of a field (several fields: all combinations), each point a row with records
of its own. Fields are those of a single run's config, or of all studies that have them; config.studies.NAME.x is of one.
The best point of a row is chosen on a tenth of the training split, which is then not trained on (--choose_by=0.2: a
fifth; --choose_by=SPLIT: another split); the table says so, and reports the evaluation split, which chose nothing.

Labels of rows may hold dots, in a config's ConfigDict({"rope(base=0.5)": ...}, allow_dotted_keys=True) and on the command
line in brackets: '--config.studies.digits_vit.encodings["rope(base=0.5)"]=rope(base=0.7)'
"""

import pathlib
from collections.abc import Sequence

from absl import flags
from ml_collections import ConfigDict

from experiments import cli


def main(config: ConfigDict, workdir: pathlib.Path, sweeps: Sequence[str] = (), choose_by: str = "0.1") -> None:
    from experiments.studies.ablation import Ablation
    from experiments.studies.position_probes import PositionProbes

    kind = PositionProbes if "probe" in config else Ablation
    cli.run_study(kind(config, sweeps, choose_by), workdir, "ablate")


if __name__ == "__main__":
    flags.DEFINE_multi_string("sweep", [], "config.a.b=1,2: trains every row at each of these; may be repeated")
    flags.DEFINE_string(
        "choose_by", "0.1", "what the best point is chosen by: a share of the training split, or a split"
    )

    def with_sweeps(config: ConfigDict, workdir: pathlib.Path) -> None:
        main(config, workdir, flags.FLAGS.sweep, flags.FLAGS.choose_by)

    cli.run(with_sweeps, __doc__, rows=True)
