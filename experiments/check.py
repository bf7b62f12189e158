"""Checks that an encoding, also your own, has the properties that every encoding must have.

    python -m experiments.check "rope(base=100) + alibi"
    python -m experiments.check "mine(slope=2)" --import=my_encoding.py
    python -m experiments.check mine --import=my_encoding.py --axes=2

Prints a line per property: ok, FAILS, or - if the encoding's declared traits rule it out, with the largest difference between
two computations that must agree. Exit code 0 if all hold, 1 if one fails, 2 for a mistake on the command line.
"""

import argparse
import sys

from experiments import cli


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = cli.parser("check", __doc__)
    parser.add_argument("spec", help="the encoding, in posjax's text form")
    parser.add_argument("--axes", type=int, metavar="A", help="position axes (default: 1 and 2, where it takes them)")
    args = parser.parse_args(argv)
    return cli.answer(lambda: _check(args), args.imports, traceback=args.traceback)


def _check(args: argparse.Namespace) -> int:
    from posjax import parse
    from posjax.describe.properties import check
    from posjax.describe.worlds import axes_taken

    encoding = parse(args.spec)
    failed = 0
    taken = axes_taken(encoding)
    usual = [num_axes for num_axes in (1, 2) if num_axes in taken] or taken[:1]
    for num_axes in usual if args.axes is None else (args.axes,):
        print(f"{encoding}, tokens on {num_axes} {'axis' if num_axes == 1 else 'axes'}:")
        for row in check(encoding, num_axes=num_axes):
            print(f"  {row}")
            failed += not row.ok
    print("all hold" if not failed else f"{failed} FAIL{'S' if failed == 1 else ''}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
