"""ViTs trained at one resolution and tested from 0.5 to 2 times it, each positional encoding under each of its policies.

    python -m experiments.ablate --config=configs/resolutions.py
    python -m experiments.ablate --config=configs/resolutions.py:fashion_mnist,caltech101,cifar10

Sets: fashion_mnist (python -m experiments.prepare --name=...), caltech101 in native aspects, and, where it is asked for,
cifar10. A folder or zips of pictures instead of caltech101: --config.studies.caltech101.data.name=folder
--config.studies.caltech101.data.data_dir=DIR

Cost: about an hour and a half on one CPU core, and an hour more for cifar10. Expected: results/resolutions, made with
--workdir=results/resolutions. On an accelerator override sizes only, as in
--config.studies.caltech101.model.width=384 --config.studies.caltech101.model.depth=12
--config.studies.caltech101.model.num_heads=6 --config.studies.caltech101.steps=40000
--config.studies.caltech101.batch_size=512
"""

from collections.abc import Sequence

from ml_collections import ConfigDict, config_dict

from configs import vit
from experiments.report.claims import Claim, Contrast, Looked, Question, Source, Table, above, mean
from experiments.studies.readings import RESIZED, Layers, Place, Reading

_NAMES = ("fashion_mnist", "cifar10", "caltech101")


