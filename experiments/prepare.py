"""Prepares a data set, from the network or from raw files that are already here, or makes tokens of texts, once.

    python -m experiments.prepare --name=fashion_mnist                  # downloads
    python -m experiments.prepare --name=fashion_mnist --from=DIR       # DIR holds the four original .gz files
    python -m experiments.prepare --files=DIR --tokenizer=tokenizer.json --out=TOKENS
    python -m experiments.prepare --list

The third one writes the tokens of texts (a directory or a glob, as config.data.files takes them) as memory-mapped shards, on
all cores; --config.data.files=TOKENS --config.data.tokenizer=TOKENS trains on them. After a kill the same command goes on.

TensorFlow is not needed. Nothing is prepared twice. Errors are one line and exit code 2.
"""

import argparse
import contextlib
import functools
import sys
from collections.abc import Callable

from experiments import cli


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = cli.parser("prepare", __doc__, imports=False)
    add = parser.add_argument
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--name", help="the set; --list shows them")
    what.add_argument("--files", metavar="DIR_OR_GLOB", help="texts that become tokens")
    what.add_argument("--list", action="store_true", help="show the known sets")
    add("--from", dest="source", metavar="DIR", help="directory with the original raw files")
    add("--data_dir", type=cli.directory, metavar="DIR", help="directory of sets (default: TFDS's)")
    add("--tokenizer", help="tokenizer.json of --files, or a folder that holds one; bytes for bytes")
    add("--out", type=cli.directory, metavar="DIR", help="directory of the shards of --files")
    add("--field", default="text", help="name of the text in tables of --files (default: text)")
    add("--processes", type=cli.positive, help="number of processes for --files (default: one a core)")
    args = parser.parse_args(argv)
    if args.files and not (args.tokenizer and args.out):
        parser.error("--files takes --tokenizer=tokenizer.json and --out=DIR")
    work = _list if args.list else _tokenise if args.files else _prepare
    return cli.answer(functools.partial(work, args), traceback=args.traceback)


def _list(args: argparse.Namespace) -> None:
    del args
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


def _tokenise(args: argparse.Namespace) -> None:
    from experiments.progress import bar
    from posjax.data.tokenising import tokenise

    with contextlib.ExitStack() as stack:
        stack.enter_context(cli.alone_in(args.out, "prepare"))

        def begin(total: int) -> Callable[[int], None]:
            return stack.enter_context(bar(total, "B", unit_scale=True, unit_divisor=1024)).update

        options = dict(processes=args.processes, begin=begin)
        done = tokenise(args.files, args.out, args.tokenizer, args.field, **options)
    counts = f"{done.tokens:,} tokens of {done.documents:,} documents in {done.shards:,} shards"
    print(f"{args.out}: {counts}, digest {done.digest}")


if __name__ == "__main__":
    sys.exit(main())
