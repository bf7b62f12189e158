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
        raise cli.UsageError(f"{args.spec} registers {1 + len(others)} encodings: enter one as a spec, with --import")
    with config.unlocked():
        if args.data_dir:
            _use_data(config, args.data_dir)
        _add_entry(config, encoding)
    study = plan(config)
    if failed := check_all([encoding]):
        return failed
    name = folder_of(encoding, [args.spec, *args.imports], str(args.data_dir or ""))
    workdir = args.workdir or cli.RUNS / "enter" / name
    with cli.alone_in(workdir, "enter"):
        cli.run_study(study, workdir, "enter")
    print(f"\nThe page to attach: {workdir / 'README.md'}")
    return 0


def folder_of(encoding: "Encoding", sources: list[str], data: str = "") -> str:
    """Returns the name of the folder of an encoding, its code and its data: edited code has records of its own."""
    files = sorted(path for source in sources if (path := pathlib.Path(source)).suffix == ".py")
    digest = hashlib.sha256(f"{encoding}{data}".encode())
    for path in files:
        digest.update(path.read_bytes())
    name = re.sub(r"\W+", "-", str(encoding)).strip("-")
    return f"{name}-{digest.hexdigest()[:8]}"


def _use_data(config: "ConfigDict", directory: pathlib.Path) -> None:
    """Keeps the study that suits a folder, on its files: the ViT on pictures of 32x32 pixels, else the decoder."""
    pictures = any(path.suffix.lower() in PICTURES for path in directory.rglob("*"))
    for name, study in list(config.studies.items()):
        if (study.task == "language_model") == pictures:
            del config.studies[name]
        elif pictures:
            study.data.update(name="folder", data_dir=str(directory), image_size=(32, 32))
            study.model.patch_size = 4
        else:
            study.data.update(name=directory.resolve().name, files=str(directory))


def _add_entry(config: "ConfigDict", encoding: "Encoding") -> None:
    """Adds the encoding to each study of the config that it can run in; the other studies are left out.

    Raises:
      UsageError: it can run in none.
    """
    from ml_collections import ConfigDict

    from posjax.describe.worlds import axes_taken
    from posjax.encoding import Needs

    for name, study in list(config.studies.items()):
        num_axes = 1 if study.task == "language_model" else 2
        if num_axes in axes_taken(encoding) and (num_axes == 2 or Needs.BOTH_DIRECTIONS not in encoding.needs):
            study.encodings = ConfigDict({ENTRY: str(encoding)} | dict(study.encodings), sort_keys=False)
        else:
            del config.studies[name]
    config.against = BESIDE
    if not config.studies:
        raise cli.UsageError(f"{encoding} suits no study here: positions on a line, causally, or (row, column)")


if __name__ == "__main__":
    sys.exit(main())
