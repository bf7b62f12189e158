"""RoPE-ViT (Heo et al. 2024): learned tables against axial and mixed rotation, tested at up to twice the trained resolution.

Not run here: it takes an accelerator. What a CPU can show is configs/resolutions.py.

    python -m experiments.prepare --name=cifar10
    python -m experiments.ablate --config=configs/papers/rope_vit.py

Heo et al. (2024), arXiv 2403.13298, README of github naver-ai/rope-vit: DeiT-III-S trained on ImageNet-1k at 224 pixels,
top-1 accuracy at 224 and 384. Here: ViT-S/4 on CIFAR-10 at 32 pixels for 200 epochs, tested at 32, 48, 56 and 64. ImageNet
itself: --config.studies.cifar10.data.name=imagenet2012 --config.studies.cifar10.data.image_size="(224, 224)"
--config.studies.cifar10.model.patch_size=16 --config.studies.cifar10.measures.resolutions.resolutions="(224, 336, 384, 448)"
"""

from ml_collections import ConfigDict

from configs import vit
from experiments.report.claims import Claim, Source, Table, above
from experiments.studies.readings import RESIZED

_ENCODINGS = {"learned": "learned", "axial": "axial_rope(base=100)", "mixed": "rope_mixed"}
# Top-1 accuracy (%) at 224 and 384 pixels.
_PAPER = {"learned": (80.4, 79.4), "axial": (80.9, 80.0), "mixed": (80.9, 81.8)}


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.name = "rope_vit"
    config.title = "RoPE-ViT: rotation against learned tables at up to twice the resolution"
    config.point = (
        "Do mixed rotations keep more accuracy at higher resolutions than axial ones, and those more than "
        "tables (Heo et al. 2024)?"
    )
    config.page = ConfigDict()
    config.page.says = (
        "Mixed rotations should keep more accuracy at higher resolutions than axial ones, and those more than "
        "learned tables. This has not been run: it takes an accelerator."
    )
    published = "; ".join(f"{label} {at:g} and {above:g} %" for label, (at, above) in _PAPER.items())
    config.notes = (
        "A row is an encoding as it was trained; of learned, the table resized. Not run here. The paper's order, of "
        f"DeiT-III-S at the 224 pixels of its training and at 384: {published}."
    )
    config.seeds = (0, 1, 2, 3, 4)
    config.tune = ConfigDict(dict(learning_rates=(1e-3, 3e-3, 1e-2), seeds=(100,), share=0.1))
    config.studies = ConfigDict({"cifar10": _cifar10()})
    return config


def _cifar10() -> ConfigDict:
    study = vit.get_config()
    del study.seed, study.init_from, study.init_head, study.init_resize  # every model starts at random
    study.encodings = ConfigDict(_ENCODINGS, sort_keys=False)
    study.variants = ConfigDict({"learned": {"learned": None, "learned, resized": RESIZED}})
    study.data.update(name="cifar10", image_size=(32, 32))
    study.data.augment = "resized_crop(0.35) + flip"  # things of several sizes are seen, as in the paper's recipe
    study.model.update(variant="S/4", pooling="mean", drop_path=0.1)
    study.steps = 39_000  # 200 epochs
    study.update(batch_size=256, checkpoint_every=3900, eval_every=0, eval_batch_size=500)
    study.optimizer.warmup_steps = study.get_ref("steps") // 40  # 5 epochs
    study.measures = ConfigDict({"resolutions": dict(images=10_000, resolutions=(32, 48, 56, 64))})
    study.measures.resolutions.update(batch_tokens=16384, resize="torch_bicubic")
    return study


HEO = Source("Heo et al.", 2024, "2403.13298")
_ROPE_VIT = Table("rope_vit", "cifar10", "accuracy")

CLAIMS = (
    Claim(
        "rope-vit-order",
        HEO,
        "README of the authors' code, ViT-S trained at 224",
        "On larger images mixed rotary frequencies are ahead of axial ones, and those of a resized learned table.",
        (
            above(_ROPE_VIT("mixed", 64) - _ROPE_VIT("axial", 64)),
            above(_ROPE_VIT("axial", 64) - _ROPE_VIT("learned, resized", 64)),
        ),
        {"mixed at 384 (%)": 81.8, "axial": 80.0, "learned": 79.4},
    ),
)
