"""Analyses a trained vision transformer: its encoding, its attention, and its robustness to moved patches.

    python -m experiments.analyse --checkpoint=runs/vit --out=runs/vit/analysis
    python -m experiments.analyse --checkpoint=runs/fashion_vit/fashion_vit/learned-0123456789ab --out=DIR   # all its seeds
    python -m experiments.analyse --checkpoint=ViT-B_16.npz --data=cifar10 --out=DIR
    python -m experiments.analyse --checkpoint=model.safetensors --data=folder --data_dir=PICTURES --out=DIR

Writes README.md, a PNG per figure, numbers.json (all curves) and arrays.npz (all maps) into --out: figures 6, 7 and 10 of
the ViT paper (arXiv 2010.11929), rotary frequencies, a linear probe for the position, shuffled patches, moved images. The
functions are in experiments.analysis and take arrays of any model. Errors are one line and exit code 2.
"""

import argparse
import pathlib
import sys

from experiments import cli


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = cli.parser("analyse", __doc__)
    parser.add_argument("--checkpoint", required=True, help="workdir of a run or a row, or a file of weights")
    parser.add_argument("--out", required=True, help="folder of the page, pictures and numbers")
    parser.add_argument("--data", help="set of images (default: the run's training set)")
    parser.add_argument("--split", help="split of the set (default: the run's evaluation split; test)")
    parser.add_argument("--data_dir", help="directory of sets, or folder of pictures")
    parser.add_argument(
        "--num_images", type=cli.positive, default=1000, help="number of images to shuffle and move (default: 1000)"
    )
    parser.add_argument(
        "--num_looked_into", type=cli.positive, default=128, help="number of these for attention (default: 128)"
    )
    parser.add_argument("--num_shown", type=cli.positive, default=8, help="number of these for rollouts (default: 8)")
    parser.add_argument("--padding", help="padding of moved images: black, edge, reflect, wrap")
    args = parser.parse_args(argv)
    given = sys.argv[1:] if argv is None else argv
    return cli.answer(lambda: _analyse(args, given), args.imports, traceback=args.traceback)


def _analyse(args: argparse.Namespace, given: list[str]) -> None:
    from experiments.analysis.vision import page
    from experiments.analysis.vision.findings import measure_all, unmeasured, work
    from experiments.analysis.vision.subject import choose_pictures, holds_weights, load_vit
    from experiments.studies.running import bar
    from posjax.environment import describe

    checkpoint = pathlib.Path(args.checkpoint)
    if args.data is None and holds_weights(checkpoint):
        raise ValueError(
            f"{checkpoint} does not say which images it is for: give --data=NAME (or folder, with --data_dir)"
        )
    subject = load_vit(checkpoint, data_dir=args.data_dir)
    images = choose_pictures(subject, args.data, args.split, args.data_dir, args.num_images, args.padding)
    out = cli.writable(args.out)
    with bar(work(images, args.num_looked_into), "image", unit_scale=True) as progress:
        found = measure_all(images, args.num_looked_into, args.num_shown, progress.update)
    environment = describe()
    rows, columns = images.grid
    facts = {
        "encoding": f"{subject.encoding}, injection {subject.model.injection}",
        "model": f"width {subject.model.block.width}, {subject.model.depth} layers of {subject.model.block.num_heads} heads, "
        f"{rows}x{columns} patches of {images.patch}x{images.patch} pixels, pooling {subject.model.pooling}, "
        f"{subject.model.num_registers} registers",
        "seeds": ", ".join(map(str, subject.seeds)),
        "images": f"{len(images.pixels)} of {images.about}, the first {args.num_looked_into} looked into",
        "versions": ", ".join(f"{name} {environment[name]}" for name in ("posjax", "jax", "flax", "numpy", "commit")),
    }
    if missing := unmeasured(images, args.num_looked_into):
        facts["left out"] = "; ".join(missing)
    command = cli.command_line("analyse", given)
    title = f"What a ViT with {subject.encoding} looks at"
    print("\n".join(map(str, page.write_analysis(images, found, out, title, facts, command))))


if __name__ == "__main__":
    sys.exit(main())
