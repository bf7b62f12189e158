"""Six positional encodings side by side, in a ViT and in a decoder, on data that need no download.

    make ablate
    python -m experiments.ablate --config=configs/quickstart.py

Both write under runs/quickstart. Cost: under 4 minutes on 2 CPU cores. Expected: the table and plots of results/quickstart,
made with --workdir=results/quickstart; docs/experiments.md shows the plots.
"""

from ml_collections import ConfigDict

from configs import decoder, vit
from experiments.report.claims import REPEAT, Claim, Source, Table, above, below, rise
from experiments.studies.plan import named


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.name = "quickstart"
    config.title = "Six positional encodings, a ViT and a decoder"
    config.point = (
        "Which positional encoding helps a small ViT and a small decoder early in training, and what is left "
        "beyond the trained length?"
    )
    config.page = ConfigDict()
    config.page.says = (
        "Within 250 steps sinusoidal codes, RoPE and a learned table lift a small ViT by 16 to 20 points over no "
        "encoding. In the decoder RoPE is best at the trained length, and ALiBi alone keeps its loss at eight "
        "times that."
    )
    config.page.headings = ConfigDict(
        {"digits_vit": "ViT on digits", "pydoc_decoder": "Decoder on Python's documentation"}
    )
    config.notes = (
        "digits_vit: scikit-learn's 8x8 digits, patches of 2x2 pixels. rope, alibi, sinusoidal and t5 see (row, column), "
        "learned is the flat table of the ViT paper.\n"
        "pydoc_decoder: the text of Python's own documentation, byte by byte, trained in windows of 64 bytes. Positions "
        "restart at each window, so that longer windows ask for positions never seen. Every length scores the same bytes. "
        "The learned table has rows for all evaluated positions; those beyond the training length were never trained."
    )
    config.seeds = (0, 1, 2, 3, 4)
    config.studies = ConfigDict({"digits_vit": _digits_vit(), "pydoc_decoder": _pydoc_decoder()}, sort_keys=False)
    return config


def _digits_vit() -> ConfigDict:
    study = vit.get_config()
    specs = "none sinusoidal learned rope(base=100) alibi t5"
    study.encodings = ConfigDict(named(specs), sort_keys=False)
    study.model.update(pooling="mean", width=32, depth=2)
    study.optimizer.learning_rate = 3e-3
    study.update(steps=250, batch_size=48, eval_every=0, eval_batch_size=364, checkpoint_every=100)
    study.optimizer.warmup_steps = study.get_ref("steps") // 10  # 25
    return study


def _pydoc_decoder() -> ConfigDict:
    study = decoder.get_config()
    specs = "none sinusoidal learned(stddev=1) rope alibi t5(bidirectional=False)"  # tokens have unit variance
    study.encodings = ConfigDict(named(specs), sort_keys=False)
    study.data.update(length=64, positions="window")
    study.model.update(width=64, depth=2)
    study.optimizer.learning_rate = 5e-3
    study.update(steps=128, batch_size=12, eval_lengths=(64, 128, 256, 512))
    study.optimizer.warmup_steps = study.get_ref("steps") * 25 // 128  # 25
    study.eval_tokens = 8_193  # 8,192 of them are targets
    study.update(eval_every=0, eval_batch_size=64, checkpoint_every=100)
    return study


PRESS = Source("Press et al.", 2022, "2108.12409")
ROPE = Source("Su et al.", 2021, "2104.09864")
VIT = Source("Dosovitskiy et al.", 2020, "2010.11929")
_DIGITS, _PYDOC = Table("quickstart", "digits_vit", "accuracy"), Table("quickstart", "pydoc_decoder", "loss")
_FLAT = 0.02  # nats: a loss that rises by no more over all lengths is called flat

CLAIMS = (
    Claim(
        "alibi-flat-at-8x-quickstart",
        PRESS,
        "table 2",
        "ALiBi reads eight times its training length without a rise in loss.",
        (below(rise(_PYDOC, "alibi", 64, 512), _FLAT),),
        {"perplexity at 512": 19.73, "at 3512": 18.40},
        REPEAT,
    ),
    Claim(
        "rope-fails-beyond-quickstart",
        PRESS,
        "table 2",
        "RoPE loses beyond the training length.",
        (above(rise(_PYDOC, "rope", 64, 512)),),
        {"perplexity at 512": 20.07, "at 3512": 35.54},
        REPEAT,
    ),
    Claim(
        "rope-learns-faster-quickstart",
        ROPE,
        "faster convergence of pre-training; no number",
        "Early in training RoPE is ahead of sinusoidal codes at the training length.",
        (below(_PYDOC("rope", 64) - _PYDOC("sinusoidal", 64)),),
        role=REPEAT,
    ),
    Claim(
        "vit-sinusoidal-beats-none",
        VIT,
        "table 8, with an encoding against without",
        "A ViT with an absolute code is ahead of one without any encoding.",
        (above(_DIGITS("sinusoidal") - _DIGITS("none")),),
        {"1-D (%)": 64.206, "none": 61.382},
    ),
)
