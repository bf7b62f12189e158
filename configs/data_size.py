"""Data against inductive bias: two ViTs and a ResNet on shares of Fashion-MNIST.

    python -m experiments.prepare --name=fashion_mnist
    python -m experiments.ablate --config=configs/data_size.py

After figure 4 of Dosovitskiy et al. (2020), arXiv 2010.11929, which compares them on shares of JFT. The models have about as
many parameters and see as many images in training, whatever the share. Cost: about two hours of one CPU core. On an
accelerator, in every study: '--config.studies["1%"].model.width=192' '--config.studies["1%"].steps=20000'
"""

from ml_collections import ConfigDict

from configs import vit
from experiments.report.claims import Claim, Source, Table, above

_SHARES = {"1%": 0.01, "10%": 0.1, "100%": 1.0}


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.name = "data_size"
    config.title = "Data against inductive bias: ViTs and a ResNet on shares of Fashion-MNIST"
    config.point = (
        "Does a model with more inductive bias need less data, and gain less from more of it (figure 4 of "
        "the ViT paper)?"
    )
    config.page = ConfigDict()
    config.page.says = (
        "With few images a ResNet is ahead of ViTs, by 8.6 points of one with a learned table, and by 6.3 of one with rotary "
        "positions. Its lead does not shrink with more images. Every model sees 60,000 images in training; longer trainings, "
        "in which a ViT could catch up, were not run."
    )
    config.notes = (
        "ViTs on 7x7 patches of 4x4 pixels, with a learned table or rotary positions, and a ResNet. Shares are taken of each "
        "class, the same for all seeds; smaller shares lie within larger ones. All see 60,000 images in training: each "
        "once of the whole set, each a hundred times of 1 %."
    )
    config.seeds = (0, 1, 2, 3, 4)
    config.tune = ConfigDict(dict(learning_rates=(1e-3, 3e-3, 1e-2), seeds=(100,), share=0.1))
    config.axis = ConfigDict({"title": "share of the training images", "values": _SHARES})
    config.studies = ConfigDict({name: _study(share) for name, share in _SHARES.items()}, sort_keys=False)
    return config


def _study(share: float) -> ConfigDict:
    study = vit.get_config()
    study.rows = ConfigDict(
        {
            "ViT, learned": {"model": {"encoding": "learned"}},
            "ViT, rope": {"model": {"encoding": "axial_rope"}},
            "ResNet": {"model": {"kind": "resnet", "resnet": (1, 1, 1), "resnet_width": 16}},
        },
        sort_keys=False,
    )
    study.data.update(name="fashion_mnist", fraction=share, augment="shift(2) + flip")
    study.model.update(encoding="learned", patch_size=4, pooling="mean", width=48, depth=4)
    study.optimizer.learning_rate = 2e-3
    study.steps = 1250  # of 48: one pass over all 60,000
    study.update(batch_size=48, eval_every=0, eval_batch_size=500, checkpoint_every=200)
    study.optimizer.warmup_steps = study.get_ref("steps") // 25  # 50
    return study


VIT = Source("Dosovitskiy et al.", 2020, "2010.11929")
_FEW, _ALL = (Table("data_size", share, "accuracy") for share in ("1%", "100%"))
_LEAD = {table.study: table("ResNet") - table("ViT, learned") for table in (_FEW, _ALL)}

CLAIMS = (
    Claim(
        "resnet-ahead-on-few-images",
        VIT,
        "figure 4; no number",
        "With few images a ResNet is ahead of a ViT.",
        (above(_LEAD["1%"], name="ResNet - ViT with learned, 1% of the images"),),
    ),
    Claim(
        "vit-catches-up-with-data",
        VIT,
        "figure 4; no number",
        "A ResNet's lead over a ViT shrinks as there are more images.",
        (above(_LEAD["1%"] - _LEAD["100%"], name="lead of the ResNet at 1% of the images - at 100%"),),
        tried="A rate for each row and share, and rotary positions: they shorten the lead at every share and do not make it "
        "shrink. From a tenth of the images on hardly a model gains: all see 60,000 in training, which may limit them.",
        remains="Longer trainings, in which a ViT could catch up: --config.studies[...].steps=20000 on an accelerator.",
    ),
)
