"""Writes a decoder trained here as a folder that transformers reads, or any run as a small folder that posjax reads.

    python -m experiments.export --checkpoint=runs/llama --out=exported
    python -m experiments.export --checkpoint=runs/llama --out=exported --family=llama --seed=1
    python -m experiments.export --checkpoint=runs/vit --out=small/vit --small

A folder of transformers has config.json, safetensors and the tokenizer. The model must belong to a family of transformers;
otherwise the message lists the obstacles in the nearest family, and --all lists them in every family. The first family that
has the model is used, unless --family names one. experiments.ablate, generate, explain and train take the folder as a
checkpoint. --small writes a small run: one seed in float16, which every command here reads as a run, and from which no
training goes on. Errors are one line and exit code 2.
"""

import argparse
import shutil
import sys

from experiments import cli


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = cli.parser("export", __doc__)
    parser.add_argument("--checkpoint", required=True, help="workdir of a run")
    parser.add_argument("--out", type=cli.directory, help="folder to write (not with --all)")
    parser.add_argument("--family", help="model_type of transformers (default: the first that has the model)")
    parser.add_argument("--all", action="store_true", help="write nothing: list the obstacles in each family")
    parser.add_argument("--small", action="store_true", help="write a run of posjax, with parameters in float16")
    parser.add_argument("--seed", type=int, help="seed of the run (default: the first)")
    args = parser.parse_args(argv)
    return cli.answer(lambda: _export(args), args.imports, traceback=args.traceback)


def _export(args: argparse.Namespace) -> None:
    if not (args.out or args.all):
        raise cli.UsageError("give --out, the folder to write")
    if args.small and (args.all or args.family):
        raise cli.UsageError("--small writes no family's folder: leave out --family and --all")
    from posjax import pretrained
    from posjax.data.tokens import BYTES, FILE
    from posjax.models import Decoder
    from posjax.pretrained.language import obstacles
    from posjax.training.runs import load_run, save_small

    run = load_run(args.checkpoint)
    seed = run.seeds[0] if args.seed is None else args.seed
    if seed not in run.seeds:
        raise ValueError(f"seed {seed} is not among those of {args.checkpoint}, {', '.join(map(str, run.seeds))}")
    index = run.seeds.index(seed)
    if args.small:
        out = cli.writable(args.out)
        save_small(run, index, args.checkpoint, out)
        print(
            f"wrote {out}: seed {seed} after {run.step} steps, {sum(f.stat().st_size for f in out.iterdir()):,} bytes"
        )
        return
    if not isinstance(run.model, Decoder):
        raise ValueError(f"{args.checkpoint} holds a {type(run.model).__name__}: only decoders are written as folders")
    if args.all:
        for name, against in obstacles(run.model, args.family).items():
            print(f"{name}: {'; '.join(against) or 'nothing stands against it'}")
        return
    out = cli.writable(args.out)
    config = {"max_position_embeddings": run.config.data.length}
    pretrained.save(out, run.model, run.of(index), family=args.family, config=config)
    tokenizer = run.task.tokenizer
    if tokenizer != BYTES:
        shutil.copyfile(tokenizer.name, out / FILE)
    about = "tokens are bytes" if tokenizer == BYTES else f"{FILE} beside it"
    if run.config.data.get("bos") is False:
        about += ", whose template adds a BOS that training left out: encode with add_special_tokens=False"
    print(f"wrote {out}: seed {seed} after {run.step} steps; {about}")


if __name__ == "__main__":
    sys.exit(main())
