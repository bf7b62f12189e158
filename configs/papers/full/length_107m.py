"""Length generalisation of decoders of 107 million parameters (Kazemnejad et al. 2023): five encodings, three seeds.

Not run here: it takes accelerators. The same at 0.1 million parameters: configs/papers/length_generalization.py.

    python -m experiments.ablate --config=configs/papers/full/length_107m.py --config.studies.scan.data.files=SCAN

SCAN is a folder with tasks_train_length.txt and tasks_test_length.txt of github brendenlake/SCAN. Kazemnejad et al. (2023),
arXiv 2305.19466, and github McGill-NLP/length-generalization: decoders of T5-base's size, 40,000 steps of 64 problems, AdamW
at 3e-5 with decay 0.05 and a warm-up over 6 % of the steps; trained on lengths 1 to 20, tested up to 40.

Of their ten tasks posjax has copying, reversal, addition, sorting, parity and SCAN; summation, polynomials, LEGO and PCFG are
not there. Their rotary encoding turns a quarter of the channels, so rope has fraction=0.25 here.

Cost: 0.7 GFLOP a token, 40,000 steps of 64 problems of some 60 tokens: 6e16 a training: half an H100-hour, since
short rows use a tenth of the peak; 6 tasks of 5 rows with 3 seeds: 45 H100-hours, 8 for one seed of three tasks.
Expected (mean reciprocal rank over ten tasks): none 0.687, T5 0.549, ALiBi 0.502, rotary 0.330, absolute 0.215. SCAN split by
length, exact match: T5 79.9 %, none 79.7, ALiBi 43.8, rotary 28.3, absolute 5.7.
"""

from ml_collections import ConfigDict

from configs import algorithmic
from experiments.report.claims import Claim, Source, Table, above, mean
from experiments.studies.plan import named

_ENCODINGS = named("none t5(bidirectional=False) alibi rope(fraction=0.25) sinusoidal")
_PROBLEMS = {
    "copy": "copy_string",
    "reverse": "reverse_string",
    "addition": "addition",
    "sort": "sort_string",
    "parity": "parity_check",
    "scan": "scan",
}


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.name = "length_107m"
    config.title = "Decoders of 107 million parameters beyond the lengths that they were trained on"
    config.point = "Which encoding solves longer problems than it was trained on (Kazemnejad et al. 2023)?"
    config.page = ConfigDict()
    config.page.says = (
        "A decoder without an encoding should be first, then T5's buckets and ALiBi, RoPE and sinusoidal codes last. This "
        "has not been run: it takes accelerators."
    )
    config.page.arguments = "--config.studies.scan.data.files=SCAN"
    config.page.deviations = True
    config.notes = (
        "A decoder reads the problem and a mark, then predicts the answer and its end. Exact match has the whole answer "
        "right; it is a mean over the lengths that were not trained."
    )
    config.seeds = (0, 1, 2)
    config.studies = ConfigDict({label: _study(name) for label, name in _PROBLEMS.items()}, sort_keys=False)
    config.studies.scan.eval_lengths = (22, 24, 26, 28, 30, 32, 36, 40, 48)
    config.studies.scan.data.length = 22
    return config


def _study(name: str) -> ConfigDict:
    study = algorithmic.get_config()
    study.data.update(name=name, length=20)
    study.update(eval_lengths=(20, 25, 30, 35, 40), steps=40_000, batch_size=64, checkpoint_every=5000)
    study.model.update(kind="decoder", width=768, depth=12, num_heads=12, embedding_scale=None)
    study.model.update(dropout=0.1, dtype="bfloat16", scan=True)
    study.optimizer.update(learning_rate=3e-5, weight_decay=0.05, b2=0.999)
    study.optimizer.warmup_steps = study.get_ref("steps") * 6 // 100
    study.encodings = ConfigDict(_ENCODINGS, sort_keys=False)
    return study


KAZEMNEJAD = Source("Kazemnejad et al.", 2023, "2305.19466")
_TABLES = {task: Table("length_107m", task, "exact match") for task in _PROBLEMS}


def _lead(better: str, worse: str):
    """Returns the lead of one row over another, mean over the tasks."""
    return mean([table(better) - table(worse) for table in _TABLES.values()])


CLAIMS = (
    Claim(
        "none-generalises-best-at-107m",
        KAZEMNEJAD,
        "mean reciprocal ranks in the authors' notebook",
        "A decoder without an encoding solves longer problems better than with T5's buckets, ALiBi, RoPE and absolute codes.",
        tuple(above(_lead("none", row)) for row in ("t5", "alibi", "rope", "sinusoidal")),
        {"rank, none": 0.687, "T5": 0.549, "ALiBi": 0.502, "RoPE": 0.330, "absolute": 0.215},
    ),
    Claim(
        "scan-needs-no-rope-at-107m",
        KAZEMNEJAD,
        "authors' notebook, SCAN's split by length, overall accuracy",
        "On SCAN's split by length a decoder without an encoding is ahead of RoPE and of absolute codes.",
        tuple(above(_TABLES["scan"]("none") - _TABLES["scan"](row)) for row in ("rope", "sinusoidal")),
        {"none (%)": 79.7, "RoPE": 28.3, "absolute": 5.7},
    ),
)
