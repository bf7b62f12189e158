"""Analyses a trained model: its encoding, its attention, and what a change of its positions costs.

    python -m experiments.analyse --checkpoint=runs/vit --out=runs/vit/analysis
    python -m experiments.analyse --checkpoint=runs/fashion_vit/fashion_vit/learned-0123456789ab --out=DIR   # all its seeds
    python -m experiments.analyse --checkpoint=ViT-B_16.npz --data=cifar10 --out=DIR
    python -m experiments.analyse --checkpoint=model.safetensors --data=folder --data_dir=PICTURES --out=DIR
    python -m experiments.analyse --checkpoint=gemma-3-270m.gguf --files=BOOKS --out=DIR

Writes README.md, a PNG per figure, and the numbers into --out. Of a vision transformer: figures 6, 7 and 10 of the ViT paper
(arXiv 2010.11929), rotary frequencies, a linear probe for the position, shuffled patches, moved images. Of a decoder: what of
its encoding may go, frequencies in use, heads, sinks, shifts, massive values and pass keys, on texts that a hash chooses;
results.jsonl has a record for each row and text. --noise adds noise of the size of the weights' quantisation: what changes
with it is not the model's. The functions are in experiments.analysis. Errors are one line and exit code 2.
"""

import argparse
import pathlib
import resource
import sys
import time
from typing import Any

from experiments import cli

_MOVED = 32  # most images that are read at other sizes


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
    from experiments.analysis.language.subject import holds_text_model

    paths = (_analyse_text if holds_text_model(pathlib.Path(args.checkpoint)) else _analyse_images)(args, given)
    print("\n".join(map(str, paths)))


