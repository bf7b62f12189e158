"""A small Llama with random weights, as a folder of transformers with its tokenizer.json, and text in its words."""

import pathlib

import jax
import numpy as np
from worded import WORDS, write_tokenizer

from posjax import pretrained
from posjax.models import Decoder

TRAINED = 64
SIZES = dict(width=16, depth=2, num_heads=2, num_kv_heads=1, mlp_dim=16)


def write_llama(directory: pathlib.Path) -> pathlib.Path:
    """The folder; text.txt in it has 4,000 words."""
    directory.mkdir(parents=True, exist_ok=True)
    write_tokenizer(directory)
    blocks = dict(norm="rms", mlp="swiglu", attention_bias=(), embedding_scale=1.0, tied_embedding=False)
    model = Decoder.from_config(SIZES | blocks, vocab_size=256, encoding="rope", length=TRAINED)
    params = jax.jit(model.init)(jax.random.key(0), *model.example())
    pretrained.save(directory, model, params, config={"max_position_embeddings": TRAINED})
    (directory / "text.txt").write_text(" ".join(np.random.default_rng(0).choice(WORDS, 4000)))
    return directory
