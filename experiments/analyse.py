"""Analyses a trained model: its encoding, its attention, and what a change of its positions costs.

    python -m experiments.analyse --checkpoint=runs/vit --out=runs/vit/analysis
    python -m experiments.analyse --checkpoint=runs/fashion_vit/fashion_vit/learned-0123456789ab --out=DIR   # all its seeds
    python -m experiments.analyse --checkpoint=ViT-B_16.npz --data=cifar10 --out=DIR
    python -m experiments.analyse --checkpoint=model.safetensors --data=folder --data_dir=PICTURES --out=DIR
    python -m experiments.analyse --checkpoint=gemma-3-270m.gguf --files=BOOKS --out=DIR

Writes README.md, a PNG per figure, and the numbers into --out. Of a vision transformer: figures 6, 7 and 10 of the ViT paper
(arXiv 2010.11929), rotary frequencies, a linear probe for the position, shuffled patches, moved images. Of a decoder: what of
its encoding may go, frequencies in use, heads, sinks, shifts, massive values and pass keys, on texts that a hash chooses.
results.jsonl has a record for each row and text, image or seed, arrays.npz the arrays that figures are drawn of. --noise adds
noise of the size of the weights' quantisation: what changes with it is not the model's. Errors are one line and exit code 2.
"""

import argparse
import functools
import pathlib
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

from experiments import cli

_MOVED = 32  # most images that are read at other sizes
_NOISE = ", with noise of the size of their quantisation"


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = cli.parser("analyse", __doc__)
    parser.add_argument(
        "--checkpoint", required=True, help="workdir of a run or a row, a file or folder of weights, or a hub's name"
    )
    parser.add_argument("--out", type=cli.directory, required=True, help="folder of the page, pictures and numbers")
    parser.add_argument("--data", help="set of images or of text (default: the images that a ViT was trained on)")
    parser.add_argument("--split", help="split of the set (default: the run's evaluation split; test)")
    parser.add_argument("--data_dir", help="directory of sets, or folder of pictures")
    images = parser.add_argument_group("images")
    images.add_argument(
        "--num_images", type=cli.positive, default=1000, help="number of images to shuffle and move (default: 1000)"
    )
    images.add_argument(
        "--num_looked_into", type=cli.positive, default=128, help="number of these for attention (default: 128)"
    )
    images.add_argument("--num_shown", type=cli.positive, default=8, help="number of these for rollouts (default: 8)")
    images.add_argument("--padding", help="padding of moved images: black, edge, reflect, wrap")
    text = parser.add_argument_group("text")
    text.add_argument("--files", help="folder or glob of text files, in place of a prepared set")
    text.add_argument("--num_texts", type=cli.positive, default=8, help="number of texts (default: 8)")
    text.add_argument("--length", type=cli.positive, default=768, help="tokens of a text (default: 768)")
    text.add_argument("--rows", nargs="+", default=(), help="only these rows of a decoder's page, by their names")
    parser.add_argument("--noise", action="store_true", help="add noise of the size of the quantisation to the weights")
    args = parser.parse_args(argv)
    given = sys.argv[1:] if argv is None else argv
    return cli.answer(lambda: _analyse(args, given), args.imports, traceback=args.traceback)


def _analyse(args: argparse.Namespace, given: list[str]) -> None:
    import matplotlib
    import numpy as np
    import optax

    from experiments.analysis.measured import write_records
    from experiments.analysis.page import STYLE, write_page
    from experiments.analysis.subject import holds_weights, load_subject, reads_text
    from experiments.records import RESULTS
    from experiments.studies.environment import recorded
    from posjax.remote import local_copy

    checkpoint, began, text = pathlib.Path(local_copy(args.checkpoint)), time.perf_counter(), None
    if reads_text(checkpoint):
        text = _text_to_read(args)
    elif args.data is None and checkpoint.exists() and holds_weights(checkpoint):
        raise ValueError(
            f"{checkpoint} does not say which images it is for: give --data=NAME (or folder, with --data_dir)"
        )
    subject = load_subject(checkpoint, data_dir=args.data_dir, noise=args.noise)
    batch, measure, sections, facts = _of_images(args, subject) if text is None else _of_text(args, subject, *text)
    out, machine = cli.writable(args.out), recorded()
    findings = measure()
    data, unit = (batch.about, "patch") if text is None else (text[0], "token")
    parameters, seconds = optax.tree.size(subject.params[0]), time.perf_counter() - began
    about = dict(data=data, unit=unit, parameters=parameters, seconds=seconds)
    study = write_records(out, findings.groups, subject, batch, about | machine)
    with matplotlib.rc_context(STYLE):
        title, command = f"{subject.name} and its positions", cli.command_line("analyse", given)
        facts["parameters"] = f"{parameters:,}"
        facts["weights"] = f"{subject.hash}{_NOISE if args.noise else ''}"
        facts["versions"] = ", ".join(f"{key} {value}" for key, value in machine["versions"].items())
        minutes, peak = (time.perf_counter() - began) / 60, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        facts["cost"] = f"{minutes:.1f} minutes on {machine['device']}, {1.024 * peak:.1f} GB of memory at most"
        paths = write_page(out, title, [*sections(study, findings.arrays)], facts, command)
    arrays = {name: np.asarray(x, np.float32) for name, x in findings.arrays.items()}
    np.savez_compressed(out / "arrays.npz", **arrays)
    print("\n".join(map(str, [out / RESULTS, out / "arrays.npz", *paths])))


