"""Context extension: what can be done to a trained RoPE, without training and after a short one.

    NPROC=1 python -m experiments.extrapolate --config=configs/papers/context_extension.py --config.data.files=books_pd

Trained at 256 bytes, read at up to 32 times that. PI: Chen et al. (2023), arXiv 2306.15595; NTK and dynamic NTK: bloc97 and
emozilla (2023); YaRN: Peng et al. (2023), 2309.00071; LongRoPE and its search: Ding et al. (2024), 2402.13753; Llama 3;
SelfExtend: Jin et al. (2024), 2401.01325; windows and sinks: Xiao et al. (2023), 2309.17453. Scalings are given the factor
of each length; dynamic NTK, which with a factor of 1 is NTK, has the factor 4 here; LongRoPE's factors are searched for once,
at 1024 bytes, on text that is neither trained on nor reported.

Retrieval is learned alone first, then among text: a model this small does not learn it from the mixture. Heads have 16
channels, 8 frequencies: with 8 of them there would be 4 to scale. No row has ALiBi, which would ask for more heads.

A step of tuning has two rows, one of them retrieval: tuned on text alone, the model unlearns it. A rate of 1e-2 has as good a
loss of text and does not learn retrieval: it is not among those tried.

Cost: about an hour of one CPU core: 4500 steps at 45 ms a seed, with 2 points to choose the rate by, 1200 steps of tuning at
some 90 ms, and a minute or so to read each of the 14 rows. All rows have one base, so that --rows cannot share it.
Expected: results/context_extension. On an accelerator override sizes only: --config.model.width=512
--config.model.num_heads=8 --config.model.depth=8 --config.batch_size=64 --config.steps=20000
--config.data.retrieval.first_steps=5000
"""

from ml_collections import ConfigDict

from configs import extrapolate

# Perplexity of PG-19, Llama-2-7B without tuning, at 8192 and 16384 tokens: table 1 of the LongRoPE paper.
_LONGROPE_TABLE_1 = {
    "PI": {"8192": 10.65, "16384": 20.49},
    "dynamic NTK": {"8192": 10.21, "16384": 23.29},
    "YaRN": {"8192": 32.64, "16384": 87.89},
    "LongRoPE": {"8192": 9.37, "16384": 11.34},
}
# Perplexity of Llama-2-7B, of 4096 tokens, tuned for 8192, by length: table 1 of the YaRN paper.
_YARN_TABLE_1 = {
    "PI, tuned": {"2048": 3.92, "4096": 3.51, "6144": 3.51, "8192": 3.34, "10240": 8.07},
    "NTK, tuned": {"2048": 4.20, "4096": 3.75, "6144": 3.74, "8192": 3.59, "10240": 6.24},
    "YaRN, tuned": {"2048": 3.91, "4096": 3.50, "6144": 3.51, "8192": 3.35, "10240": 6.04},
}
_TRAINED, _TARGET = 256, 1024  # bytes; the target is that of tunings and of the search
_SEARCH = dict(length=_TARGET, split="valid", windows=4, population=16, rounds=6, mutations=6, crossovers=6, parents=6)
_SEARCH |= dict(seed=0)


def get_config() -> ConfigDict:
    config = extrapolate.get_config()
    config.name = "context_extension"
    config.title = "Context extension of RoPE on books: without training, and after a short tuning"
    config.point = "How far beyond its training length can RoPE be read: rescaled, with fewer keys, or tuned?"
    config.notes = (
        "Bytes. A row is a model trained at 256 bytes, or its weights under another encoding without further training, or "
        f"after a tuning of 300 steps for {_TARGET} bytes. Every length scores the same bytes of the same "
        "documents; in sliding windows each of them stands behind at least half a window. Retrieval: a number of five "
        "digits among sentences that repeat, found where all digits are right."
    )
    config.seeds = (0, 1, 2, 3, 4)
    config.tune = ConfigDict(dict(learning_rates=(1e-3, 3e-3), seeds=(100,), share=0.1))
    config.search = ConfigDict(_SEARCH)

    config.data.name = "books_pd"
    config.data.eval_split = "test"
    config.data.length = _TRAINED
    config.data.retrieval.first_steps = 1500
    config.data.retrieval.share = 0.25
    config.data.retrieval.tasks = ("passkey",)
    config.model.num_heads = 4
    config.steps = 4500
    config.optimizer.warmup_steps = 100
    config.batch_size = 8
    config.checkpoint_every = 600
    config.eval_lengths = (_TRAINED,)
    config.eval_tokens = 32_769

    config.encodings = ConfigDict({"rope": "rope"})
    config.variants = ConfigDict({"rope": _variants()}, sort_keys=False)
    config.finetune = ConfigDict({"rope": _finetunes()}, sort_keys=False)
    config.paper = ConfigDict(
        {
            "source": "Ding et al. (2024), arXiv 2402.13753, table 1; Peng et al. (2023), arXiv 2309.00071, table 1",
            "zero_shot": _LONGROPE_TABLE_1,
            "tuned": _YARN_TABLE_1,
        },
        sort_keys=False,
    )

    config.evaluation.documents = 1
    config.evaluation.bytes = 8192
    config.evaluation.lengths = (256, 512, 1024, 2048, 4096, 8192)
    config.evaluation.batch_tokens = 8192
    config.retrieval.tasks = ("passkey",)
    config.retrieval.lengths = (256, 512, 1024, 2048)
    config.retrieval.examples = 8
    return config


def _variants() -> ConfigDict:
    """What is done without training; in braces: see experiments/studies/extrapolation.py."""
    known = extrapolate.rope_variants()
    kept = ("PI", "NTK", "YaRN", "Llama 3", "SelfExtend", "streaming")
    variants = {name: known[name] for name in kept}
    variants["window"] = "rope() + window({trained/2})"  # as many tokens as streaming sees beside its sinks
    variants["dynamic NTK"] = "rope(scaling=dynamic_ntk(factor=4, original_length={trained}))"
    variants["LongRoPE"] = _longrope()
    return ConfigDict(variants, sort_keys=False)


def _finetunes() -> ConfigDict:
    """Tunings on windows of the target length, as many bytes a step as in training: two rows, of which one is retrieval."""
    specs = {
        "rope, tuned": "rope",
        "PI, tuned": "rope(scaling=linear(factor={factor}))",
        "YaRN, tuned": "rope(scaling=yarn(factor={factor}, original_length={trained}))",
        "LongRoPE, tuned": _longrope(),
    }
    how = dict(target=_TARGET, length=_TARGET, steps=300, learning_rate=1e-3, retrieval_share=0.5)
    return ConfigDict({label: dict(spec=spec, **how) for label, spec in specs.items()}, sort_keys=False)


def _longrope() -> str:
    """Within the trained length frequencies are as trained; queries and keys are scaled at any length."""
    factors = "short_factor={ones}, long_factor={searched}"
    return f"rope(scaling=longrope({factors}, factor={_TARGET // _TRAINED}, original_length={{trained}}))"
