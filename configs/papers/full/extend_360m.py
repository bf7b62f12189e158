"""Ways to extend the context of an open model of 135 to 360 million parameters: DroPE, YaRN, PI and NTK, each tuned as long.

Not run here: it takes accelerators.

    python -m experiments.ablate --config=configs/papers/full/extend_360m.py --checkpoint=SmolLM-360M \
        --config.data.files=FINEWEB_EDU

The checkpoint is a folder of transformers: SmolLM-135M, SmolLM-360M (2,048 tokens), or Gemma 3 270M. FINEWEB_EDU are texts in
parquet, tokenised by the model's own tokenizer; some documents have 8,192 tokens or more.

Gelberg et al. (2025), arXiv 2512.12167, section 4, and SakanaAI's configs: positions are dropped, and SmolLM-360M goes on at
its trained length with a rate of 3e-4. Peng et al. (2023), 2309.00071: YaRN is tuned for 400 steps of 64 rows. Chen et al.
(2023), 2306.15595: PI for 1,000 steps. bloc97 (2023): NTK. Here each of the last three gets 1,000 steps of 64 rows at four
times the trained length (0.5 billion tokens), and DroPE four times as many steps at the trained length: as many tokens.

Cost: 2.5 GFLOP a token at 2,048 tokens and 3.7 at 8,192, 7e18 for four tunings, and a third more as each layer is computed
twice: 8 H100-hours at 35 % of the peak.
Expected: at four times the length DroPE ahead of YaRN, PI and NTK in retrieval (the paper's tables are of needles in a
haystack of other models: order alone), and all of them level in loss at the trained length.
"""

from ml_collections import ConfigDict, config_dict

from configs import extrapolate_pretrained
from experiments.report.claims import Claim, Source, Table, above, below
from experiments.studies.readings import scaled_rope

_TRAINED, _LONG, _STEPS = 2048, 8192, 1000


def get_config() -> ConfigDict:
    config = extrapolate_pretrained.get_config()
    config.name = "extend_360m"
    config.title = "The context of a small open model, extended in four ways with the same tokens"
    config.point = "Which way to extend a trained RoPE is best, where each is tuned on as many tokens?"
    config.page = ConfigDict()
    config.page.says = (
        "DroPE should find more pass keys beyond the trained length than YaRN, PI and NTK. This has not been run: it takes "
        "accelerators."
    )
    config.page.arguments = "--checkpoint=SmolLM-360M --config.data.files=FINEWEB_EDU"
    config.notes = (
        "A row is the model as it was loaded, or its weights under another encoding, without training or after a tuning on "
        "half a billion tokens. Every length scores the same tokens of the same documents; in sliding windows each of them "
        "stands behind at least half a window."
    )
    config.data.name = "fineweb_edu"
    config.model.update(scan=True, remat="full")
    config.update(batch_size=64, accumulate=8)
    config.optimizer.b2 = 0.95
    kept = ("PI", "NTK", "YaRN")
    variants = extrapolate_pretrained.variants()
    config.variants = ConfigDict({"loaded": {name: variants[name] for name in kept}}, sort_keys=False)
    config.finetune = ConfigDict({"loaded": _tunings()}, sort_keys=False)
    config.measures.lengths.update(documents=8, bytes=32_768, batch_tokens=32_768)
    config.measures.lengths.lengths = (_TRAINED, 2 * _TRAINED, _LONG, 2 * _LONG)
    config.measures.retrieval.update(lengths=(_TRAINED, 2 * _TRAINED, _LONG), examples=64)
    return config


def _tunings() -> ConfigDict:
    """Each way on the same tokens: at four times the trained length, or, without positions, at the trained one."""
    trained = config_dict.placeholder(int)  # None: the trained length
    dropped = {"DroPE": dict(read="none", size=trained, steps=4 * _STEPS, batch_size=64, learning_rate=3e-4)}
    longer = dict(size=_LONG, steps=_STEPS, batch_size=64, learning_rate=3e-5)
    scaled = {"PI": "linear", "NTK": "ntk", "YaRN": "yarn"}
    tuned = {f"{label}, tuned": dict(read=scaled_rope(kind), **longer) for label, kind in scaled.items()}
    return ConfigDict(dropped | tuned, sort_keys=False)


DROPE = Source("Gelberg et al.", 2025, "2512.12167")
YARN = Source("Peng et al.", 2023, "2309.00071")
_PASSKEY = Table("extend_360m", "extend_360m", "passkey exact match")
_LOSS = Table("extend_360m", "extend_360m", "loss in sliding windows")

CLAIMS = (
    Claim(
        "drope-finds-more-keys-at-360m",
        DROPE,
        "retrieval beyond the trained length; no number for this task",
        "After as many tokens a model without positions finds more pass keys at four times its length than scaled ropes.",
        tuple(above(_PASSKEY("DroPE", _LONG) - _PASSKEY(f"{row}, tuned", _LONG)) for row in ("PI", "NTK", "YaRN")),
    ),
    Claim(
        "yarn-beats-pi-at-360m",
        YARN,
        "table 1, Proof-pile, beyond the tuned length",
        "Beyond the length of an equal tuning YaRN is ahead of position interpolation.",
        (below(_LOSS("YaRN, tuned", 2 * _LONG) - _LOSS("PI, tuned", 2 * _LONG)),),
        {"perplexity at 10240, YaRN": 6.04, "PI": 8.07},
    ),
)
