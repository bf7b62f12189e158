"""Length generalisation of decoders (Kazemnejad et al. 2023): addition, copying, sorting and SCAN's split by length.

    python -m experiments.ablate --config=configs/papers/length_generalization.py --config.studies.scan.data.files=DIR
    NPROC=1 python -m experiments.ablate --config=configs/papers/length_generalization.py --rows=0/2    # and --rows=1/2

DIR holds tasks_train_length.txt and tasks_test_length.txt of github brendenlake/SCAN, or these with .gz.
On an accelerator, in each study: --config.studies.copy.model.width=512 --config.studies.copy.model.depth=12
--config.studies.copy.steps=40000 --config.studies.copy.batch_size=64 and lengths of 20, tested to 40.
"""

from ml_collections import ConfigDict

from configs import algorithmic

_ENCODINGS = {
    "none": "none",
    "sinusoidal": "sinusoidal",
    "learned": "learned(stddev=1)",  # as large as the tokens here
    "rope": "rope",
    "alibi": "alibi",
    "t5": "t5(bidirectional=False)",
    "fire": "fire(init_L=8.0)",  # about a third of the longest row in training
}

_ORDERED = "axis(index=0) >> rope()"
_COUPLED = "position_coupling(max_position=40) >> learned(stddev=1)"


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.name = "length_generalization"
    config.title = "Decoders beyond the lengths that they were trained on"
    config.notes = ""
    config.seeds = (0, 1, 2, 3, 4)
    config.tune = ConfigDict(dict(learning_rates=(1e-3, 3e-3), seeds=(100,), share=0.1))
    config.studies = ConfigDict(
        {"addition": _addition(), "copy": _copy(), "sort": _sort(), "scan": _scan()}, sort_keys=False
    )
    return config


def _addition() -> ConfigDict:
    study = _study("addition_reversed", length=5, steps=2000, batch_size=32)
    _add(study, "abacus", f"({_ORDERED}) + (axis(index=1) >> abacus(length=64, max_offset=16, stddev=1))", "digits")
    _add(study, "coupling", _COUPLED, "coupled")
    return study


def _copy() -> ConfigDict:
    study = _study("copy_string", length=10, steps=1500, batch_size=16)
    study.data.symbols = 10
    _add(study, "coupling", _COUPLED, "coupled")
    return study


def _sort() -> ConfigDict:
    study = _study("sort_string", length=10, steps=1000, batch_size=16)
    study.data.symbols = 10
    return study


def _scan() -> ConfigDict:
    study = _study("scan", length=22, steps=1500, batch_size=16)
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
