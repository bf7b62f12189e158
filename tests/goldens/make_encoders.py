"""Golden outputs of encoders as transformers computes them, from weights made by name:

    /tmp/goldens/bin/python tests/goldens/make_encoders.py

encoders.npz holds, for each setting of encoder_settings.py, the configuration, the names and shapes of the tensors in the
folder that transformers saved, and outputs in float32 of a short and of a long line of tokens: features, logits, and of
BERT what its pooler and the head for pairs make. T5 reads the long line and writes the short and the long one.
"""

import json
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
import transformers
from encoder_settings import LONG, SETTINGS, SHORT, UNTIED, VOCABULARY
from pretrained_weights import made
from safetensors import safe_open
from safetensors.torch import save_file

FILE = Path(__file__).parent / "encoders.npz"


def remade(case: str, folder: Path):
    """The model of a setting with tensors made of their names; the names and the configuration of its folder."""
    kind, config_kind, fields = SETTINGS[case]
    model = getattr(transformers, kind)(getattr(transformers, config_kind)(**fields))
    model.save_pretrained(folder)
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        names = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    if case in UNTIED:
        names[UNTIED[case]] = (fields["vocab_size"], fields["d_model"])
    tensors = {name: torch.from_numpy(made(name, shape)) for name, shape in names.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return read(kind, folder), names, json.loads((folder / "config.json").read_text())


def read(kind: str, folder: Path):
    """A folder's model; nothing of it may be missing, left over or of another shape."""
    told = dict(attn_implementation="eager") if "Deberta" not in kind else {}
    model, info = getattr(transformers, kind).from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True, **told
    )
    if wrong := {what: names for what, names in info.items() if names}:
        raise ValueError(f"{folder}: {wrong}")
    return model.eval()


def tokens_of(length: int) -> np.ndarray:
    """None of them is the token of padding, by which RoBERTa counts its positions."""
    return np.random.RandomState(0).randint(3, VOCABULARY, LONG)[:length]


def types_of(length: int, count: int) -> np.ndarray:
    """The types of tokens, the first and the second half."""
    return (np.arange(length) * count // max(length, 1)).astype(np.int64)


@torch.no_grad()
def outputs_of(model, length: int) -> dict[str, np.ndarray]:
    tokens = torch.from_numpy(tokens_of(length))[None]
    if model.config.is_encoder_decoder:
        source = torch.from_numpy(tokens_of(LONG))[None]
        out = model(input_ids=source, decoder_input_ids=tokens.flip(1), use_cache=False)
        return {"features": out.encoder_last_hidden_state[0].numpy(), "logits": out.logits[0].numpy()}
    told = {}
    if count := getattr(model.config, "type_vocab_size", 0):
        told["token_type_ids"] = torch.from_numpy(types_of(length, count))[None]
    out = model(tokens, output_hidden_states=True, **told)
    found = {"features": getattr(model, model.base_model_prefix, model)(tokens, **told).last_hidden_state[0]}
    for ours, theirs in (
        ("logits", "logits"),
        ("logits", "prediction_logits"),
        ("pairs", "seq_relationship_logits"),
        ("pooled", "pooler_output"),
    ):
        if getattr(out, theirs, None) is not None:
            found[ours] = getattr(out, theirs)[0]
    return {name: array.numpy() for name, array in found.items()}


def main() -> None:
    told, arrays = {}, {}
    for case in SETTINGS:
        torch.manual_seed(0)
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, names, config = remade(case, Path(folder))
            told[case] = dict(config=config, names=names)
            for what, length in (("short", SHORT), ("long", LONG)):
                arrays |= {f"{case} {what} {name}": array for name, array in outputs_of(model, length).items()}
        print(case, {name: array.shape for name, array in arrays.items() if name.startswith(f"{case} long")})
    versions = [f"{module.__name__} {module.__version__}" for module in (torch, transformers)]
    np.savez_compressed(FILE, json=json.dumps({"versions": versions, **told}), **arrays)


if __name__ == "__main__":
    transformers.utils.logging.disable_progress_bar()
    main()
