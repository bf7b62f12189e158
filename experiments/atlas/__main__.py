"""Writes the atlas: a static site to see, compare and choose positional encodings.

    python -m experiments.atlas --out=site            # then open site/index.html
    python -m experiments.atlas --out=site --compare "rope() + alibi()" "rope, rope, none"     # these two, and all others

The pages are made from the library's own code and the committed records in `results`; they open from disk, without a server.
The command needs the extra `atlas` (pip install -e '.[atlas]'). Errors are one line and exit code 2.
"""

import pathlib
import sys

from experiments import cli
from posjax.extras import require

RESULTS = pathlib.Path(__file__).parents[2] / "results"


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = cli.parser("atlas", __doc__)
    add, out = parser.add_argument, cli.RUNS / "atlas"
    add("--out", type=cli.directory, default=out, metavar="DIR", help=f"(default: {out})")
    add("--results", type=pathlib.Path, default=RESULTS, metavar="DIR", help="folder of records")
    about = "specs, or patterns over layers, to compare"
    add("--compare", nargs="+", action="extend", default=[], metavar="SPEC", help=about)
    args = parser.parse_args(argv)
    return cli.answer(lambda: _write(args), args.imports, traceback=args.traceback)


def _write(args) -> None:
    require("the atlas", "altair", "vl_convert", "latex2mathml")
    import jax

    from experiments.atlas.site import number_of_parts, write_site
    from experiments.progress import bar, caption
    from experiments.report.overview import read_results

    jax.config.update("jax_disable_most_optimizations", True)  # a hundred small programs, each run a few times
    out = cli.writable(args.out)
    with bar(number_of_parts(args.compare), "part") as progress:

        def on_part(name: str) -> None:
            caption(progress, name)
            progress.update()

        paths = write_site(out, read_results(args.results), args.compare, on_part)
    size = sum(path.stat().st_size for path in paths)
    print(f"wrote {out / 'index.html'} and {len(paths) - 1} files beside it, {size / 2**20:.1f} MiB")


if __name__ == "__main__":
    sys.exit(main())
