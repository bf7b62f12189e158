"""Context extension: what can be done to a trained RoPE, without training and after a short one.

    NPROC=1 python -m experiments.ablate --config=configs/papers/context_extension.py --config.data.files=books_pd

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

from configs import decoder, extrapolate
from experiments.report.claims import CONTROL, Claim, Looked, Question, Source, Table, above, below, within
from experiments.studies.readings import longrope, scaled_rope

_TRAINED, _TARGET = 256, 1024  # bytes; the target is that of tunings and of the search
_SEARCH = dict(length=_TARGET, split="valid", windows=4, population=16, rounds=6, mutations=6, crossovers=6, parents=6)
_SEARCH |= dict(seed=0)


def get_config() -> ConfigDict:
    config = decoder.get_config()
    del config.seed
    config.name = "context_extension"
    config.title = "Context extension of RoPE on books: without training, and after a short tuning"
    config.point = "How far beyond its training length can RoPE be read: rescaled, with fewer keys, or tuned?"
    config.page = ConfigDict()
    config.page.says = (
        "Without any tuning a window, a window with sinks and SelfExtend keep the loss far beyond the trained "
        "length, and YaRN and LongRoPE come close at four times it; PI needs tuning. After a short tuning YaRN "
        "and LongRoPE read four times the trained length as well as RoPE does, and further than the tuned length "
        "nothing rescaled holds."
    )
    config.page.arguments = "--config.data.files=books_pd"
    config.notes = (
        "Bytes. A row is a model trained at 256 bytes, or its weights under another encoding without further training, or "
        f"after a tuning of 300 steps for {_TARGET} bytes. Every length scores the same bytes of the same "
        "documents; in sliding windows each of them stands behind at least half a window. Retrieval: a number of five "
        "digits among sentences that repeat, found where all digits are right."
    )
    config.seeds = (0, 1, 2, 3, 4)
    config.tune = ConfigDict(dict(learning_rates=(1e-3, 3e-3), seeds=(100,), share=0.1))
    config.search = ConfigDict(_SEARCH)

    config.data.update(name="books_pd", eval_split="test", length=_TRAINED, positions="window")
    config.data.retrieval = ConfigDict(dict(first_steps=1500, share=0.25, weight=10.0, tasks=("passkey",)))
    config.model.update(width=64, depth=2, num_heads=4)
    config.optimizer.update(learning_rate=3e-3, warmup_steps=100)
    config.update(
        steps=4500, batch_size=8, eval_every=0, checkpoint_every=600, eval_lengths=(_TRAINED,), eval_tokens=32_769
    )

    config.encodings = ConfigDict({"rope": "rope"})
    config.variants = ConfigDict({"rope": _variants()}, sort_keys=False)
    config.finetune = ConfigDict({"rope": _finetunes()}, sort_keys=False)
    config.measures = ConfigDict(sort_keys=False)
    config.measures.lengths = ConfigDict(dict(documents=1, bytes=8192, stride=0.5, batch_tokens=8192))
    config.measures.lengths.lengths = (256, 512, 1024, 2048, 4096, 8192)
    config.measures.retrieval = ConfigDict(dict(tasks=("passkey",), lengths=(256, 512, 1024, 2048)))
    config.measures.retrieval.update(depths=(0.0, 0.25, 0.5, 0.75, 1.0), examples=8, seed=0, batch_tokens=8192)
    return config


def _variants() -> ConfigDict:
    """Ways to extend the rope without training."""
    known = extrapolate.rope_variants()
    kept = ("PI", "NTK", "YaRN", "Llama 3", "SelfExtend", "streaming")
    variants = {name: known[name] for name in kept}
    # The window of streaming.
    variants["window"] = lambda layers, at: f"rope() + window({at.trained // 2})"
    variants["dynamic NTK"] = lambda layers, at: f"rope(scaling=dynamic_ntk(factor=4, original_length={at.trained}))"
    variants["LongRoPE"] = longrope
    return ConfigDict(variants, sort_keys=False)


def _finetunes() -> ConfigDict:
    """Tunings on windows of the target length, and the bytes a step of training: two rows, one of them retrieval."""
    readings = {
        "rope, tuned": "rope",
        "PI, tuned": scaled_rope("linear"),
        "YaRN, tuned": scaled_rope("yarn"),
        "LongRoPE, tuned": longrope,
    }
    how = dict(size=_TARGET, steps=300, learning_rate=1e-3, retrieval_share=0.5)
    return ConfigDict({label: dict(read=read, **how) for label, read in readings.items()}, sort_keys=False)


PI = Source("Chen et al.", 2023, "2306.15595")
YARN = Source("Peng et al.", 2023, "2309.00071")
LONGROPE = Source("Ding et al.", 2024, "2402.13753")
SELF_EXTEND = Source("Jin et al.", 2024, "2401.01325")
SINKS = Source("Xiao et al.", 2023, "2309.17453")
_FLAT = 0.02  # nats: a loss that rises by no more over all lengths is called flat
_FREE = 0.005  # nats: what costs no more is called free
_EXTENDED = Table("context_extension", "context_extension", "loss in sliding windows")
_PASSKEY = Table("context_extension", "context_extension", "passkey exact match")
_BEYOND, _FAR = 2048, 8192

CLAIMS = (
    Claim(
        "pi-untuned-beats-extrapolation",
        PI,
        "table 1, PG-19",
        "Position interpolation reads beyond the trained length better than extrapolation, even without any tuning.",
        (below(_EXTENDED("PI", _TARGET) - _EXTENDED("rope", _TARGET)),),
        {"perplexity at 8192, PI untuned": 16.10, "extrapolated, above": 1000.0},
    ),
    Claim(
        "pi-tuned-keeps-loss",
        PI,
        "table 1, PG-19",
        "After a short tuning position interpolation reads a longer context with no more loss than RoPE, tuned for as long, "
        "has at the trained length.",
        (below(_EXTENDED("PI, tuned", _TARGET) - _EXTENDED("rope, tuned", _TRAINED), _FLAT),),
        {"perplexity at 2048, as trained": 7.20, "at 8192, tuned PI": 6.95},
        tried="What the same tuning costs at the trained length (pi-tuned-beats-tuning-alone).",
        remains="How long a tuning brings the loss of the trained length back.",
        follow_up=(
            Looked(_EXTENDED("PI, tuned", _TARGET) - _EXTENDED("rope", _TRAINED), "less RoPE as it was trained"),
        ),
    ),
    Claim(
        "pi-tuned-beats-tuning-alone",
        PI,
        "table 1, PG-19",
        "Tuning with position interpolation is ahead of the same tuning without it.",
        (below(_EXTENDED("PI, tuned", _TARGET) - _EXTENDED("rope, tuned", _TARGET)),),
        {"perplexity at 8192, PI": 6.95, "tuning alone": 7.69},
        tried="Whether it is the length that costs, or the finer positions that a short tuning has not brought back: the "
        "same difference at the trained length, and beyond the tuned one.",
        remains="Longer tunings, and bases trained so long that positions beyond the trained ones are as foreign as the "
        "paper's.",
        follow_up=tuple(
            Looked(_EXTENDED("PI, tuned", length) - _EXTENDED("rope, tuned", length), f"PI - tuning alone at {length}")
            for length in (_TRAINED, _BEYOND)
        ),
    ),
    Claim(
        "pi-tuned-finds-passkeys",
        PI,
        "pass keys, the farthest found after 200 steps",
        "Tuned with position interpolation a model finds more pass keys in the longer context than tuned without.",
        (above(_PASSKEY("PI, tuned", _TARGET) - _PASSKEY("rope, tuned", _TARGET)),),
        {"tokens, PI": 8192, "tuning alone": 1792},
        tried="How many keys each finds at the trained length.",
        follow_up=(Looked(_PASSKEY("PI, tuned", _TRAINED) - _PASSKEY("rope, tuned", _TRAINED), f"at {_TRAINED}"),),
        remains="Larger models, which have frequencies to spare, and longer tunings.",
    ),
    Claim(
        "ntk-beats-pi-untuned",
        YARN,
        "motivation of NTK-aware scaling; no number",
        "NTK-aware scaling is ahead of position interpolation without any tuning.",
        (below(_EXTENDED("NTK", _TARGET) - _EXTENDED("PI", _TARGET)),),
    ),
    Claim(
        "yarn-beats-ntk-untuned",
        YARN,
        "motivation of YaRN; no number",
        "YaRN is ahead of NTK-aware scaling without any tuning.",
        (below(_EXTENDED("YaRN", _TARGET) - _EXTENDED("NTK", _TARGET)),),
    ),
    Claim(
        "yarn-beats-pi-beyond-tuning",
        YARN,
        "table 1, Proof-pile, beyond the tuned length",
        "Beyond the length of an equal tuning YaRN is ahead of position interpolation.",
        (below(_EXTENDED("YaRN, tuned", _BEYOND) - _EXTENDED("PI, tuned", _BEYOND)),),
        {"perplexity at 10240, YaRN": 6.04, "PI": 8.07},
    ),
    Claim(
        "yarn-ties-pi-at-tuning",
        YARN,
        "table 1, Proof-pile, at the tuned length",
        "At the length of an equal tuning YaRN and position interpolation are alike (a tie, exploratory).",
        (within(_EXTENDED("YaRN, tuned", _TARGET) - _EXTENDED("PI, tuned", _TARGET), _FLAT),),
        {"perplexity at 8192, YaRN": 3.35, "PI": 3.34},
        tried="Whether they differ at the trained length too, where nothing is read further.",
        remains="Whether they meet after longer tunings.",
        follow_up=(
            Looked(_EXTENDED("YaRN, tuned", _TRAINED) - _EXTENDED("PI, tuned", _TRAINED), "at the trained length"),
        ),
    ),
    Claim(
        "dynamic-ntk-free-at-trained-length",
        YARN,
        "dynamic scaling; no number",
        "Dynamic scaling costs nothing at the trained length, where tuned position interpolation does.",
        (
            within(_EXTENDED("dynamic NTK", _TRAINED) - _EXTENDED("rope", _TRAINED), _FREE),
            above(_EXTENDED("PI, tuned", _TRAINED) - _EXTENDED("rope, tuned", _TRAINED)),
        ),
        doubt="Its first half is so by construction: within the trained length nothing is scaled.",
    ),
    Claim(
        "longrope-search-wins",
        LONGROPE,
        "table 1, PG-19, four times the trained length",
        "Searched factors are ahead of position interpolation, dynamic NTK and YaRN without any tuning.",
        tuple(below(_EXTENDED("LongRoPE", _TARGET) - _EXTENDED(row, _TARGET)) for row in ("PI", "dynamic NTK", "YaRN")),
        {"perplexity at 16384, searched": 11.34, "PI": 20.49, "dynamic NTK": 23.29, "YaRN": 87.89},
    ),
    Claim(
        "self-extend-reads-on",
        SELF_EXTEND,
        "title, without tuning; no number",
        "SelfExtend reads beyond the trained length better than extrapolation, without any tuning.",
        (below(_EXTENDED("SelfExtend", _TARGET) - _EXTENDED("rope", _TARGET)),),
    ),
    Claim(
        "self-extend-finds-passkeys",
        SELF_EXTEND,
        "title, without tuning; no number",
        "SelfExtend finds more pass keys beyond the trained length than extrapolation, without any tuning.",
        (above(_PASSKEY("SelfExtend", _TARGET) - _PASSKEY("rope", _TARGET)),),
    ),
    Claim(
        "windows-need-sinks",
        SINKS,
        "abstract; no number",
        "Far beyond the trained length a sliding window is behind one that keeps the first tokens too, near by.",
        (above(_EXTENDED("window", _FAR) - _EXTENDED("streaming", _FAR)),),
    ),
    Claim(
        "windows-do-not-retrieve",
        SINKS,
        "our own control; no number",
        "A window reads on without finding what lies beyond it: SelfExtend finds more pass keys.",
        (above(_PASSKEY("SelfExtend", _TARGET) - _PASSKEY("window", _TARGET)),),
        role=CONTROL,
    ),
)

QUESTIONS = (
    Question(
        "A trained RoPE to be read further",
        (_EXTENDED,),
        "loss at four times the trained length",
        at=_TARGET,
        doubt="A window keeps the loss because it forgets: it cannot retrieve what lies beyond it.",
        reference="rope",
        claims=(
            "yarn-beats-ntk-untuned",
            "longrope-search-wins",
            "self-extend-reads-on",
            "pi-tuned-keeps-loss",
            "windows-need-sinks",
        ),
    ),
    Question(
        "A trained RoPE that is to find things further",
        (_PASSKEY,),
        "pass keys at four times the trained length",
        at=_TARGET,
        doubt="Five digits in repeated sentences; seeds differ much.",
        reference="rope",
        main=False,
        claims=("self-extend-finds-passkeys", "windows-do-not-retrieve", "pi-tuned-finds-passkeys"),
    ),
)
