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
from experiments.report.claims import CONTROL, Claim, Looked, Question, Source, Table, above, mean, within

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
    config.page = ConfigDict()
    config.page.says = (
        "A learned table, 1-D or 2-D, is worth five points of accuracy to a small ViT, and where it is added "
        "matters little. LookHere gains half as much; relative attention gains nothing clear."
    )
    config.page.headings = ConfigDict(
        {
            "stem": "Added once, at the stem",
            "every_layer": "Added in every layer",
            "shared": "Added in every layer, one table",
            "LaPE": "LaPE",
        }
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
    study.data.update(name="cifar10", augment="flip")
    study.model.update(injection=injection, patch_size=4, width=48, depth=4)
    study.optimizer.learning_rate = 3e-3
    study.update(steps=2400, batch_size=48, eval_every=0, eval_batch_size=500, checkpoint_every=600)
    study.optimizer.warmup_steps = study.get_ref("steps") // 10  # 240
    return study


VIT = Source("Dosovitskiy et al.", 2020, "2010.11929")
CPVT = Source("Chu et al.", 2021, "2102.10882")
LOOKHERE = Source("Fuller et al.", 2024, "2405.13985")
LAPE = Source("Yu et al.", 2023, "2212.05262")
_TIE = 0.005  # of accuracy: what the ViT paper calls little to no difference
_STEM, _EVERY, _LAPE = (Table("vit_table8", table, "accuracy") for table in ("stem", "every_layer", "LaPE"))
_FASHION = Table("fashion_vit", "fashion_vit", "accuracy")

CLAIMS = (
    Claim(
        "vit-1d-beats-none",
        VIT,
        "table 8, read in citations",
        "A learned table in raster order is ahead of no encoding.",
        (above(_STEM("1-D") - _STEM("none")),),
        {"1-D (%)": 64.206, "none": 61.382},
    ),
    Claim(
        "vit-2d-beats-none",
        VIT,
        "table 8, read in citations",
        "A learned 2-D table is ahead of no encoding.",
        (above(_STEM("2-D") - _STEM("none")),),
        {"2-D (%)": 64.001, "none": 61.382},
    ),
    Claim(
        "vit-relative-beats-none",
        VIT,
        "table 8, read in citations",
        "Relative attention over raster differences is ahead of no encoding.",
        (above(_STEM("relative") - _STEM("none")),),
        {"relative (%)": 64.032, "none": 61.382},
        tried="Raster differences know no rows: differences of rows and columns are a row of the same study "
        "(vit-relative-needs-the-grid).",
    ),
    Claim(
        "vit-2d-relative-beats-none",
        CPVT,
        "DeiT-Ti on ImageNet-1k, read in a review of the paper",
        "Relative attention over rows and columns is ahead of no encoding.",
        (above(_STEM("2-D Shaw") - _STEM("none")),),
        {"relative (%)": 70.5, "none": 68.2},
        tried="A learning rate of its own, and another bias of rows and columns, T5's; no training as long as theirs.",
        follow_up=(Looked(_STEM("T5") - _STEM("none"), "T5 - none"),),
    ),
    Claim(
        "vit-relative-needs-the-grid",
        VIT,
        "our own control of the relative row; no number",
        "Relative attention over rows and columns is ahead of that over raster differences.",
        (above(_STEM("2-D Shaw") - _STEM("relative")),),
        role=CONTROL,
    ),
    Claim(
        "vit-views-lead",
        LOOKHERE,
        "abstract, mean over encodings, ImageNet at the trained resolution",
        "Heads that look one way, with nothing learned, are ahead of learned tables.",
        (above(_STEM("LookHere") - mean([_STEM("1-D"), _STEM("2-D")]), name="LookHere - mean of 1-D and 2-D"),),
        {"points": 1.6},
        tried="Another data set, and whether it is ahead of no encoding here.",
        remains="Trainings and images of the paper's size: its views drop what lies outside them, and with few heads a patch "
        "has few ways to look.",
        follow_up=(
            Looked(_FASHION("lookhere") - _FASHION("learned"), "LookHere - learned on Fashion-MNIST"),
            Looked(_STEM("LookHere") - _STEM("none"), "LookHere - none"),
        ),
    ),
    Claim(
        "vit-1d-ties-2d",
        VIT,
        "table 8, read in citations",
        "It makes little difference whether a table is 1-D or 2-D (a tie, exploratory).",
        (within(_STEM("2-D") - _STEM("1-D"), _TIE),),
        {"2-D (%)": 64.001, "1-D": 64.206},
        doubt="The intervals of these seeds are wider than the tie that is asked for.",
    ),
    Claim(
        "vit-injection-does-not-matter",
        VIT,
        "table 8, read in citations",
        "It makes little difference whether the table is added once or in every layer (a tie, exploratory).",
        tuple(within(_EVERY(row) - _STEM(row), _TIE, f"{row}, every layer - stem") for row in ("1-D", "2-D")),
        {"1-D, every layer (%)": 63.964, "stem": 64.206, "2-D, every layer": 64.046, "2-D, stem": 64.001},
        doubt="The intervals of these seeds are wider than the tie that is asked for.",
    ),
    Claim(
        "lape-ahead",
        LAPE,
        "abstract, ViT-Lite on CIFAR-10",
        "A table with a normalisation of its own in each layer (LaPE) is ahead of one added at the stem.",
        (above(mean([_LAPE(row) - _STEM(row) for row in ("1-D", "2-D")]), name="LaPE - stem, mean of 1-D and 2-D"),),
        {"points": 0.94},
        doubt="Its rows chose the lowest of the rates that were tried.",
    ),
)

QUESTIONS = (
    Question(
        "Images of one size, a second set",
        (_STEM,),
        "accuracy on CIFAR-10",
        doubt="Small images and short trainings.",
        column="ViT, CIFAR-10 (points)",
        main=False,
        claims=("vit-1d-beats-none", "vit-2d-beats-none", "vit-relative-beats-none"),
    ),
)