def _analyse_text(args: argparse.Namespace, given: list[str]) -> list[pathlib.Path]:
    import optax

    from experiments.analysis.language import encoder, findings, page, subject
    from experiments.analysis.measured import About, write_records
    from experiments.records import RESULTS
    from experiments.studies.environment import recorded
    from posjax import data
    from posjax.models import Decoder

    checkpoint, began = pathlib.Path(args.checkpoint), time.perf_counter()
    name, split = args.data or ("text" if args.files else None), args.split or "test"
    if name is None:
        raise ValueError("give the text to read: --files=FOLDER, or --data=NAME of a prepared set")
    data.check_text(name, split, data_dir=args.data_dir, files=args.files)
    out = cli.writable(args.out)
    model = subject.load_text_model(checkpoint, noise=args.noise)
    if args.rows and not isinstance(model.model, Decoder):
        raise ValueError(f"--rows is for decoders, and {checkpoint} holds an encoder: leave it out")
    documents = data.load_documents(name, split, data_dir=args.data_dir, files=args.files, tokenizer=model.tokenizer)
    length = args.length if isinstance(model.model, Decoder) else min(args.length, (model.model.length or 512) // 2)
    cli.refuse_length(model.model, model.params, length, f"--length={length:,}")
    texts = subject.draw_texts(documents, args.num_texts, length)
    machine, parameters = recorded(), optax.tree.size(model.params)
    about = About(model.name, model.encoding, model.hash, parameters, name, texts.digest, "token", "text", texts.titles)
    title, command = f"{model.name} and its positions", cli.command_line("analyse", given)
    if isinstance(model.model, Decoder):
        rows, arrays = findings.measure_decoder(model, texts, args.rows)
        records = write_records(out, rows, about, time.perf_counter() - began, machine)
        write = page.write_decoder_page
    else:
        rows, facts_of_table, walks, arrays = encoder.measure_encoder(model, texts)
        records = write_records(out, rows, about, time.perf_counter() - began, machine)
        records += write_records(out, facts_of_table, about._replace(each="table", titles=[""]), 0.0, machine)
        records += write_records(out, walks, about._replace(each="random walk"), 0.0, machine)
        write = encoder.write_encoder_page
    block, kind = model.model.block, "encoder" if write is encoder.write_encoder_page else "decoder"
    facts = {
        "encoding": model.encoding,
        "model": f"{kind} of {parameters:,} parameters, width {block.width}, {model.model.depth} layers of "
        f"{block.num_heads} heads, trained on {model.trained or 'unknown'} tokens",
        "weights": f"{model.hash}{', with noise of the size of their quantisation' if args.noise else ''}",
        "texts": f"{len(texts.titles)} of {length:,} tokens of {name}, {split}, chosen by a hash",
        **_machine_facts(machine, began),
    }
    return [out / RESULTS, *write(out, records, arrays, title, facts, command)]


def _analyse_images(args: argparse.Namespace, given: list[str]) -> list[pathlib.Path]:
    import optax

    from experiments.analysis.measured import About, write_records
    from experiments.analysis.noise import with_noise
    from experiments.analysis.vision import page
    from experiments.analysis.vision.findings import measure_all, unmeasured, work
    from experiments.analysis.vision.moved import measure_moved, unmoved
    from experiments.analysis.vision.subject import choose_pictures, holds_weights, load_vit
    from experiments.progress import bar
    from experiments.records import RESULTS
    from experiments.studies.environment import recorded
    from posjax.training.identity import digest

    checkpoint, began = pathlib.Path(args.checkpoint), time.perf_counter()
    if args.data is None and holds_weights(checkpoint):
        raise ValueError(
            f"{checkpoint} does not say which images it is for: give --data=NAME (or folder, with --data_dir)"
        )
    subject = load_vit(checkpoint, data_dir=args.data_dir)
    if args.noise:
        subject = subject._replace(params=[with_noise(params) for params in subject.params])
    count = min(args.num_looked_into, args.num_images, _MOVED)
    images = choose_pictures(subject, args.data, args.split, args.data_dir, args.num_images, args.padding, count)
    out = cli.writable(args.out)
    with bar(work(images, args.num_looked_into), "image", unit_scale=True) as progress:
        found = measure_all(images, args.num_looked_into, args.num_shown, progress.update)
    left_out, why = unmeasured(images, args.num_looked_into), unmoved(images)
    rows, drawn = ({}, {}) if why else measure_moved(images)
    name = f"{checkpoint.stem}{' with noise' if args.noise else ''}"
    machine, titles = recorded(), [f"image {index}" for index in range(len(images.originals))]
    about = About(
        name,
        subject.encoding,
        digest(subject.params)[:12],
        optax.tree.size(subject.params[0]),
        images.about,
        images.digest,
        "patch",
        "image",
        titles,
    )
    records = write_records(out, rows, about, time.perf_counter() - began, machine)
    records += write_records(out, drawn, about._replace(each="group of channels"), 0.0, machine)
    facts = _image_facts(images, args.num_looked_into) | _machine_facts(machine, began)
    if left_out := [*left_out, *([f"other sizes: {why}"] if why else [])]:
        facts["left out"] = "; ".join(left_out)
    command = cli.command_line("analyse", given)
    title = f"What a ViT with {subject.encoding} looks at"
    return [
        *([out / RESULTS] if records else []),
        *page.write_analysis(images, found, records, out, title, facts, command),
    ]


def _image_facts(images: Any, looked_into: int) -> dict[str, str]:
    subject, (height, width) = images.subject, images.grid
    block = subject.model.block
    return {
        "encoding": f"{subject.encoding}, injection {subject.model.injection}",
        "model": f"width {block.width}, {subject.model.depth} layers of {block.num_heads} heads, {height}x{width} patches of "
        f"{images.patch}x{images.patch} pixels, pooling {subject.model.pooling}, {subject.model.num_registers} registers",
        "seeds": ", ".join(map(str, subject.seeds)),
        "images": f"{len(images.pixels)} of {images.about}, the first {looked_into} looked into",
    }


def _machine_facts(machine: dict[str, Any], began: float) -> dict[str, str]:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    return {
        "versions": ", ".join(f"{key} {value}" for key, value in machine["versions"].items()),
        "cost": f"{(time.perf_counter() - began) / 60:.1f} minutes on {machine['device']}, {peak:.1f} GB of memory at most",
    }


if __name__ == "__main__":
    sys.exit(main())
