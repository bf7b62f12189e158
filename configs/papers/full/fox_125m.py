"""The Forgetting Transformer at 125 million parameters on rows of 16,384 tokens: which encoding uses a long context?

Not run here: it takes accelerators.

    python -m experiments.ablate --config=configs/papers/full/fox_125m.py --config.data.files=DOCUMENTS \
        --config.data.tokenizer=TOKENIZER

DOCUMENTS is a folder of texts of 16,384 tokens or more, TOKENIZER a tokenizer.json. The paper's texts are LongCrawl64
(gs://longcrawl64, 800 GB); PG-19 or the long documents of FineWeb-Edu stand in for it. experiments.prepare makes tokens of
them once.

Lin et al. (2025), arXiv 2503.02130, and the configs of zhixuan-lin/forgetting-transformer: 12 layers of 768 channels and 12
heads, 32 rows a step, 5,120 steps (2.7 billion tokens), AdamW at 2e-3 (0.9, 0.95) with decay 0.1, warm-up over 256 Mi tokens,
cosine to 0. Their baseline is RoPE with base 500,000 in Llama's blocks. Here all rows have those blocks; the paper's "Pro"
blocks (output gates, short convolutions, norms of queries and keys) are not there.

Cost: 0.74 GFLOP a token for products with weights and 0.91 for causal attention, 4.8e18 a training, 5 rows of one seed: 19
H100-hours at 35 % of the peak.
Expected: the paper's curves of the loss by position (figures, no table): FoX falls to the end of the context and beyond it,
RoPE's loss rises beyond.
"""

from ml_collections import ConfigDict

from configs import decoder
from experiments.report.claims import Claim, Source, Table, below

_ENCODINGS = {"none": "none", "rope": "rope(base=500000)", "alibi": "alibi", "fox": "fox", "path": "path"}
_LENGTH = 16_384


def get_config() -> ConfigDict:
    config = decoder.get_config("llama")
    del config.seed
    config.name = "fox_125m"
    config.title = "The Forgetting Transformer beside RoPE, ALiBi and PaTH at 125 million parameters"
    config.point = "Which encoding uses a context of 16,384 tokens, and which reads beyond it (Lin et al. 2025)?"
    config.page = ConfigDict()
    config.page.says = (
        "FoX should have the lowest loss at the trained length, and alone keep it beyond. This has not been run: it takes "
        "accelerators."
    )
    config.page.arguments = "--config.data.files=DOCUMENTS --config.data.tokenizer=TOKENIZER"
    config.notes = (
        "Every length scores the same tokens of the same documents; in sliding windows each of them stands behind at least "
        "half a window. The loss by position is that of whole windows."
    )
    config.seeds = (0,)

    config.data.update(name="long_documents", eval_split="test", length=_LENGTH, positions="window")
    config.model.update(width=768, depth=12, num_heads=12, dtype="bfloat16", scan=True)
    config.optimizer.update(learning_rate=2e-3, b2=0.95)
    config.steps = 5120
    config.optimizer.warmup_steps = 512  # 256 Mi tokens
    config.update(
        batch_size=32, accumulate=4, eval_every=0, eval_lengths=(_LENGTH,), eval_batch_size=2, checkpoint_every=512
    )
    config.encodings = ConfigDict(_ENCODINGS, sort_keys=False)
    config.measures = ConfigDict()
    config.measures.lengths = ConfigDict(dict(documents=8, bytes=65_536, stride=0.5, batch_tokens=65_536))
    config.measures.lengths.lengths = (2048, 4096, 8192, _LENGTH, 2 * _LENGTH, 4 * _LENGTH)
    return config


FOX = Source("Lin et al.", 2025, "2503.02130")
_LOSS = Table("fox_125m", "fox_125m", "loss in sliding windows")

CLAIMS = (
    Claim(
        "fox-ahead-at-125m",
        FOX,
        "figures of the loss by position, 125M to 760M; no number",
        "At the trained length a forgetting transformer has a lower loss than RoPE and ALiBi.",
        tuple(below(_LOSS("fox", _LENGTH) - _LOSS(row, _LENGTH)) for row in ("rope", "alibi")),
    ),
    Claim(
        "fox-keeps-its-loss-beyond",
        FOX,
        "figures of the loss by position beyond the trained length; no number",
        "At four times the trained length a forgetting transformer has no more loss than at it.",
        (below(_LOSS("fox", 4 * _LENGTH) - _LOSS("fox", _LENGTH), 0.01),),
    ),
)
