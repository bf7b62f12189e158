"""Writes a Llama or GPT-2 trained here as a folder that transformers reads, or any run as a small folder that posjax reads.

    python -m experiments.export --checkpoint=runs/llama --out=exported
    python -m experiments.export --checkpoint=runs/llama --out=exported --seed=1
    python -m experiments.export --checkpoint=runs/vit --out=small/vit --small

A folder of transformers has config.json, safetensors and the tokenizer. The model must have the blocks of a Llama or of a
GPT-2; otherwise the message lists what differs. experiments.ablate, generate, explain and train take the folder as a
checkpoint. --small writes a small run: one seed in float16, which every command here reads as a run, and from which no
training goes on. A ViT is written for timm by posjax.pretrained.save. Errors are one line and exit code 2.
"""

import argparse
import shutil
import sys

from experiments import cli


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = cli.parser("export", __doc__)
    add = parser.add_argument
    add("--checkpoint", required=True, help="workdir of a run")
    add("--out", required=True, type=cli.directory, help="folder to write")
    add("--small", action="store_true", help="write a run of posjax, with parameters in float16")
    add("--seed", type=int, help="seed of the run (default: the first)")
    args = parser.parse_args(argv)
    return cli.answer(lambda: _export(args), args.imports, traceback=args.traceback)


def _export(args: argparse.Namespace) -> None:
    from posjax import pretrained
    from posjax.data.tokens import BYTES, FILE
    from posjax.models import Decoder
    from posjax.remote import local_copy
    from posjax.training.runs import load_run, save_small

    args.checkpoint = local_copy(args.checkpoint)
    run = load_run(args.checkpoint)
    seed = run.seeds[0] if args.seed is None else args.seed
    if seed not in run.seeds:
        raise ValueError(f"seed {seed} is not among those of {args.checkpoint}, {', '.join(map(str, run.seeds))}")
    index = run.seeds.index(seed)
    out = cli.writable(args.out)
    if args.small:
        save_small(run, index, args.checkpoint, out)
        print(
            f"wrote {out}: seed {seed} after {run.step} steps, {sum(f.stat().st_size for f in out.iterdir()):,} bytes"
        )
        return
    if not isinstance(run.model, Decoder):
        raise ValueError(
            f"{args.checkpoint} holds a {type(run.model).__name__}: a Llama or a GPT-2 is written as a folder"
        )
    config = {"max_position_embeddings": run.config.data.length}
    pretrained.save(out, run.model, run.of(index), config=config)
    tokenizer = run.task.tokenizer
    about = "tokens are bytes" if tokenizer == BYTES else f"tokens are {tokenizer.name}'s: put its {FILE} beside it"
    if tokenizer.rust is not None:
        shutil.copyfile(tokenizer.name, out / FILE)
        about = f"{FILE} beside it"
    if run.config.data.get("bos") is False:
        about += ", whose template adds a BOS that training left out: encode with add_special_tokens=False"
    print(f"wrote {out}: seed {seed} after {run.step} steps; {about}")


if __name__ == "__main__":
    sys.exit(main())
