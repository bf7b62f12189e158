"""Small subjects with random weights, one of each kind, so that files of tests share their compiled programs."""

import jax
import numpy as np

from experiments.analysis.subject import Subject
from posjax import data
from posjax.models import BlockConfig, Decoder, Encoder, ViT

PATTERN = "rope(base=100) + window(8), rope(base=1000)"
LENGTH, ROWS = 24, 128
IMAGES = np.random.default_rng(0).integers(0, 256, (3, 12, 16, 3), np.uint8)


def with_weights(model, example):
    """Returns random parameters of a model, scales of norms about 1; nothing is compiled."""
    rng = np.random.default_rng(0)

    def drawn(path, leaf):
        mean = float("scale" in jax.tree_util.keystr(path))
        return (mean + 0.3 * rng.standard_normal(leaf.shape)).astype(leaf.dtype)

    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), *example))["params"]
    return jax.tree_util.tree_map_with_path(drawn, shapes)


def decoder(encoding=PATTERN):
    block = BlockConfig(width=32, num_heads=4, num_kv_heads=2, head_dim=16)
    model = Decoder(vocab_size=256, encoding=encoding, block=block, depth=2, length=64)
    params = with_weights(model, model.example())
    return Subject(name="tiny", model=model, params=[params], tokenizer=data.load_tokenizer(None), trained=LENGTH)


def encoder(encoding="learned", **fields):
    block = BlockConfig(width=8, num_heads=2)
    fields = dict(vocab_size=256, length=ROWS, block=block, depth=1, head=None) | fields
    model = Encoder(encoding=encoding, **fields)
    params = with_weights(model, model.example())
    return Subject(name="tiny", model=model, params=[params], tokenizer=data.load_tokenizer(None))


def vit(encoding="learned", **fields):
    fields = dict(num_classes=0, image_size=(12, 16), patch_size=4, depth=1) | fields
    model = ViT(encoding=encoding, block=fields.pop("block", BlockConfig(width=8, num_heads=2)), **fields)
    return Subject(name="tiny", model=model, params=[with_weights(model, model.example(3))], mean=(0.5,), std=(0.5,))
