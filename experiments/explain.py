"""Explains an encoding with a worked example; the library computes all its numbers.

    python -m experiments.explain rope
    python -m experiments.explain "rope(base=100) + alibi" --length=32 --head_dim=16 --num_heads=4
    python -m experiments.explain "raster(width=6) >> learned" --grid=4x6
    python -m experiments.explain rope --plot                  # PNGs in runs/explain; --plot=DIR: there
    python -m experiments.explain mine --import=my_encoding.py
    python -m experiments.explain --checkpoint=Llama-3.2-1B --lengths=16384,131072
    python -m experiments.explain --checkpoint=Llama-3.2-1B --scaling=yarn --lengths=16384

The last two examine a decoder's own encoding, or another one in its place: the pairs of channels that make a full turn within
the trained length, and the pairs that meet unseen angles beyond it; --scaling scales its ropes for each length.
Every part of a composition is explained in turn, then the effect of the whole on attention. Random content is drawn from
seed 0. Errors are one line and exit code 2.
"""

import argparse
import re
import sys

from experiments import cli

OUT = cli.RUNS / "explain"
_TEXT = {"length": 16, "head_dim": 8, "num_heads": 2, "grid": (4, 6)}
_PLOT = {"length": 128, "head_dim": 64, "num_heads": 4, "grid": (14, 14)}


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = cli.parser("explain", __doc__)
    parser.add_argument("spec", nargs="?", help="the encoding, in posjax's text form (default: the checkpoint's)")
    parser.add_argument("--checkpoint", help="run of a decoder, or folder of transformers: its weights are not needed")
    parser.add_argument(
        "--lengths", type=_lengths, default=(), help="tokens of sequences, with commas (a checkpoint's)"
    )
    parser.add_argument(
        "--trained_length", type=cli.positive, help="trained length of a checkpoint (default: config.json's)"
    )
    scalings = ("linear", "ntk", "yarn", "llama3")
    parser.add_argument(
        "--scaling", choices=scalings, help="scaling of a checkpoint's ropes, by the factor of each length"
    )
    parser.add_argument("--ignore", help="keys of its config.json to pass over, with commas: they change no numbers")
    parser.add_argument("--length", type=cli.positive, help="tokens on the line (default: 16, in plots 128)")
    parser.add_argument("--grid", type=_sizes, metavar="HxW", help="tokens on a grid instead (or DxHxW)")
    parser.add_argument("--prefix", type=int, default=0, help="class token and registers before them (default: none)")
    parser.add_argument("--head_dim", type=cli.positive, help="channels of a head (default: 8, in plots 64)")
    parser.add_argument("--num_heads", type=cli.positive, help="heads (default: 2, in plots 4)")
    parser.add_argument("--plot", nargs="?", const=OUT, metavar="DIR", help=f"also write PNGs (default: into {OUT})")
    args = parser.parse_args(argv)
    return cli.answer(lambda: _explain(args), args.imports, traceback=args.traceback)


def _explain(args: argparse.Namespace) -> None:
    if args.checkpoint is not None:
        _explain_checkpoint(args)
        return
    if args.spec is None or args.lengths or args.trained_length:
        raise cli.UsageError(
            "give an encoding, as in: explain rope; --lengths and --trained_length are for a --checkpoint"
        )
    from posjax import parse
    from posjax.describe.explain import whole

    encoding = parse(args.spec)
    print("\n".join(whole.explain(encoding, **_sizes_of(args, _TEXT, encoding))))
    if args.plot is not None:
        out = cli.writable(args.plot, "--plot")
        for path in whole.plot(encoding, out, **_sizes_of(args, _PLOT, encoding)):
            print(f"wrote {path}")


def _explain_checkpoint(args: argparse.Namespace) -> None:
    from experiments.studies.readings import Place, scaled_rope
    from posjax.describe.explain.turning import explain_turning, model_of
    from posjax.spec import layers_text, parse_layers
    from posjax.training.initial import of_own

    model = model_of(args.checkpoint, args.ignore.split(",") if args.ignore else ())
    model = model._replace(trained=args.trained_length or model.trained)
    if args.spec is not None:
        model = model._replace(encoding=of_own(args.spec, model.encoding))

    def at(spec: str, length: int) -> str:
        if args.scaling is None:
            return spec
        return layers_text(
            scaled_rope(args.scaling)(parse_layers(spec), Place(model.trained, length, length / model.trained))
        )

    print("\n".join(explain_turning(model, args.lengths, at)))


def _sizes_of(args: argparse.Namespace, defaults: dict, encoding) -> dict:
    """Returns the sizes of the example: arguments or defaults; a grid only if it is requested or needed."""
    from posjax.describe.worlds import grid_width

    sizes = {name: getattr(args, name) or defaults[name] for name in ("length", "head_dim", "num_heads")}
    grid = args.grid
    if grid is None and 1 not in encoding.dimensions:
        height, width = defaults["grid"]
        grid = (height, grid_width(encoding) or width) if 2 in encoding.dimensions else (2, 3, 4)
    return sizes | {"grid": grid, "prefix": args.prefix}


def _lengths(text: str) -> tuple[int, ...]:
    return tuple(cli.positive(part) for part in text.split(","))


def _sizes(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){1,2}", text):
        raise argparse.ArgumentTypeError(f"expected HxW, as in 4x6, got {text!r}")
    return tuple(map(int, text.split("x")))


if __name__ == "__main__":
    sys.exit(main())
