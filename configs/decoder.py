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
    config.optimizer.clip_norm = 1.0  # largest global norm of the gradient; 0 does not clip
    config.optimizer.b1 = 0.9
    config.optimizer.b2 = 0.99
    config.optimizer.decay_encoding = False

    config.init_from = config_dict.placeholder(
        str
    )  # a workdir, or a folder of transformers, to start from: a fine-tune
    config.init_encoding = (
        "keep"  # what the encoding has learned, where another one can take it over; new; or keep_or_new
    )
    config.init_ignore = config_dict.placeholder(str)  # keys of the folder's config.json to pass over, with commas

    config.batch_size = 16
    config.accumulate = 1  # parts of a batch whose gradients are summed one after the other
    config.mesh = ConfigDict(dict(seed=1, data=-1, fsdp=1, tensor=1, context=1))  # devices; -1: those left
    config.eval_lengths = (256, 512, 1024)
    config.eval_tokens = config_dict.placeholder(int)  # the first so many of the evaluation split; all of it
    config.eval_batch_size = 32  # windows of the training length; longer ones come in proportionally smaller batches
    config.log_every = 10
    config.eval_every = 250
    config.checkpoint_every = 250
    config.keep_last = 2
    config.logger = config_dict.placeholder(str)  # tensorboard, trackio, wandb or wandb_offline, beside metrics.jsonl
    return config


def _data() -> ConfigDict:
    data = ConfigDict()
    data.name = "pydoc_topics"  # or any text that `python -m experiments.prepare --list` shows
    data.data_dir = config_dict.placeholder(str)  # where tensorflow-datasets keeps its sets
    data.files = config_dict.placeholder(str)  # a folder or glob of text of your own; data.name is its name then
    data.text_field = "text"  # of the rows of JSON lines, parquet or Arrow files
    data.tokenizer = config_dict.placeholder(str)  # a tokenizer.json; None: bytes
    data.bos = config_dict.placeholder(bool)  # False: without the BOS that its template puts before a text
    data.train_split = "train"
    data.eval_split = "validation"
    data.length = 256  # tokens in a training window
    data.positions = "document"  # offsets in the document; "window", "stream": in the window; "stream" joins documents
    data.ladder = ConfigDict()
    data.ladder.steps = 0  # in which the context grows to the length (SkyLadder); 0: it is that from the first step on
    data.ladder.start = 32  # tokens of the first context
    data.ladder.schedule = "linear"  # or sinusoidal, exponential
    return data


def _model() -> ConfigDict:
    model = ConfigDict()
    model.kind = "decoder"
    model.encoding = "rope"
    model.injection = "stem"  # or every_layer, every_layer_shared
    model.length = config_dict.placeholder(int)  # positions of a learned table; as many as the data have
    model.width = 128
    model.depth = 4
    model.num_heads = 4
    model.num_kv_heads = config_dict.placeholder(int)  # fewer heads of keys and values; num_heads
    # Keys and values from a latent: "latent(kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=32)".
    model.latent = config_dict.placeholder(str)
    model.mlp_dim = config_dict.placeholder(int)  # 4 * width
    model.mlp = "gelu"  # or swiglu
    model.tied_embedding = True
    model.dropout = 0.0
    model.implementation = "auto"  # of attention: dense, blockwise
    model.scan = False  # the blocks as a loop, which compiles in a fraction of the time
    model.remat = "none"  # what of a block is computed again for gradients, to save memory: none, full, dots, attention
    model.dtype = "float32"  # of activations; bfloat16 on accelerators
    model.attention_dtype = config_dict.placeholder(str)  # as dtype
    model.param_dtype = "float32"
    return model