def get_config(names: str = "fashion_mnist,caltech101") -> ConfigDict:
    config = ConfigDict()
    config.name = "resolutions"
    config.title = "ViTs tested at other resolutions than they were trained at"
    config.point = (
        "Which encodings keep their accuracy at other resolutions, and does it help to rescale coordinates "
        "to the trained grid?"
    )
    config.page = ConfigDict()
    config.page.says = (
        "Fitting positions to the trained grid keeps most of the accuracy of sine codes and rotations at twice the "
        "resolution, where plain ones lose most of it. So do DINOv3's relative coordinates and, with 15 points lost, "
        "PaPE's parabolas, without being told the new grid."
    )
    config.page.headings = ConfigDict(
        {"fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "caltech101": "Caltech-101, native aspects"}
    )
    config.notes = (
        "A row is an encoding under a policy: as it was trained (coordinates of larger grids are new: it extrapolates), "
        "rescaled (positions are fitted to the trained grid), NTK (lower frequencies by the factor), resized (tables, "
        "bicubic), or fine-tuned for a few steps at a higher resolution. Test images are made from the originals, "
        "antialiased. Those of Fashion-MNIST and CIFAR-10 have 28 and 32 pixels: above that they are upsampled, which adds "
        "no information; those of Caltech-101 have as many pixels as the largest budget asks for, or more. "
        "The small ones are trained on random parts (resized_crop), Caltech-101 on whole images. "
        "Runs are short: levels are those of early training, the shapes of the curves are what is compared."
    )
    config.curves = _rope_vit()
    config.seeds = (0, 1, 2, 3, 4)
    config.tune = ConfigDict(dict(learning_rates=(1e-3, 3e-3, 1e-2), seeds=(100,), share=0.1))
    wanted = names.split(",")
    for name in wanted:
        if name not in _NAMES:
            raise ValueError(f"there is no study {name!r}; those are {', '.join(_NAMES)}")
    studies = {
        "fashion_mnist": lambda: _fixed_size("fashion_mnist", 28, 800, 40, (16, 20, 24, 28, 32, 40, 56)),
        "cifar10": lambda: _fixed_size("cifar10", 32, 900, 48, (16, 24, 28, 32, 40, 48, 64)),
        "caltech101": _caltech101,
    }
    config.studies = ConfigDict({name: studies[name]() for name in _NAMES if name in wanted}, sort_keys=False)
    return config


_SIZES = (144, 192, 224, 256, 320, 384, 512)
# Top-1 accuracy (%) of ImageNet-1k by resolution, DeiT-III recipe, trained at 224 pixels and tested without fine-tuning: the
# README of github naver-ai/rope-vit prints the numbers at 224 and 384; the others were read off its figure, ± 0.1, or ± 0.3
# where a marker is covered. The learned table ("APE") is interpolated, both rotary encodings extrapolate.
_ROPE_VIT = {
    "ViT-S": {
        "learned": (73.6, 79.1, 80.4, 80.9, 80.6, 79.4, 75.4),
        "axial": (73.6, 79.2, 80.9, 81.7, 81.5, 80.0, 76.1),
        "mixed": (74.2, 79.6, 80.9, 81.8, 82.2, 81.8, 79.1),
    },
    "ViT-B": {
        "learned": (79.1, 82.7, 83.4, 83.8, 83.5, 82.8, 80.5),
        "axial": (78.9, None, 83.6, 84.2, 84.3, 83.9, 82.0),
        "mixed": (79.4, 82.8, 83.8, 84.3, 84.7, 84.4, 82.9),
    },
    "ViT-L": {
        "learned": (80.8, 83.8, 84.6, 84.9, 84.7, 84.2, 82.2),
        "axial": (80.9, None, 84.7, 85.1, 85.3, 85.1, 84.0),
        "mixed": (81.1, 83.9, 84.8, 85.4, 85.7, 85.6, 84.7),
    },
}


def _rope_vit() -> ConfigDict:
    """The published curves, which pages draw beside ours."""
    values = {
        model: {row: {str(size): x for size, x in zip(_SIZES, found, strict=True) if x} for row, found in rows.items()}
        for model, rows in _ROPE_VIT.items()
    }
    ours = {"learned": ("learned, resized", "learned"), "axial": ("axial",), "mixed": ("mixed",)}
    source = "Heo et al. (2024), arXiv 2403.13298, ImageNet-1k"
    values = ConfigDict(values, sort_keys=False)
    return ConfigDict({"source": source, "trained": 224, "rows": ours, "values": values}, sort_keys=False)


def _shared() -> ConfigDict:
    study = vit.get_config()
    del study.seed, study.init_from, study.init_head, study.init_resize  # every model starts at random
    study.model.update(pooling="mean", width=48, depth=3, num_heads=3)
    study.data.augment = "flip"
    study.optimizer.learning_rate = 2e-3
    study.batch_size = 32  # more steps for as many images
    study.update(eval_every=0, eval_batch_size=500, checkpoint_every=100)
    study.measures = ConfigDict({"resolutions": {}})
    # Number of images of the evaluation split, evenly spread; None: all.
    study.measures.resolutions.images = config_dict.placeholder(int)
    study.measures.resolutions.batch_tokens = 16384
    study.measures.resolutions.resize = "torch_bicubic"  # of tables: a method of posjax.encodings.resize
    return study


def _fixed_size(name: str, side: int, steps: int, tuned_at: int, resolutions: tuple[int, ...]) -> ConfigDict:
    """Returns the study on images of one size, with warm-up over 50 of its steps."""
    study = _shared()
    study.data.update(name=name, image_size=(side, side))
    study.data.augment = "resized_crop(0.35) + flip"  # things of several sizes are seen, as in the papers' recipes
    study.update(steps=steps, batch_size=48)
    study.optimizer.warmup_steps = study.get_ref("steps") // (steps // 50)
    study.finetune = finetunes(resolution=tuned_at, steps=steps // 10)
    study.measures.resolutions.update(images=1000, resolutions=resolutions)
    study.model.patch_size = 4
    study.encodings = encodings(
        learned="learned", alibi="alibi", swin="swin", fire="fire(init_L=9)", pape="pape", compass="compass_rope"
    )
    study.variants = ConfigDict(
        {
            "learned": {"learned": None, "learned, resized": RESIZED},
            "sincos2d": {"sincos2d, rescaled": fitted("sincos2d_mae")},
            "axial": {"axial, rescaled": fitted("axial_rope(base=100)"), "axial, NTK": axial_ntk},
            "mixed": {"mixed, rescaled": fitted("rope_mixed")},
            "alibi": {"alibi, rescaled": fitted("alibi")},
            "swin": {"swin": None, "swin, resized": RESIZED},
        },
        sort_keys=False,
    )
    return study


def fitted(spec: str) -> Reading:
    """The reading in which positions are fitted to the grid of training."""
    return lambda layers, at: f"fit_grid(height={at.grid[0]}, width={at.grid[1]}) >> {spec}"


def scaled(spec: str) -> Reading:
    """The reading in which positions are divided by how much longer sides are."""
    return lambda layers, at: f"interpolate(factor={at.scale!r}) >> {spec}"


def axial_ntk(layers: Layers, at: Place) -> str:
    return f"axial_rope(base=100, scaling=ntk(factor={at.factor!r}))"


def _caltech101() -> ConfigDict:
    """Native aspects: a resolution is a largest number of patches; sides twice as long are four times as many."""
    study = _shared()
    study.data.update(name="caltech101", mode="native", max_patches=64)
    study.data.image_size = (128, 128)  # of tables: no image of 64 patches has more than 16 on a side
    study.model.patch_size = 8
    # Biases of distance are compared on the small sets.
    study.encodings = encodings(learned="learned(resize='jax_linear')")
    study.variants = ConfigDict(
        {
            "sincos2d": {"sincos2d, rescaled": scaled("sincos2d_mae")},
            "axial": {"axial, rescaled": scaled("axial_rope(base=100)"), "axial, NTK": axial_ntk},
            "mixed": {"mixed, rescaled": scaled("rope_mixed")},
        },
        sort_keys=False,
    )
    study.steps = 800
    study.optimizer.warmup_steps = study.get_ref("steps") // 16  # 50
    study.finetune = finetunes(resolution=144, steps=80, learned=None)
    study.measures.resolutions.update(images=600, resolutions=(16, 36, 64, 81, 121, 169, 256))
    return study


def encodings(*, learned: str, **others: str) -> ConfigDict:
    """{label: spec}, in the order of tables and figures."""
    fixed = {
        "none": "none",
        "learned": learned,
        "sincos2d": "sincos2d_mae",
        "axial": "axial_rope(base=100)",
        "mixed": "rope_mixed",
        "dinov3": "dinov3",
    }
    return ConfigDict(fixed | others, sort_keys=False)


def finetunes(*, resolution: int, steps: int, learned: Reading = RESIZED) -> ConfigDict:
    """Short fine-tunes at a higher resolution, as in section 3.2 of the ViT paper."""
    tuned = {"learned": learned, "axial": None, "mixed": None}
    how = dict(size=resolution, steps=steps, learning_rate=1e-3)
    return ConfigDict(
        {label: {f"{label}, tuned": dict(read=read, **how)} for label, read in tuned.items()}, sort_keys=False
    )


VIT = Source("Dosovitskiy et al.", 2020, "2010.11929")
HEO = Source("Heo et al.", 2024, "2403.13298")
DINOV3 = Source("Simeoni et al.", 2025, "2508.10104")
ON_GRIDS = Source("Submission 9150 to TMLR", 2026, elsewhere="openreview.net/forum?id=mEGr7Fm54B")
PAPE = Source("Öhrström et al.", 2026, "2602.01418")
COMPASS = Source("Compass-RoPE", 2026, elsewhere="icml.cc/virtual/2026/poster/62023")
_SETS = (("fashion_mnist", 28, 56), ("caltech101", 64, 256))
_AT = {name: Table("resolutions", name, "accuracy") for name, _, _ in _SETS}
_RESIZED = {"caltech101": "learned"}  # whose learned table is resized as it is evaluated; elsewhere by a policy


def _kept(better: str, worse: str | None, sets: Sequence[tuple[str, int, int]] = _SETS) -> Contrast:
    """A row's change of accuracy from 1x to 2x less another row's, mean over sets; None is the learned table."""
    return mean(
        [
            (_AT[name](better, end) - _AT[name](better, start)) - (_AT[name](other, end) - _AT[name](other, start))
            for name, start, end in sets
            for other in [worse or _RESIZED.get(name, "learned, resized")]
        ]
    )


CLAIMS = (
    Claim(
        "rescaled-beats-extrapolated",
        VIT,
        "section 3.2, interpolating position embeddings; no number",
        "On larger images positions fitted to the trained grid are ahead of positions beyond it.",
        tuple(
            above(_AT[name]("sincos2d, rescaled", end) - _AT[name]("sincos2d", end), name=f"sincos2d, {name}")
            for name, _, end in _SETS
        ),
    ),
    Claim(
        "mixed-keeps-more-than-learned",
        HEO,
        "README of the authors' code, ViT-S trained at 224",
        "On larger images mixed rotary frequencies keep more accuracy than a resized learned table.",
        (above(_kept("mixed", None), name="mixed - learned, 2x less 1x, mean over sets"),),
        {"mixed at 224 (%)": 80.9, "at 384": 81.8, "learned at 224": 80.4, "learned at 384": 79.4},
        tried="Two data sets, positions fitted to the trained grid, and a control that learned nothing of positions: if "
        "the table keeps what no encoding keeps, it has little to lose after so short a training.",
        remains="RoPE-ViT's own sizes: configs/papers/full/rope_vit_s.py is ready for an accelerator.",
        follow_up=(
            Looked(_kept("mixed, rescaled", None), "mixed rescaled - learned, 2x less 1x"),
            Looked(_kept("none", None), "none - learned, 2x less 1x"),
        ),
    ),
    Claim(
        "mixed-keeps-more-than-axial",
        HEO,
        "README of the authors' code, ViT-S trained at 224",
        "On larger images mixed rotary frequencies keep more accuracy than axial ones.",
        (above(_kept("mixed", "axial"), name="mixed - axial, 2x less 1x, mean over sets"),),
        {"mixed at 224 (%)": 80.9, "at 384": 81.8, "axial at 224": 80.9, "axial at 384": 80.0},
    ),
    Claim(
        "relative-coordinates-keep-more",
        DINOV3,
        "the design of its rotary embedding; no number",
        "On larger images coordinates relative to the image keep more accuracy than coordinates in patches.",
        (above(_kept("dinov3", "axial"), name="dinov3 - axial, 2x less 1x, mean over sets"),),
    ),
    Claim(
        "accuracy-peaks-above-1x",
        HEO,
        "figure in the README of the authors' code, ViT-B mixed, read off",
        "Accuracy is higher somewhat above the trained resolution than at it.",
        (above(_AT["caltech101"]("mixed", 81) - _AT["caltech101"]("mixed", 64)),),
        {"at 224 (%)": 83.8, "at 320": 84.7},
        tried="Positions fitted to the trained grid, and another data set.",
        remains="Models of RoPE-ViT's size, and trainings on random parts of images, after which larger ones hold things of "
        "the size that was seen.",
        follow_up=(
            Looked(
                _AT["caltech101"]("mixed, rescaled", 81) - _AT["caltech101"]("mixed, rescaled", 64), "rescaled, 81 - 64"
            ),
            Looked(_AT["fashion_mnist"]("mixed", 32) - _AT["fashion_mnist"]("mixed", 28), "Fashion-MNIST, 32 - 28"),
        ),
    ),
    Claim(
        "fire-keeps-more-than-rope",
        ON_GRIDS,
        "abstract, ViT-Tiny on ImageNet-100, 4.57 times the trained resolution",
        "On larger images FIRE keeps more accuracy than RoPE.",
        (above(_kept("fire", "axial", _SETS[:1]), name="fire - axial, 2x less 1x"),),
        {"FIRE keeps (%)": 63.1, "RoPE": 18.9},
        doubt="FIRE has less to lose: at the trained resolution it is behind axial RoPE.",
        follow_up=(Looked(_AT["fashion_mnist"]("fire", 28) - _AT["fashion_mnist"]("axial", 28), "fire - axial at 28"),),
    ),
    Claim(
        "pape-ahead-on-larger-images",
        PAPE,
        "abstract, ImageNet-1k trained at 224 and tested up to 1,024",
        "On larger images than were trained on PaPE is ahead of axial and mixed RoPE, sine codes and ALiBi.",
        tuple(
            above(_AT["fashion_mnist"]("pape", 56) - _AT["fashion_mnist"](row, 56))
            for row in ("axial", "mixed", "sincos2d", "alibi")
        ),
        {"lead over the next best (points)": 10.5},
        doubt="It is neither clearly ahead of DINOv3's coordinates nor clearly behind them, and it is behind mixed RoPE that "
        "is fitted to the trained grid.",
        follow_up=(
            Looked(_AT["fashion_mnist"]("pape", 56) - _AT["fashion_mnist"]("dinov3", 56), "pape - dinov3 at 56"),
            Looked(
                _AT["fashion_mnist"]("pape", 56) - _AT["fashion_mnist"]("mixed, rescaled", 56), "pape - mixed, rescaled"
            ),
        ),
    ),
    Claim(
        "directions-keep-more-than-coordinates",
        COMPASS,
        "abstract; no number",
        "On larger images rotary frequencies learned as directions keep more accuracy than those learned as coordinates.",
        (above(_kept("compass", "mixed", _SETS[:1]), name="compass - mixed, 2x less 1x"),),
    ),
)

QUESTIONS = (
    Question(
        "Images of several sizes",
        (_AT["caltech101"],),
        "accuracy at twice the resolution, Caltech-101",
        at=256,
        doubt="Short trainings on small images; the order of RoPE-ViT needs trainings that were not run here.",
        column="2× resolution, Caltech-101 (points)",
        claims=("rescaled-beats-extrapolated", "relative-coordinates-keep-more", "mixed-keeps-more-than-learned"),
    ),
)
