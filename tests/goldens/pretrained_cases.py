"""Files of published names, as tests read them: pretrained.npz says the names, `made` the numbers."""

import json
from pathlib import Path

import numpy as np
import safetensors.numpy

from goldens.check import load
from goldens.pretrained_weights import google_tensors, made

FILE = load("pretrained")
SPEC = json.loads(str(FILE["json"]))
CASES = [
    (case, spelling) for case, told in SPEC["cases"].items() for spelling in told.get("spellings", ["safetensors"])
]
_ROPE = "axial_rope(indexing='xy', layout='interleaved')"
_ENCODINGS = {"timm rope": {"encoding": _ROPE}, "timm rope_ape": {"encoding": f"learned + {_ROPE}"}}


def asked(case: str) -> dict:
    """Returns the arguments that a file of timm does not hold."""
    told = {"num_heads": 2} if case.startswith("timm") else {}
    return told | _ENCODINGS.get(case, {})


def weights_of(case: str) -> dict[str, np.ndarray]:
    return {name: made(name, tuple(shape)) for name, shape in SPEC["cases"][case]["names"].items()}


def written(case: str, spelling: str, folder: Path) -> Path:
    """A file, or a folder with a configuration, that holds the weights which the reference had."""
    told = SPEC["cases"][case]
    if spelling != "safetensors":
        shapes = {name: tuple(shape) for name, shape in told["names"].items()}
        np.savez(folder / "weights.npz", **google_tensors(shapes, spelling))
        return folder / "weights.npz"
    safetensors.numpy.save_file(weights_of(case), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(told["config"]))
    return folder
