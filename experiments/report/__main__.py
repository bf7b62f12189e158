"""Writes pages again from records, without training or measuring.

    python -m experiments.report results/quickstart results/vit_table8      # finished studies, each in its folder
    python -m experiments.report results/scorecard
    python -m experiments.report                                            # results/README.md, over all studies
    python -m experiments.report results/quickstart --html                  # README.html beside README.md, too
    python -m experiments.report results/quickstart --latex --csv --figures=pdf    # tables.tex, records.csv, vector figures

A folder holds a command's results: config.json and results.jsonl of a study, or scorecard.json. Its README.md and PNGs are
replaced; a study of configs/ is shown with its current config. A folder that cannot be shown again is an error of one line,
exit 2; earlier folders are done. Without a folder, README.md and its figure are written in `results`: the encodings for each
purpose, and claims of the literature; docs/diffusion.md; and docs/from_zero.md and docs/vit_and_llm.md, in two languages.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from experiments import cli


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = cli.parser("report", __doc__)
    parser.add_argument("directory", nargs="*", type=pathlib.Path, help="folder of a finished study, or of a scorecard")
    parser.add_argument("--html", action="store_true", help="write README.html too")
    parser.add_argument("--latex", action="store_true", help="write a study's tables to tables.tex, for booktabs")
    parser.add_argument("--csv", action="store_true", help="write a study's records to records.csv")
    parser.add_argument("--figures", choices=("pdf", "svg"), help="write a study's figures in this form, too")
    args = parser.parse_args(argv)
    return cli.answer(lambda: _write(args), args.imports, traceback=args.traceback)


def _write(args: argparse.Namespace) -> None:
    from experiments.report import diffusion, from_zero, overview, vit_and_llm
    from experiments.report.html import write_html

    forms = [*(["tex"] if args.latex else []), *(["csv"] if args.csv else []), *filter(None, [args.figures])]
    for directory in args.directory or [None]:
        results = pathlib.Path("results")
        pages = (overview.write_overview, vit_and_llm.write_pages, from_zero.write_pages)
        written = () if directory else (*(path for write in pages for path in write(results)), *diffusion.write_page())
        paths = rewrite(directory, forms) if directory else written
        print("\n".join(map(str, [*paths, *([write_html(paths[0])] if args.html else [])])))


def rewrite(directory: pathlib.Path, forms: Sequence[str] = ()) -> list[pathlib.Path]:
    """Writes the page of a finished study, or of a scorecard; returns the paths, README.md first.

    Args:
      forms: what is written of a study beside its page: "tex", "csv", "pdf" or "svg".

    Raises:
      ValueError: the folder lacks a file, or records cannot be shown; the message names them.
    """
    from experiments.records import RESULTS, read_study
    from experiments.report import exports, page, scorecard
    from experiments.report.studies import study_of
    from posjax.describe.figures import save
    from posjax.files import replace_file
    from posjax.jsonl import parse_json

    if (directory / "scorecard.json").exists():
        return scorecard.rewrite_scorecard(directory)
    known, command = study_of(directory.resolve().name), None
    # A study of published models has a folder of records for each model, and no config.json.
    if known is None or not [*directory.glob(f"*/{RESULTS}")]:
        for name in ("config.json", RESULTS):
            if not (directory / name).exists():
                raise ValueError(f"{directory} has no {name}: a study's folder, which can be shown again, holds both")
        config = _ordered(parse_json((directory / "config.json").read_bytes(), directory / "config.json"))
        known, command = study_of(config.get("name", "")), config.get("command")
    if known and directory.resolve().parent.name == "results":
        command = known.command
    try:
        records = read_study(directory, known is not None and known.has_parts)
        written = page.write_study_page(known.config if known else config, records, directory, command)
    except ValueError as error:
        raise ValueError(f"{directory} cannot be shown again: {error}") from error
    texts = {"tex": ("tables.tex", exports.latex(written.tables)), "csv": ("records.csv", exports.to_csv(records))}
    paths = [*written.paths]
    for form in forms:
        if form in texts:
            paths.append(directory / texts[form][0])
            replace_file(paths[-1], texts[form][1].encode())
        else:
            paths += [save(drawn.figure, directory / f"{drawn.name}.{form}") for drawn in written.drawn]
    return paths


def _ordered(value: Any) -> Any:
    """Returns JSON with ConfigDicts for its objects, whose keys keep their order."""
    if isinstance(value, list):
        return [*map(_ordered, value)]
    if not isinstance(value, dict):
        return value
    return ConfigDict({key: _ordered(x) for key, x in value.items()}, allow_dotted_keys=True, sort_keys=False)


if __name__ == "__main__":
    sys.exit(main())
