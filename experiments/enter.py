"""Enters an encoding of your own: checks its properties, trains it beside RoPE and ALiBi, and prints how it compares.

    python -m experiments.enter mine.py
    python -m experiments.enter "mine(slope=2) + rope" --import=mine.py

Trains configs/enter.py with five seeds a row: a ViT on digits, if the encoding takes (row, column) positions, and a decoder
on Python's documentation, if it takes positions on a line and suits causal attention. The page to attach is README.md of the
workdir, runs/enter/NAME-DIGEST by default, with a digest of your code. Its last section is the comparison that is also
printed: differences from RoPE and ALiBi with their p-values, by Welch's t test with Holm's correction over all of them.
Killed and started again, it goes on. Exit code 1 if a property fails: nothing is trained then.
"""

import argparse
import hashlib
import pathlib
import re
import sys
from typing import TYPE_CHECKING, Any

from experiments import cli

if TYPE_CHECKING:
    from ml_collections import ConfigDict

    from experiments.records import Records
    from posjax.encoding import Encoding

CONFIG, ENTRY, BESIDE = "configs/enter.py", "entry", ("rope", "alibi")


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = cli.parser("enter", __doc__)
    parser.add_argument("spec", help="the encoding, in posjax's text form, or FILE.py that registers one")
    parser.add_argument("--config", default=CONFIG, metavar="FILE", help="the study (default: %(default)s)")
    parser.add_argument("--workdir", metavar="DIR", help="directory for checkpoints, records and the page")
    args = parser.parse_args(argv)
    return cli.answer(lambda: _enter(args), args.imports, traceback=args.traceback)


def _enter(args: argparse.Namespace) -> int:
    from experiments.studies.engine import plan
    from posjax.cli import check_all, encodings_of

    encoding, *others = encodings_of(args.spec)
    if others:
        raise cli.UsageError(f"{args.spec} registers {1 + len(others)} encodings: enter one as a spec, with --import")
    study = plan(_with_entry(cli.load(args.config), encoding))
    if failed := check_all([encoding]):
        return failed
    workdir = pathlib.Path(args.workdir or cli.RUNS / "enter" / folder_of(encoding, [args.spec, *args.imports]))
    with cli.alone_in(workdir, "enter"):
        records = cli.run_study(study, workdir, "enter")
        page, found = workdir / "README.md", comparison(records, encoding)
        page.write_text(f"{page.read_text().rstrip()}\n\n## {encoding} beside RoPE and ALiBi\n\n{found}\n")
    print(f"\n{found}\n\nThe page to attach: {page}")
    return 0


def folder_of(encoding: "Encoding", sources: list[str]) -> str:
    """Returns the name of the folder of an encoding and its code: edited code has records of its own."""
    files = sorted(path for source in sources if (path := pathlib.Path(source)).suffix == ".py")
    digest = hashlib.sha256(str(encoding).encode())
    for path in files:
        digest.update(path.read_bytes())
    name = re.sub(r"\W+", "-", str(encoding)).strip("-")
    return f"{name}-{digest.hexdigest()[:8]}"


def _with_entry(config: "ConfigDict", encoding: "Encoding") -> "ConfigDict":
    """Adds the encoding to each study of the config that it can run in; the other studies are left out.

    Raises:
      UsageError: it can run in none.
    """
    from ml_collections import ConfigDict

    from posjax.describe.worlds import axes_taken
    from posjax.encoding import Needs

    for name, study in list(config.studies.items()):
        num_axes = 1 if study.task == "language_model" else 2
        fits = num_axes in axes_taken(encoding) and (num_axes == 2 or Needs.BOTH_DIRECTIONS not in encoding.needs)
        if fits:
            study.encodings = ConfigDict({ENTRY: str(encoding)} | dict(study.encodings), sort_keys=False)
        else:
            del config.studies[name]
    if not config.studies:
        raise cli.UsageError(
            f"{encoding} takes neither positions on a line, causally, nor (row, column): nothing to run"
        )
    return config


def comparison(records: "Records", encoding: "Encoding") -> str:
    """Returns a Markdown table: a line for each score, with the differences from RoPE and ALiBi and their p-values."""
    from experiments.report.statistics import difference_of, judge_family, mean_interval, term
    from experiments.report.table import better_or_worse, headline_columns
    from experiments.report.units import title_of, unit_of
    from posjax.describe.markdown import grid

    scores = [(study, column) for study in records.studies.values() for column in headline_columns(study)]
    family: dict[Any, Any] = {
        (study.name, column, other): difference_of(term(study, ENTRY, *column), term(study, other, *column))
        for study, column in scores
        for other in BESIDE
    }
    judged, body = judge_family(family), []
    for study, column in scores:
        unit = unit_of(column.metric)
        own = mean_interval(study.values(ENTRY, *column).values()).scaled(unit.scale).text(unit.digits)
        at = "" if column.at is None else f" at {column.at}"
        cells = [f"{study.name}: {title_of(column.metric, study.unit)}{at}", own]
        for other in BESIDE:
            verdict = judged[study.name, column, other]
            lead = verdict.estimate.interval().scaled(unit.scale if unit.best is max else -unit.scale)
            cells += [
                better_or_worse(lead.mean, lead.half_width, unit.digits, verdict.separated)[0],
                f"{verdict.p:.2g}",
            ]
        body.append(cells)
    beside = [heading for other in BESIDE for heading in (f"beside {other}", "p")]
    return grid(["score", str(encoding), *beside], body, left=1)


if __name__ == "__main__":
    sys.exit(main())
