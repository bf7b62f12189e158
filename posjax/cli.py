"""The command `posjax`: explains, checks and cites encodings, and audits other people's positional code.

    posjax explain rope
    posjax explain "rope(base=100) + alibi" --length=32 --head-dim=16 --num-heads=4
    posjax explain "raster(width=6) >> learned" --grid=4x6 --plot=plots          also pictures
    posjax explain "rope + alibi" --cite                                         BibTeX of the papers of every part
    posjax explain --checkpoint=Llama-3.2-1B --scaling=yarn --lengths=16384,131072
    posjax check mine.py                                 every property, for each encoding that the file registers
    posjax check "mine(slope=2) + rope" --import=mine.py
    posjax audit mine.py:rotate --head-dim=64            a function rotate(q, k, position) -> (q, k)
    posjax audit config.json --inv-freq=inv_freq.npy     frequencies, beside the configuration that they should follow
    posjax audit old.json new.json                       whether two configurations mean the same encoding
    posjax audit --bias=bias.npy                         a bias of logits [heads, tokens, tokens]
    posjax audit --mask=mine.py:window                   which keys a function of (query, key) indices shows
    posjax audit --position-ids=ids.npy                  which documents of a batch see one another

Exit code 0; 1 if a property fails or the audited code is wrong; 2 for a mistake, which is told in one line; 3 if no
registered encoding explains the audited code, or only one that lists its frequencies.
"""

import argparse
import os
import pathlib
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from posjax.encoding import Encoding
from posjax.extras import message_of
from posjax.files import HEADER_ERRORS
from posjax.user_code import BROKEN, import_source, import_user_code, place_of

_MISTAKES = (ValueError, OSError, FloatingPointError, ImportError)
_TEXT = {"length": 16, "head_dim": 8, "num_heads": 2, "grid": (4, 6)}
_PLOT = {"length": 128, "head_dim": 64, "num_heads": 4, "grid": (14, 14)}


class _Parser(argparse.ArgumentParser):
    """A parser that raises a mistake as a ValueError."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; {self.prog} --help shows the arguments")


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    words = sys.argv[1:] if argv is None else argv

    def work() -> int:
        args = _parser().parse_args(words)
        import_user_code(args.imports)
        return args.run(args)

    return answer(work, traceback="--traceback" in words)


def answer(work: Callable[[], int | None], imports: Sequence[str] = (), *, traceback: bool = False) -> int:
    """Does the work of a command and returns its exit code; a user's mistake is one line on stderr, and 2.

    Args:
      work: function that returns None or an exit code.
      imports: files and modules of user code, imported before `work` runs.
      traceback: raises users' mistakes.
    """
    try:
        import_user_code(imports)
        code = work() or 0
        sys.stdout.flush()
        return code
    except BROKEN as error:
        if isinstance(error, BrokenPipeError):  # the reader has left, as of `posjax explain rope | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter writes again at its end
            return 0
        line = None if traceback else _line_of(error)
        if line is None:
            raise
        print("error:", line, file=sys.stderr)
        return 2


def _line_of(error: BaseException) -> str | None:
    """Returns a user's mistake as one line, None for another error."""
    if isinstance(error, _MISTAKES):
        return place_of(error) or message_of(error)
    from posjax.describe.properties import wrong_hook

    return place_of(error) or (None if isinstance(error, SystemExit) else wrong_hook())


