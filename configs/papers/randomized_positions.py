"""Randomised positions (Ruoss et al. 2023, table 1): trained on 1 to 20 symbols, tested on up to 60.

    python -m experiments.ablate --config=configs/papers/randomized_positions.py
    NPROC=1 python -m experiments.ablate --config=configs/papers/randomized_positions.py --rows=0/2     # and --rows=1/2

Ruoss et al. (2023), arXiv 2305.16843: encoders of 5 layers and 64 channels, 10,000 steps of 128 problems of up to 40 symbols,
tested on up to 100, positions below 2048, 15 tasks. Here: 2 layers and 64 channels, 16 problems a step, positions below 256,
the four tasks of which a pilot learned something within 1000 steps. Left out: missing_duplicate_string, which took 3000 steps
of 32 problems (randomised relative: 0.96 at 20 symbols, 0.64 beyond), and even_pairs (randomised sinusoidal: 0.74 and 0.56
after 1500 of 32). Cost: about 5500 seconds of one core, predicted from pilots of single seeds (10 to 20 ms a step and seed).
On an accelerator, in each study: --config.studies.bucket_sort.model.depth=5 --config.studies.bucket_sort.steps=10000
--config.studies.bucket_sort.batch_size=128 --config.studies.bucket_sort.data.length=40 and eval_lengths up to 100.
"""

from ml_collections import ConfigDict

from configs import algorithmic
from experiments.report.claims import Claim, Contrast, Looked, Question, Source, Table, above, mean

_BASES = {
    "sinusoidal": "sinusoidal",
    "relative": "transformer_xl",
    "alibi": "alibi",
    "rope": "rope",
    "learned": "learned(stddev=1)",  # as large as the tokens here
}
# Steps, by what the pilot learned in them.
_STEPS = {"bucket_sort": 500, "reverse_string": 1000, "odds_first": 800, "cycle_navigation": 800}


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.name = "randomized_positions"
    config.title = "Randomised positions on algorithmic tasks, beyond the trained lengths"
    config.point = (
        "Do positions drawn from a longer range carry a model to problems longer than those of its training "
        "(Ruoss et al. 2023)?"
    )
    config.page = ConfigDict()
    config.page.says = (
        "Random positions let sinusoidal codes, learned tables and RoPE sort sequences far longer than those of "
        "training. On other tasks they help less, and ALiBi loses by them."
    )
    config.notes = (
        "Encoders fill a blank for each token of the answer; the lengths of training are uniform in 1 to 20. Accuracy is the "
        "share of the answer's tokens that are right, averaged over the lengths that were not trained (30, 40, 50 and 60). "
        "randomized places the tokens of a problem at sorted positions drawn from 256, in evaluation too; every row of a "
        "batch draws for itself in training. relative is Transformer-XL's. Learning rates are chosen by accuracy at 20."
    )
    config.seeds = (0, 1, 2, 3, 4)
    config.tune = ConfigDict(dict(learning_rates=(1e-3, 3e-3, 1e-2), seeds=(100,), share=0.1))
    config.studies = ConfigDict({name: _study(name, steps) for name, steps in _STEPS.items()}, sort_keys=False)
    return config


def _study(name: str, steps: int) -> ConfigDict:
    study = algorithmic.get_config()
    rows = {"none": "none"} | _BASES
    rows |= {f"randomized {base}": f"randomized(256) >> {spec}" for base, spec in _BASES.items()}
    study.encodings = ConfigDict(rows, sort_keys=False)
    study.data.name = name
    study.model.vocab_size = 10  # of the largest alphabet: tasks of one size share compiled programs
    study.update(steps=steps, batch_size=16, eval_batch_size=128)
    return study


RUOSS = Source("Ruoss et al.", 2023, "2305.16843")
_TASKS = ("bucket_sort", "reverse_string", "odds_first", "cycle_navigation")
_SOLVED = {task: Table("randomized_positions", task, "accuracy") for task in _TASKS}
_REVERSED = Table("randomized_positions", "reverse_string", "accuracy by length")


def _randomized(task: str, base: str) -> Contrast:
    """The gain of randomised positions over a base."""
    return _SOLVED[task](f"randomized {base}") - _SOLVED[task](base)


_AVERAGED = ("sinusoidal", "relative", "alibi", "rope")
_INSTANCE = "abstract, one of its tasks; no number"

CLAIMS = (
    Claim(
        "randomized-helps-on-average",
        RUOSS,
        "abstract, mean over tasks",
        "Over tasks and encodings randomised positions raise accuracy on longer sequences.",
        (
            above(
                mean([_randomized(task, base) for task in _TASKS for base in _AVERAGED]),
                name="randomised - plain, mean over tasks and encodings",
            ),
        ),
        {"points": 12.0},
        doubt="One task, sorting, makes most of it, and ALiBi loses by it on two of them.",
        follow_up=(
            *(Looked(mean([_randomized(task, base) for base in _AVERAGED]), task) for task in _TASKS),
            *(Looked(_randomized(task, "alibi"), f"ALiBi, {task}") for task in ("reverse_string", "cycle_navigation")),
        ),
    ),
    Claim(
        "randomized-sinusoidal-sorts",
        RUOSS,
        _INSTANCE,
        "Randomised positions let sinusoidal codes sort sequences longer than those of training.",
        (above(_randomized("bucket_sort", "sinusoidal")),),
    ),
    Claim(
        "randomized-rope-sorts",
        RUOSS,
        _INSTANCE,
        "Randomised positions let RoPE sort sequences longer than those of training.",
        (above(_randomized("bucket_sort", "rope")),),
    ),
    Claim(
        "randomized-learned-sorts",
        RUOSS,
        _INSTANCE,
        "Randomised positions let a learned table sort sequences longer than those of training.",
        (above(_randomized("bucket_sort", "learned")),),
    ),
    Claim(
        "randomized-reverses",
        RUOSS,
        _INSTANCE,
        "Randomised positions help relative attention and RoPE to reverse longer strings.",
        tuple(above(_randomized("reverse_string", base)) for base in ("relative", "rope")),
        doubt="Reversing is not solved at the trained lengths either: more training may change it.",
        follow_up=tuple(
            Looked(_REVERSED(f"randomized {base}", 20), f"accuracy of randomized {base} at 20, trained")
            for base in ("relative", "rope")
        ),
    ),
    Claim(
        "randomized-finds-odds",
        RUOSS,
        _INSTANCE,
        "Randomised positions help sinusoidal codes and RoPE to gather every other symbol of longer sequences.",
        tuple(above(_randomized("odds_first", base)) for base in ("sinusoidal", "rope")),
        doubt="No row has learned the task at the trained lengths.",
    ),
    Claim(
        "randomized-navigates",
        RUOSS,
        _INSTANCE,
        "Randomised positions help sinusoidal codes and RoPE to follow a cycle for longer.",
        tuple(above(_randomized("cycle_navigation", base)) for base in ("sinusoidal", "rope")),
    ),
)

QUESTIONS = (
    Question(
        "Longer sequences to be sorted",
        (_SOLVED["bucket_sort"],),
        "accuracy of longer sortings",
        doubt="Few symbols, scored by their tokens; on other tasks random positions help less.",
        main=False,
        claims=("randomized-sinusoidal-sorts", "randomized-rope-sorts", "randomized-helps-on-average"),
    ),
)
