"""The quickstart's decoder ablation on Tiny Shakespeare.

    python -m experiments.prepare --name=tiny_shakespeare
    python -m experiments.ablate --config=configs/shakespeare_decoder.py

Cost: at most 31 minutes on 2 CPU cores. Expected: results/shakespeare_decoder, made with
--workdir=results/shakespeare_decoder. On an accelerator:
--config.studies.shakespeare_decoder.model.width=256 --config.studies.shakespeare_decoder.model.depth=6 and more steps.
"""

from ml_collections import ConfigDict

from configs import decoder


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.name = "shakespeare_decoder"
    config.title = "Six positional encodings in a decoder on Tiny Shakespeare"
    config.point = (
        "Which positional encoding helps a small decoder at the length it is trained at, and which one can "
        "be read beyond it?"
    )
    config.notes = (
        "Bytes, trained in windows of 128, evaluated at 1 to 8 times that length. Positions restart at each window, so "
        "that longer windows ask for positions never seen. Every length scores the same bytes. The learned table has rows "
        "for all evaluated positions; those beyond the training length were never trained."
    )
    config.seeds = (0, 1, 2, 3, 4)
    config.studies = ConfigDict({"shakespeare_decoder": _shakespeare_decoder()})
    return config


def _shakespeare_decoder() -> ConfigDict:
    study = decoder.get_config()
    study.encodings = ConfigDict(
        {
            "none": "none",
            "sinusoidal": "sinusoidal",
            "learned": "learned(stddev=1)",  # token embeddings have unit variance here
            "rope": "rope",
            "alibi": "alibi",
            "t5": "t5(bidirectional=False)",
        },
        sort_keys=False,
    )
    study.data.name = "tiny_shakespeare"
    study.data.length = 128
    study.data.positions = "window"
    study.model.width = 64
    study.model.depth = 3
    study.model.num_heads = 8  # see configs/papers/heads.py
    study.optimizer.learning_rate = 5e-3
    study.steps = 500
    study.optimizer.warmup_steps = study.get_ref("steps") // 10  # 50
    study.batch_size = 16
    study.eval_lengths = (128, 256, 512, 1024)
    study.eval_every = 0  # at the end only
    study.eval_batch_size = 64
    study.checkpoint_every = 100
    return study
