"""ViTs trained at one resolution and tested from 0.5 to 2 times it, each positional encoding under each of its policies.

    python -m experiments.resolutions --config=configs/resolutions.py
    python -m experiments.resolutions --config=configs/resolutions.py:fashion_mnist,caltech101,cifar10

Sets: fashion_mnist (python -m experiments.prepare --name=...), caltech101 in native aspects, and, where it is asked for,
cifar10. A folder or zips of pictures instead of caltech101: --config.sets.caltech101.data.name=folder
--config.sets.caltech101.data.data_dir=DIR

Cost: about an hour and a half on one CPU core, and an hour more for cifar10. Expected: results/resolutions, made with
--workdir=results/resolutions. On an accelerator override sizes only, as in
--config.sets.caltech101.model.width=384 --config.sets.caltech101.model.depth=12 --config.sets.caltech101.model.num_heads=6
--config.sets.caltech101.steps=40000 --config.sets.caltech101.batch_size=512
"""

from ml_collections import ConfigDict, config_dict

from configs import vit

_NAMES = ("fashion_mnist", "cifar10", "caltech101")


def get_config(names: str = "fashion_mnist,caltech101") -> ConfigDict:
    config = ConfigDict()
    config.name = "resolutions"
    config.title = "ViTs tested at other resolutions than they were trained at"
    config.point = (
        "Which encodings keep their accuracy at other resolutions, and does it help to rescale coordinates "
        "to the trained grid?"
    )
    config.notes = (
        "A row is an encoding under a policy: as it was trained (coordinates of larger grids are new: it extrapolates), "
        "rescaled (positions are fitted to the trained grid), NTK (lower frequencies by the factor), resized (tables, "
        "bicubic), or fine-tuned for a few steps at a higher resolution. Test images are made from the originals, "
        "antialiased. Those of Fashion-MNIST and CIFAR-10 have 28 and 32 pixels: above that they are upsampled, which adds "
        "no information; those of Caltech-101 have as many pixels as the largest budget asks for, or more. "
        "The small ones are trained on random parts (data.least_area), Caltech-101 on whole images. "
        "Runs are short: levels are those of early training, the shapes of the curves are what is compared."
    )
    config.seeds = (0, 1, 2, 3, 4)
    config.tune = ConfigDict(dict(learning_rates=(1e-3, 3e-3, 1e-2), seeds=(100,), share=0.1))
    wanted = names.split(",")
    for name in wanted:
        if name not in _NAMES:
            raise ValueError(f"there is no study {name!r}; those are {', '.join(_NAMES)}")
    studies = {"fashion_mnist": _fashion_mnist, "cifar10": _cifar10, "caltech101": _caltech101}
    config.sets = ConfigDict({name: studies[name]() for name in _NAMES if name in wanted}, sort_keys=False)
    return config


def _shared() -> ConfigDict:
    study = vit.get_config()
    del study.seed, study.init_from, study.init_head, study.init_resize  # every model starts at random
    study.model.pooling = "mean"
    study.model.width = 48
    study.model.depth = 3
    study.model.num_heads = 3
    study.data.flip = True
    study.optimizer.learning_rate = 2e-3
    study.batch_size = 32  # more steps for as many images
    study.eval_every = 0  # at the end only
    study.eval_batch_size = 500
    study.checkpoint_every = 100
    study.evaluation = ConfigDict()
    study.evaluation.images = config_dict.placeholder(int)  # of the evaluation split, evenly spread; None: all
    study.evaluation.batch_tokens = 16384
    study.evaluation.resize = "torch_bicubic"  # of tables: a method of posjax.encodings.resize
    return study


