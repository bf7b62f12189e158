"""Length generalisation of decoders (Kazemnejad et al. 2023): addition, copying, sorting and SCAN's split by length.

    python -m experiments.ablate --config=configs/papers/length_generalization.py --config.studies.scan.data.files=DIR
    NPROC=1 ... --rows=0/2      # the same command on one core, and with --rows=1/2 beside it

DIR holds tasks_train_length.txt and tasks_test_length.txt of github brendenlake/SCAN, or these with .gz. Kazemnejad et al.
(2023), arXiv 2305.19466: 107 million parameters, 40,000 steps of 64 problems. Here: 0.1 million, 500 to 1000 steps of 16, in
addition 32. Cost: 3100 seconds of one core, and some 1600 for choosing rates, on a busy machine. On an accelerator, in each
study: --config.studies.copy.model.width=512 --config.studies.copy.model.depth=12 --config.studies.copy.steps=40000
--config.studies.copy.batch_size=64
"""

from ml_collections import ConfigDict

from configs import algorithmic
from experiments.report.claims import Claim, Contrast, Looked, Question, Source, Table, above, mean
from experiments.studies.plan import named

# 8 is a fraction of the longest row in training, as the paper's 512 is of 2048.
_ENCODINGS = named("none sinusoidal rope alibi t5(bidirectional=False) fire(init_L=8.0)")
_ABACUS = "(axis(index=0) >> rope()) + (axis(index=1) >> abacus(length=64, max_offset=16, stddev=1))"
_COUPLED = "position_coupling(max_position={most}) >> learned(stddev=1)"
# Exact match over all lengths of the test set, mean of three seeds.
_PAPER = {
    "addition": {"none": 0.085, "t5": 0.072, "alibi": 0.078},
    "scan": {"none": 0.797, "sinusoidal": 0.057, "rope": 0.283, "alibi": 0.438, "t5": 0.799},
}


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.name = "length_generalization"
    config.title = "Decoders beyond the lengths that they were trained on"
    config.point = (
        "Does a decoder without positional encoding generalise to longer problems as well as those with one "
        "(Kazemnejad et al. 2023)?"
    )
    config.page = ConfigDict()
    config.page.says = (
        "Positions that are told by the problem help most: coupled positions copy and add longer sequences best, "
        "and Abacus adds better than every plain encoding. Among plain encodings none, ALiBi, T5 and FIRE "
        "generalise about alike, and RoPE is behind them."
    )
    config.page.headings = ConfigDict({"scan": "SCAN, split by length"})
    config.notes = (
        "A decoder reads the problem and a mark, then predicts the answer and its end. Accuracy is the share of these tokens "
        "that are right behind the right ones; exact match has all of them, as greedy decoding would. Both are means over "
        "the lengths that were not trained. addition: numbers of 1 to 8 digits, least significant digit first, of which "
        "abacus knows the places and coupling the significance; the paper writes the most significant digit first. "
        "copy and sort: 1 to 20 of 10 symbols. scan: the split of Lake & Baroni, trained on 1 to 22 actions, tested on 24 to "
        "48; the paper draws its line at 25. Its rotary encoding turns a quarter of the channels, ours all. Learning rates "
        "are chosen by accuracy at the longest trained length. Exact matches of longer answers are rare at this size: "
        "accuracy is what separates rows."
    )
    config.seeds = (0, 1, 2, 3, 4)
    config.tune = ConfigDict(dict(learning_rates=(1e-3, 3e-3, 1e-2), seeds=(100,), share=0.1))
    studies = {"addition": _addition(), "copy": _copy(), "sort": _sort(), "scan": _scan()}
    config.studies = ConfigDict(studies, sort_keys=False)
    config.paper = ConfigDict(
        {
            "source": "Kazemnejad et al. (2023), arXiv 2305.19466, outputs in github McGill-NLP/length-generalization",
            "metric": "exact match",
            "reference": None,
            "tie": 0.02,
            "pairs": tuple((label, "none") for label in ("sinusoidal", "rope", "alibi", "t5")),
            "values": _PAPER,
        },
        sort_keys=False,
    )
    return config


def _addition() -> ConfigDict:
    study = _study("addition_reversed", length=8, steps=1000, batch_size=32)
    _add(study, "abacus", _ABACUS, "digits")
    _add(study, "coupling", _COUPLED.format(most=40), "coupled")
    return study


def _copy() -> ConfigDict:
    study = _study("copy_string", length=20, steps=900, batch_size=16)
    study.data.symbols = 10
    _add(study, "coupling", _COUPLED.format(most=64), "coupled")
    return study


def _sort() -> ConfigDict:
    study = _study("sort_string", length=20, steps=500, batch_size=16)
    study.data.symbols = 10
    return study


def _scan() -> ConfigDict:
    study = _study("scan", length=22, steps=800, batch_size=16)
    study.eval_lengths = (22, 24, 26, 28, 30, 32, 36, 40, 48)
    return study


