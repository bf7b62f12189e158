"""Names of the Hugging Face hub in place of paths."""

import re
from pathlib import Path

from posjax.extras import require

_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_FILES = [
    *("config.json", "preprocessor_config.json", "tokenizer.json", "tokenizer_config.json"),
    *("model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors"),
]


def local(path: str | Path) -> Path:
    """Returns a path as it is if it exists or is no name of the hub, else the folder of the model of that name.

        local("google/gemma-3-270m")

    The folder is in the cache of huggingface_hub, which heeds HF_HOME and HF_HUB_OFFLINE; the files that are missing there
    (configuration, tokenizer, safetensors) are downloaded.

    Raises:
      ImportError: the package is missing; the message names the command that downloads the folder.
      FileNotFoundError: the hub, or without a network the cache, has no such model.
    """
    name, path = str(path), Path(path)
    if path.exists() or not _NAME.fullmatch(name) or path.suffix in (".npz", ".safetensors", ".json", ".gguf"):
        return path
    try:
        require(f"{name!r}, which is no path here,", "huggingface_hub")
    except ImportError as error:
        raise ImportError(f"{error}; or download it: hf download {name} --local-dir {path.name}") from None
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=_FILES))
    except (OSError, ValueError) as error:
        why = str(error).strip().partition("\n")[0]
        raise FileNotFoundError(f"there is no file or folder {name!r}, and the hub does not give one: {why}") from None
