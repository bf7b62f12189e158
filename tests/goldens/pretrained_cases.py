"""Files of published names, as tests read them: pretrained.npz says the names, `made` the numbers."""

import fnmatch
import json
import re
from pathlib import Path

import numpy as np
import safetensors.numpy

from goldens.check import load
from goldens.pretrained_weights import google_tensors, made

FILE = load("pretrained")
SPEC = json.loads(str(FILE["json"]))
VIT5 = load("vit5")  # make_vit5.py made it
FILE |= {name: logits for name, logits in VIT5.items() if name.startswith("vit-5")}
SPEC["cases"] |= json.loads(str(VIT5["json"]))
CASES = [
    (case, spelling) for case, told in SPEC["cases"].items() for spelling in told.get("spellings", ["safetensors"])
]
_ROPE = "axial_rope(indexing='xy', layout='interleaved')"
_EVA = "(fit_grid(height=16, width=16) >> axial_rope(base=10000, layout='interleaved'))"
_ENCODINGS = {"timm rope": _ROPE, "timm rope_ape": f"learned + {_ROPE}", "timm rope_reg_gap": _EVA}
_ENCODINGS |= dict.fromkeys(("timm eva02_small", "timm eva02_large"), f"learned + {_EVA}")


def asked(case: str) -> dict:
    """The options that a file of timm's does not hold."""
    told = {"num_heads": 2} if case.startswith("timm") else {}
    return told | ({"encoding": _ENCODINGS[case]} if case in _ENCODINGS else {})


def full_size(name: str) -> tuple[int, dict[str, tuple[int, ...]]]:
    """Returns the heads of a published model of timm's, and {tensor: shape}."""
    heads, depth, held = SPEC["full"][name]
    spelt = {
        tensor.replace("blocks.0.", f"blocks.{layer}."): tuple(shape)
        for tensor, shape in held.items()
        for layer in range(depth if tensor.startswith("blocks.0.") else 1)
    }
    return heads, spelt


def recommended(name: str, message: str) -> str:
    """Returns the encoding that a message recommends for a model of timm's."""
    pairs = re.findall(r'([\w*]+) "([^"]+)"', message)
    return next(spec for pattern, spec in pairs if fnmatch.fnmatchcase(name, pattern))


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
