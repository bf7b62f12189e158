"""Small decoders and vision transformers under twenty encodings each, to begin with something trained. Nothing is downloaded.

    python -m experiments.ablate --config=configs/trained.py --workdir=runs/trained
    cp runs/trained/*.json* runs/trained/*.md runs/trained/*.png results/trained
    for run in runs/trained/*/*-????????????; do
        name=${run#runs/}; python -m experiments.export --small --checkpoint=$run --out=results/${name%-*}; done
    python -m experiments.atlas.trained

Cost: about an hour of one CPU core. Expected: results/trained, with a folder for each row. All commands take it as a run:

    python -m experiments.analyse --checkpoint=results/trained/decoder/rope --data=pydoc_topics --split=validation \
        --length=128 --out=DIR
    python -m experiments.analyse --checkpoint=results/trained/vit/learned --out=DIR
    python -m experiments.generate --checkpoint=results/trained/decoder/alibi --prompt="The for statement"
"""

from ml_collections import ConfigDict

from configs import decoder, vit
from experiments.studies.plan import named

# Token embeddings have unit variance, so the learned table starts with it.
_DECODERS = named(
    "none sinusoidal learned(stddev=1) shaw transformer_xl t5(bidirectional=False) rope p_rope xpos alibi kerple fire cope "
    "cable fox pope path inkling(extent=128)"
)
_DECODERS |= {"learned_sink": "rope + learned_sink", "hybrid": "rope + window(size=32), rope + window(size=32), none"}
_VITS = named(
    "none sinusoidal learned learned_factorized sincos2d_mae fourier axial_rope(base=100) rope_mixed compass_rope dinov3 "
    "liere swin swin_v2 t5 alibi lookhere kerple fire(init_L=9) pape peg"
)


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.name = "trained"
    config.title = "Small trained models, to begin with"
    config.point = "What have small models learned under each encoding?"
    config.notes = (
        "One seed and one learning rate for all: these models show what an encoding allows, and not which one is better. "
        "decoder: Python's documentation, byte by byte, in windows of 128 bytes. vit: scikit-learn's digits, each of the "
        "8x8 pixels a token."
    )
    config.seeds = (0,)
    config.studies = ConfigDict({"decoder": _decoder(), "vit": _vit()}, sort_keys=False)
    return config


def _decoder() -> ConfigDict:
    study = decoder.get_config()
    study.encodings = ConfigDict(_DECODERS, sort_keys=False)
    study.data.update(length=128, positions="window")
    study.model.update(width=80, depth=3, num_heads=4)
    study.optimizer.learning_rate = 5e-3
    study.update(steps=800, batch_size=8, eval_lengths=(128, 256, 512))
    study.optimizer.warmup_steps = study.get_ref("steps") // 20
    study.eval_tokens = 8_193  # 8,192 of them are targets
    study.update(eval_every=0, checkpoint_every=400)
    return study


def _vit() -> ConfigDict:
    study = vit.get_config()
    study.encodings = ConfigDict(_VITS, sort_keys=False)
    study.model.update(patch_size=1, pooling="mean", width=64, depth=4, num_heads=4)
    study.optimizer.learning_rate = 3e-3
    study.update(steps=400, batch_size=32, eval_every=0, eval_batch_size=364, checkpoint_every=100)
    study.optimizer.warmup_steps = study.get_ref("steps") // 10
    return study
