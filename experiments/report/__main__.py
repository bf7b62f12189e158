"""Writes tables, figures and pages once more, from records: nothing is trained or measured.

    python -m experiments.report results/quickstart results/vit_table8      # finished studies, each in its folder
    python -m experiments.report results/scorecard
    python -m experiments.report                                            # results/README.md, which judges all of them

A folder holds what a command has written: config.json and results.jsonl of a study (of experiments.ablate, extrapolate or
resolutions), or scorecard.json. Its table.md, PNG plots and report.html are replaced; rows of a study of ours stand in the
order of its config as it is now, and the claims that it decides come first. A folder that cannot be shown again is
told in one line, exit 2; those before it are done. Without a folder, README.md and its picture are written in `results`:
claims of the literature, encodings by tasks, and which one to take.
"""

import pathlib
import sys

from experiments import cli


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = cli.parser("report", __doc__)
    parser.add_argument("directory", nargs="*", type=pathlib.Path, help="folder of a finished study, or of a scorecard")
    args = parser.parse_args(argv)
    return cli.answer(lambda: _folders(args.directory), args.imports, traceback=args.traceback)


def _folders(directories: list[pathlib.Path]) -> None:
    if not directories:
        from experiments.studies.results import write_page

        print("\n".join(map(str, write_page(pathlib.Path("results")))))
    for directory in directories:
        print("\n".join(map(str, _again(directory))))


def _again(directory: pathlib.Path) -> list[pathlib.Path]:
    if (directory / "scorecard.json").exists():
        from experiments.report.scorecard import show_again

        return show_again(directory)
    from experiments.studies.again import show_again
    from experiments.studies.results import listed

    study = listed(directory.resolve().name)
    return show_again(directory, cli.load(study.config) if study else None)


if __name__ == "__main__":
    sys.exit(main())
