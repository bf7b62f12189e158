"""No positions at all: where causal decoders without an encoding know positions from, and bidirectional encoders do not.

    python -m experiments.prepare --name=tiny_shakespeare
    python -m experiments.ablate --config=configs/papers/no_positions.py
    python -m experiments.ablate --config=configs/papers/no_positions.py \
        --config.studies.causal.checkpoints=runs/train_short_test_long       # the models of that study in place of own ones

Haviv et al. (2022), arXiv 2203.16634: probes find that causal models without an encoding acquire an implicit notion of
absolute positions, which the causal mask may give them. Bidirectional models have no such mask. Here the probe is
`experiments.analysis.readout.position_error`, of text and, as a control, of tokens drawn at random. Decoders have the sizes
of configs/papers/train_short_test_long.py; encoders have the same and name masked bytes.

Cost: 25 ms of one CPU core a step and seed: 40 minutes on one core, half of it as two processes with NPROC=1, --rows=0/2 and
--rows=1/2. Expected: results/no_positions. On an accelerator override sizes only, in both studies:
--config.studies.causal.model.width=512 --config.studies.causal.steps=20000 --config.studies.causal.batch_size=64
"""

from ml_collections import ConfigDict, config_dict

from configs import decoder, encoder
from experiments.report.claims import Claim, Contrast, Looked, Source, Table, above, below


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.name = "no_positions"
    config.title = "Positions read off decoders and encoders of Tiny Shakespeare, layer by layer"
    config.point = (
        "Does a causal decoder learn where tokens stand without an encoding, and an encoder not (Haviv et al. 2022)?"
    )
    config.page = ConfigDict()
    config.page.says = (
        "A causal decoder without any encoding knows roughly where its tokens stand, about as well as with "
        "sinusoidal codes, and an encoder without one does not. It does so on random tokens too, so it is the "
        "causal mask that tells positions."
    )
    config.page.headings = ConfigDict({"causal": "Causal decoders", "bidirectional": "Bidirectional encoders"})
    config.notes = (
        "Bytes in windows of 128. Position error: the mean distance, in bytes, between the place of a byte and the one that "
        "a probe predicts from the features after so many blocks, on windows that it was not fitted to; a guess at the "
        "middle errs by 32. Random tokens: bytes of the text in random order. Decoders foretell the next byte, "
        "encoders name the masked ones: their losses are not comparable."
    )
    config.seeds = (0, 1, 2, 3, 4)
    config.tune = ConfigDict(dict(learning_rates=(1e-3, 3e-3, 1e-2, 3e-2), seeds=(100,), share=0.1))
    config.studies = ConfigDict({"causal": _causal(), "bidirectional": _bidirectional()}, sort_keys=False)
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
    study.data.update(name="tiny_shakespeare", eval_split="test", length=128, positions="window")
    study.model.update(width=64, depth=2, num_heads=8)
    study.update(steps=1500, batch_size=8, eval_lengths=(128,), eval_every=0, eval_batch_size=64, checkpoint_every=500)
    study.optimizer.warmup_steps = study.get_ref("steps") // 20
    study.checkpoints = config_dict.placeholder(str)  # workdir of a study of lengths
    probe = dict(windows=128, seed=0)  # the number of windows that train_short_test_long scores
    study.measures = ConfigDict({"scores": {}, "positions": probe}, sort_keys=False)
    return study


HAVIV = Source("Haviv et al.", 2022, "2203.16634")
_RANDOM = ", random tokens"


def _error(study: str, row: str, blocks: int, tokens: str = "") -> Contrast:
    return Table("no_positions", study, f"position error{tokens}")(row, blocks)


CLAIMS = (
    Claim(
        "causal-none-knows-positions",
        HAVIV,
        "abstract; no number",
        "Without an encoding the blocks of a causal decoder make absolute positions readable.",
        (
            below(
                _error("causal", "none", 2) - _error("causal", "none", 0), name="none, after the blocks - before them"
            ),
        ),
        doubt="Readable is a matter of degree: the error that is left, and that of sinusoidal codes, stand beside.",
        follow_up=tuple(
            Looked(_error("causal", row, 2), f"error of {row} after the blocks") for row in ("none", "sinusoidal")
        ),
    ),
    Claim(
        "causal-none-knows-as-others",
        HAVIV,
        "abstract; no number",
        "They are read about as well as with sinusoidal codes: better than midway between those and no information.",
        (
            below(
                _error("causal", "none", 2) - (_error("causal", "sinusoidal", 2) + _error("causal", "none", 0)) / 2,
                name="none - midway between sinusoidal and none before the blocks",
            ),
        ),
    ),
    Claim(
        "bidirectional-none-does-not",
        HAVIV,
        "the control with masked language models; no number",
        "Without an encoding positions are read off a causal model and not off a bidirectional one.",
        (
            below(_error("causal", "none", 2) - _error("bidirectional", "none", 2), name="causal - bidirectional"),
            above(
                _error("bidirectional", "none", 2)
                - (_error("causal", "none", 2) + _error("bidirectional", "none", 0)) / 2,
                name="bidirectional - midway between causal and no information",
            ),
        ),
        doubt="An encoder without positions cannot know them, whatever it learns: this half is a check of the probe.",
    ),
    Claim(
        "the-mask-tells-positions",
        HAVIV,
        "abstract, on how many predecessors a token sees; no number",
        "It is the causal mask that tells them: in random tokens they are readable too.",
        (
            below(
                _error("causal", "none", 2, _RANDOM) - _error("causal", "none", 0, _RANDOM),
                name="none, random tokens, after the blocks - before them",
            ),
        ),
    ),
)
