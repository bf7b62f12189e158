"""Vision transformers on Fashion-MNIST that are trained to be looked at.

    python -m experiments.prepare --name=fashion_mnist
    python -m experiments.ablate --config=configs/analyse.py
    python -m experiments.analyse --checkpoint=runs/analyse/added/learned-<hash> --out=runs/analyse/pages/learned

Cost: about 30 minutes on one CPU core, and a minute for each page. Expected: results/analyse, a page for each row, made with
--out=results/analyse/<row>. An encoding that is learned for each layer (rope_mixed) has a study of its own, because the place
of injection belongs to the study.
"""

from ml_collections import ConfigDict

from configs import vit


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.name = "analyse"
    config.title = "Vision transformers to be looked at"
    config.notes = "One pass over the training images: what is shown is what a model has learned early."
    config.seeds = (0, 1, 2)
    config.studies = ConfigDict()
    config.studies.added = _study({"none": "none", "learned": "learned"}, "stem")
    config.studies.rotary = _study({"rope_mixed": "rope_mixed"}, "every_layer")
    return config


def _study(encodings: dict[str, str], injection: str) -> ConfigDict:
    study = vit.get_config()
    study.encodings = ConfigDict(encodings, sort_keys=False)
    study.data.update(name="fashion_mnist", augment="flip")
    study.model.update(injection=injection, patch_size=4, width=48, depth=4, num_heads=4)
    study.optimizer.learning_rate = 3e-3
    study.update(steps=900, batch_size=64, eval_every=0, eval_batch_size=500, checkpoint_every=100)
    study.optimizer.warmup_steps = study.get_ref("steps") // 18  # 50
    return study
