"""Decoders trained on 256 bytes of books, read at up to 32 times that, some at 256 times (64k).

    python -m experiments.extrapolate --config=configs/extrapolate_books.py --config.data.files=books_pd

`books_pd` is a directory of long texts whose names say their split: train__*.txt.xz, valid__*, test__* (plain .txt will do).

Cost: about an hour on 2 CPU cores. Expected: results/extrapolate, made with --workdir=results/extrapolate.
"""

from ml_collections import ConfigDict

from configs import extrapolate


def get_config() -> ConfigDict:
    config = extrapolate.get_config()
    config.name = "extrapolate_books"
    config.title = "Decoders on books, beyond their training length"
    config.notes += (
        " Half of the rows of a training batch are copying, recall, passkeys and needles, so that there is something to "
        "find. Fine-tunes aim at 8 times the training length."
    )
    config.seeds = (0, 1)

    config.data.name = "books_pd"
    config.data.eval_split = "test"
    config.data.length = 256
    config.data.retrieval.share = 0.5
    config.data.retrieval.tasks = ("copy", "recall", "passkey", "needle")
    config.steps = 800
    config.optimizer.warmup_steps = config.get_ref("steps") // 8  # 100
    config.eval_lengths = (256,)
    config.eval_tokens = 32_769
    config.checkpoint_every = 200

    for slow in ("ReRoPE", "dual chunk", "streaming"):  # like SelfExtend two products a pair: the slowest rows
        del config.variants.rope[slow]
    config.finetune = ConfigDict({"rope": extrapolate.rope_finetunes(steps=60, target=2048, trained=256)})

    config.evaluation.documents = 2
    config.evaluation.bytes = 8192
    config.evaluation.lengths = (256, 512, 1024, 2048, 4096, 8192)
    config.evaluation.long_lengths = (32_768, 65_536)
    config.evaluation.long_rows = ("rope", "window", "alibi")
    config.evaluation.batch_tokens = 16_384

    config.retrieval.tasks = ("passkey", "needle", "recall", "copy")
    config.retrieval.lengths = (256, 512, 1024, 2048)
    return config