def _fixed_size() -> ConfigDict:
    """A study on images of one size: {height} and {width} are the trained grid."""
    study, fitted = _shared(), "fit_grid(height={height}, width={width})"
    study.data.least_area = 0.35  # things of several sizes are seen in training, as in the recipes of the papers
    study.model.patch_size = 4
    study.encodings = encodings(learned="learned", alibi="alibi", swin="swin")
    rescaled = fitted + " >> axial_rope(base=100)"
    study.policies = policies(
        learned={"resized": "resized"},
        sincos2d={"": "as trained", "rescaled": fitted + " >> sincos2d_mae"},
        axial={"": "as trained", "rescaled": rescaled, "NTK": "axial_rope(base=100, scaling=ntk(factor={factor}))"},
        mixed={"": "as trained", "rescaled": fitted + " >> rope_mixed"},
        alibi={"": "as trained", "rescaled": fitted + " >> alibi"},
        swin={"resized": "resized"},
    )
    return study


def _fashion_mnist() -> ConfigDict:
    study = _fixed_size()
    study.data.name = "fashion_mnist"
    study.data.image_size = (28, 28)
    study.steps = 800
    study.optimizer.warmup_steps = study.get_ref("steps") // 16  # 50
    study.batch_size = 48
    study.finetune = finetunes(resolution=40, steps=80)
    study.evaluation.images = 1000
    study.evaluation.resolutions = (16, 20, 24, 28, 32, 40, 56)
    return study


def _cifar10() -> ConfigDict:
    study = _fixed_size()
    study.data.name = "cifar10"
    study.data.image_size = (32, 32)
    study.steps = 900
    study.optimizer.warmup_steps = study.get_ref("steps") // 18  # 50
    study.batch_size = 48
    study.finetune = finetunes(resolution=48, steps=90)
    study.evaluation.images = 1000
    study.evaluation.resolutions = (16, 24, 28, 32, 40, 48, 64)
    return study


def _caltech101() -> ConfigDict:
    """Native aspects: a resolution is a largest number of patches; sides twice as long are four times as many."""
    study = _shared()
    study.data.name = "caltech101"
    study.data.mode = "native"
    study.data.max_patches = 64
    study.data.image_size = (128, 128)  # of tables: no image of 64 patches has more than 16 on a side
    study.model.patch_size = 8
    # Biases of distance are compared on the small sets.
    study.encodings = encodings(learned="learned(resize='jax_linear')")
    study.policies = policies(
        sincos2d={"": "as trained", "rescaled": "interpolate(factor={scale}) >> sincos2d_mae"},
        axial={
            "": "as trained",
            "rescaled": "interpolate(factor={scale}) >> axial_rope(base=100)",
            "NTK": "axial_rope(base=100, scaling=ntk(factor={factor}))",
        },
        mixed={"": "as trained", "rescaled": "interpolate(factor={scale}) >> rope_mixed"},
    )
    study.steps = 800
    study.optimizer.warmup_steps = study.get_ref("steps") // 16  # 50
    study.finetune = finetunes(resolution=144, steps=80, learned="as trained")
    study.evaluation.images = 600
    study.evaluation.resolutions = (16, 36, 64, 81, 121, 169, 256)
    return study


def encodings(*, learned: str, **biases: str) -> ConfigDict:
    """{label: spec}, in the order of tables and figures."""
    fixed = {
        "none": "none",
        "learned": learned,
        "sincos2d": "sincos2d_mae",
        "axial": "axial_rope(base=100)",
        "mixed": "rope_mixed",
        "dinov3": "dinov3",
    }
    return ConfigDict(fixed | biases, sort_keys=False)


def policies(**each: dict[str, str]) -> ConfigDict:
    """{label of an encoding: {name: policy}}; a policy is "as trained", "resized" or a spec with placeholders."""
    return ConfigDict({label: ConfigDict(named, sort_keys=False) for label, named in each.items()}, sort_keys=False)


def finetunes(*, resolution: int, steps: int, learned: str = "resized") -> ConfigDict:
    """Short fine-tunes at a higher resolution, as in section 3.2 of the ViT paper."""
    tuned = {"learned": learned, "axial": "as trained", "mixed": "as trained"}
    return ConfigDict(
        {
            label: {"tuned": dict(policy=policy, resolution=resolution, steps=steps, learning_rate=1e-3)}
            for label, policy in tuned.items()
        },
        sort_keys=False,
    )
