"""Writes pages again from records, without training or measuring.

    python -m experiments.report results/quickstart results/vit_table8      # finished studies, each in its folder
    python -m experiments.report results/scorecard
    python -m experiments.report                                            # results/README.md, over all studies
    python -m experiments.report results/quickstart --html                  # README.html beside README.md, too

A folder holds a command's results: config.json and results.jsonl of a study, or scorecard.json. Its README.md and PNGs are
replaced; a study of configs/ is shown with its current config. A folder that cannot be shown again is an error of one line,
exit 2; earlier folders are done. Without a folder, README.md and its figure are written in `results`: the encodings for each
purpose, and claims of the literature; and docs/vit_and_llm.md.
"""

import functools
import json
import pathlib
import re
import sys

from ml_collections import ConfigDict

from experiments import cli


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = cli.parser("report", __doc__)
    parser.add_argument("directory", nargs="*", type=pathlib.Path, help="folder of a finished study, or of a scorecard")
    parser.add_argument("--html", action="store_true", help="write README.html too")
    args = parser.parse_args(argv)
    return cli.answer(lambda: _write(args.directory, args.html), args.imports, traceback=args.traceback)


def _write(directories: list[pathlib.Path], as_html: bool) -> None:
    from experiments.report import overview
    from experiments.report.html import write_html
    from experiments.report.vit_and_llm import write_page

    for directory in directories or [None]:
        results = pathlib.Path("results")
        paths = rewrite(directory) if directory else [*overview.write_overview(results), *write_page(results)]
        print("\n".join(map(str, [*paths, *([write_html(paths[0])] if as_html else [])])))


def rewrite(directory: pathlib.Path) -> list[pathlib.Path]:
    """Writes the page of a finished study, or of a scorecard; returns the paths, README.md first.

    Raises:
      ValueError: the folder lacks a file, or records cannot be shown; the message names them.
    """
    from experiments.records import RESULTS, read_study
    from experiments.report import page, scorecard
    from experiments.report.studies import study_of

    if (directory / "scorecard.json").exists():
        return scorecard.rewrite_scorecard(directory)
    known = study_of(directory.resolve().name)
    if known is None or not [
        *directory.glob(f"*/{RESULTS}")
    ]:  # the folder of a study of published models has one a model
        for name in ("config.json", RESULTS):
            if not (directory / name).exists():
                raise ValueError(f"{directory} has no {name}: a study's folder, which can be shown again, holds both")
        ordered = functools.partial(ConfigDict, allow_dotted_keys=True, sort_keys=False)
        config = json.loads((directory / "config.json").read_text(), object_hook=ordered)
        known = study_of(config.get("name", ""))
    command = (
        known.command if known and directory.resolve().parent.name == "results" else _command(directory / page.NAME)
    )
    parts = known is not None and known.has_parts
    try:
        return page.write_study_page(
            known.config if known else config, read_study(directory, parts), directory, command
        ).paths
    except ValueError as error:
        raise ValueError(f"{directory} cannot be shown again: {error}") from error


def _command(page: pathlib.Path) -> str | None:
    """Returns the command that a page names, or None."""
    found = re.search(r"## How it was run\n\n```\n(.*?)\n```", page.read_text(), re.S) if page.exists() else None
    return found and found[1]


if __name__ == "__main__":
    sys.exit(main())
