"""Pretrained models without TensorFlow or torch: vision transformers (`vision`) and language models (`language`).

    model, params = load("ViT-B_16.npz", image_size=384)
    model, params = load("Llama-3.2-1B", dtype=jnp.bfloat16)
    save("mine", model, params)

Both packages read files by maps as data (`entries.py`); the inverse of a map writes files.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posjax.gguf import SUFFIX
from posjax.hub import local
from posjax.models.vit import ViT
from posjax.pretrained import language, vision
from posjax.pretrained.files import read_json
from posjax.pretrained.vision import Info as Info
from posjax.pretrained.vision import info

__all__ = ["info", "language", "load", "reads_text", "save", "vision"]


def load(path: str | Path, **options: Any) -> tuple[Any, dict[str, Any]]:
    """Loads a pretrained model and its parameters.

    By `language.load` if it is a GGUF file, or if config.json is of text, else by `vision.load`.
    """
    path = local(path)
    return (language if reads_text(path) else vision).load(path, **options)


def reads_text(path: str | Path) -> bool:
    """Says whether a checkpoint is a language model's: a GGUF file, or weights whose config.json is of text."""
    path = local(path)
    config = read_json((path if path.is_dir() else path.parent) / "config.json")
    of_text = {"vocab_size", "text_config"} & config.keys() or str(config.get("model_type")) in language.FAMILIES
    return bool(of_text) or path.suffix == SUFFIX


def save(path: str | Path, model: Any, params: Mapping[str, Any], **options: Any) -> None:
    """Saves a Llama or a GPT-2 as a folder that transformers reads, or a ViT as a file; `load` reads both.

    >>> import tempfile, jax
    >>> from posjax.models import BlockConfig, Decoder
    >>> block = BlockConfig(width=16, num_heads=2, norm="rms", mlp="swiglu", attention_bias=())
    >>> model = Decoder(vocab_size=256, block=block, depth=1, tied_embedding=False, embedding_scale=1.0)
    >>> params = jax.jit(model.init)(jax.random.key(0), *model.example())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(folder, model, params)    # a Llama of transformers
    ...     again, params = load(folder)
    >>> again.encoding, again.block.mlp
    ('rope()', 'swiglu')
    """
    (vision if isinstance(model, ViT) else language).save(path, model, params, **options)