def _text_to_read(args: argparse.Namespace) -> tuple[str, str]:
    """Returns the set and the split of texts; checks that they are there before the model is loaded."""
    from posjax import data

    name, split = args.data or ("text" if args.files else None), args.split or "test"
    if name is None:
        raise ValueError("give the text to read: --files=FOLDER, or --data=NAME of a prepared set")
    data.check_text(name, split, data_dir=args.data_dir, files=args.files)
    return name, split


def _of_text(args: argparse.Namespace, subject: Any, name: str, split: str) -> tuple[Any, Callable, Callable, dict]:
    """Returns the texts, how to measure a decoder or an encoder on them, the sections of its page, and facts."""
    from experiments.analysis import decoder, decoder_page, encoder
    from experiments.analysis.subject import draw_texts
    from posjax import data
    from posjax.models import Decoder

    model, decodes = subject.model, isinstance(subject.model, Decoder)
    if args.rows and not decodes:
        raise ValueError(f"--rows is for decoders, and {args.checkpoint} holds an encoder: leave it out")
    documents = data.load_documents(name, split, data_dir=args.data_dir, files=args.files, tokenizer=subject.tokenizer)
    length = args.length if decodes else min(args.length, (model.length or 512) // 2)
    cli.refuse_length(model, subject.params[0], length, f"--length={length:,}")
    texts = draw_texts(documents, args.num_texts, length)
    sizes = f"width {model.block.width}, {model.depth} layers of {model.block.num_heads} heads"
    facts = {
        "encoding": subject.encoding,
        "model": f"{'decoder' if decodes else 'encoder'}, {sizes}, trained on {subject.trained or 'unknown'} tokens",
        "texts": f"{len(texts.titles)} of {length:,} tokens of {name}, {split}, chosen by a hash",
    }
    if decodes:
        return texts, lambda: decoder.measure_decoder(subject, texts, args.rows), decoder_page.sections, facts
    return texts, lambda: encoder.measure_encoder(subject, texts), encoder.sections, facts


def _of_images(args: argparse.Namespace, subject: Any) -> tuple[Any, Callable, Callable, dict]:
    """Returns the images, how to measure a ViT on them, the sections of its page, and facts."""
    from experiments.analysis import vit, vit_page
    from experiments.analysis.subject import choose_pictures

    looked_into = args.num_looked_into
    count = min(looked_into, args.num_images, _MOVED)
    images = choose_pictures(subject, args.data, args.split, args.data_dir, args.num_images, args.padding, count)
    model, (height, width) = subject.model, images.grid
    facts = {
        "encoding": f"{subject.encoding}, injection {model.injection}",
        "model": f"width {model.block.width}, {model.depth} layers of {model.block.num_heads} heads, {height}x{width} "
        f"patches of {images.patch}x{images.patch} pixels, pooling {model.pooling}, {model.num_registers} registers",
        "seeds": ", ".join(map(str, subject.seeds)),
        "images": f"{len(images.pixels)} of {images.about}, the first {looked_into} looked into",
    }
    if left_out := vit.left_out(images, looked_into):
        facts["left out"] = "; ".join(left_out)
    measure = functools.partial(vit.measure_vit, images, looked_into, args.num_shown)
    return images, measure, functools.partial(vit_page.sections, images=images), facts


if __name__ == "__main__":
    sys.exit(main())
