"""Prepares a data set, from the network or from raw files that are already here.

    python -m experiments.prepare --name=fashion_mnist                  # downloads
    python -m experiments.prepare --name=fashion_mnist --from=DIR       # DIR holds the four original .gz files
    python -m experiments.prepare --list

TensorFlow is not needed. A prepared set is not prepared again. Errors are one line and exit code 2.
"""

import argparse
import sys

from experiments import cli


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = cli.parser("prepare", __doc__, imports=False)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--name", help="the set; --list shows them")
    what.add_argument("--list", action="store_true", help="show the known sets")
    parser.add_argument("--from", dest="source", metavar="DIR", help="directory with the original raw files")
    parser.add_argument("--data_dir", metavar="DIR", help="directory of prepared sets (default: TFDS's own)")
    args = parser.parse_args(argv)
    return cli.answer(_list if args.list else lambda: _prepare(args), traceback=args.traceback)


def _list() -> None:
    from posjax.data.sets import OWN, SETS

    for name, entry in SETS.items():
        need = "no download" if entry.bundled else "download or --from"
        print(f"{name:18}{entry.kind:8}{need:20}{entry.about}")
    print("your own, read as they are:")
    for flags, entry in OWN.items():
        print(f"{entry.kind:8}{flags}: {entry.about}")


def _prepare(args: argparse.Namespace) -> None:
    from posjax.data import prepare

    done = prepare(args.name, args.data_dir, args.source, progress=sys.stderr.isatty())
    print(f"{done.name}: {'prepared' if done.made_now else 'was prepared already'} in {done.path}")
    for split, examples in done.splits.items():
        print(f"  {split:12}{examples:>8,} examples")


if __name__ == "__main__":
    sys.exit(main())
