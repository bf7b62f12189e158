"""Context extension: what can be done to a trained RoPE, without training and after a short one.

python -m experiments.extrapolate --config=configs/papers/context_extension.py --config.data.files=books_pd
"""

from ml_collections import ConfigDict

from configs import extrapolate


def get_config() -> ConfigDict:
    config = extrapolate.get_config()
    config.name = "context_extension"
    config.title = "Context extension of RoPE on books: without training, and after a short tuning"
    config.seeds = (0, 1, 2, 3, 4)
    config.tune = ConfigDict(dict(learning_rates=(1e-3, 3e-3, 1e-2), seeds=(100,), share=0.1))

    config.data.name = "books_pd"
    config.data.eval_split = "test"
    config.data.length = 256
    config.data.retrieval.first_steps = 1500
    config.data.retrieval.share = 0.25
    config.data.retrieval.tasks = ("passkey",)
    config.model.num_heads = 4
    config.steps = 2400
    config.optimizer.warmup_steps = 100
    config.batch_size = 8
    config.checkpoint_every = 600
    config.eval_lengths = (256,)
    config.eval_tokens = 32_769

    config.encodings = ConfigDict({"rope": "rope"})
    config.variants, config.finetune = ConfigDict(), ConfigDict()
    config.evaluation.documents = 2
    config.evaluation.bytes = 8192
    config.evaluation.lengths = (256, 512, 1024, 2048, 4096, 8192)
    config.evaluation.batch_tokens = 8192
    config.retrieval.tasks = ("passkey",)
    config.retrieval.lengths = (256, 512, 1024, 2048)
    config.retrieval.examples = 4
    return config
