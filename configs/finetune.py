"""A fine-tune of a decoder: a run of our own, or a folder of transformers, trained on under its own encoding or another.

    python -m experiments.train --config=configs/finetune.py --config.init_from=runs/decoder
    python -m experiments.train --config=configs/finetune.py --config.init_from=Llama-3.2-1B \
        --config.data.name=mine --config.data.files=DIR --config.data.length=1024
    python -m experiments.train --config=configs/finetune.py --config.init_from=Llama-3.2-1B \
        --config.model.encoding="{own}, {own}, {own}, none" --config.model.param_dtype=float32
    python -m experiments.train --config=configs/finetune.py --config.init_from=gpt2 \
        --config.model.encoding=rope --config.init_encoding=new

The model is the one that learned: a field of config.model that is set holds instead of what it says, as other encodings
do ({own} is its own) and float32 parameters, which small steps need. An encoding that learns something else than the one
there is refused; init_encoding=new drops what was learned and starts the other one as a new model would. Tokens are those
of the folder's tokenizer.json, or of the run.

Cost: on a run of configs/decoder.py half a minute on 2 CPU cores.
"""

from ml_collections import ConfigDict, config_dict

from configs import decoder


def get_config() -> ConfigDict:
    config = decoder.get_config()
    config.model = ConfigDict({name: config_dict.placeholder(kind) for name, kind in _types(config.model)})
    config.model.kind = "init_from"

    config.data.positions = "window"
    config.data.length = 256
    config.steps = 100
    config.optimizer.learning_rate = 1e-4  # a tenth or less of what models are trained with from the start
    config.optimizer.schedule = "cosine"
    config.optimizer.warmup_steps = config.get_ref("steps") // 10
    config.optimizer.weight_decay = 0.0
    config.batch_size = 16
    config.eval_lengths = (256,)
    config.eval_tokens = 16_385
    config.eval_every = 0
    config.checkpoint_every = 100
    return config


def _types(model: ConfigDict):
    """(name, type) of the fields."""
    return [(name, model.get_type(name)) for name in model]
