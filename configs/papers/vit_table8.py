"""Table 8 of the ViT paper (appendix D.4): which positional embedding, and where it is injected, small and on CIFAR-10.

    python -m experiments.prepare --name=cifar10
    python -m experiments.ablate --config=configs/papers/vit_table8.py

Dosovitskiy et al. (2020), arXiv 2010.11929: ViT-B/16 pre-trained on JFT, ImageNet 5-shot linear accuracy. Here: a ViT of 48
channels and 4 layers trained from scratch for 2.3 epochs, test accuracy. LaPE is a fourth column that the paper does not
have; 2-D Shaw, T5 and LookHere are rows that it does not have. Ties of this size are exploratory: six seeds tell differences
of about half a percentage point.

Cost: 50 to 100 ms of one CPU core a step and seed (Shaw's rows a half more), 13 rows of 9 runs of 2400 steps: four to eight
hours of one core; two processes with NPROC=1, --rows=0/2 and --rows=1/2, share it. Expected: results/vit_table8, made with
--workdir=results/vit_table8. On an accelerator, in each of the studies stem, every_layer, shared and LaPE:
--config.studies.stem.model.variant=Ti/4 --config.studies.stem.steps=20000 --config.studies.stem.batch_size=256
"""

from ml_collections import ConfigDict

from configs import vit

_COLUMNS = {"stem": "stem", "every_layer": "every_layer", "shared": "every_layer_shared", "LaPE": "lape"}
_ENCODINGS = {
    "none": "none",
    "1-D": "raster(width=8) >> learned",
    "2-D": "learned_factorized",
    "relative": "raster(width=8) >> shaw(max_relative_position=63, values=False)",
    "2-D Shaw": "shaw(max_relative_position=7, values=False)",
    "T5": "t5",
    "LookHere": "lookhere",
}


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.name = "vit_table8"
    config.title = "ViT, table 8: positional embeddings by where they are injected, on CIFAR-10"
    config.point = (
        "Does any positional embedding help a ViT, and does it matter which one and where it is injected "
        "(table 8 of the ViT paper)?"
    )
    config.notes = (
        "Patches of 4x4 pixels, a grid of 8x8. 1-D: a learned row for each patch in raster order. 2-D: rows of half the "
        "width for each row and column of the grid, side by side. relative: a learned key for each difference of raster "
        "positions, whose products with the queries are a bias. 2-D Shaw: such a key for each difference of rows and one for "
        "each of columns. The paper's other columns have no none and no relative; their numbers were read in citations of "
        "the table."
    )
    config.seeds = (0, 1, 2, 3, 4, 5)
    config.tune = ConfigDict(dict(learning_rates=(1e-3, 3e-3, 1e-2), seeds=(100,), share=0.1))
    config.studies = ConfigDict({name: _study(injection) for name, injection in _COLUMNS.items()}, sort_keys=False)
    config.paper = ConfigDict(
        {
            "source": "Dosovitskiy et al. (2020), arXiv 2010.11929, table 8: ImageNet 5-shot accuracy",
            "metric": "accuracy",
            "reference": ("stem", "none"),
            "tie": 0.005,  # which the paper calls little to no difference
            "values": {
                "stem": {"none": 0.61382, "1-D": 0.64206, "2-D": 0.64001, "relative": 0.64032},
                "every_layer": {"1-D": 0.63964, "2-D": 0.64046},
                "shared": {"1-D": 0.64292, "2-D": 0.64022},
            },
        },
        sort_keys=False,
    )
    return config


def _study(injection: str) -> ConfigDict:
    study = vit.get_config()
    labels = list(_ENCODINGS) if injection == "stem" else ["1-D", "2-D"]
    study.encodings = ConfigDict({label: _ENCODINGS[label] for label in labels}, sort_keys=False)
    study.data.name = "cifar10"
    study.data.flip = True
    study.model.injection = injection
    study.model.patch_size = 4
    study.model.width = 48
    study.model.depth = 4
    study.optimizer.learning_rate = 3e-3
    study.steps = 2400
    study.optimizer.warmup_steps = study.get_ref("steps") // 10  # 240
    study.batch_size = 48
    study.eval_every = 0  # at the end only
    study.eval_batch_size = 500
    study.checkpoint_every = 600
    return study
