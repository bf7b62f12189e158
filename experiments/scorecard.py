"""Measures the ideal properties of every encoding: uniqueness, determinism, extrapolation, relative awareness, axes, decay.

    python -m experiments.scorecard                                     # the whole catalogue, into runs/scorecard
    python -m experiments.scorecard --out=results/scorecard             # the one that is committed
    python -m experiments.scorecard --out=results/scorecard --missing   # only encodings that it lacks
    python -m experiments.scorecard "rope()" "rope() + alibi()" --out=runs/two
    python -m experiments.scorecard mine --import=my_encoding.py --out=runs/mine
    python -m experiments.scorecard --checkpoint=runs/vit --out=runs/vit/scorecard      # what a training run has learned

Encodings are measured as initialised, on 256 and on 1024 tokens. --out gets README.md, scorecard.json with every value, and
scorecard.png. Errors are one line and exit code 2; an encoding that cannot be measured is listed, and the others are kept.
"""

import argparse
import json
import pathlib
import sys
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from experiments import cli, tune_allocator

OUT = cli.RUNS / "scorecard"


class Measurable(NamedTuple):
    """The spec to measure under a label."""

    spec: str
    family: str
    arguments: Mapping[str, Any]  # of `scorecard`: params, dims and length of training


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = cli.parser("scorecard", __doc__)
    add = parser.add_argument
    add("spec", nargs="*", help="encodings to measure; the whole catalogue if none is given")
    add("--out", type=cli.directory, default=OUT, metavar="DIR", help=f"default: {OUT}")
    add("--checkpoint", type=cli.directory, metavar="WORKDIR", help="measure this run's learned encodings")
    add("--missing", action="store_true", help="keep the cards that lie in --out and make those it lacks")
    add("--length", type=int, default=256, help="tokens that count as seen (default: 256)")
    add("--seed", type=int, default=0, help="seed of parameters and contents (default: 0)")
    args = parser.parse_args(argv)

    def work() -> None:
        from posjax.environment import describe

        began = time.monotonic()
        rows, notes = _rows(args)
        cli.writable(args.out)
        kept, before = _kept(args.out, rows, args) if args.missing else ({}, {})
        new = _cards({label: row for label, row in rows.items() if label not in kept}, args.seed)
        about = {"seed": args.seed, "length": args.length, "seconds": round(time.monotonic() - began)}
        command = cli.command_line("scorecard", sys.argv[1:] if argv is None else argv)
        about |= {"command": command, **describe(), "allocator": tune_allocator()}
        if before:
            added = {"commit": about["commit"], "seconds": about["seconds"], "labels": list(new)}
            about = before | {"added": [*before.get("added", []), *([added] if new else [])]}
        _write(args.out, {label: (kept | new)[label] for label in rows}, about, notes)

    return cli.answer(work, args.imports, traceback=args.traceback)


def _kept(out: pathlib.Path, rows: Mapping[str, Measurable], args: argparse.Namespace) -> tuple[dict[str, Any], dict]:
    """The cards in a folder that belong to these rows, and the text on how they were made; empty if there are none."""
    if not (out / "scorecard.json").exists():
        return {}, {}
    from posjax.jsonl import parse_json

    found = parse_json((out / "scorecard.json").read_bytes(), out / "scorecard.json")
    for name in ("seed", "length"):
        if found["about"][name] != getattr(args, name):
            was = f"{out} was measured with --{name}={found['about'][name]}, not {getattr(args, name)}"
            raise ValueError(f"--missing: {was}: give that, or another --out")
    kept = {label: card for label, card in found["cards"].items() if label in rows and "error" not in card}
    return kept, found["about"]


