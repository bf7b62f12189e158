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

_DECODERS = {
    "none": "none",
    "sinusoidal": "sinusoidal",
    "learned": "learned(stddev=1)",  # token embeddings have unit variance here
    "shaw": "shaw",
    "transformer_xl": "transformer_xl",
    "t5": "t5(bidirectional=False)",
    "rope": "rope",
    "p_rope": "p_rope",
    "xpos": "xpos",
    "alibi": "alibi",
    "kerple": "kerple",
    "fire": "fire",
    "cope": "cope",
    "cable": "cable",
    "fox": "fox",
    "pope": "pope",
    "path": "path",
    "inkling": "inkling(extent=128)",
    "learned_sink": "rope + learned_sink",
    "hybrid": "rope + window(size=32), rope + window(size=32), none",
}
_VITS = {
    "none": "none",
    "sinusoidal": "sinusoidal",
    "learned": "learned",
    "learned_factorized": "learned_factorized",
    "sincos2d_mae": "sincos2d_mae",
    "fourier": "fourier",
    "axial_rope": "axial_rope(base=100)",
    "rope_mixed": "rope_mixed",
    "compass_rope": "compass_rope",
    "dinov3": "dinov3",
    "liere": "liere",
    "swin": "swin",
    "swin_v2": "swin_v2",
    "t5": "t5",
    "alibi": "alibi",
    "lookhere": "lookhere",
    "kerple": "kerple",
    "fire": "fire(init_L=9)",
    "pape": "pape",
    "peg": "peg",
}


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
    study.data.length, study.data.positions = 128, "window"
    study.model.width, study.model.depth, study.model.num_heads = 80, 3, 4
    study.optimizer.learning_rate = 5e-3
    study.steps = 800
    study.optimizer.warmup_steps = study.get_ref("steps") // 20
    study.batch_size = 8
    study.eval_lengths = (128, 256, 512)
    study.eval_tokens = 8_193  # 8,192 of them are targets
    study.eval_every = 0  # at the end only
    study.checkpoint_every = 400
    return study


def _vit() -> ConfigDict:
    study = vit.get_config()
    study.encodings = ConfigDict(_VITS, sort_keys=False)
    study.model.patch_size = 1
    study.model.pooling = "mean"
    study.model.width, study.model.depth, study.model.num_heads = 64, 4, 4
    study.optimizer.learning_rate = 3e-3
    study.steps = 400
    study.optimizer.warmup_steps = study.get_ref("steps") // 10
    study.batch_size = 32
    study.eval_every = 0  # at the end only
    study.eval_batch_size = 364
    study.checkpoint_every = 100
    return study