def _study(name: str, *, length: int, steps: int, batch_size: int) -> ConfigDict:
    study = algorithmic.get_config()
    study.data.update(name=name, length=length)
    study.update(steps=steps, batch_size=batch_size, eval_batch_size=128)
    study.eval_lengths = (length, 3 * length // 2, 2 * length, 3 * length)
    study.model.update(kind="decoder", embedding_scale=None)
    rows = {label: {"model": {"encoding": spec}} for label, spec in _ENCODINGS.items()}
    study.rows = ConfigDict(rows, sort_keys=False)
    return study


def _add(study: ConfigDict, label: str, spec: str, positions: str) -> None:
    """A row whose positions are told by the problem."""
    study.rows[label] = ConfigDict({"model": {"encoding": spec}, "data": {"positions": positions}})


KAZEMNEJAD = Source("Kazemnejad et al.", 2023, "2305.19466")
ABACUS = Source("McLeish et al.", 2024, "2405.17399")
COUPLING = Source("Cho et al.", 2024, "2405.20671")
_LONGER = {task: Table("length_generalization", task, "accuracy") for task in ("addition", "copy", "sort", "scan")}
_ACTIONS = Table("length_generalization", "scan", "accuracy by length")


def _longer(better: str, worse: str) -> Contrast:
    """The lead of one row over another, mean over the tasks."""
    return mean([task(better) - task(worse) for task in _LONGER.values()])


_SUM_LENGTHS = (8, 16)  # digits: the trained length, and twice that
_DIGITS_ONLY = "The papers count whole sums; of these hardly any is right, at the trained length either."


def _whole_sums(row: str) -> tuple[Looked, ...]:
    """Sums whose digits are all right."""
    exact = Table("length_generalization", "addition", "exact match by length")
    return tuple(Looked(exact(row, digits), f"whole sums of {digits} digits") for digits in _SUM_LENGTHS)


_RANKS = "mean reciprocal ranks in the authors' notebook"

CLAIMS = (
    Claim(
        "none-generalises-best",
        KAZEMNEJAD,
        _RANKS,
        "A decoder without an encoding solves longer problems better than with ALiBi, RoPE and absolute codes.",
        tuple(above(_longer("none", row)) for row in ("alibi", "rope", "sinusoidal")),
        {"rank, none": 0.687, "ALiBi": 0.502, "RoPE": 0.330, "absolute": 0.215},
        doubt="The ranking does not separate at this size, and addition is not learned at the trained length.",
    ),
    Claim(
        "t5-generalises-beyond-rope",
        KAZEMNEJAD,
        _RANKS,
        "T5's buckets solve longer problems better than RoPE.",
        (above(_longer("t5", "rope")),),
        {"rank, T5": 0.549, "RoPE": 0.330},
    ),
    Claim(
        "scan-needs-no-rope",
        KAZEMNEJAD,
        "authors' notebook, SCAN's split by length, overall accuracy",
        "On SCAN's split by length a decoder without an encoding is ahead of RoPE and of absolute codes.",
        tuple(above(_LONGER["scan"]("none") - _LONGER["scan"](row)) for row in ("rope", "sinusoidal")),
        {"none (%)": 79.7, "RoPE": 28.3, "absolute": 5.7},
        tried="A learning rate of its own, and whether the commands were learned as they were trained on: sinusoidal codes "
        "learn them sooner; no longer training, which the paper's has.",
        remains="A training until all of them solve the commands that they are trained on.",
        follow_up=tuple(
            Looked(_ACTIONS("sinusoidal", length) - _ACTIONS("none", length), f"sinusoidal - none at {length} actions")
            for length in (22, 48)
        ),
    ),
    Claim(
        "absolute-codes-do-not-copy",
        KAZEMNEJAD,
        "authors' tables of results, copying to twice the length",
        "Sinusoidal codes copy longer sequences worse than no encoding.",
        (above(_LONGER["copy"]("none") - _LONGER["copy"]("sinusoidal")),),
        {"none, at least (%)": 42.0, "absolute, at most": 4.2},
    ),
    Claim(
        "abacus-adds",
        ABACUS,
        "abstract, additions five times as long",
        "With positions within numbers (Abacus) a decoder gets more digits of longer sums right.",
        tuple(above(_LONGER["addition"]("abacus") - _LONGER["addition"](row)) for row in ("none", "rope", "fire")),
        {"accuracy (%)": 99.0},
        doubt=_DIGITS_ONLY,
        follow_up=_whole_sums("abacus"),
    ),
    Claim(
        "coupled-positions-add",
        COUPLING,
        "abstract; no accuracy",
        "With coupled positions a decoder gets more digits of longer sums right.",
        tuple(above(_LONGER["addition"]("coupling") - _LONGER["addition"](row)) for row in ("none", "rope")),
        doubt=_DIGITS_ONLY,
        follow_up=_whole_sums("coupling"),
    ),
)

QUESTIONS = (
    Question(
        "Sums of longer numbers",
        (_LONGER["addition"],),
        "digits of longer sums",
        doubt="Hardly a sum is right as a whole. Abacus and coupled positions are told where the digits stand.",
        claims=("abacus-adds", "coupled-positions-add", "none-generalises-best"),
    ),
    Question(
        "Longer problems of several kinds",
        tuple(_LONGER.values()),
        "longer sums, copies, sortings and SCAN",
        doubt="Short problems of few symbols, scored by their tokens.",
        column="longer problems (points)",
        main=False,
        claims=("none-generalises-best", "t5-generalises-beyond-rope"),
    ),
)
