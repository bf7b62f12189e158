"""Evaluates a vision transformer, published or our own: accuracy on a set, or the likeliest classes of pictures.

    python -m experiments.evaluate --checkpoint=ViT-B_16.npz --images=PICTURES --classes=imagenet.txt
    python -m experiments.evaluate --checkpoint=model.safetensors --data=cifar10 --resolutions=0.5,1,384,192x320
    python -m experiments.evaluate --checkpoint=runs/vit --resolutions=0.5,1,2      # a workdir: its own data, all its seeds

posjax.pretrained reads files of weights: Google's .npz, safetensors of timm and transformers (or their folder, with
config.json), and files of `save`. Pixels are scaled by the file's configuration, or by its family's default. At another image
size, tables are resized by the method of the file's own code (--method chooses another). --images reads a folder and the
folders below it; pictures in a folder named after a class are also counted as hits or misses.
Errors are one line and exit code 2.
"""

import argparse
import pathlib
import sys

from experiments import cli


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = cli.parser("evaluate", __doc__)
    add = parser.add_argument
    add("--checkpoint", required=True, help="file or folder of weights, or workdir of a run or a row")
    add("--data", help="set of images (default: the run's evaluation set)")
    add("--split", help="split of the set (default: the run's; test)")
    add("--data_dir", help="directory of sets")
    add("--images", help="folder of pictures (and folders below) to classify")
    add("--classes", help="text file with a class's name on each line")
    add("--image_size", type=_size, help="H or HxW in pixels (default: the model's)")
    add("--resolutions", help="several: pixels (224, 192x320), or factors of the model's size below 10")
    add("--method", help="method of resizing tables (default: the file's own code's)")
    add("--mode", help="crop, pad or stretch pictures to the size (default: the run's; crop)")
    add("--crop_fraction", type=float, default=1.0, help="share of the picture that is cut out (default: 1)")
    add("--batch_size", type=cli.positive, default=64)
    add("--limit", type=cli.positive, help="number of images, spread over the split (default: all)")
    add("--top", type=cli.positive, default=5, help="likeliest classes of a picture (default: 5)")
    add("--num_heads", type=cli.positive, help="number of heads, if the file does not show it")
    add("--grid", type=_size, help="HxW in patches of the file's table, if it is not square")
    add("--encoding", help="encoding of a file that shows no trace of its rotary one")
    args = parser.parse_args(argv)
    return cli.answer(lambda: _evaluate(args), args.imports, traceback=args.traceback)


def _evaluate(args: argparse.Namespace) -> None:
    from experiments.analysis.accuracy import load_classifier
    from posjax.remote import local_copy

    if args.images and (args.data or args.split or args.data_dir or args.limit):
        raise ValueError("--images are pictures without labels: --data, --split, --data_dir and --limit are for sets")
    if args.classes and not args.images:
        raise ValueError("--classes names the classes of pictures: give --images=DIR, or leave it out")
    if args.image_size and args.resolutions:
        raise ValueError("--image_size is one size, --resolutions are several: give one of them")
    options = dict(num_heads=args.num_heads, grid=args.grid, encoding=args.encoding)
    subject = load_classifier(pathlib.Path(local_copy(args.checkpoint)), args.method, **options)
    sizes = _sizes(args, subject)
    mean, std = ("/".join(f"{value:g}" for value in values) for values in (subject.mean, subject.std))
    print(f"{subject.about}; pixels scaled by mean {mean}, std {std}")
    if args.images:
        _print_classes(args, subject, sizes)
    else:
        _print_accuracy(args, subject, sizes)


def _sizes(args: argparse.Namespace, subject) -> list[tuple[int, int]]:
    from posjax.training.classification import scaled_size

    if not args.resolutions:
        return [args.image_size or subject.model.image_size]
    own, cell = subject.model.image_size, subject.model.cell
    try:
        texts = [text.strip() for text in args.resolutions.split(",")]
        return [_size(t) if "x" in t or float(t) >= 10 else scaled_size(own, float(t), cell) for t in texts]
    except (ValueError, argparse.ArgumentTypeError):
        raise ValueError(
            f"--resolutions={args.resolutions}: expected sizes and factors, as in 0.5,1,384,192x320"
        ) from None


def _print_accuracy(args: argparse.Namespace, subject, sizes: list[tuple[int, int]]) -> None:
    from experiments.analysis.accuracy import accuracy, read_set
    from posjax.describe.markdown import grid

    images = read_set(subject, args.data, args.split, args.data_dir, args.limit)
    few = subject.model.num_classes <= 5  # the label is always among them
    columns = ["image size", "top-1", *([] if few else ["top-5"])]
    print(f"{len(images)} images of {images.name}\n\n{grid(columns, [])}")
    for size in sizes:
        top_1, top_5 = accuracy(subject, images, size, args.mode, args.crop_fraction, args.batch_size)
        print(f"| {size[0]}x{size[1]} | {top_1}{'' if few else f' | {top_5}'} |", flush=True)
    print("\n95 % intervals: Student's over seeds, of a single model Wilson's over images")


def _print_classes(args: argparse.Namespace, subject, sizes: list[tuple[int, int]]) -> None:
    from experiments.analysis.accuracy import label_names, likeliest

    names = label_names(subject, args.classes)
    for size in sizes:
        print(f"\n{size[0]}x{size[1]}")
        pictures = likeliest(subject, pathlib.Path(args.images), size, args.mode, args.crop_fraction, args.top)
        hits = []  # for pictures in a class's folder: whether the likeliest class is the folder's
        for picture, classes in pictures:
            listed = ", ".join(f"{names[index]} {100 * chance:.1f} %" for index, chance in classes)
            print(f"{picture}: {listed}", flush=True)
            if (own := pathlib.PurePath(args.images, picture).parent.name) in names:
                hits.append(names[classes[0][0]] == own)
        if hits:
            print(
                f"{sum(hits)} of {len(hits)} pictures in folders of classes: the likeliest class is that of the folder"
            )


def _size(text: str) -> tuple[int, int]:
    sides = text.split("x")
    if len(sides) > 2 or not all(side.isdigit() and int(side) for side in sides):
        raise argparse.ArgumentTypeError(f"expected H or HxW, got {text!r}")
    return int(sides[0]), int(sides[-1])


if __name__ == "__main__":
    sys.exit(main())
