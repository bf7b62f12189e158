"""Six positional encodings side by side, in a ViT and in a decoder, on data that need no download.

    make ablate
    python -m experiments.ablate --config=configs/quickstart.py

Cost: under 5 minutes on 2 CPU cores. Expected: the table and plots of results/quickstart, shown in README.md: on the
digits `none` is far below every encoding; in the decoder ALiBi and T5 stay flat beyond the training length, while
sinusoidal and learned codes fail there.
"""

from ml_collections import ConfigDict, config_dict


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.name = "quickstart"
    config.title = "Six positional encodings, a ViT and a decoder"
    config.notes = (
        "digits_vit: scikit-learn's 8x8 digits, patches of 2x2 pixels. rope, alibi, sinusoidal and t5 see (row, column), "
        "learned is the flat table of the ViT paper.\n"
        "pydoc_decoder: the text of Python's own documentation, byte by byte, trained in windows of 64 bytes. Positions "
        "restart at each window, so that longer windows ask for positions never seen. Every length scores the same bytes."
    )
    config.seeds = (0, 1, 2, 3, 4)
    config.studies = ConfigDict({"digits_vit": _digits_vit(), "pydoc_decoder": _pydoc_decoder()})
    return config


def _digits_vit() -> ConfigDict:
    study = _common()
    study.task = "classification"
    study.encodings = ConfigDict(
        {
            "none": "none",
            "sinusoidal": "sinusoidal",
            "learned": "learned",
            "rope": "rope(base=100)",
            "alibi": "alibi",
            "t5": "t5",
        }
    )
    study.data.name = "digits"
    study.data.train_split = "train"
    study.data.eval_split = "test"
    study.data.crop_padding = 0
    study.data.flip = False
    study.data.mixup = 0.0
    study.model.patch_size = 2
    study.model.pooling = "mean"
    study.model.num_registers = 0
    study.model.width = 32
    study.label_smoothing = 0.0
    study.optimizer.learning_rate = 3e-3
    study.steps = 500
    study.batch_size = 64
    study.eval_batch_size = 364
    return study


def _pydoc_decoder() -> ConfigDict:
    study = _common()
    study.task = "language_model"
    study.encodings = ConfigDict(
        {
            "none": "none",
            "sinusoidal": "sinusoidal",
            "learned": "learned",
            "rope": "rope",
            "alibi": "alibi",
            "t5": "t5(bidirectional=False)",
        }
    )
    study.data.name = "pydoc_topics"
    study.data.train_split = "train"
    study.data.eval_split = "validation"
    study.data.length = 64
    study.data.positions = "window"
    study.model.length = config_dict.placeholder(int)
    study.model.mlp = "gelu"
    study.model.tied_embedding = True
    study.model.width = 64
    study.optimizer.learning_rate = 5e-3
    study.steps = 250
    study.batch_size = 16
    study.eval_lengths = (64, 128, 256, 512)
    study.eval_batch_size = 64
    return study


def _common() -> ConfigDict:
    study = ConfigDict()
    study.data = ConfigDict()
    study.data.data_dir = config_dict.placeholder(str)
    study.model = ConfigDict()
    study.model.injection = "stem"
    study.model.depth = 2
    study.model.num_heads = 4
    study.model.mlp_dim = config_dict.placeholder(int)
    study.model.dropout = 0.0
    study.model.implementation = "auto"
    study.model.dtype = "float32"
    study.model.attention_dtype = config_dict.placeholder(str)
    study.model.param_dtype = "float32"
    study.optimizer = ConfigDict()
    study.optimizer.schedule = "cosine"
    study.optimizer.warmup_steps = 25
    study.optimizer.weight_decay = 0.05
    study.optimizer.clip_norm = 1.0
    study.optimizer.b1 = 0.9
    study.optimizer.b2 = 0.99
    study.optimizer.decay_encoding = False
    study.accumulate = 1
    study.log_every = 10
    study.eval_every = 0
    study.checkpoint_every = 100
    study.keep_last = 2
    study.tensorboard = False
    return study
