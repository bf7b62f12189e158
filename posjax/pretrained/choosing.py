"""The room of a file or a model: vision or language."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posjax.gguf import SUFFIX
from posjax.hub import local
from posjax.models.vit import ViT
from posjax.pretrained import language, vision
from posjax.pretrained.files import read_json


def load(path: str | Path, **options: Any) -> tuple[Any, dict[str, Any]]:
    """Loads a pretrained model and its parameters: `language.load` if config.json has a vocabulary, else `vision.load`."""
    path = local(path)
    return (language if _of_language(path) else vision).load(path, **options)


def save(path: str | Path, model: Any, params: Mapping[str, Any], **options: Any) -> None:
    """Saves a checkpoint that `load` reads, and transformers or timm too if they have the model."""
    (vision if isinstance(model, ViT) else language).save(path, model, params, **options)


def _of_language(path: Path) -> bool:
    """Whether a file is GGUF, or the configuration beside it has a vocabulary or names a known family."""
    if path.suffix == SUFFIX:
        return True
    config = read_json((path if path.is_dir() else path.parent) / "config.json")
    return "vocab_size" in config or "text_config" in config or str(config.get("model_type")) in language.FAMILIES
