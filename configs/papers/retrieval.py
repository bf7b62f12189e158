"""Retrieval: which encodings find a pass key, at the length that they were trained at and beyond it.

    python -m experiments.prepare --name=tiny_shakespeare
    python -m experiments.ablate --config=configs/papers/retrieval.py

Pass keys as in Mohtashami and Jaggi (2023), arXiv 2305.16300: a number stands somewhere in a text and is asked for behind it.
Decoders are trained on nothing else, in windows of 128 bytes, and read at up to 8 times that. A flat loss beyond the training
length can come of looking at the nearest bytes only; this tells whether more is seen.

Cost: 45 ms of one CPU core a step and seed: 45 minutes of one core for 5 seeds, 27 for choosing rates; two processes with
NPROC=1, --rows=0/2 and --rows=1/2, share it. In a pilot of one seed RoPE's loss on the keys fell below 0.01 within 1100
steps.

Expected: results/retrieval. On an accelerator override sizes only: --config.model.width=512 --config.model.depth=8
--config.batch_size=64; lengths stay, the claims of results/README.md are about these.
"""

from ml_collections import ConfigDict

from configs import decoder
from experiments.report.claims import CONTROL, Claim, Looked, Question, Source, Table, above, below, rise
from experiments.studies.plan import named

_ROWS = "none sinusoidal rope alibi kerple t5(bidirectional=False) fire fox inkling(extent=128)"


def get_config() -> ConfigDict:
    config = decoder.get_config()
    del config.seed
    config.name = "retrieval"
    config.title = "Pass keys, at the training length and beyond it"
    config.point = "Which encodings learn to fetch a pass key, and still find it beyond the training length?"
    config.page = ConfigDict()
    config.page.says = (
        "At the trained length most encodings learn to fetch a pass key, Inkling and RoPE nearly all of them, and "
        "beyond it RoPE and sinusoidal codes find none. ALiBi, KERPLE and Inkling still find some, but seeds differ "
        "so much that hardly anything is settled."
    )
    config.page.headline = "passkey exact match"
    config.notes = (
        "Bytes of Tiny Shakespeare with a pass key in them; trained on pass keys alone in windows of 128 bytes, in which "
        "positions restart. Accuracy is the share of the key's digits that are found. Each row is trained at the rate with "
        "the least loss on the digits of pass keys in a share of the training text that those runs do not see."
    )
    config.seeds = (0, 1, 2, 3, 4)
    config.tune = ConfigDict(dict(learning_rates=(1e-3, 3e-3, 1e-2), seeds=(100,), share=0.1))
    config.data.update(name="tiny_shakespeare", eval_split="test", length=128, positions="window")
    config.data.retrieval = ConfigDict(dict(share=1.0, weight=10.0, tasks=("passkey",)))
    config.model.update(width=64, depth=2, num_heads=4)
    config.optimizer.update(learning_rate=3e-3, warmup_steps=75)
    config.update(
        steps=1500, batch_size=16, eval_every=0, checkpoint_every=500, eval_lengths=(128,), eval_tokens=16_385
    )
    config.encodings = ConfigDict(named(_ROWS), sort_keys=False)
    config.measures = ConfigDict(sort_keys=False)
    config.measures.lengths = ConfigDict(dict(documents=1, bytes=1024, stride=0.5, batch_tokens=8192))
    config.measures.lengths.lengths = (128, 256, 512, 1024)
    config.measures.retrieval = ConfigDict(dict(tasks=("passkey",), lengths=(128, 256, 512, 1024)))
    config.measures.retrieval.update(depths=(0.0, 0.25, 0.5, 0.75, 1.0), examples=8, seed=0, batch_tokens=8192)
    return config


KAZEMNEJAD = Source("Kazemnejad et al.", 2023, "2305.19466")
FIRE = Source("Li et al.", 2023, "2310.04418")
SANDWICH = Source("Chi et al.", 2022, "2212.10356")
INKLING = Source("Thinking Machines", 2026, elsewhere="the model Inkling, in transformers 5.24")
_KEYS = Table("retrieval", "retrieval", "passkey exact match")
_L, _8L = 128, 1024

CLAIMS = (
    Claim(
        "rope-and-alibi-lose-keys-beyond",
        KAZEMNEJAD,
        "abstract; no number",
        "RoPE, ALiBi and absolute codes retrieve worse beyond the training length.",
        tuple(below(rise(_KEYS, row, _L, _8L)) for row in ("rope", "alibi", "sinusoidal")),
    ),
    Claim(
        "none-finds-further-than-rope",
        KAZEMNEJAD,
        "abstract; no number",
        "Beyond the training length a decoder without an encoding retrieves better than RoPE.",
        (above(_KEYS("none", _8L) - _KEYS("rope", _8L)),),
        doubt="Without an encoding few seeds find keys at the trained length.",
        follow_up=(Looked(_KEYS("none", _L) - _KEYS("rope", _L), f"none - rope at {_L}"),),
    ),
    Claim(
        "fire-finds-further",
        FIRE,
        "abstract, benchmarks of long texts; no number",
        "Beyond the training length FIRE retrieves better than RoPE and ALiBi.",
        tuple(above(_KEYS("fire", _8L) - _KEYS(row, _8L)) for row in ("rope", "alibi")),
    ),
    Claim(
        "alibi-sees-no-further",
        SANDWICH,
        "title, on receptive fields; our own control of the flat loss, no number",
        "ALiBi's flat loss is no sight: far beyond the training length it retrieves worse than at it.",
        (below(rise(_KEYS, "alibi", _L, _8L)),),
        role=CONTROL,
        doubt="Its seeds differ: some find every key at eight times the trained length, others none.",
    ),
    Claim(
        "inkling-finds-further",
        INKLING,
        "our own control; no number",
        "Beyond the training length a relative bias read off the query's token retrieves better than RoPE.",
        (above(_KEYS("inkling", _8L) - _KEYS("rope", _8L)),),
        role=CONTROL,
    ),
)

QUESTIONS = (
    Question(
        "Something to be found in text",
        (_KEYS,),
        "pass keys at the trained length",
        at=_L,
        doubt="One made-up task, on which seeds differ much.",
        column="pass keys, trained length (points)",
        claims=("rope-and-alibi-lose-keys-beyond", "none-finds-further-than-rope"),
    ),
    Question(
        "Something to be found in longer text",
        (_KEYS,),
        "pass keys at four times the trained length",
        at=512,
        doubt="One made-up task, on which seeds differ much.",
        column="pass keys, 4 times it (points)",
        claims=("alibi-sees-no-further", "fire-finds-further"),
    ),
)
