"""ViT-S/16 on ImageNet-1k for 90 epochs by encoding (Beyer et al. 2022's recipe), tested at 144 to 512 pixels.

Not run here: it takes accelerators.

    python -m experiments.prepare --name=imagenet2012        # of archives that image-net.org gives to members
    python -m experiments.ablate --config=configs/papers/full/vit_s16_i1k.py

Beyer, Zhai & Kolesnikov (2022), arXiv 2205.01580, as in big_vision's vit_s16_i1k.py: batches of 1,024, Adam at 1e-3, warm-up
over 10,000 steps, cosine to 0, clipping at 1, inception crops, flips, RandAugment(2, 10), mixup(0.2), mean pooling and a tanh
layer before the head. Its decay of 1e-4 is not multiplied by the learning rate: AdamW's is 0.1. Its encoding is the 2-D
sinusoidal code, added once. It trains on 99 % of the training images, here on all, and tests the middle 224 of 256 pixels.

Cost: 28 GFLOP an image, 3.2e18 a training, 8 rows of one seed: 21 H100-hours at 35 % of the peak (989 TFLOP/s).
Expected: 76.5 % top-1 at 224 pixels with 2-D sinusoidal codes (big_vision). Heo
et al. (2024), 2403.13298, DeiT-III-S after 400 epochs, at 224 and 384 pixels: tables 80.4 and 79.4, axial RoPE 80.9 and 80.0,
mixed RoPE 80.9 and 81.8. Fuller et al. (2024), 2405.13985: LookHere is ahead of tables at larger sizes.
"""

from ml_collections import ConfigDict

from configs import vit
from experiments.report.claims import Claim, Source, Table, above
from experiments.studies.plan import named
from experiments.studies.readings import RESIZED

_ENCODINGS = named("none learned") | {"sincos2d": "sincos2d_big_vision"}
_ENCODINGS |= named("axial_rope(base=100) rope_mixed dinov3 alibi lookhere")
_SIZES = (144, 192, 224, 288, 384, 512)


def get_config() -> ConfigDict:
    config = vit.get_config()
    del config.seed, config.init_from, config.init_head, config.init_resize  # every model starts at random
    config.name = "vit_s16_i1k"
    config.title = "ViT-S/16 on ImageNet-1k in 90 epochs, by encoding"
    config.point = "Which encoding serves a ViT best at the resolution of its training, and at others?"
    config.page = ConfigDict()
    config.page.says = (
        "Rotations should be half a point ahead of tables and codes at 224 pixels, and keep more at 384. This has not been "
        "run: it takes accelerators."
    )
    config.notes = "A row is an encoding as it was trained; of learned, the table resized."
    config.seeds = (0,)

    config.data.update(name="imagenet2012", eval_split="validation", image_size=(224, 224), crop_fraction=0.875)
    config.data.augment = (
        "inception_crop(224, least_area=0.05, resample='bilinear') + flip + randaug(2, 10) + mixup(0.2)"
    )
    config.model.update(variant="S/16", pooling="mean", pre_logits=384, dtype="bfloat16")
    config.steps = 112_590  # 90 epochs of 1,281,167 images
    config.optimizer.update(warmup_steps=10_000, weight_decay=0.1)
    config.update(batch_size=1024, eval_batch_size=1024, eval_every=12_510, checkpoint_every=2502)
    config.encodings = ConfigDict(_ENCODINGS, sort_keys=False)
    config.variants = ConfigDict({"learned": {"learned": None, "learned, resized": RESIZED}})
    config.measures = ConfigDict({"resolutions": dict(images=50_000, resolutions=_SIZES)})
    config.measures.resolutions.update(batch_tokens=65_536, resize="torch_bicubic")
    return config


HEO = Source("Heo et al.", 2024, "2403.13298")
LOOKHERE = Source("Fuller et al.", 2024, "2405.13985")
_ACCURACY = Table("vit_s16_i1k", "vit_s16_i1k", "accuracy")

CLAIMS = (
    Claim(
        "rope-order-on-imagenet",
        HEO,
        "README of the authors' code, ViT-S trained at 224",
        "At 384 pixels mixed rotary frequencies are ahead of axial ones, and those of a resized learned table.",
        (
            above(_ACCURACY("rope_mixed", 384) - _ACCURACY("axial_rope", 384)),
            above(_ACCURACY("axial_rope", 384) - _ACCURACY("learned, resized", 384)),
        ),
        {"mixed at 384 (%)": 81.8, "axial": 80.0, "learned": 79.4},
    ),
    Claim(
        "rotations-beat-tables-on-imagenet",
        HEO,
        "README of the authors' code, ViT-S trained at 224",
        "At the trained 224 pixels axial rotations are ahead of a learned table.",
        (above(_ACCURACY("axial_rope", 224) - _ACCURACY("learned, resized", 224)),),
        {"axial at 224 (%)": 80.9, "learned": 80.4},
    ),
    Claim(
        "lookhere-extrapolates-on-imagenet",
        LOOKHERE,
        "abstract, larger sizes; no number for this size",
        "At 512 pixels heads that look one way are ahead of a resized learned table.",
        (above(_ACCURACY("lookhere", 512) - _ACCURACY("learned, resized", 512)),),
    ),
)