def _parser() -> argparse.ArgumentParser:
    layout: dict[str, Any] = dict(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    made = _Parser("posjax", description=__doc__, **layout)
    commands = made.add_subparsers(dest="command", required=True)
    for name, options, run in (
        ("explain", _explain_options, _explain),
        ("check", _check_options, _check),
        ("audit", _audit_options, _audit),
    ):
        about = run.__doc__ or ""  # none under python -OO
        command = commands.add_parser(name, description=about, help=about.partition("\n")[0], **layout)
        options(command.add_argument)
        about = "Python file or module with encodings of your own (@pj.register); may be repeated"
        command.add_argument(
            "--import", dest="imports", action="append", default=[], metavar="FILE_OR_MODULE", help=about
        )
        command.add_argument("--traceback", action="store_true", help="show where an error came from")
        command.set_defaults(run=run)
    return made


def encodings_of(spec: str) -> list[Encoding]:
    """Returns the encoding of a spec, or all that a FILE.py registers; arguments without a default get examples.

    Raises:
      ValueError: the spec cannot be read, or the file registers no encoding.
    """
    from posjax.describe.catalogue import example_of
    from posjax.spec import REGISTRY, missing_arguments, parse

    if not spec.endswith(".py"):
        return [parse(spec)]
    module = import_source(spec)
    found = {name: example_of(cls) for name, cls in REGISTRY.items() if cls.__module__ == module.__name__}
    if unmade := [name for name, example in found.items() if example is None]:
        if not missing_arguments(REGISTRY[unmade[0]]):
            parse(unmade[0])  # says what is wrong with the defaults
        raise ValueError(f"{unmade[0]} needs arguments: give it as a spec, with --import={spec}")
    if not found:
        raise ValueError(f'{spec} registers no encoding: put @pj.register("name") above its class')
    return [*found.values()]


def _explain_options(add: Callable) -> None:
    add("spec", nargs="?", help="the encoding, in posjax's text form, or FILE.py (default: the checkpoint's)")
    add("--cite", action="store_true", help="print BibTeX of its papers instead")
    add("--length", type=_positive, metavar="N", help="tokens on the line (default: 16, in plots 128)")
    add("--grid", type=_sizes, metavar="HxW", help="tokens on a grid instead (or DxHxW)")
    add(
        "--prefix",
        type=lambda text: 0 if text == "0" else _positive(text),
        default=0,
        metavar="N",
        help="class token and registers before them (default: none)",
    )
    add("--head-dim", type=_positive, metavar="N", help="channels of a head (default: 8, in plots 64)")
    add("--num-heads", type=_positive, metavar="N", help="heads (default: 2, in plots 4)")
    add("--plot", nargs="?", const="plots", metavar="DIR", help="also write PNGs (default: into plots)")
    add("--checkpoint", help="run of a decoder, or folder of transformers: its weights are not needed")
    add(
        "--lengths",
        type=lambda text: tuple(map(_positive, text.split(","))),
        default=(),
        help="tokens of sequences, with commas (a checkpoint's)",
    )
    add("--trained-length", type=_positive, metavar="N", help="of a checkpoint (default: config.json's)")
    scalings = ("linear", "ntk", "yarn", "llama3")
    add("--scaling", choices=scalings, help="scaling of a checkpoint's ropes, by the factor of each length")
    add("--ignore", default="", help="keys of its config.json to pass over, with commas: they change no numbers")


def _explain(args: argparse.Namespace) -> int:
    """Explains an encoding with a worked example, or a decoder's at other lengths.

    Every part of a composition is explained in turn, then the effect of the whole on attention. Random content is drawn from
    seed 0. Of a checkpoint, it shows the pairs of channels that make a full turn within the trained length, and the pairs
    that meet unseen angles beyond it; a spec is read in place of its own encoding, {own}.
    """
    if args.checkpoint is not None:
        _refuse(args, "of an encoding", "cite", "plot", "length", "grid", "prefix", "head_dim", "num_heads")
        from posjax.describe.explain.turning import explain_checkpoint

        options = {name: getattr(args, name) for name in ("spec", "lengths", "trained_length", "scaling")}
        print("\n".join(explain_checkpoint(args.checkpoint, ignore=[*filter(None, args.ignore.split(","))], **options)))
        return 0
    _refuse(args, "of a --checkpoint", "lengths", "trained_length", "scaling", "ignore")
    if args.spec is None:
        raise ValueError("give an encoding, as in: posjax explain rope")
    if args.cite:
        from posjax.describe.papers import cite

        for spec in map(str, encodings_of(args.spec)) if args.spec.endswith(".py") else [args.spec]:
            print(cite(spec))
        return 0
    from posjax.describe.explain import whole

    for encoding in encodings_of(args.spec):
        print("\n".join(whole.explain(encoding, **_sizes_of(args, _TEXT, encoding))))
        if args.plot is not None:
            for path in whole.plot(encoding, pathlib.Path(args.plot), **_sizes_of(args, _PLOT, encoding)):
                print(f"wrote {path}")
    return 0


def _refuse(args: argparse.Namespace, whose: str, *options: str) -> None:
    if given := [f"--{name.replace('_', '-')}" for name in options if getattr(args, name)]:
        raise ValueError(f"{', '.join(given)}: options {whose}; leave them out")


def _sizes_of(args: argparse.Namespace, defaults: dict, encoding: Encoding) -> dict:
    """Returns the sizes of the example: arguments or defaults; a grid only if it is requested or needed."""
    from posjax.describe.worlds import grid_width

    sizes = {name: getattr(args, name) or defaults[name] for name in ("length", "head_dim", "num_heads")}
    grid = args.grid
    if grid is None and 1 not in encoding.dimensions:
        height, width = defaults["grid"]
        grid = (height, grid_width(encoding) or width) if 2 in encoding.dimensions else (2, 3, 4)
    return sizes | {"grid": grid, "prefix": args.prefix}


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive whole number, got {text!r}")
    return int(text)


def _sizes(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){1,2}", text):
        raise argparse.ArgumentTypeError(f"expected HxW, as in 4x6, got {text!r}")
    return tuple(map(int, text.split("x")))


def _check_options(add: Callable) -> None:
    add("spec", help="the encoding, in posjax's text form, or FILE.py with encodings")
    add("--axes", type=_positive, metavar="A", help="position axes (default: 1 and 2, where it takes them)")


def _check(args: argparse.Namespace) -> int:
    """Checks that an encoding, also your own, has the properties that every encoding must have.

    Prints a line per property: ok, FAILS, or - if the encoding's declared traits rule it out, with the largest difference
    between two computations that must agree.
    """
    return check_all(encodings_of(args.spec), args.axes)


def check_all(encodings: Sequence[Encoding], axes: int | None = None) -> int:
    """Prints the properties of each encoding; returns 1 if one fails, else 0."""
    from posjax.describe.properties import check
    from posjax.describe.worlds import axes_taken

    failed = 0
    for encoding in encodings:
        taken = axes_taken(encoding)
        usual = [num_axes for num_axes in (1, 2) if num_axes in taken] or taken[:1]
        for num_axes in usual if axes is None else (axes,):
            print(f"{encoding}, tokens on {num_axes} {'axis' if num_axes == 1 else 'axes'}:")
            for row in check(encoding, num_axes=num_axes):
                print(f"  {row}")
                failed += not row.ok
    print("all hold" if not failed else f"{failed} FAIL{'S' if failed == 1 else ''}")
    return int(failed > 0)


def _audit_options(add: Callable) -> None:
    add("file", nargs="*", help="FILE.py:FUNCTION, a configuration FILE.json, or both; two configurations to compare")
    add("--inv-freq", metavar="FILE.npy", help="[C] radians per position")
    add("--table", nargs=2, metavar="FILE.npy", help="cos and sin of positions 0, 1, ...: [T, C] or [T, 2 C]")
    add("--bias", metavar="FILE.npy", help="[heads, tokens, tokens]")
    add("--mask", metavar="FILE", help="FILE.npy, [tokens, tokens], or FILE.py:FUNCTION of (query, key) indices")
    add("--position-ids", metavar="FILE.npy", help="[B, T], [3, B, T] or [4, B, T] of a batch")
    add("--attention-mask", metavar="FILE.npy", help="of --position-ids: [B, T] or [B, 1, T, T]")
    add("--order", default="THD", help="axes of q and k, as BHTD (default: %(default)s)")
    add("--head-dim", type=int, metavar="N", help="channels of a head")
    add("--layer", type=int, metavar="N", help="the number of the layer")
    add("--num-heads", type=int, metavar="N", help="heads")
    add("--num-axes", type=int, default=1, metavar="A", help="position axes (default: %(default)s)")
    add("--length", type=int, default=4096, metavar="N", help="positions to probe (default: %(default)s)")


def _audit(args: argparse.Namespace) -> int:
    """Prints the encoding that somebody's code computes, as a spec of posjax, and what is wrong with the code."""
    from posjax.audits import audit

    subject: dict[str, Any] = {}
    configs = [file for file in args.file if file.endswith(".json")]
    subject |= {"config": configs[0]} if len(configs) == 1 else {"configs": configs} if configs else {}
    for file in args.file:
        subject |= {} if file in configs else {"rotate": _function(file)}
    files = {name: getattr(args, name) for name in ("inv_freq", "bias", "position_ids", "attention_mask")}
    subject |= {name: _array(file) for name, file in files.items() if file}
    if args.mask:
        subject["mask"] = _array(args.mask) if args.mask.endswith(".npy") else _function(args.mask)
    if args.table:
        subject["table"] = tuple(map(_array, args.table))
    options = {name: getattr(args, name) for name in ("head_dim", "layer", "order", "num_axes", "num_heads", "length")}
    result = audit(**subject, **options)
    print(result)
    return 1 if result.findings else 3 if result.unknown else 0


def _array(file: str) -> Any:
    """Returns the array of a .npy file."""
    import numpy as np

    try:
        array = np.load(file, mmap_mode="r")  # a size beyond the file's is refused, not allocated
    except HEADER_ERRORS as error:
        raise ValueError(f"{file} holds no array of numbers: {error}") from None
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{file} holds several arrays: save the one by numpy.save")
    return array


def _function(text: str) -> Callable:
    """The function that FILE.py:NAME names."""
    file, _, name = text.rpartition(":")
    if not file.endswith(".py"):
        raise ValueError(f"{text}: give a function as FILE.py:FUNCTION, or a configuration as FILE.json")
    function = getattr(import_source(file), name, None)
    if not callable(function):
        raise ValueError(f"{file} has no function {name!r}")
    return function


if __name__ == "__main__":
    sys.exit(main())
