"""No positions at all: where causal decoders without an encoding know positions from, and bidirectional encoders do not.

    python -m experiments.prepare --name=tiny_shakespeare
    python -m experiments.ablate --config=configs/papers/no_positions.py
    python -m experiments.ablate --config=configs/papers/no_positions.py \
        --config.probe.checkpoints.causal=runs/train_short_test_long       # the models of that study in place of own ones

Haviv et al. (2022), arXiv 2203.16634: probes find that causal models without an encoding acquire an implicit notion of
absolute positions, which the causal mask may give them. Bidirectional models have no such mask. Here the probe is
`experiments.analysis.readout.position_error`, of text and, as a control, of tokens drawn at random. Decoders are those of
configs/papers/train_short_test_long.py; encoders have their sizes and name masked bytes.

Cost: 25 ms of one CPU core a step and seed: 40 minutes on one core, half of it as two processes with NPROC=1, --rows=0/2 and
--rows=1/2. Expected: results/no_positions. On an accelerator override sizes only, in both studies:
--config.studies.causal.model.width=512 --config.studies.causal.steps=20000 --config.studies.causal.batch_size=64
"""

from ml_collections import ConfigDict, config_dict

from configs import decoder, encoder

# Perplexity of WikiText-103, as the paper has it.
_WIKITEXT = {"none": 20.97, "learned": 20.42, "sinusoidal": 20.16, "alibi": 19.71}


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.name = "no_positions"
    config.title = "Positions read off decoders and encoders of Tiny Shakespeare, layer by layer"
    config.point = (
        "Does a causal decoder learn where tokens stand without an encoding, and an encoder not (Haviv et al. 2022)?"
    )
    config.notes = (
        "Bytes in windows of 128. Position error: the mean distance, in bytes, between the place of a byte and the one that "
        "a probe predicts from the features after so many blocks, on windows that it was not fitted to; a guess at the "
        "middle errs by 32. Random tokens: bytes of the text in random order. Decoders foretell the next byte, "
        "encoders name the masked ones: their losses are not comparable."
    )
    config.seeds = (0, 1, 2, 3, 4)
    config.tune = ConfigDict(dict(learning_rates=(1e-3, 3e-3, 1e-2, 3e-2), seeds=(100,), share=0.1))
    config.probe = ConfigDict()
    config.probe.windows = 128  # as many as the models of train_short_test_long were scored on
    config.probe.seed = 0
    config.probe.checkpoints = ConfigDict({"causal": config_dict.placeholder(str)})  # workdir of a study of lengths
    config.studies = ConfigDict({"causal": _causal(), "bidirectional": _bidirectional()}, sort_keys=False)
    config.wikitext = ConfigDict({"source": "Haviv et al. (2022), arXiv 2203.16634", "perplexity": _WIKITEXT})
    return config


def _causal() -> ConfigDict:
    study = decoder.get_config()
    specs = {"none": "none", "sinusoidal": "sinusoidal", "learned": "learned(stddev=1)", "alibi": "alibi"}
    study.encodings = ConfigDict(specs, sort_keys=False)
    return _sized(study)


def _bidirectional() -> ConfigDict:
    study = encoder.get_config()
    study.encodings = ConfigDict({"none": "none", "sinusoidal": "sinusoidal"}, sort_keys=False)
    return _sized(study)


def _sized(study: ConfigDict) -> ConfigDict:
    study.data.name = "tiny_shakespeare"
    study.data.eval_split = "test"
    study.data.length = 128
    study.data.positions = "window"
    study.model.width = 64
    study.model.depth = 2
    study.model.num_heads = 8
    study.steps = 1500
    study.optimizer.warmup_steps = study.get_ref("steps") // 20
    study.batch_size = 8
    study.eval_lengths = (128,)
    study.eval_every = 0  # at the end only
    study.eval_batch_size = 64
    study.checkpoint_every = 500
    return study
