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

_ENCODINGS = {
    "none": "none",
    "sinusoidal": "sinusoidal",
    "rope": "rope",
    "alibi": "alibi",
    "t5": "t5(bidirectional=False)",
    "fire": "fire(init_L=8.0)",  # a fraction of the longest row in training, as the paper's 512 is of 2048
}
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
    study.data.name = name
    study.data.length = length
    study.eval_lengths = (length, 3 * length // 2, 2 * length, 3 * length)
    study.model.kind = "decoder"
    study.model.embedding_scale = None
    study.steps = steps
    study.batch_size = batch_size
    study.eval_batch_size = 128
    rows = {label: {"model": {"encoding": spec}} for label, spec in _ENCODINGS.items()}
    study.rows = ConfigDict(rows, sort_keys=False)
    return study


def _add(study: ConfigDict, label: str, spec: str, positions: str) -> None:
    """A row whose positions are told by the problem."""
    study.rows[label] = ConfigDict({"model": {"encoding": spec}, "data": {"positions": positions}})
