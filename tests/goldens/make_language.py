"""Golden logits of language models as transformers computes them, from weights made by name:

    /tmp/goldens/bin/python tests/goldens/make_language.py [CASE ...]
    /tmp/goldens/bin/python tests/goldens/make_language.py --saved DIR
    /tmp/goldens/bin/python tests/goldens/make_language.py --logits FOLDER

language.npz holds, for each setting of language_settings.py, the configuration, the names and shapes of the tensors in the
folder that transformers saved, and the logits of a short and of a long line of tokens, in float32. With names of cases the
others are kept as they are; those from granite to deepseek_v3 are of torch 2.14.1 and transformers 5.24.0. --saved reads the
folders that check_language.py wrote with `posjax.pretrained.save`, and writes beside them, as errors.json, how far
transformers' logits are from these golden ones. --logits writes the logits of a folder's model, whatever it is, as
logits.npz.
"""

import json
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
import transformers
from language_settings import LONG, SETTINGS, SHORT, VOCABULARY
from pretrained_weights import made
from safetensors import safe_open
from safetensors.torch import save_file

FILE = Path(__file__).parent / "language.npz"


def remade(config, folder: Path):
    """The model of a configuration with tensors made of their names; (names, configuration) of the folder that it is in."""
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        names = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    tensors = {name: torch.from_numpy(made(name, shape)) for name, shape in names.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return read(folder), names, json.loads((folder / "config.json").read_text())


def read(folder: Path):
    """A folder's model; nothing of it may be missing, left over or of another shape."""
    # Falcon's eager attention adds its ALiBi twice: to the mask, and to the logits once more.
    falcon = json.loads((folder / "config.json").read_text())["model_type"] == "falcon"
    attention = dict(attn_implementation="sdpa" if falcon else "eager")
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, **attention, dtype=torch.float32, output_loading_info=True
    )
    if wrong := {kind: names for kind, names in info.items() if names}:
        raise ValueError(f"{folder}: {wrong}")
    return model.eval()


@torch.no_grad()
def logits_of(model, tokens: np.ndarray) -> np.ndarray:
    return model(torch.from_numpy(tokens)[None], use_cache=False).logits[0].numpy()


def tokens_of(length: int) -> np.ndarray:
    return np.random.RandomState(0).randint(0, VOCABULARY, LONG)[:length]


def main(*cases: str) -> None:
    told = json.loads(str(np.load(FILE)["json"])) if cases else {}
    versions = {*told.pop("versions", []), *(f"{each.__name__} {each.__version__}" for each in (torch, transformers))}
    arrays = {name: array for name, array in np.load(FILE).items() if name != "json"} if cases else {}
    for case in cases or SETTINGS:
        kind, fields = SETTINGS[case]
        torch.manual_seed(0)
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, names, config = remade(getattr(transformers, kind)(**fields), Path(folder))
            told[case] = dict(config=config, names=names)
            for what, length in (("short", SHORT), ("long", LONG)):
                arrays[f"{case} {what}"] = logits_of(model, tokens_of(length))
        print(case, np.abs(arrays[f"{case} long"]).max())
    np.savez_compressed(FILE, json=json.dumps({"versions": sorted(versions), **told}), **arrays)


def saved(folder: Path) -> None:
    golden = dict(np.load(FILE))
    errors = {}
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = read(path)
            for what, length in (("short", SHORT), ("long", LONG)):
                theirs = golden[f"{path.name} {what}"]
                error = np.abs(logits_of(model, tokens_of(length)) - theirs).max() / np.abs(theirs).max()
                errors[path.name] = max(float(error), errors.get(path.name, 0.0))
            print(path.name, errors[path.name])
    (folder / "errors.json").write_text(json.dumps(errors, indent=2))


def logits(folder: Path) -> None:
    model = read(folder)
    tokens = np.random.RandomState(0).randint(0, model.config.vocab_size, 256)
    np.savez(folder / "logits.npz", tokens=tokens.astype(np.int32), logits=logits_of(model, tokens))


if __name__ == "__main__":
    transformers.utils.logging.disable_progress_bar()
    if sys.argv[1:2] in (["--saved"], ["--logits"]):
        {"--saved": saved, "--logits": logits}[sys.argv[1]](Path(sys.argv[2]))
    else:
        main(*sys.argv[1:])
