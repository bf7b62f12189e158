"""The quickstart's ViT ablation on Fashion-MNIST.

    python -m experiments.prepare --name=fashion_mnist
    python -m experiments.ablate --config=configs/fashion_vit.py

Cost: about an hour of one CPU core, with what chooses rates; two processes with NPROC=1, --rows=0/2 and --rows=1/2,
share it. Expected: results/fashion_vit, made with --workdir=results/fashion_vit. On an
accelerator give it what it deserves: --config.studies.fashion_vit.model.width=192
--config.studies.fashion_vit.model.depth=12 and more steps.
"""

from ml_collections import ConfigDict

from configs import vit


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.name = "fashion_vit"
    config.title = "Eight positional encodings in a ViT on Fashion-MNIST"
    config.point = "Which positional encoding helps a small ViT, and does it matter that it knows directions?"
    config.notes = (
        "Patches of 4x4 pixels, a grid of 7x7. rope, alibi, kerple, lookhere, sinusoidal and t5 see (row, column), learned "
        "is the flat table of the ViT paper. Two thirds of a pass over the training images: differences are those of early "
        "training."
    )
    config.seeds = (0, 1, 2, 3, 4)
    config.tune = ConfigDict(dict(learning_rates=(1e-3, 3e-3, 1e-2), seeds=(100,), share=0.1))
    config.studies = ConfigDict({"fashion_vit": _fashion_vit()})
    return config


def _fashion_vit() -> ConfigDict:
    study = vit.get_config()
    study.encodings = ConfigDict(
        {
            "none": "none",
            "sinusoidal": "sinusoidal",
            "learned": "learned",
            "rope": "rope(base=100)",
            "alibi": "alibi",
            "kerple": "kerple",
            "lookhere": "lookhere",
            "t5": "t5",
        },
        sort_keys=False,
    )
    study.data.name = "fashion_mnist"
    study.data.flip = True
    study.model.patch_size = 4
    study.model.pooling = "mean"
    study.model.width = 48
    study.model.depth = 3
    study.optimizer.learning_rate = 3e-3
    study.steps = 600
    study.optimizer.warmup_steps = study.get_ref("steps") // 12  # 50
    study.batch_size = 64
    study.eval_every = 0  # at the end only
    study.eval_batch_size = 500
    study.checkpoint_every = 100
    return study
