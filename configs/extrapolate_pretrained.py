"""A pretrained decoder at many lengths: as it is, under other encodings, and recalibrated without any (DroPE).

    python -m experiments.ablate --config=configs/extrapolate_pretrained.py --checkpoint=Llama-3.2-1B \
        --config.data.name=mine --config.data.files=DIR
    python -m experiments.ablate --config=configs/extrapolate_pretrained.py --checkpoint=Llama-3.2-1B \
        --config.data.files=DIR --variants YaRN "{own} + window(512)"
    python -m experiments.ablate --config=configs/extrapolate_pretrained.py:drope --checkpoint=SmolLM-360M \
        --config.data.files=DIR --config.finetune.loaded.DroPE.steps=2000
    python -m experiments.ablate --config=configs/extrapolate_pretrained.py:longrope --checkpoint=Llama-3.2-1B \
        --config.data.files=DIR --config.search.length=262144
    python -m experiments.ablate --config=configs/extrapolate_pretrained.py --checkpoint=runs/decoder

The folder is one of transformers: config.json, safetensors and tokenizer.json, whose tokens are read. The trained length is
what config.json says (max_position_embeddings), or --config.trained_length.

`:drope` recalibrates too: Gelberg et al. (2025), arXiv 2512.12167, section 4: positions are dropped after training, and
some further training at the trained length, 0.5 to 2 % of its budget there, lets the model do without. log_n keeps
attention as sharp beyond the trained length as within, where it is nothing; the paper scales logits by 1 + c ln(length).

`:longrope` and `:longrope2` search for the factors by which a model's rope is scaled to read search.length tokens best: Ding
et al. (2024), arXiv 2402.13753, by the loss of text, and Shang et al. (2025), arXiv 2502.20082, by that of a needle at the
start (--config.search.task=text, or a retrieval task, for either). The spec found is printed, stands in results.jsonl, and is
read beside the model's own; --variants here and --config.model.encoding elsewhere take it as it is.

Cost: by the model; a step of a fine-tune trains all weights; a search reads its windows as often as there are candidates, at
most population + rounds (mutations + crossovers), some hundred times.
"""

import math
from collections.abc import Callable

from ml_collections import ConfigDict, config_dict

from configs import decoder
from experiments.studies.readings import Layers, Place, Reading, in_layers, longrope, scaled_rope
from posjax.encoding import Encoding
from posjax.models.replacing import is_windowed
from posjax.spec import parse

# What of a search is of the method. The authors of LongRoPE2 have a population of 64 and 40 rounds, on 10 windows.
_SEARCHES = {
    "longrope": dict(task="text", windows=4, population=16, rounds=6, mutations=6, crossovers=6, parents=6),
    "longrope2": dict(task="needle", windows=10, population=16, rounds=6, mutations=12, crossovers=0, parents=6),
}


def get_config(what: str = "") -> ConfigDict:
    config = decoder.get_config()
    del config.seed
    config.name = "extrapolate_pretrained"
    config.title = "A pretrained decoder beyond its training length"
    config.point = "What is left of a decoder beyond its training length, by encoding and by what is done about it?"
    config.notes = (
        "A row is the model as it was loaded, or its weights under another encoding without further training, or after a "
        "short fine-tune. Every length scores the same tokens of the same documents; in sliding windows each of them stands "
        "behind at least half a window."
    )
    config.seeds = (0,)
    config.trained_length = config_dict.placeholder(int)  # None: the length in the checkpoint's config.json
    config.data.positions = "window"
    config.optimizer.warmup_steps = 0  # fine-tunes warm up over a tenth of their steps
    config.optimizer.weight_decay = 0.0
    config.update(eval_every=0, eval_tokens=8193)
    config.encodings = ConfigDict()
    config.variants = ConfigDict({"loaded": variants()}, sort_keys=False)
    config.finetune = ConfigDict()
    if what == "drope":
        config.finetune = ConfigDict({"loaded": drope(steps=200)}, sort_keys=False)
    elif what in _SEARCHES:
        config.variants = ConfigDict({"loaded": {"LongRoPE" + what.removeprefix("longrope"): longrope}})
        config.search = search(what)
    elif what:
        raise ValueError(
            f"there is extrapolate_pretrained.py, alone or with :drope, :longrope or :longrope2, not :{what}"
        )
    config.measures = ConfigDict(sort_keys=False)
    config.measures.lengths = ConfigDict(dict(documents=1, bytes=4096, stride=0.5, batch_tokens=8192))
    config.measures.lengths.lengths = (512, 1024, 2048, 4096)
    config.measures.retrieval = ConfigDict(dict(tasks=("passkey", "needle"), lengths=(512, 1024, 2048)))
    config.measures.retrieval.update(depths=(0.0, 0.25, 0.5, 0.75, 1.0), examples=8, seed=0, batch_tokens=8192)
    return config


def variants() -> ConfigDict:
    """Ways to read any decoder, with any encoding; layers with a window stay as they are."""

    def in_global(change: Callable[[Encoding, Place], str]) -> Reading:
        return in_layers(lambda index, layer: not is_windowed(layer), change)

    return ConfigDict(
        {
            "no positions": in_global(lambda layer, at: "none"),
            "NoPE every 4th": nope_every_4th,
            "window": in_global(lambda layer, at: f"{layer} + window({at.trained // 2})"),
            "sinks": in_global(lambda layer, at: f"{layer} + sinks(num_sinks=4, window={at.trained // 2})"),
            "ReRoPE": in_global(lambda layer, at: f"rerope(window={at.trained // 2}) >> {layer}"),
            "PI": scaled_rope("linear"),
            "NTK": scaled_rope("ntk"),
            "YaRN": scaled_rope("yarn"),
            "Llama 3": scaled_rope("llama3"),
        },
        sort_keys=False,
    )


def nope_every_4th(layers: Layers, at: Place) -> list[Encoding | str]:
    """The layers with every fourth without positions."""
    made = [layers[index % len(layers)] for index in range(math.lcm(4, len(layers)))]
    return [parse("none") if index % 4 == 3 else layer for index, layer in enumerate(made)]


def drope(steps: int) -> ConfigDict:
    """Positions dropped, and a recalibration at the trained length."""

    def tuned(read: Reading) -> dict:
        size = config_dict.placeholder(int)  # None: the trained length
        return dict(read=read, size=size, steps=steps, batch_size=8, learning_rate=1e-4)

    kept = {"DroPE": "none", "DroPE(log_n)": lambda layers, at: f"log_n(original_length={at.trained})"}
    return ConfigDict({label: tuned(read) for label, read in kept.items()}, sort_keys=False)


def search(method: str, length: int = 4096) -> ConfigDict:
    """The options of a search: see experiments/studies/search.py."""
    return ConfigDict(dict(method=method, length=length, split="train", seed=0, **_SEARCHES[method]))
