"""State tracking: the flip-flop language, recall, words of a group and addition, by encodings that read the content.

    python -m experiments.ablate --config=configs/papers/state_tracking.py
    NPROC=1 python -m experiments.ablate --config=configs/papers/state_tracking.py --rows=0/2      # and --rows=1/2

Yang et al. (2025), PaTH, arXiv 2505.16381, section 4.1: flip-flop in one layer of 64 channels and two heads, as here; recall
in two layers of 256 channels and rows of 768 tokens; the word problem of A5 by the number of layers. Pilots of one seed:
flip-flop with writes far away 1.00 by path after 300 steps, 0.55 to 0.58 by all others; recall 1.00 by stick_breaking and
0.20 by rope (600 steps); words 0.61 by path, 0.59 by rope (2000 steps), and 0.40 by path in one layer.

Cost: three core-hours; a row of addition takes 2 minutes of one core, one of words 4 to 10. Expected:
results/state_tracking, made with --workdir=results/state_tracking.

On an accelerator, with the lengths that the claims of results/README.md are about: --config.studies.words.steps=40000
--config.studies.words.batch_size=256 --config.studies.words.model.width=256
"""

from ml_collections import ConfigDict

from configs import algorithmic

_ENCODINGS = ("none", "rope", "alibi", "fox", "cope", "grape_ap", "stick_breaking", "path")


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.name = "state_tracking"
    config.title = "State tracking by encodings that read the content"
    config.point = "Do encodings that read the content follow a state that others lose (PaTH, stick-breaking, FoX)?"
    config.notes = (
        "Decoders of 64 channels. flip_flop: one layer, two heads, 64 tokens, 80 % of the instructions ignored; out of "
        "distribution 98 % (sparse) or 10 % (dense) are. recall: two layers, two heads; eight keys with their values, then "
        "each key again, and twice as many keys beyond. words: two layers, four heads; up to eight of the six letters that "
        "generate A5, and sixteen beyond; the product at each letter is one of 60. addition: two layers, two heads; numbers "
        "of 1 to 6 digits, least significant digit first, and of 12 beyond. Accuracy is the share of answers that are "
        "right; learning rates are chosen by it at the trained length. What learns has more parameters, path up to a tenth."
    )
    config.seeds = (0, 1, 2, 3, 4)
    config.tune = ConfigDict(dict(learning_rates=(1e-3, 3e-3, 1e-2), seeds=(100,), share=0.1))
    studies = {"flip_flop": _flip_flop(), "recall": _recall(), "addition": _addition(), "words": _words()}
    config.studies = ConfigDict(studies, sort_keys=False)
    return config


def _flip_flop() -> ConfigDict:
    study = _study("flip_flop", shortest=64, lengths=(64,), depth=1, steps=300, batch_size=16)
    study.data.others = ("flip_flop_sparse", "flip_flop_dense")
    return study


def _recall() -> ConfigDict:
    study = _study("associative_recall", shortest=4, lengths=(32, 64), depth=2, steps=600, batch_size=32)
    study.data.symbols = 32
    return study


def _words() -> ConfigDict:
    study = _study("word_problem_a5_generators", shortest=1, lengths=(8, 16), depth=2, steps=1200, batch_size=64)
    study.model.num_heads = 4
    return study


def _addition() -> ConfigDict:
    return _study("addition_reversed", shortest=1, lengths=(6, 12), depth=2, steps=600, batch_size=32)


def _study(
    name: str, *, shortest: int, lengths: tuple[int, ...], depth: int, steps: int, batch_size: int
) -> ConfigDict:
    study = algorithmic.get_config()
    study.data.name = name
    study.data.shortest, study.data.length = shortest, lengths[0]
    study.eval_lengths = lengths
    study.model.kind = "decoder"
    study.model.embedding_scale = None
    study.model.depth, study.model.num_heads = depth, 2
    study.steps, study.batch_size = steps, batch_size
    study.eval_batch_size = 128
    study.encodings = ConfigDict({label: label for label in _ENCODINGS}, sort_keys=False)
    return study
