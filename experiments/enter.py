"""Enters an encoding of your own: checks its properties, trains it beside RoPE and ALiBi, and prints how it compares.

    python -m experiments.enter mine.py
    python -m experiments.enter "mine(slope=2) + rope" --import=mine.py

Trains configs/enter.py with five seeds a row: a ViT on digits, if the encoding takes (row, column) positions, and a decoder
on Python's documentation, if it takes positions on a line and suits causal attention. The page to attach is README.md of the
workdir, runs/enter/NAME-DIGEST by default, with a digest of your code. Its tables, which are also printed, have the
differences of every row from RoPE and from ALiBi, by Welch's t test with Holm's correction over the tests of a table.
Killed and started again, it goes on. Exit code 1 if a property fails: nothing is trained then.
"""

import argparse
import hashlib
import pathlib
import re
import sys
from typing import TYPE_CHECKING

from experiments import cli

if TYPE_CHECKING:
    from ml_collections import ConfigDict

    from posjax.encoding import Encoding

CONFIG, ENTRY, BESIDE = "configs/enter.py", "entry", ("rope", "alibi")


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = cli.parser("enter", __doc__)
    parser.add_argument("spec", help="the encoding, in posjax's text form, or FILE.py that registers one")
    parser.add_argument("--config", default=CONFIG, metavar="FILE", help="the study (default: %(default)s)")
    parser.add_argument(
        "--workdir", type=cli.directory, metavar="DIR", help="directory for checkpoints, records and the page"
    )
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
        cli.run_study(study, workdir, "enter")
    print(f"\nThe page to attach: {workdir / 'README.md'}")
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
    config.against = BESIDE
    if not config.studies:
        raise cli.UsageError(
            f"{encoding} takes neither positions on a line, causally, nor (row, column): nothing to run"
        )
    return config


if __name__ == "__main__":
    sys.exit(main())
