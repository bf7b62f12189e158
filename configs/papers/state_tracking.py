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
from experiments.report.claims import CONTROL, Claim, Expectation, Looked, Question, Source, Table, above
from experiments.studies.plan import named

_ENCODINGS = "none rope alibi fox cope grape_ap stick_breaking path inkling(extent=64)"


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.name = "state_tracking"
    config.title = "State tracking by encodings that read the content"
    config.point = "Do encodings that read the content follow a state that others lose (PaTH, stick-breaking, FoX)?"
    config.page = ConfigDict()
    config.page.says = (
        "One layer of PaTH learns the flip-flop language and follows a bit that was written far away, which no "
        "other encoding does. Stick-breaking, FoX and PaTH recall the values of keys; nothing adds longer "
        "numbers. Inkling's bias, read off the query's token, helps with words of a group alone."
    )
    config.page.headings = ConfigDict(
        {"flip_flop": "Flip-flop", "recall": "Recall of keys", "addition": "Addition", "words": "Words of the group A5"}
    )
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
    study.data.update(name=name, shortest=shortest, length=lengths[0])
    study.update(eval_lengths=lengths, steps=steps, batch_size=batch_size, eval_batch_size=128)
    study.model.update(kind="decoder", embedding_scale=None, depth=depth, num_heads=2)
    study.encodings = ConfigDict(named(_ENCODINGS), sort_keys=False)
    return study


PATH = Source("Yang et al.", 2025, "2505.16381")
STICKS = Source("Tan et al.", 2024, "2410.17980")
INKLING = Source("Thinking Machines", 2026, elsewhere="the model Inkling, in transformers 5.24")
_TIE = 0.005  # of accuracy: what the ViT paper calls little to no difference
_FLIPS = Table("state_tracking", "flip_flop", "accuracy by length")
_SPARSELY, _DENSELY = (
    Table("state_tracking", "flip_flop", f"accuracy by length, flip_flop_{how}") for how in ("sparse", "dense")
)
_RECALL, _WORDS, _SUMS = (
    Table("state_tracking", task, "accuracy by length") for task in ("recall", "words", "addition")
)
_BIT, _ROW_OF_KEYS, _LETTERS, _DIGITS_ADDED = 64, 32, 8, 6  # tokens, tokens, letters, digits: in training
_BASELINES = ("rope", "stick_breaking", "fox")  # the paper's


def _path_ahead(table: Table, at: int) -> tuple[Expectation, ...]:
    return tuple(above(table("path", at) - table(row, at)) for row in _BASELINES)


CLAIMS = (
    Claim(
        "path-follows-far-writes",
        PATH,
        "table 1, flip-flop with 98 % ignored, one layer",
        "One layer of PaTH follows a bit that was written far away, which RoPE, stick-breaking and forget gates lose.",
        _path_ahead(_SPARSELY, _BIT),
        doubt="After so few steps: the others have hardly learned the language as it was trained on (path-learns-flip-flop).",
        paper={"error (%), PaTH": 0.0001, "RoPE": 40.3, "stick-breaking": 38.9, "FoX": 36.3},
    ),
    Claim(
        "path-learns-flip-flop",
        PATH,
        "table 1, flip-flop as trained, one layer",
        "As it was trained, too, flip-flop is learned sooner by one layer of PaTH than by one of the others.",
        _path_ahead(_FLIPS, _BIT),
        doubt="In the paper the others learn it too, with a few errors; after these steps RoPE is where no encoding is.",
        follow_up=(Looked(_FLIPS("rope", _BIT) - _FLIPS("none", _BIT), "RoPE - none"),),
        paper={"error (%), PaTH": 0.0, "RoPE": 6.9, "stick-breaking": 9.6, "FoX": 8.3},
    ),
    Claim(
        "near-writes-are-easy",
        PATH,
        "table 1, flip-flop with 10 % ignored, one layer",
        "Where little is ignored, stick-breaking and forget gates make no more errors than RoPE.",
        tuple(above(_DENSELY(row, _BIT) - _DENSELY("rope", _BIT), -_TIE) for row in _BASELINES[1:]),
        {"error (%), RoPE": 0.01, "stick-breaking": 0.0, "FoX": 0.0},
    ),
    Claim(
        "gates-lose-far-writes-less",
        PATH,
        "table 1, flip-flop with 98 % ignored, one layer",
        "Forget gates lose a bit that was written far away less often than RoPE.",
        (above(_SPARSELY("fox", _BIT) - _SPARSELY("rope", _BIT)),),
        {"error (%), FoX": 36.3, "RoPE": 40.3},
    ),
    Claim(
        "path-recalls",
        PATH,
        "section 4.1, the last value of each key; no number; there keys have several values, here one",
        "Two layers of PaTH recall more values of keys than two layers with RoPE, stick-breaking or forget gates.",
        _path_ahead(_RECALL, _ROW_OF_KEYS),
        tried="Which of them: with so few keys stick-breaking and forget gates recall all of them too, as they were trained.",
        remains="More keys with several values each, as the paper's.",
    ),
    Claim(
        "sticks-recall-further",
        STICKS,
        "abstract, which speaks of language; our own control, no number",
        "Of twice as many keys as were trained stick-breaking attention recalls more than RoPE.",
        (above(_RECALL("stick_breaking", 2 * _ROW_OF_KEYS) - _RECALL("rope", 2 * _ROW_OF_KEYS)),),
        role=CONTROL,
    ),
    Claim(
        "path-multiplies",
        PATH,
        "figure 2; no number; there the layers are counted that reach 90 %",
        "With as many layers PaTH tells more products of A5 than RoPE, stick-breaking and forget gates.",
        _path_ahead(_WORDS, _LETTERS),
    ),
    Claim(
        "path-adds-further",
        PATH,
        "our own control of arithmetic; no number",
        "PaTH adds numbers twice as long as those of training better than RoPE.",
        (above(_SUMS("path", 2 * _DIGITS_ADDED) - _SUMS("rope", 2 * _DIGITS_ADDED)),),
        role=CONTROL,
    ),
    Claim(
        "inkling-follows-far-writes",
        INKLING,
        "our own control; no number",
        "A relative bias read off the query's token follows a bit that was written far away better than RoPE.",
        (above(_SPARSELY("inkling", _BIT) - _SPARSELY("rope", _BIT)),),
        role=CONTROL,
    ),
    Claim(
        "inkling-recalls",
        INKLING,
        "our own control; no number",
        "Two layers with a relative bias read off the query's token recall more values of keys than two layers with RoPE.",
        (above(_RECALL("inkling", _ROW_OF_KEYS) - _RECALL("rope", _ROW_OF_KEYS)),),
        role=CONTROL,
    ),
)

QUESTIONS = (
    Question(
        "A state to be tracked",
        (_SPARSELY,),
        "flip-flop with writes far away, one layer",
        at=_BIT,
        doubt="One made-up task and one layer.",
        claims=("path-follows-far-writes", "path-learns-flip-flop", "gates-lose-far-writes-less"),
    ),
)
