"""Published weights here beside transformers: errors and times for docs/language.md; see make_published.py.

python tests/goldens/check_published.py DIR published.npz
"""

import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from published_inputs import EVERY, GREEDY, LONG, pixels_of, tokens_of

import posjax as pj
from posjax import pretrained
from posjax.models.generate import generate


def error(ours, theirs: np.ndarray) -> float:
    """The largest difference, over the largest number."""
    return float(np.abs(np.asarray(ours, np.float64) - theirs).max() / np.abs(theirs).max())


def gemma(folder: Path, theirs) -> None:
    began = time.perf_counter()
    model, params = pretrained.load(folder / "gemma-3-270m.gguf")
    print(f"loaded in {time.perf_counter() - began:.1f} s")
    tokens = jnp.asarray(tokens_of(model.vocab_size, LONG), jnp.int32)[None]
    features = jax.jit(lambda params, tokens: model.apply(params, tokens, pj.sites(LONG), method=model.features)[0])
    x = features(params, tokens)
    logits = jax.jit(lambda params, x: model.apply(params, x, method=model.logits))
    likeliest = np.concatenate([np.asarray(logits(params, x[:, i : i + 50]).argmax(-1))[0] for i in range(0, LONG, 50)])
    print("Gemma 3 270M:", error(logits(params, x[:, ::EVERY])[0], theirs["gemma_logits"]))
    print("  likeliest tokens that differ:", int((likeliest != theirs["gemma_likeliest"]).sum()), "of", LONG)
    prompt = tokens[:, :100]
    found = generate(model, params, prompt, pj.sites(prompt.shape[1]), steps=GREEDY)
    print(
        "  greedy tokens that differ:",
        int((np.asarray(found)[0] != theirs["gemma_greedy"]).sum()),
        "of",
        GREEDY,
    )


def minilm(folder: Path, theirs) -> None:
    model, params = pretrained.load(folder / "all-MiniLM-L6-v2")
    tokens = jnp.asarray(tokens_of(model.vocab_size, 512), jnp.int32).reshape(2, 256)
    print("MiniLM:", error(model.apply(params, tokens, pj.sites(256)), theirs["minilm"]))


def dinov2(folder: Path, theirs) -> None:
    model, params = pretrained.load(folder / "dinov2-small-saliency", pooling="none")
    images = jnp.asarray(pixels_of(518)).transpose(0, 2, 3, 1)
    print("DINOv2 S/14:", error(model.apply(params, images, model.sites(518, 518)), theirs["dinov2"]))


if __name__ == "__main__":
    reference = np.load(sys.argv[2])
    print(reference["versions"], jax.__version__)
    for check in (gemma, minilm, dinov2):
        check(Path(sys.argv[1]), reference)
