"""Enters an encoding of your own: checks its properties, trains it beside RoPE and ALiBi, and prints how it compares.

    python -m experiments.enter mine.py
    python -m experiments.enter "mine(slope=2) + rope" --import=mine.py
    python -m experiments.enter mine.py --data_dir=DIR            # your pictures, a folder for each class, or your texts

Trains configs/enter.py with five seeds a row: a ViT on digits, if the encoding takes (row, column) positions, and a decoder
on Python's documentation, if it takes positions on a line and suits causal attention; or the one of them that --data_dir
suits. The page to attach is README.md of the workdir, runs/enter/NAME-DIGEST by default, with a digest of your code. Its
tables, which are also printed, have the differences of every row from RoPE and from ALiBi, by Welch's t test with Holm's
correction over the tests of a table. Killed and started again, it goes on. Exit code 1 if a property fails: nothing is
trained then.
"""

import argparse
import pathlib
import sys
from typing import TYPE_CHECKING

from experiments import cli

if TYPE_CHECKING:
    from ml_collections import ConfigDict

    from posjax.encoding import Encoding

CONFIG, ENTRY, BESIDE = "configs/enter.py", "entry", ("rope", "alibi")
PICTURES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"}


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    config, args = cli.read(cli.config_parser("enter", __doc__, options), sys.argv[1:] if argv is None else argv)
    return cli.answer(lambda: _enter(config, args), args.imports, traceback=args.traceback)


def options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that only this command has."""
    parser.add_argument("spec", help="the encoding, in posjax's text form, or FILE.py that registers one")
    about = "pictures or texts of your own, in place of the data of the config"
    parser.add_argument("--data_dir", type=cli.directory, metavar="DIR", help=about)
    parser.set_defaults(config=CONFIG)


def _enter(config: "ConfigDict", args: argparse.Namespace) -> int:
    from experiments.studies.engine import plan
    from posjax.cli import check_all, encodings_of

    encoding, *others = encodings_of(args.spec)
    if others:
        raise ValueError(f"{args.spec} registers {1 + len(others)} encodings: enter one as a spec, with --import")
    with config.unlocked():
        _add_entry(config, encoding, args.data_dir)
    study = plan(config)
    if failed := check_all([encoding]):
        return failed
    workdir = args.workdir or cli.RUNS / "enter" / folder_of(encoding, [args.spec, *args.imports], args.data_dir)
    with cli.alone_in(workdir, "enter"):
        cli.run_study(study, workdir, "enter")
    print(f"\nThe page to attach: {workdir / 'README.md'}")
    return 0


def folder_of(encoding: "Encoding", sources: list[str], data_dir: pathlib.Path | None = None) -> str:
    """Returns the name of the folder of an encoding, its code and its data: edited code has records of its own."""
    from experiments.studies.weights import plain
    from posjax.jsonl import config_hash

    code = [pathlib.Path(source).read_text() for source in sorted(sources) if source.endswith(".py")]
    digest = config_hash({"encoding": str(encoding), "data": str(data_dir), "code": code})
    return f"{plain(str(encoding)).strip('-')}-{digest[:8]}"


def _add_entry(config: "ConfigDict", encoding: "Encoding", data_dir: pathlib.Path | None) -> None:
    """Adds the encoding to each study of the config that it, and a folder of the user's, suit; leaves the others out.

    Raises:
      ValueError: no study is left.
    """
    from ml_collections import ConfigDict

    from posjax.describe.worlds import axes_taken
    from posjax.encoding import Needs

    pictures = data_dir and any(path.suffix.lower() in PICTURES for path in data_dir.rglob("*"))
    for name, study in list(config.studies.items()):
        text = study.task == "language_model"
        axes = axes_taken(encoding)
        suits = 1 in axes and Needs.BOTH_DIRECTIONS not in encoding.needs if text else 2 in axes
        if not suits or (data_dir and pictures == text):
            del config.studies[name]
            continue
        study.encodings = ConfigDict({ENTRY: str(encoding)} | dict(study.encodings), sort_keys=False)
        if pictures:
            study.data.update(name="folder", data_dir=str(data_dir), image_size=(32, 32))
            study.model.patch_size = 4
        elif data_dir:
            study.data.update(name=data_dir.resolve().name, files=str(data_dir))
    config.against = BESIDE
    if not config.studies:
        raise ValueError(f"{encoding} suits no study here: positions on a line, causally, or (row, column)")


if __name__ == "__main__":
    sys.exit(main())
