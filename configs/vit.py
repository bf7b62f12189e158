"""One vision transformer on images.

    python -m experiments.train --config=configs/vit.py
    python -m experiments.train --config=configs/vit.py --config.data.name=fashion_mnist \
        --config.model.patch_size=4 --config.model.encoding="rope(base=100)" --workdir=runs/fashion
    python -m experiments.train --config=configs/vit.py --config.data.image_size="(12, 12)" \
        --config.init_from=runs/vit --config.steps=100 --workdir=runs/vit12

The last one fine-tunes the first at a higher resolution. Cost: the digits (no download), 1 to 2 minutes on 2 CPU cores.
Measured: 0.929 and 0.907 test accuracy with seeds 0 and 1; the 1,433 training images are learned by heart (loss 0.003).
"""

from ml_collections import ConfigDict, config_dict


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.task = "classification"
    config.seed = 0

    config.data = _data()
    config.model = _model()

    config.steps = 1000

    config.optimizer = ConfigDict()
    config.optimizer.learning_rate = 1e-3
    config.optimizer.schedule = "cosine"
    config.optimizer.warmup_steps = config.get_ref("steps") // 10  # a tenth of them, also where they are overridden
    config.optimizer.weight_decay = 0.05
    config.optimizer.clip_norm = 1.0  # largest global norm of the gradient; 0 does not clip
    config.optimizer.b1 = 0.9
    config.optimizer.b2 = 0.999
    config.optimizer.decay_encoding = False

    config.init_from = config_dict.placeholder(str)  # a workdir, or a file of weights, to start from: a fine-tune
    config.init_head = "keep"  # where it has as many classes; or new
    config.init_encoding = (
        "keep"  # what the encoding has learned, where another one can take it over; new; or keep_or_new
    )
    # Of tables: a method of posjax.encodings.resize; None takes that of the file's authors.
    config.init_resize = config_dict.placeholder(str)

    config.batch_size = 64
    config.accumulate = 1  # parts of a batch whose gradients are summed one after the other
    config.mesh = ConfigDict(dict(seed=1, data=-1, fsdp=1, tensor=1, context=1))  # devices; -1: those left
    config.label_smoothing = 0.0
    config.eval_batch_size = 256
    config.log_every = 10
    config.eval_every = 250
    config.checkpoint_every = 250
    config.keep_last = 2
    config.logger = config_dict.placeholder(str)  # tensorboard, trackio, wandb or wandb_offline, beside metrics.jsonl
    return config


def _data() -> ConfigDict:
    data = ConfigDict()
    data.name = "digits"  # or any set that `python -m experiments.prepare --list` shows
    data.data_dir = config_dict.placeholder(str)  # where tensorflow-datasets keeps its sets
    data.train_split = "train"
    data.eval_split = "test"
    data.fraction = 1.0  # of the training images of each class
    data.image_size = config_dict.placeholder(tuple)  # "(48, 32)"; None: as the set has them
    data.channels = config_dict.placeholder(int)  # 3 or 1, with image_size; None: as the set has them
    data.mode = "crop"  # how images become so: crop, pad, stretch; or native: each keeps its aspect
    data.max_patches = 64  # of an image, with mode="native"
    data.min_patches = config_dict.placeholder(int)  # draws each image's patches between the two, in training
    data.tokens = config_dict.placeholder(int)  # packs several images into rows of so many tokens
    data.images_per_row = config_dict.placeholder(int)  # at most; None: as many as can occur
    data.mean = (0.5,)  # of pixels in [0, 1]: of all channels or of each
    data.std = (0.5,)
    data.crop_padding = 0  # pixels of random shift; digits of 8x8 pixels do not bear any
    data.least_area = 1.0  # of a random part that is stretched to the whole image; 1 leaves images alone
    data.padding = "black"  # what a shift brings in; or reflect
    data.flip = False
    data.mixup = 0.0  # alpha; 0 mixes nothing
    return data


def _model() -> ConfigDict:
    model = ConfigDict()
    model.kind = "vit"  # or resnet, which reads resnet and resnet_width alone
    model.encoding = "learned"
    model.injection = "stem"  # or every_layer, every_layer_shared, lape
    model.variant = config_dict.placeholder(str)  # "S/16", "R50+B/16": the sizes of that name, in place of those below
    model.patch_size = 2
    model.width = 64
    model.depth = 4
    model.num_heads = 4
    model.num_kv_heads = config_dict.placeholder(int)  # fewer heads of keys and values; num_heads
    model.mlp_dim = config_dict.placeholder(int)  # 4 * width
    model.pooling = "cls"  # or mean, map
    model.norm_after_pooling = False
    model.pre_logits = config_dict.placeholder(int)  # width of a tanh layer before the head
    model.num_registers = 0
    model.distillation_token = False
    model.resnet = config_dict.placeholder(tuple)  # "(3, 4, 9)": units of a ResNet before the patches, "()": its root
    model.resnet_width = 64
    model.mlp = "gelu"  # or gelu_exact, swiglu
    model.mlp_bias = config_dict.placeholder(bool)  # with gelu, not with swiglu
    model.norm_epsilon = 1e-6
    model.layer_scale = config_dict.placeholder(float)  # where it starts
    model.dropout = 0.0
    model.drop_path = 0.0  # stochastic depth, of the last layer
    model.patch_dropout = 0.0
    model.implementation = "auto"  # of attention: dense, blockwise
    model.scan = False  # the blocks as a loop, which compiles in a fraction of the time
    model.remat = "none"  # what of a block is computed again for gradients, to save memory: none, full, dots, attention
    model.dtype = "float32"  # of activations; bfloat16 on accelerators
    model.attention_dtype = config_dict.placeholder(str)  # as dtype
    model.param_dtype = "float32"
    return model
