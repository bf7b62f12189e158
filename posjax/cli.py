"""The command `posjax`.

    posjax audit mine.py:rotate --head-dim 64           a function rotate(q, k, position) -> (q, k)
    posjax audit config.json --inv-freq inv_freq.npy    frequencies, beside the configuration that they should follow
    posjax audit --bias bias.npy                        a bias of logits [heads, tokens, tokens]

Prints the encoding, as a spec of posjax, and what is wrong. Exit code 0 if nothing is, 1 if something is, 2 for a mistake.
"""

import argparse
import importlib.util
import pathlib
import sys
from collections.abc import Callable
from typing import Any

_MISTAKES = (ValueError, OSError, ImportError, SyntaxError)


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        "posjax", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made = parser.add_subparsers(dest="command", required=True).add_parser(
        "audit", help="what somebody's code computes"
    )
    made.add_argument("file", nargs="*", help="FILE.py:FUNCTION, a configuration FILE.json, or both")
    made.add_argument("--inv-freq", metavar="FILE.npy", help="[C] radians per position")
    made.add_argument(
        "--table", nargs=2, metavar="FILE.npy", help="cos and sin of positions 0, 1, ...: [T, C] or [T, 2 C]"
    )
    made.add_argument("--bias", metavar="FILE.npy", help="[heads, tokens, tokens]")
    made.add_argument("--order", default="THD", help="axes of q and k, as BHTD (default: %(default)s)")
    for name, about in (
        ("head-dim", "channels of a head"),
        ("layer", "the number of the layer"),
        ("num-heads", "heads"),
    ):
        made.add_argument(f"--{name}", type=int, metavar="N", help=about)
    made.add_argument("--num-axes", type=int, default=1, metavar="A", help="position axes (default: %(default)s)")
    made.add_argument("--length", type=int, default=4096, metavar="N", help="positions to probe (default: %(default)s)")
    try:
        return _audit(parser.parse_args(argv))
    except _MISTAKES as error:
        print("error:", " ".join(str(error).split()), file=sys.stderr)
        return 2


def _audit(args: argparse.Namespace) -> int:
    import numpy as np

    from posjax.audits import audit

    subject: dict[str, Any] = {}
    for file in args.file:
        subject |= {"config": file} if file.endswith(".json") else {"rotate": _function(file)}
    files = {"inv_freq": args.inv_freq, "bias": args.bias}
    subject |= {name: np.load(file) for name, file in files.items() if file}
    if args.table:
        subject["table"] = tuple(map(np.load, args.table))
    options = {name: getattr(args, name) for name in ("head_dim", "layer", "order", "num_axes", "num_heads", "length")}
    result = audit(**subject, **options)
    print(result)
    return int(not result.ok)


def _function(text: str) -> Callable:
    """The function that FILE.py:NAME names.

    Raises:
      ValueError: the text, the file or the name is none.
    """
    file, _, name = text.rpartition(":")
    spec = importlib.util.spec_from_file_location("_posjax_audited", file) if file.endswith(".py") else None
    if spec is None or spec.loader is None:
        raise ValueError(f"{text}: give a function as FILE.py:FUNCTION, or a configuration as FILE.json")
    sys.path.insert(0, str(pathlib.Path(file).resolve().parent))  # it may import from beside it
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not callable(getattr(module, name, None)):
        raise ValueError(f"{file} has no function {name!r}")
    return getattr(module, name)


if __name__ == "__main__":
    sys.exit(main())
