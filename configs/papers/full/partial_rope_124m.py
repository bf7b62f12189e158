"""How many of RoPE's frequencies does a language model need? GPT-2's size on 2.5 billion tokens of FineWeb, three seeds.

Not run here: it takes accelerators.

    python -m experiments.ablate --config=configs/papers/full/partial_rope_124m.py --config.data.files=FINEWEB

FINEWEB is a folder with fineweb_val_000000.bin and fineweb_train_000001.bin to 000025.bin, which karpathy/llm.c's
dev/data/fineweb.py makes: 100 million tokens of GPT-2's vocabulary each, behind a header of 1,024 bytes.

No series of shares is published at this size. What is: Barbero et al. (2024), arXiv 2410.06205, table 2, Gemma of 2 billion
parameters: perplexity 4.859 without positions, 4.530 with a quarter of the frequencies, 4.441 with three quarters, 4.463 with
all. Khan (2026), arXiv 2603.11611: a tenth of the channels is enough. nanochat's notes: a quarter is slightly worse.
p_rope(proportion) stills the lowest frequencies; rope(fraction) turns the first channels through all of them.

Cost: 0.80 GFLOP a token, 2.0e18 a training, 9 rows of 3 seeds: 43 H100-hours at 35 % of the peak (989 TFLOP/s). The seeds of
a row train at once, in 32 parts of a batch, which fit eight TPU v5e; on eight H100s 8 parts do: --config.accumulate=8.
Expected: 3.28 nats a token with all of RoPE (modded-nanogpt's reference at as many tokens is that, on other weights); seeds
differ by about 0.0013, so three of them tell rows 0.005 apart.
"""

from ml_collections import ConfigDict

from configs import decoder
from experiments.report.claims import Claim, Source, Table, above, below, within

_ENCODINGS = {
    "none": "none",
    "rope": "rope",
    "p_rope 1/10": "p_rope(proportion=0.1)",
    "p_rope 1/4": "p_rope(proportion=0.25)",
    "p_rope 1/2": "p_rope(proportion=0.5)",
    "p_rope 3/4": "p_rope(proportion=0.75)",
    "fraction 1/8": "rope(fraction=0.125)",
    "fraction 1/4": "rope(fraction=0.25)",
    "fraction 1/2": "rope(fraction=0.5)",
}


def get_config() -> ConfigDict:
    config = decoder.get_config()
    del config.seed
    config.name = "partial_rope_124m"
    config.title = "How many frequencies of RoPE: GPT-2's size on FineWeb"
    config.point = (
        "Which share of RoPE's frequencies, or of the channels, does a decoder of 124 million parameters need?"
    )
    config.page = ConfigDict()
    config.page.says = (
        "Half of the frequencies should do as well as all of them. This has not been run: it takes accelerators."
    )
    config.page.arguments = "--config.data.files=FINEWEB"
    config.page.deviations = True
    config.notes = (
        "Tokens of GPT-2's vocabulary, rows of 1,024 across documents. p_rope: so large a share of the 32 frequencies of a "
        "head, the fastest ones, turns. fraction: so large a share of its 64 channels turns, by frequencies from the fastest "
        "to the slowest. The loss is that of the first 10,485,760 tokens of the validation shard."
    )
    config.seeds = (0, 1, 2)

    config.data.update(name="fineweb", length=1024, positions="stream")
    config.model.vocab_size = 50_304  # 50,257 tokens in whole tiles
    config.model.update(width=768, depth=12, num_heads=12, dtype="bfloat16", scan=True)
    config.optimizer.update(learning_rate=1.8e-3, b2=0.95)
    config.steps = 4768  # 2.5 billion tokens
    config.optimizer.warmup_steps = 256
    config.batch_size = 512  # 524,288 tokens
    config.accumulate = 32  # parts of a batch
    config.update(eval_every=0, eval_lengths=(1024,), eval_tokens=10_485_761, checkpoint_every=500)
    config.encodings = ConfigDict(_ENCODINGS, sort_keys=False)
    return config


P_ROPE = Source("Barbero et al.", 2024, "2410.06205")
PARTIAL = Source("Khan", 2026, "2603.11611")
_LOSS = Table("partial_rope_124m", "partial_rope_124m", "loss")
_TIE = 0.005  # nats: what three seeds tell apart


def _lead(row: str, other: str):
    return _LOSS(row, 1024) - _LOSS(other, 1024)


CLAIMS = (
    Claim(
        "p-rope-ahead-at-124m",
        P_ROPE,
        "table 2, Gemma-2B from scratch",
        "RoPE without its lowest frequencies has a slightly lower loss, with 124 million parameters too.",
        (below(_lead("p_rope 3/4", "rope")),),
        {"perplexity, RoPE": 4.463, "three quarters of RoPE": 4.441},
    ),
    Claim(
        "a-quarter-of-rope-costs",
        P_ROPE,
        "table 2, Gemma-2B from scratch",
        "A quarter of RoPE's frequencies has a higher loss than all of them, and a lower one than none.",
        (above(_lead("p_rope 1/4", "rope")), below(_lead("p_rope 1/4", "none"))),
        {"perplexity, a quarter": 4.530, "RoPE": 4.463, "none": 4.859},
    ),
    Claim(
        "a-tenth-of-the-channels-is-enough",
        PARTIAL,
        "abstract; no number at this size",
        "A decoder that turns an eighth of its channels has the loss of one that turns them all.",
        (within(_lead("fraction 1/8", "rope"), _TIE),),
    ),
)
