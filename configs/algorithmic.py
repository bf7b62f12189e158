"""One model on one algorithmic problem, trained on short lengths and evaluated on longer ones.

    python -m experiments.train --config=configs/algorithmic.py
    python -m experiments.train --config=configs/algorithmic.py --config.data.name=copy_string \
        --config.model.kind=decoder --config.model.embedding_scale=8.0

Cost: bucket sort up to 20 symbols, under 3 minutes on one CPU core.
"""

from ml_collections import ConfigDict, config_dict


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.task = "algorithmic"
    config.seed = 0

    config.data = ConfigDict()
    config.data.name = "bucket_sort"  # or any of posjax.data.algorithms
    config.data.symbols = config_dict.placeholder(int)  # those published
    config.data.files = config_dict.placeholder(str)  # the folder of SCAN's files
    config.data.shortest = 1
    config.data.length = 20  # the longest in training
    config.data.positions = "order"  # "digits" for abacus, "coupled" for position_coupling, "views" with cameras
    config.data.others = ()  # problems that are evaluated and not trained on
    config.data.eval_split = "test"  # names the drawn problems: another name gives others

    config.model = _model()
    config.steps = 1000

    config.optimizer = ConfigDict()
    config.optimizer.learning_rate = 1e-3
    config.optimizer.schedule = "cosine"
    config.optimizer.warmup_steps = config.get_ref("steps") // 20
    config.optimizer.weight_decay = 0.0
    config.optimizer.clip_norm = 1.0  # largest global norm of the gradient; 0: no clipping
    config.optimizer.b1 = 0.9
    config.optimizer.b2 = 0.99
    config.optimizer.decay_encoding = False
    config.optimizer.name = config_dict.placeholder(str)  # adamw, lamb or muon; None: adamw
    config.optimizer.final_share = config_dict.placeholder(float)  # last learning rate / learning_rate; None: 0
    config.optimizer.layer_decay = config_dict.placeholder(float)  # factor on rates from layer to layer; None: 1
    config.ema = config_dict.placeholder(float)  # decay of a moving average of parameters, which is scored; None: none

    config.batch_size = 32
    config.accumulate = 1  # number of equal parts of a batch whose gradients are summed in turn
    config.mesh = ConfigDict(dict(seed=1, data=-1, fsdp=1, tensor=1, context=1))  # devices an axis; -1: all left
    config.eval_lengths = (20, 30, 40, 50, 60)
    config.eval_examples = 256  # problems of each length
    config.eval_batch_size = 64
    config.log_every = 10
    config.eval_every = 0  # 0: at the end only
    config.checkpoint_every = 500
    config.keep_last = 2
    config.logger = config_dict.placeholder(str)  # tensorboard, trackio, wandb, wandb_offline; None: none
    return config


def _model() -> ConfigDict:
    model = ConfigDict()
    model.kind = "encoder"  # encoder or decoder
    model.encoding = "randomized(256) >> rope"
    model.length = config_dict.placeholder(int)  # rows of a learned table; None: as many as the longest row needs
    model.vocab_size = config_dict.placeholder(int)  # None: that of the problems; a larger one shares compiled programs
    model.width = 64
    model.depth = 2
    model.num_heads = 8
    model.mlp_dim = config_dict.placeholder(int)  # hidden width; None: 4 * width
    model.placement = "pre"
    model.embedding_norm = False
    model.embedding_scale = config_dict.placeholder(float)
    model.embedding_scale = 50.0  # gives an encoder's tokens unit variance; None: a decoder scales its own
    model.tied_embedding = True
    model.dropout = 0.0
    model.implementation = "auto"  # auto, dense, blockwise, ...: an implementation of posjax.attend
    model.dtype = "float32"  # dtype of activations; bfloat16 on accelerators
    model.param_dtype = "float32"
    return model
