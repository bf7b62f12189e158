"""One decoder language model on bytes, trained at one length and evaluated at several.

    python -m experiments.train --config=configs/decoder.py
    python -m experiments.train --config=configs/decoder.py --config.data.name=tiny_shakespeare \
        --config.model.encoding="rope + alibi" --workdir=runs/shakespeare
    python -m experiments.train --config=configs/decoder.py --config.data.name=mine --config.data.files=DIR \
        --config.data.tokenizer=tokenizer.json --config.data.positions=window

    python -m experiments.train --config=configs/decoder.py:llama --workdir=runs/llama

The last one has the blocks of Llama, so that experiments.export makes a folder of it that transformers reads.

Cost: Python's own documentation (no download), about 3 minutes on 2 CPU cores. Expected: 1.9 nats per byte.
"""

from ml_collections import ConfigDict, config_dict

_LLAMA = dict(norm="rms", mlp="swiglu", attention_bias=(), embedding_scale=1.0, tied_embedding=False)


def get_config(what: str = "") -> ConfigDict:
    config = ConfigDict()
    config.task = "language_model"
    config.seed = 0

    config.data = _data()
    config.model = _model()
    if what == "llama":
        config.model.update(_LLAMA)
    elif what:
        raise ValueError(f"there is decoder.py and decoder.py:llama, not :{what}")

    config.steps = 1000

    config.optimizer = ConfigDict()
    config.optimizer.learning_rate = 2e-3
    config.optimizer.schedule = "cosine"
    config.optimizer.warmup_steps = config.get_ref("steps") // 10  # a tenth of them, also where they are overridden
    config.optimizer.weight_decay = 0.1
    config.optimizer.clip_norm = 1.0  # largest global norm of the gradient; 0: no clipping
    config.optimizer.b1 = 0.9
    config.optimizer.b2 = 0.99
    config.optimizer.decay_encoding = False
    config.optimizer.name = config_dict.placeholder(str)  # adamw, lamb or muon; None: adamw
    config.optimizer.warmup = config_dict.placeholder(str)  # as "256Mi tokens"; None: warmup_steps
    config.optimizer.final_share = config_dict.placeholder(float)  # last learning rate / learning_rate; None: 0
    config.optimizer.layer_decay = config_dict.placeholder(float)  # factor on rates from layer to layer; None: 1
    config.ema = config_dict.placeholder(float)  # decay of a moving average of parameters, which is scored; None: none

    config.init_from = config_dict.placeholder(str)  # workdir or transformers' folder that a fine-tune starts from
    config.init_encoding = "keep"  # parameters of the encoding: keep, new, or keep_or_new (keep where the new one can)
    config.init_ignore = config_dict.placeholder(str)  # keys of its config.json to pass over, with commas

    config.batch_size = 16
    config.accumulate = 1  # number of equal parts of a batch whose gradients are summed in turn
    config.mesh = ConfigDict(dict(seed=1, data=-1, fsdp=1, tensor=1, context=1))  # devices an axis; -1: all left
    config.eval_lengths = (256, 512, 1024)
    config.eval_tokens = config_dict.placeholder(int)  # tokens of the evaluation split that are read; None: all
    config.eval_batch_size = 32  # windows of data.length tokens; longer windows come in batches of as many tokens
    config.log_every = 10
    config.eval_every = 250  # 0: at the end only
    config.checkpoint_every = 250
    config.keep_last = 2
    config.logger = config_dict.placeholder(str)  # tensorboard, trackio, wandb, wandb_offline; None: none
    return config


def _data() -> ConfigDict:
    data = ConfigDict()
    # A text of `python -m experiments.prepare --list`, or a name for data.files; or synthetic_tokens: random ones of
    # model.vocab_size, for speed and plans.
    data.name = "pydoc_topics"
    data.data_dir = config_dict.placeholder(str)  # folder of tensorflow-datasets' prepared sets; also s3://, gs://
    data.files = config_dict.placeholder(str)  # folder or glob of your own texts or shards of tokens; also s3://, gs://
    data.text_field = "text"  # name of the text in JSON lines, parquet and Arrow files
    data.tokenizer = config_dict.placeholder(str)  # path of a tokenizer.json; None: bytes
    data.bos = config_dict.placeholder(bool)  # False: no BOS before a text; None: as the tokenizer's template says
    data.train_split = "train"
    data.eval_split = "validation"
    data.length = 256  # tokens in a training window
    data.positions = "document"  # document or window: where offsets start; stream: window, documents joined
    data.ladder = ConfigDict()
    data.ladder.steps = 0  # steps in which the context grows to data.length (SkyLadder); 0: no growth
    data.ladder.start = 32  # first length of the context
    data.ladder.schedule = "linear"  # linear, sinusoidal or exponential
    return data


def _model() -> ConfigDict:
    model = ConfigDict()
    model.kind = "decoder"
    model.encoding = "rope"
    model.injection = "stem"  # stem, every_layer or every_layer_shared
    model.vocab_size = config_dict.placeholder(int)  # rows of the token embedding; None: as many as the data need
    model.length = config_dict.placeholder(int)  # rows of a learned table; None: as many as the data need
    model.width = 128
    model.depth = 4
    model.num_heads = 4
    model.num_kv_heads = config_dict.placeholder(int)  # heads of keys and values; None: num_heads
    # Latent attention, as "latent(kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=32)".
    model.latent = config_dict.placeholder(str)
    model.attention_gate = config_dict.placeholder(str)  # gate behind attention, of a head or channel; None: none
    model.mlp_dim = config_dict.placeholder(int)  # hidden width; None: 4 * width
    model.mlp = "gelu"  # gelu or swiglu
    model.tied_embedding = True
    model.dropout = 0.0
    model.implementation = "auto"  # auto, dense, blockwise, ...: an implementation of posjax.attend
    model.scan = False  # True: blocks are a loop, which compiles faster
    model.remat = "none"  # what the backward pass of a block computes again: none, full, dots or attention
    model.dtype = "float32"  # dtype of activations; bfloat16 on accelerators
    model.attention_dtype = config_dict.placeholder(str)  # dtype of queries, keys and values; None: dtype
    model.param_dtype = "float32"
    return model
