"""Continues a prompt by a decoder, with a key-value cache.

    python -m experiments.generate --checkpoint=Llama-3.2-1B --prompt="The pass key is" --steps=64
    python -m experiments.generate --checkpoint=runs/decoder --prompt="def " --temperature=0.8 --top_p=0.95 --seed=1
    python -m experiments.generate --checkpoint=Llama-3.2-1B --prompt_file=book.txt --encoding="{own} + window(2048)"

The checkpoint is a run of experiments.train (the first of its seeds), or a folder of transformers with its tokenizer.json.
The BOS of the tokenizer's template precedes the prompt, unless --no_bos. --encoding reads the weights under another encoding,
in which {own} is their own. Layers with a window cache only the tokens within it.
Stdout gets only the continuation; times go to stderr. Errors are one line and exit code 2.
"""

import argparse
import pathlib
import sys
import time

from experiments import cli


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = cli.parser("generate", __doc__)
    add = parser.add_argument
    add("--checkpoint", required=True, help="workdir of a run, or folder of weights")
    add("--prompt", help="text to continue")
    add("--prompt_file", help="file with it (UTF-8)")
    add("--steps", type=cli.positive, default=64, help="tokens to add (default: 64)")
    add("--encoding", help="another encoding than the checkpoint's own, which is {own}")
    add("--ignore", help="keys of config.json to pass over, with commas: they change no numbers")
    add("--tokenizer", help="tokenizer.json, or bytes (default: the checkpoint's)")
    add("--no_bos", action="store_true", help="leave out the BOS that the tokenizer puts before a text")
    add("--temperature", type=float, default=0.0, help="0 (default) takes the likeliest token")
    add("--top_k", type=cli.positive, help="draws from the k likeliest tokens")
    add("--top_p", type=float, help="draws from the likeliest tokens that hold this probability")
    add("--seed", type=int, default=0, help="seed of the draws")
    args = parser.parse_args(argv)
    return cli.answer(lambda: _generate(args), args.imports, traceback=args.traceback)


def _generate(args: argparse.Namespace) -> None:
    import jax
    import numpy as np

    from posjax import data
    from posjax.encoding import sites
    from posjax.models import Decoder, generate
    from posjax.models.replacing import with_encoding
    from posjax.spec import layers_text, parse_layers
    from posjax.training.initial import Start, of_own

    if (args.prompt is None) == (args.prompt_file is None):
        raise ValueError("give one of --prompt and --prompt_file")
    text = pathlib.Path(args.prompt_file).read_text() if args.prompt is None else args.prompt
    start = Start(args.checkpoint, args.ignore)
    model, params = start.model, start.of_seeds(start.run.seeds[:1] if start.run else (0,))[0]
    if not isinstance(model, Decoder):
        raise ValueError(f"{args.checkpoint} holds a {type(model).__name__}, and only decoders continue a text")
    if args.tokenizer is None and start.run is not None:
        start.run.task.tokenizer.check_text()
    tokenizer = data.load_tokenizer(args.tokenizer or start.tokenizer, False if args.no_bos else start.bos)
    if tokenizer.vocab_size > model.vocab_size:
        raise ValueError(f"{tokenizer.name} has {tokenizer.vocab_size:,} tokens, the model {model.vocab_size:,}")
    if args.encoding is not None:
        spec = of_own(args.encoding, layers_text(parse_layers(model.encoding)))
        model, params = with_encoding(
            model, params, spec, lambda changed: changed.init(jax.random.key(0), *changed.example())["params"]
        )
    (tokens,), bos = tokenizer.encode([text.encode()]), tokenizer.bos
    tokens = np.append(np.int32(bos), tokens)
    if not len(tokens):
        raise ValueError("the prompt has no tokens: give some text to continue")
    cli.refuse_length(
        model, params, len(tokens) + args.steps - 1, f"a prompt of {len(tokens):,} and --steps={args.steps:,}"
    )
    sampling = dict(temperature=args.temperature, top_k=args.top_k, top_p=args.top_p, key=jax.random.key(args.seed))
    began, prompt = time.perf_counter(), np.asarray(tokens, np.int32)[None]
    variables = {"params": jax.device_put(params)}
    added = np.asarray(generate(model, variables, prompt, sites(len(tokens)), steps=args.steps, **sampling)[0])
    elapsed = time.perf_counter() - began
    print(tokenizer.continuation(tokens, added))
    begins = f", {tokenizer.decode(bos)} before them among these" if bos else ""
    print(
        f"{len(tokens):,} tokens read{begins}, {args.steps:,} added in {elapsed:.1f} s, compiling included",
        file=sys.stderr,
    )


if __name__ == "__main__":
    sys.exit(main())