def _rows(args: argparse.Namespace) -> tuple[dict[str, Measurable], tuple[str, ...]]:
    """The specs to measure by label, and the notes of the page."""
    from posjax.describe.scorecard.specs import every_spec
    from posjax.spec import parse

    if args.checkpoint and args.spec:
        raise ValueError("give encodings or --checkpoint, not both: a run has learned one encoding")
    if args.length < 64:
        raise ValueError(f"--length={args.length} is too short to measure anything on: at least 64")
    if args.checkpoint:
        return _trained(args.checkpoint), (f"As learned by the first seed of {args.checkpoint}.",)
    specs, unknown = every_spec(args.length)
    families = {str(parse(spec)): family for spec, family in specs.items()}
    if args.spec:
        chosen = [str(parse(spec)) for spec in args.spec]
        return {spec: Measurable(spec, families.get(spec, "others"), {"length": args.length}) for spec in chosen}, ()
    notes = ("As initialised. Position maps are measured with what stands right of >>, frequency scalings in rope.",)
    if unknown:
        notes += (f"Left out, for want of arguments: {', '.join(unknown)}.",)
    return {spec: Measurable(spec, family, {"length": args.length}) for spec, family in families.items()}, notes


def _trained(workdir: pathlib.Path) -> dict[str, Measurable]:
    """Returns the encodings of a training run or an ablation's row, from the newest checkpoint of its first seed."""
    from posjax.encoding import Dims
    from posjax.spec import parse_layers
    from posjax.training.runs import load_run

    run = load_run(workdir)
    config, pattern, model = run.config, parse_layers(run.config.model.encoding), run.model
    trunk = run.of(0).get("trunk", {})
    learned = {name: params for name, params in trunk.items() if name.split("_")[0] == "encoding"} or {"encoding": ()}
    block = model.block
    dims = Dims(block.width, block.num_heads, block.width // block.num_heads, getattr(model, "length", None))
    if hasattr(model, "patches"):
        dims = dims._replace(grid=model.patches(*model.image_size), prefix=model.num_prefix)
    given = {"dims": dims, "length": config.data.length if dims.grid is None else 0}
    rows = {}
    for name, params in learned.items():
        layer = name.removeprefix("encoding")  # "_3" of one layer, "" of the only encoding
        spec = str(pattern[int("0" + layer.removeprefix("_")) % len(pattern)])
        rows[spec + layer.replace("_", " @layer ")] = Measurable(spec, "", given | {"params": params})
    return rows


def _cards(rows: dict[str, Measurable], seed: int) -> dict[str, dict[str, Any]]:
    """Measures a card for each label; an encoding that cannot be measured has {"error": reason}."""
    from experiments.progress import bar, caption
    from posjax.describe.scorecard.card import scorecard
    from posjax.spec import parse

    cards = {}
    with bar(len(rows), "encoding") as progress:
        for label, row in rows.items():
            caption(progress, label[:40])
            began = time.monotonic()
            try:
                card = scorecard(parse(row.spec), seed=seed, **row.arguments)
            except ValueError as error:
                card = {"encoding": row.spec, "error": " ".join(str(error).split())}
            cards[label] = {"family": row.family, **card, "seconds": round(time.monotonic() - began, 1)}
            progress.update()
    return cards


def _write(out: pathlib.Path, cards, about: dict[str, Any], notes: tuple[str, ...]) -> None:
    from rich.console import Console
    from rich.markdown import Markdown

    from experiments.report.scorecard import GROUPS, group_table, write_scorecard
    from posjax.files import replace_file
    from posjax.jsonl import strict

    for label, card in cards.items():
        if "error" in card:
            print(f"{label} could not be measured: {card['error']}", file=sys.stderr)
    console = Console(width=None if sys.stdout.isatty() else 140)
    for group, names in GROUPS.items():
        console.print(Markdown(f"**{group}**\n\n{group_table(cards, names)}"))
    made = f"seed {about['seed']}, {about['length']} tokens, {about['seconds']} s on {about['device']}"
    notes += (f"Made by {about['command']}: {made} with {about['cpus']} CPUs, jax {about['jax']}.",)
    for later in about.get("added", ()):
        notes += (f"Added at commit {later['commit']}, in {later['seconds']} s: {', '.join(later['labels'])}.",)
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(strict({"about": about, "cards": cards, "notes": notes}), indent=1, allow_nan=False)
    replace_file(out / "scorecard.json", text.encode() + b"\n")
    print("\n".join(map(str, [out / "scorecard.json", *write_scorecard(cards, out, notes)])))


if __name__ == "__main__":
    sys.exit(main())
