"""State tracking: what a read depends on is all that was written before (PaTH, Yang et al. 2025, and the gates beside it).

    python -m experiments.ablate --config=configs/papers/state_tracking.py
    NPROC=1 python -m experiments.ablate --config=configs/papers/state_tracking.py --rows=0/2      # and --rows=1/2

Accelerators: --config.studies.flip_flop.data.length=512 --config.studies.flip_flop.steps=10000 and likewise for the others.
"""

from ml_collections import ConfigDict

from configs import algorithmic

_ROWS = {
    "none": "none",
    "rope": "rope",
    "alibi": "alibi",
    "fox": "fox",
    "cope": "cope",
    "grape-ap": "grape_ap",
    "path": "path",
    "path and fox": "path + fox",
}


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.name = "state_tracking"
    config.title = "State tracking: flip-flop, permutations of A5, recall, addition"
    config.point = "Which encodings follow a state that every token may change (PaTH)?"
    config.notes = (
        "Flip-flop as in table 1 of Yang et al. (2025), arXiv 2505.16381: one layer, two heads, 64 channels; ours are 64 "
        "instructions (theirs 256), 80 % of them ignored in training, 98 % (sparse) or 10 % (dense) out of distribution. "
        "The word problem names the product of even permutations of five things at each token (Merrill et al. 2024); theirs "
        "tells whether a word of generators is the identity. Recall asks for the value of each of the keys that were given; "
        "addition is of two numbers of equally many digits. Learning rates are chosen by accuracy in distribution."
    )
    config.seeds = (0, 1, 2, 3, 4)
    config.tune = ConfigDict(dict(learning_rates=(1e-3, 3e-3, 1e-2), seeds=(100,), share=0.1))
    config.studies = ConfigDict({"flip_flop": _flip_flop(), "word_problem": _word_problem(), "recall": _recall()})
    return config


def _decoder(name: str, length: int, steps: int, *, depth: int) -> ConfigDict:
    study = algorithmic.get_config()
    study.data.name = name
    study.data.length = length
    study.eval_lengths = (length,)
    study.eval_examples = 512
    study.eval_batch_size = 64
    study.model.kind = "decoder"
    study.model.embedding_scale = None
    study.model.num_heads = 2
    study.model.depth = depth
    study.steps = steps
    study.batch_size = 32
    study.rows = ConfigDict({label: {"model": {"encoding": spec}} for label, spec in _ROWS.items()}, sort_keys=False)
    return study


def _flip_flop() -> ConfigDict:
    study = _decoder("flip_flop", 128, 400, depth=1)
    study.data.shortest = 128
    study.data.others = ("flip_flop_sparse", "flip_flop_dense")
    return study


def _word_problem() -> ConfigDict:
    study = _decoder("word_problem_a5", 12, 2000, depth=2)
    study.data.shortest = 12
    study.eval_lengths = (12, 24)
    return study


def _recall() -> ConfigDict:
    study = _decoder("associative_recall", 32, 1000, depth=2)
    study.data.shortest = 32
    study.eval_lengths = (32, 64)
    return study
