"""A pretrained decoder at many lengths: as it is, under other encodings, and recalibrated without any (DroPE).

    python -m experiments.extrapolate --config=configs/extrapolate_pretrained.py --checkpoint=Llama-3.2-1B \
        --config.data.name=mine --config.data.files=DIR
    python -m experiments.extrapolate --config=configs/extrapolate_pretrained.py --checkpoint=Llama-3.2-1B \
        --config.data.files=DIR --config.encoding="rope(scaling=yarn(factor={factor}, original_length={trained}))"
    python -m experiments.extrapolate --config=configs/extrapolate_pretrained.py:drope --checkpoint=SmolLM-360M \
        --config.data.files=DIR --config.finetune.loaded.DroPE.steps=2000
    python -m experiments.extrapolate --config=configs/extrapolate_pretrained.py:longrope --checkpoint=Llama-3.2-1B \
        --config.data.files=DIR --config.search.length=262144
    python -m experiments.extrapolate --config=configs/extrapolate_pretrained.py --checkpoint=runs/decoder

The folder is one of transformers: config.json, safetensors and tokenizer.json, whose tokens are read. In encodings {own} is
the model's, and {base} and other braces are those of configs/extrapolate.py. The trained length is what config.json says
(max_position_embeddings), or --config.trained_length.

`:drope` recalibrates too: Gelberg et al. (2025), arXiv 2512.12167, section 4: positions are dropped after training, and
some further training at the trained length, 0.5 to 2 % of its budget there, lets the model do without. log_n keeps
attention as sharp beyond the trained length as within, where it is nothing; the paper scales logits by 1 + c ln(length).

`:longrope` and `:longrope2` search for the factors by which a model's rope is scaled to read search.length tokens best: Ding
et al. (2024), arXiv 2402.13753, by the loss of text, and Shang et al. (2025), arXiv 2502.20082, by that of a needle at the
start (--config.search.task=text, or a retrieval task, for either). The spec found is printed, stands in results.jsonl, and is
read beside the model's own; --config.encoding here and --config.model.encoding elsewhere take it as it is.

Cost: by the model; a step of a fine-tune trains all weights; a search reads its windows as often as there are candidates, at
most population + rounds (mutations + crossovers), some hundred times.
"""

from ml_collections import ConfigDict, config_dict

from configs import extrapolate

# What of a search is of the method. The authors of LongRoPE2 have a population of 64 and 40 rounds, on 10 windows.
_SEARCHES = {
    "longrope": dict(task="text", windows=4, population=16, rounds=6, mutations=6, crossovers=6, parents=6),
    "longrope2": dict(task="needle", windows=10, population=16, rounds=6, mutations=12, crossovers=0, parents=6),
}


def get_config(what: str = "") -> ConfigDict:
    config = extrapolate.get_config()
    config.name = "extrapolate_pretrained"
    config.title = "A pretrained decoder beyond its training length"
    config.notes = (
        "A row is the model as it was loaded, or its weights under another encoding without further training, or after a "
        "short fine-tune. Every length scores the same tokens of the same documents; in sliding windows each of them stands "
        "behind at least half a window."
    )
    config.encodings = ConfigDict()
    config.variants = ConfigDict({"loaded": variants()}, sort_keys=False)
    config.finetune = ConfigDict()
    if what == "drope":
        config.finetune = ConfigDict({"loaded": drope(steps=200)}, sort_keys=False)
    elif what in _SEARCHES:
        config.variants = ConfigDict({"loaded": {"LongRoPE" + what.removeprefix("longrope"): "{longrope}"}})
        config.search = search(what)
    elif what:
        raise ValueError(
            f"there is extrapolate_pretrained.py, alone or with :drope, :longrope or :longrope2, not :{what}"
        )
    config.optimizer.warmup_steps = 0  # fine-tunes warm up over a tenth of their steps
    config.optimizer.weight_decay = 0.0
    config.evaluation.bytes = 4096
    config.evaluation.lengths = (512, 1024, 2048, 4096)
    config.retrieval.tasks = ("passkey", "needle")
    config.retrieval.lengths = (512, 1024, 2048)
    return config


def variants() -> ConfigDict:
    """What can be done to any decoder, whatever encodes its positions."""
    return ConfigDict(
        {
            "no positions": "none",
            "NoPE every 4th": "{own}, {own}, {own}, none",
            "window": "{own} + window({trained/2})",
            "sinks": "{own} + sinks(num_sinks=4, window={trained/2})",
            "ReRoPE": "rerope(window={trained/2}) >> {own}",
        },
        sort_keys=False,
    )


def drope(steps: int) -> ConfigDict:
    """Positions dropped, and a recalibration at the trained length."""

    def tuned(spec: str) -> ConfigDict:
        lengths = dict(
            target=config_dict.placeholder(int), length=config_dict.placeholder(int)
        )  # None: the trained one
        return ConfigDict(dict(spec=spec, **lengths, steps=steps, batch_size=8, learning_rate=1e-4))

    return ConfigDict(
        {"DroPE": tuned("none"), "DroPE(log_n)": tuned("log_n(original_length={trained})")}, sort_keys=False
    )


def search(method: str, length: int = 4096) -> ConfigDict:
    """What is searched for, at which length and on what: see experiments/studies/search.py."""
    return ConfigDict(dict(method=method, length=length, split="train", seed=0, **_SEARCHES[method]))
