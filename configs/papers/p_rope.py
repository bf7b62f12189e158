"""p-RoPE (Barbero et al. 2024): does a decoder gain where its lowest frequencies do not turn?

Not run here: a difference of 0.005 nats takes an accelerator.

    python -m experiments.ablate --config=configs/papers/p_rope.py --config.studies.books.data.files=books_pd

`books_pd` is a directory of long texts whose names say their split: train__*.txt.xz, valid__*, test__* (plain .txt will do);
any large set of text will do. Barbero et al. (2024), arXiv 2410.06205, table 2: Gemma of 2 billion parameters trained from
scratch, validation perplexity on Wikipedia. Here: 25 million parameters, windows of 1024 bytes.
"""

import math

from ml_collections import ConfigDict

from configs import decoder
from experiments.report.claims import Claim, Source, Table, below

_ENCODINGS = {
    "none": "none",
    "rope": "rope",
    "p_rope 3/4": "p_rope(proportion=0.75)",
    "p_rope 1/4": "p_rope(proportion=0.25)",
}
_PAPER = {"none": 4.859, "rope": 4.463, "p_rope 3/4": 4.441, "p_rope 1/4": 4.530}  # perplexity


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.name = "p_rope"
    config.title = "p-RoPE: rotations whose lowest frequencies are left out"
    config.point = "Does it help to leave the lowest frequencies of RoPE unrotated (Barbero et al. 2024)?"
    config.page = ConfigDict()
    config.page.says = (
        "Leaving the lowest frequencies of RoPE unrotated should lower the loss slightly. This has not been run: "
        "it takes an accelerator."
    )
    published = ", ".join(
        f"{label} {math.log(value / _PAPER['rope']):+.4f}" for label, value in _PAPER.items() if label != "rope"
    )
    config.notes = (
        "Bytes of books, windows of 1024. Not run here. The paper's differences to rope, in nats a token of Gemma's: "
        f"{published}. Heads have 64 channels, so that p_rope(proportion=0.75) leaves 8 of 32 frequencies still."
    )
    config.seeds = (0, 1, 2, 3, 4)
    config.studies = ConfigDict({"books": _books()})
    return config


def _books() -> ConfigDict:
    study = decoder.get_config()
    study.encodings = ConfigDict(_ENCODINGS, sort_keys=False)
    study.data.update(name="books_pd", eval_split="test", length=1024, positions="window")
    study.model.update(width=512, depth=8, num_heads=8, dtype="bfloat16")
    study.optimizer.learning_rate = 1e-3
    study.update(
        steps=20_000, batch_size=64, eval_lengths=(1024,), eval_every=0, eval_batch_size=32, checkpoint_every=2000
    )
    study.optimizer.warmup_steps = study.get_ref("steps") // 20  # 1000
    return study


P_ROPE = Source("Barbero et al.", 2024, "2410.06205")
_P_ROPE = Table("p_rope", "books", "loss")

CLAIMS = (
    Claim(
        "p-rope-ahead",
        P_ROPE,
        "table 2, Gemma-2B from scratch",
        "RoPE without its lowest frequencies has a slightly lower loss.",
        (below(_P_ROPE("p_rope 3/4", 1024) - _P_ROPE("rope", 1024)),),
        {"perplexity, RoPE": 4.463, "three quarters of RoPE": 4.441},
    ),
)
