"""Train short, test long: which encodings can be read beyond the length that they were trained at.

    python -m experiments.prepare --name=tiny_shakespeare
    python -m experiments.extrapolate --config=configs/papers/train_short_test_long.py
    python -m experiments.extrapolate --config=configs/papers/train_short_test_long.py:books --config.data.files=books_pd

Press, Smith and Lewis (2022), arXiv 2108.12409: decoders of 247 million parameters on WikiText-103. Here: 8 heads, 64
channels, bytes, trained in windows of 128 bytes, read in windows of up to 32 times that. "sinusoidal, trained at 512" is the
paper's headline: it is trained for as long as "alibi", in 850 steps, because a step of as many bytes in windows of 512 takes
1.77 times the CPU time (by operations 1.66 times), and is compared with it at 512.

Cost: 25 ms of one CPU core a step and seed, 70 for fire and t5: an hour and a quarter for each of the two sets on one core;
two processes with NPROC=1, --rows=0/2 and --rows=1/2, share it. Expected: results/train_short_test_long and
results/train_short_test_long_books. On an accelerator override sizes only: --config.model.width=512 --config.model.depth=8
--config.batch_size=64 --config.steps=20000; lengths stay, the claims of results/README.md are about these.
"""

from ml_collections import ConfigDict

from configs import extrapolate

# Perplexity (tokens of WikiText-103) by length of validation sequences, trained at 512: table 2 of the paper.
_TRAINED_AT_512 = {
    "sinusoidal": {512: 20.05, 1012: 43.54, 1512: 76.23, 2512: 132.41, 3512: 178.97, 15512: 406.01},
    "rope": {512: 20.07, 1012: 21.37, 1512: 25.99, 2512: 31.58, 3512: 35.54, 15512: 79.25},
    "t5": {512: 19.65, 1012: 18.79, 1512: 18.91, 2512: 20.41, 3512: 22.91},
    "alibi": {512: 19.73, 1012: 18.73, 1512: 18.52, 2512: 18.41, 3512: 18.40, 15512: 18.31},
}
# Table 5: ALiBi trained at these lengths, and the others trained at 3072, all evaluated at 3072.
_AT_3072 = {
    "alibi": {512: 18.40, 1024: 17.96, 3072: 17.60},
    "sinusoidal": {3072: 18.67},
    "rope": {3072: 18.57},
    "t5": {3072: 18.01},
}


def get_config(what: str = "") -> ConfigDict:
    config = extrapolate.get_config()
    config.name = "train_short_test_long"
    config.title = "Train short, test long, on Tiny Shakespeare"
    config.point = "Can a decoder that is trained short be tested long, by which encoding (Press et al. 2022)?"
    config.notes = (
        "Bytes. Rows are trained in windows of 128 bytes, in which positions restart. Every length scores the same bytes of "
        "the same documents; in sliding windows each of them stands behind at least half a window. A learned table has rows "
        "for all positions; those beyond the training length were never trained."
    )
    config.seeds = (0, 1, 2, 3, 4)
    config.tune = ConfigDict(dict(learning_rates=(3e-3, 1e-2, 3e-2), seeds=(100,), share=0.1))

    config.data.name = "tiny_shakespeare"
    config.data.eval_split = "test"
    config.data.retrieval.share = 0.0
    config.data.retrieval.tasks = ()
    config.model.num_heads = 8
    config.model.length = 4096  # of a learned table
    config.steps = 1500
    config.batch_size = 8
    config.checkpoint_every = 500
    config.eval_tokens = 16_385

    config.encodings = ConfigDict(
        {
            "none": "none",
            "sinusoidal": "sinusoidal",
            "learned": "learned(stddev=1)",  # token embeddings have unit variance here
            "rope": "rope",
            "t5": "t5(bidirectional=False)",
            "alibi": "alibi",
            "kerple": "kerple",
            "sandwich": "sandwich",
            "fire": "fire",
            "xpos": "xpos",
            "fox": "fox",
        },
        sort_keys=False,
    )
    config.rows = ConfigDict({"sinusoidal, trained at 512": _longer(config)}, sort_keys=False)
    config.variants, config.finetune = ConfigDict(), ConfigDict()
    config.paper = ConfigDict(
        {
            "source": "Press et al. (2022), arXiv 2108.12409, tables 2 (trained at 512, by length) and 5 (read at 3072)",
            "trained_at_512": _with_text_keys(_TRAINED_AT_512),
            "at_3072": _with_text_keys(_AT_3072),
        },
        sort_keys=False,
    )
    config.evaluation.bytes = 8192
    config.evaluation.lengths = (128, 256, 512, 1024, 2048, 4096)
    config.retrieval.tasks, config.retrieval.lengths = (), ()
    if what == "books":
        _books(config)
    elif what:
        raise ValueError(f"there is train_short_test_long.py and train_short_test_long.py:books, not :{what}")
    return config


def _books(config: ConfigDict) -> None:
    config.name = "train_short_test_long_books"
    config.title = "Train short, test long, on books"
    config.data.name = "books_pd"
    config.evaluation.documents = 2


def _longer(config: ConfigDict) -> ConfigDict:
    """A training in windows of 512, of as many bytes a step, for as long as one in windows of 128."""
    steps = config.get_ref("steps") * 17 // 30  # 850
    return ConfigDict(
        {
            "model": {"encoding": "sinusoidal"},
            "data": {"length": 512},
            "batch_size": config.get_ref("batch_size") // 4,
            "eval_lengths": (512,),
            "steps": steps,
            "optimizer": {"warmup_steps": steps // 20},
        }
    )


def _with_text_keys(table: dict[str, dict[int, float]]) -> dict[str, dict[str, float]]:
    return {label: {str(length): value for length, value in row.items()} for label, row in table.items()}
