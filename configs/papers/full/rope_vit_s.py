"""RoPE-ViT-S by its own recipe (Heo et al. 2024): 400 epochs of DeiT-III, tables against axial and mixed rotation.

Not run here: it takes accelerators.

    python -m experiments.ablate --config=configs/papers/full/rope_vit_s.py

Heo et al. (2024), arXiv 2403.13298, and deit/README of github naver-ai/rope-vit: batches of 2,048, LAMB at 4e-3 with decay
0.03, 5 epochs of warm-up, cosine to 1e-5, binary cross-entropy, 3-Augment, colour jitter 0.3, mixup 0.8 or CutMix 1 by turns,
repeated augmentation three times, no label smoothing, no stochastic depth for S, EMA 0.99996, and evaluation without a crop.

Cost: 28 GFLOP an image, 1.4e19 a training, 4 rows of one seed: 46 H100-hours at 35 % of the peak (989 TFLOP/s).
Expected: top-1 (%) at 224 and 384 pixels: learned 80.4 and 79.4, axial 80.9 and 80.0, mixed 80.9 and 81.8, mixed and learned
80.9 and 81.7.
"""

from ml_collections import ConfigDict

from configs.papers.full import vit_s16_i1k
from experiments.report.claims import Claim, Source, Table, above
from experiments.studies.readings import RESIZED

_ENCODINGS = {
    "learned": "learned",
    "axial": "axial_rope(base=100)",
    "mixed": "rope_mixed",
    "mixed and learned": "learned + rope_mixed",
}


def get_config() -> ConfigDict:
    config = vit_s16_i1k.get_config()
    config.name = "rope_vit_s"
    config.title = "RoPE-ViT-S on ImageNet-1k by its own recipe"
    config.point = (
        "Do mixed rotations keep more accuracy at higher resolutions than axial ones, and those more than tables, by the "
        "recipe of the paper (Heo et al. 2024)?"
    )
    config.page.says = (
        "Mixed rotations should gain at 384 pixels what tables lose there. This has not been run: it takes "
        "accelerators."
    )
    config.data.augment = (
        "repeat(3) + inception_crop(224) + flip + three_augment + color_jitter(0.3) + mixup(0.8) + cutmix(1.0)"
    )
    config.data.crop_fraction = None
    config.update(loss="bce", ema=0.99996)
    config.model.update(pooling="cls", pre_logits=None, layer_scale=1e-4)
    config.steps = 250_000  # 400 epochs of 625 steps
    config.optimizer.update(name="lamb", learning_rate=4e-3)
    config.optimizer.final_share = 0.0025  # to 1e-5
    config.optimizer.update(weight_decay=0.03, warmup_steps=3125)
    config.batch_size = 2048
    config.encodings = ConfigDict(_ENCODINGS, sort_keys=False)
    config.variants["mixed and learned"] = {"mixed and learned": None, "mixed and learned, resized": RESIZED}
    return config


HEO = Source("Heo et al.", 2024, "2403.13298")
_ACCURACY = Table("rope_vit_s", "rope_vit_s", "accuracy")

CLAIMS = (
    Claim(
        "rope-vit-order-by-its-recipe",
        HEO,
        "README of the authors' code, ViT-S trained at 224",
        "On larger images mixed rotary frequencies are ahead of axial ones, and those of a resized learned table.",
        (
            above(_ACCURACY("mixed", 384) - _ACCURACY("axial", 384)),
            above(_ACCURACY("axial", 384) - _ACCURACY("learned, resized", 384)),
        ),
        {"mixed at 384 (%)": 81.8, "axial": 80.0, "learned": 79.4},
    ),
)
