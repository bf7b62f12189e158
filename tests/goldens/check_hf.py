"""from_hf beside every configuration that transformers has by default and that speaks of rotary encodings:

    /tmp/goldens/bin/python tests/goldens/check_hf.py write FILE
    python tests/goldens/check_hf.py compare FILE

The first writes each configuration as it is saved, and the frequencies of its model's own rotary module; the second prints
which of them from_hf_layers (or from_hf) gives, which it refuses and why, and fails where it gives others.
"""

import importlib
import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

_ODD = (AttributeError, ImportError, IndexError, KeyError, OSError, TypeError, ValueError)
# Defaults that no model has and no code computes with.
_UNFIT = {
    **dict.fromkeys(["glm4_moe", "glm4v_moe_text"], "half of a head of 42 channels are 21, which make no pairs"),
    "glm4v_text": "sections of 32 pairs, heads of 64",
}


def write(file: Path) -> int:
    import torch

    # torchvision's compiled operators are of no use on a CPU build of torch, but it will not be imported without these names.
    torchvision = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        torchvision.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    transformers.utils.logging.set_verbosity_error()
    told = {}
    for model_type in list(CONFIG_MAPPING.keys()):
        try:
            config = CONFIG_MAPPING[model_type]()
        except _ODD as error:  # some have no defaults, some need packages: nothing to compare
            print(f"{model_type}: {type(error).__name__}")
            continue
        written = json.loads(config.to_json_string(use_diff=False))
        if any("rope" in key or "rotary" in key for key in written):
            told[model_type] = dict(config=written, frequencies=_frequencies(config))
    file.write_text(json.dumps(told))
    return 0


def _frequencies(config) -> list[list[float]] | None:
    """Returns the frequencies of the configuration's own rotary module by layer type; None if it has none."""
    try:
        module = importlib.import_module(type(config).__module__.replace("configuration_", "modeling_"))
        own = type(config).__name__.removesuffix("Config") + "RotaryEmbedding"
        names = [name for name in vars(module) if name.endswith("RotaryEmbedding")]
        name = next((name for name in names if name.lower() == own.lower()), names[0])
        buffers = dict(getattr(module, name)(config).named_buffers())
    except _ODD as error:  # of another module's configuration, or tables in place of frequencies
        print(f"{type(config).__name__}: {type(error).__name__}")
        return None
    return [x.tolist() for key, x in buffers.items() if key.endswith("inv_freq") and "original" not in key]


def compare(file: Path) -> int:
    found = defaultdict(list)
    for model_type, told in json.loads(file.read_text()).items():
        verdict, why = _verdict(told["config"], told["frequencies"])
        if model_type in _UNFIT and verdict == "other frequencies":
            verdict, why = "defaults that do not fit", f": {_UNFIT[model_type]}"
        found[verdict].append(f"{model_type}{why}")
    for verdict, lines in sorted(found.items()):
        print(f"{verdict}: {len(lines)}", *lines, sep="\n  ")
    return int(bool(found["other frequencies"]))


def _verdict(config, frequencies) -> tuple[str, str]:
    import posjax as pj
    from posjax.encoding import parts
    from posjax.encodings.rotary import Rotary

    try:
        layers = pj.from_hf_layers(config)
    except ValueError:
        try:
            layers = (pj.from_hf(config),)
        except ValueError as error:
            return "refused", f": {error}"
    rotary = [part for layer in dict.fromkeys(layers) for part in parts(layer) if isinstance(part, Rotary)]
    if not frequencies:
        return "nothing to compare with", f": {layers[0]}"
    for theirs in map(np.array, frequencies):
        if not any(_same(each, theirs) for each in rotary):
            return "other frequencies", f": {', '.join(map(str, rotary))}; {len(theirs)}: {theirs[:3]}"
    return "the same frequencies", ""


def _same(encoding, theirs: np.ndarray) -> bool:
    """Compares frequencies at the head dim that has this number of them."""
    if encoding.spec_name == "axial_rope":
        count = len(theirs) * (1 if encoding.frequencies == "split" else 2)
        wave = encoding.wave(2, count)
        ours = wave[wave > 0]
        theirs = theirs if encoding.frequencies == "split" else np.tile(theirs, 2)
        return len(ours) == len(theirs) and np.allclose(np.sort(ours), np.sort(theirs), rtol=1e-4)
    if encoding.spec_name == "mrope" and sum(encoding.sections) != len(theirs):
        return False
    wave, count = encoding.wave(1, len(theirs))[0], len(theirs)
    if encoding.scaling is not None:
        length = np.ones(1, np.float32)
        multiplier = np.asarray(encoding.scaling.multiplier(encoding.spectrum(1, count), length))
        wave = wave * multiplier.reshape(count)
    return np.allclose(wave, theirs, rtol=1e-4)


if __name__ == "__main__":
    sys.exit(dict(write=write, compare=compare)[sys.argv[1]](Path(sys.argv[2])))
