"""Six positional encodings side by side, in a ViT and in a decoder, on data that need no download.

    make ablate
    python -m experiments.ablate --config=configs/quickstart.py

Both write under runs/quickstart. Cost: under 4 minutes on 2 CPU cores. Expected: the table and plots of results/quickstart,
made with --workdir=results/quickstart and shown in docs/experiments.md.
"""

from ml_collections import ConfigDict

from configs import decoder, vit


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.name = "quickstart"
    config.title = "Six positional encodings, a ViT and a decoder"
    config.point = (
        "Which positional encoding helps a small ViT and a small decoder early in training, and what is left "
        "beyond the trained length?"
    )
    config.notes = (
        "digits_vit: scikit-learn's 8x8 digits, patches of 2x2 pixels. rope, alibi, sinusoidal and t5 see (row, column), "
        "learned is the flat table of the ViT paper.\n"
        "pydoc_decoder: the text of Python's own documentation, byte by byte, trained in windows of 64 bytes. Positions "
        "restart at each window, so that longer windows ask for positions never seen. Every length scores the same bytes. "
        "The learned table has rows for all evaluated positions; those beyond the training length were never trained."
    )
    config.seeds = (0, 1, 2, 3, 4)
    config.studies = ConfigDict({"digits_vit": _digits_vit(), "pydoc_decoder": _pydoc_decoder()}, sort_keys=False)
    return config


def _digits_vit() -> ConfigDict:
    study = vit.get_config()
    study.encodings = ConfigDict(
        {
            "none": "none",
            "sinusoidal": "sinusoidal",
            "learned": "learned",
            "rope": "rope(base=100)",
            "alibi": "alibi",
            "t5": "t5",
        },
        sort_keys=False,
    )
    study.model.pooling = "mean"
    study.model.width = 32
    study.model.depth = 2
    study.optimizer.learning_rate = 3e-3
    study.steps = 250
    study.optimizer.warmup_steps = study.get_ref("steps") // 10  # 25
    study.batch_size = 48
    study.eval_every = 0  # at the end only
    study.eval_batch_size = 364
    study.checkpoint_every = 100
    return study


def _pydoc_decoder() -> ConfigDict:
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
    study.data.length = 64
    study.data.positions = "window"
    study.model.width = 64
    study.model.depth = 2
    study.optimizer.learning_rate = 5e-3
    study.steps = 128
    study.optimizer.warmup_steps = study.get_ref("steps") * 25 // 128  # 25
    study.batch_size = 12
    study.eval_lengths = (64, 128, 256, 512)
    study.eval_tokens = 8_193  # 8,192 of them are targets
    study.eval_every = 0  # at the end only
    study.eval_batch_size = 64
    study.checkpoint_every = 100
    return study
