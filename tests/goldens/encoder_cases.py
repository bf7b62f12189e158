"""Folders of encoders as transformers saves them: encoders.npz says the names, `made` the numbers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from goldens.check import load
from goldens.encoder_settings import LONG, VOCABULARY
from goldens.pretrained_weights import made

FILE = load("encoders")
CASES: dict[str, Any] = {case: told for case, told in json.loads(str(FILE["json"])).items() if case != "versions"}


def weights_of(case: str) -> dict[str, np.ndarray]:
    return {name: made(name, tuple(shape)) for name, shape in CASES[case]["names"].items()}


def written(case: str, folder: Path, tensors: dict[str, np.ndarray] | None = None, **config: Any) -> Path:
    """A folder with the weights that transformers' model had, or with others; `config` changes keys of its configuration."""
    folder.mkdir(exist_ok=True)
    safetensors.numpy.save_file(weights_of(case) if tensors is None else tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CASES[case]["config"] | config))
    return folder


def tokens_of(length: int = LONG) -> np.ndarray:
    """None of them is the token of padding."""
    return np.random.RandomState(0).randint(3, VOCABULARY, LONG)[:length].astype(np.int32)


def types_of(length: int, count: int) -> np.ndarray:
    return (np.arange(length) * count // length).astype(np.int32)
