"""The quickstart's ViT ablation on Fashion-MNIST.

    python -m experiments.prepare --name=fashion_mnist
    python -m experiments.ablate --config=configs/fashion_vit.py

Cost: about an hour of one CPU core, with what chooses rates; two processes with NPROC=1, --rows=0/2 and --rows=1/2,
share it. Expected: results/fashion_vit, made with --workdir=results/fashion_vit. On an
accelerator give it more: --config.studies.fashion_vit.model.width=192
--config.studies.fashion_vit.model.depth=12 and more steps.
"""

from ml_collections import ConfigDict

from configs import vit
from experiments.report.claims import CONTROL, Claim, Looked, Question, Source, Table, above
from experiments.studies.plan import named


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.name = "fashion_vit"
    config.title = "Eleven positional encodings in a ViT on Fashion-MNIST"
    config.point = "Which positional encoding helps a small ViT, and does it matter that it knows directions?"
    config.page = ConfigDict()
    config.page.says = (
        "Sinusoidal codes, RoPE, LookHere, PaPE and Compass-RoPE lead on Fashion-MNIST, ten points and more ahead of "
        "no encoding, with a learned table close behind. ALiBi, KERPLE and FIRE know distances and no directions, and "
        "gain less than five points."
    )
    config.notes = (
        "Patches of 4x4 pixels, a grid of 7x7. All encodings but learned see (row, column), learned "
        "is the flat table of the ViT paper. Two thirds of a pass over the training images: differences are those of early "
        "training."
    )
    config.seeds = (0, 1, 2, 3, 4)
    config.tune = ConfigDict(dict(learning_rates=(1e-3, 3e-3, 1e-2), seeds=(100,), share=0.1))
    config.studies = ConfigDict({"fashion_vit": _fashion_vit()})
    return config


def _fashion_vit() -> ConfigDict:
    study = vit.get_config()
    # 9 patches are beyond any distance on the grid.
    specs = "none sinusoidal learned rope(base=100) alibi kerple lookhere t5 fire(init_L=9) pape"
    study.encodings = ConfigDict(named(specs) | {"compass": "compass_rope"}, sort_keys=False)
    study.data.update(name="fashion_mnist", augment="flip")
    study.model.update(patch_size=4, pooling="mean", width=48, depth=3)
    study.optimizer.learning_rate = 3e-3
    study.update(steps=600, batch_size=64, eval_every=0, eval_batch_size=500, checkpoint_every=100)
    study.optimizer.warmup_steps = study.get_ref("steps") // 12  # 50
    return study


CPVT = Source("Chu et al.", 2021, "2102.10882")
HEO = Source("Heo et al.", 2024, "2403.13298")
PAPE = Source("Öhrström et al.", 2026, "2602.01418")
LOOKHERE = Source("Fuller et al.", 2024, "2405.13985")
_FASHION = Table("fashion_vit", "fashion_vit", "accuracy")

CLAIMS = (
    Claim(
        "vit-learned-beats-none",
        CPVT,
        "DeiT-Ti on ImageNet-1k, read in a review of the paper",
        "A ViT with a learned table is ahead of one without any encoding.",
        (above(_FASHION("learned") - _FASHION("none")),),
        {"learned (%)": 72.2, "none": 68.2},
    ),
    Claim(
        "vit-rope-beats-learned",
        HEO,
        "README of the authors' code, ViT-S at 224",
        "A ViT with rotary positions is ahead of one with a learned table.",
        (above(_FASHION("rope") - _FASHION("learned")),),
        {"axial (%)": 80.9, "learned": 80.4},
    ),
    Claim(
        "vit-pape-ahead",
        PAPE,
        "abstract, best on seven of eight sets of data; no number",
        "A ViT with PaPE is ahead of those with rotary, sinusoidal and learned positions.",
        tuple(above(_FASHION("pape") - _FASHION(row)) for row in ("rope", "sinusoidal", "learned")),
    ),
    Claim(
        "vit-alibi-beats-none",
        LOOKHERE,
        "our own control of distance without direction; no number",
        "A ViT with 2-D ALiBi is ahead of one without any encoding.",
        (above(_FASHION("alibi") - _FASHION("none")),),
        role=CONTROL,
        tried="Its symmetric form says how far a patch is and never in which direction: `lookhere` is directed and learns "
        "nothing either (vit-direction-helps).",
    ),
    Claim(
        "vit-direction-helps",
        LOOKHERE,
        "our own control of 2-D ALiBi; no number",
        "Heads that look one way, with nothing learned either, are ahead of 2-D ALiBi and of no encoding.",
        tuple(above(_FASHION("lookhere") - _FASHION(row)) for row in ("alibi", "none")),
        role=CONTROL,
    ),
    Claim(
        "vit-direction-beats-learned-decay",
        LOOKHERE,
        "our own control of 2-D KERPLE; no number",
        "Heads that look one way, with nothing learned, are ahead of biases that learn how to fall with the distance.",
        (above(_FASHION("lookhere") - _FASHION("kerple")),),
        role=CONTROL,
        follow_up=(Looked(_FASHION("kerple") - _FASHION("alibi"), "KERPLE - ALiBi"),),
    ),
)

QUESTIONS = (
    Question(
        "Images of one size",
        (_FASHION,),
        "accuracy on Fashion-MNIST",
        doubt="Small images and short trainings: what leads here by little may not lead elsewhere.",
        column="ViT, Fashion-MNIST (points)",
        claims=(
            "vit-learned-beats-none",
            "vit-alibi-beats-none",
            "vit-direction-helps",
            "vit-direction-beats-learned-decay",
        ),
    ),
)
