"""Folders of language models as transformers saves them: language.npz says the names, `made` the numbers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from goldens.check import load
from goldens.language_settings import LONG, VOCABULARY
from goldens.pretrained_weights import made

FILE = load("language")
CASES: dict[str, Any] = {case: told for case, told in json.loads(str(FILE["json"])).items() if case != "versions"}


def weights_of(case: str) -> dict[str, np.ndarray]:
    return {name: made(name, tuple(shape)) for name, shape in CASES[case]["names"].items()}


def written(case: str, folder: Path, **config: Any) -> Path:
    """A folder that holds the weights which transformers' model had; `config` changes keys of its configuration."""
    folder.mkdir(exist_ok=True)
    safetensors.numpy.save_file(weights_of(case), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CASES[case]["config"] | config))
    return folder


def tokens_of(length: int = LONG) -> np.ndarray:
    return np.random.RandomState(0).randint(0, VOCABULARY, LONG)[:length].astype(np.int32)
