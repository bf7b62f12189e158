"""Random data, for speeds and plans: nothing is prepared, and every step has the same batch, which is made once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from posjax.data.containers import Images, Text
from posjax.data.sets import SYNTHETIC_IMAGES, SYNTHETIC_TOKENS

if TYPE_CHECKING:
    import grain


def synthetic_images(size: tuple[int, int], *, classes: int = 1000, channels: int = 3, count: int = 1) -> Images:
    """Returns `count` images of random pixels, `size` (height, width), and random labels."""
    rng = np.random.default_rng(0)
    image = rng.integers(256, size=(count, *size, channels), dtype=np.uint8)
    return Images(SYNTHETIC_IMAGES, image, rng.integers(classes, size=count, dtype=np.int32), classes, f"{image.shape}")


def synthetic_tokens(vocab_size: int, length: int, count: int) -> Text:
    """Returns a text of `count` documents of `length` random tokens; no tokenizer knows their text."""
    tokens = np.random.default_rng(0).integers(vocab_size, size=count * length, dtype=np.int32)
    starts, about = np.arange(0, len(tokens), length), dict(vocab_size=vocab_size, tokenizer=SYNTHETIC_TOKENS)
    return Text(SYNTHETIC_TOKENS, tokens, starts, f"{vocab_size} {length} {count}", **about)


def repeated(ds: grain.MapDataset) -> grain.MapDataset:
    """Returns the first batch of a pipeline for every step."""
    import grain

    return grain.MapDataset.source([ds[0]]).repeat()
