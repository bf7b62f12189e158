"""A fine-tune: of a run of our own, or of pretrained weights, trained on under their own encoding or another.

    python -m experiments.train --config=configs/finetune.py --config.init_from=runs/decoder
    python -m experiments.train --config=configs/finetune.py --config.init_from=Llama-3.2-1B \
        --config.data.name=mine --config.data.files=DIR --config.data.length=1024
    python -m experiments.train --config=configs/finetune.py --config.init_from=Llama-3.2-1B \
        --config.model.encoding="{own}, {own}, {own}, none" --config.model.param_dtype=float32
    python -m experiments.train --config=configs/finetune.py --config.init_from=gpt2 \
        --config.model.encoding=rope --config.init_encoding=new
    python -m experiments.train --config=configs/finetune.py:vit --config.init_from=dinov2-small \
        --config.data.name=folder --config.data.data_dir=PICTURES --config.data.image_size="(126, 126)"

    python -m experiments.ablate --config=configs/finetune.py:vit --config.init_from=dinov2-small --seeds 0,1,2 \
        --encodings learned "learned + axial_rope" "{own}" --config.data.name=folder --config.data.data_dir=PICTURES

The model is the one that learned: a field of config.model that is set holds instead of what it says, as other encodings
do ({own} is its own) and float32 parameters, which small steps need. An encoding that learns something else than the one
there is refused; init_encoding=new drops what was learned and starts the other one as a new model would. Tokens are those
of the folder's tokenizer.json, or of the run.

The last one fine-tunes a ViT: sizes, channels, mean and deviation of its pixels are those of the weights, and so is the size
of its images unless config.data.image_size is set, to which tables are resized. A head of other classes begins at zero.

Cost: on a run of configs/decoder.py half a minute on 2 CPU cores; DINOv2 S/14 at 84 pixels, 16 images a step, 3
seconds a step where others worked, too.
"""

from ml_collections import ConfigDict, config_dict

from configs import decoder, vit


def get_config(what: str = "") -> ConfigDict:
    if what == "vit":
        return _images()
    if what:
        raise ValueError(f"there is finetune.py, of decoders, and finetune.py:vit, not :{what}")
    config = decoder.get_config()
    config.model = _model(config)
    config.data.update(positions="window", length=256)
    config.steps = 100
    config.optimizer.learning_rate = 1e-4  # a tenth or less of what models are trained with from the start
    config.optimizer.update(schedule="cosine", weight_decay=0.0)
    config.update(batch_size=16, eval_lengths=(256,), eval_tokens=16_385, eval_every=0, checkpoint_every=100)
    config.optimizer.warmup_steps = config.get_ref("steps") // 10
    return config


def _images() -> ConfigDict:
    config = vit.get_config()
    config.model = _model(config)
    config.data.mean, config.data.std = (config_dict.placeholder(tuple) for _ in range(2))
    config.data.augment = "flip"
    config.update(steps=500, batch_size=32, eval_batch_size=64, eval_every=0, checkpoint_every=100)
    config.optimizer.update(learning_rate=1e-4, weight_decay=0.0)
    config.optimizer.warmup_steps = config.get_ref("steps") // 10
    return config


def _model(config: ConfigDict) -> ConfigDict:
    """The fields of `config.model`, all taken from the start."""
    model = config.model
    return ConfigDict({name: config_dict.placeholder(model.get_type(name)) for name in model} | {"kind": "init_from"})
