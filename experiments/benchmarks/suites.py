"""What is measured against what, and what was set out to be reached."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from experiments.benchmarks.findings import Bound, Goal
from experiments.benchmarks.pool import Contender

Cell = Mapping[str, Any]  # "mode" and what else its contenders share; "length" last in the order of measurement


class Suite(NamedTuple):
    """Cells to measure, in order, each with the contenders that take part in it, and the goals."""

    contenders: Sequence[Contender]
    cells: Sequence[Cell]
    goals: Sequence[Goal | Bound]
    controls: Mapping[str, str]  # contender -> the second process with the same code
    note: str = ""


_QUICK = (512, 2048)
_FULL = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
_ALL_CORES = (2048, 4096, 8192)  # where all cores are measured, unless lengths are given


def attention(quick: bool, lengths: Sequence[int] | None, threads: int) -> Suite:
    """Causal attention with an encoding, against torch's and jax's; float32, head dim 64."""
    given = lengths or (_QUICK if quick else _FULL if threads == 1 else _ALL_CORES)
    heads = (4,) if quick or threads > 1 else (4, 8)
    bias = "torch sdpa, ALiBi as a mask"
    plain = "torch sdpa, causal"
    contenders = (
        Contender("posjax alibi", "jax", {"kind": "attend", "spec": "alibi"}),
        Contender(bias, "torch", {"kind": "masked"}),
        Contender(plain, "torch", {"kind": "causal"}),
        Contender("posjax none", "jax", {"kind": "attend", "spec": "none"}),
        Contender("posjax t5", "jax", {"kind": "attend", "spec": "t5"}),
        Contender(
            "torch flex, ALiBi", "torch", {"kind": "flex"}, {"mode": ["f"], "heads": [4], "length": (2048, 4096, 8192)}
        ),
        Contender("jax.nn, ALiBi as bias", "jax", {"kind": "library"}),
        Contender("torch sdpa, T5 learned", "torch", {"kind": "table"}, {"heads": [4]}),
        Contender("posjax alibi again", "jax", {"kind": "attend", "spec": "alibi"}),
    )
    cells = [
        {"heads": h, "head_dim": 64, "mode": mode, "length": n} for h in heads for mode in ("f", "fb") for n in given
    ]
    return Suite(contenders, cells, _attention_goals(bias, plain), {"posjax alibi": "posjax alibi again"}, _MASKS)


_MASKS = (
    "torch's mask is made beforehand and gets no gradient; posjax computes T5's bias within the call, and in fb its "
    '"torch sdpa, T5 learned" does the same.'
)


def _attention_goals(bias: str, plain: str) -> Sequence[Goal | Bound]:
    long, at_4096 = (lambda cell: cell["length"] >= 2048), (lambda cell: cell["length"] == 4096)
    masked, causal = {"f": (1.6, 2.0), "fb": (1.3, 1.6)}, {"f": (0.9, 1.0), "fb": (0.7, 0.85)}
    library = "jax.nn, ALiBi as bias"
    return (
        Goal("torch sdpa with ALiBi's mask / posjax alibi", bias, "posjax alibi", masked, long),
        Goal("torch sdpa with a mask / posjax t5", bias, "posjax t5", masked, long),
        Goal("torch sdpa causal without a bias / posjax alibi", plain, "posjax alibi", causal),
        Goal("torch sdpa causal / posjax none", plain, "posjax none", causal),
        Goal("torch flex with ALiBi / posjax alibi", "torch flex, ALiBi", "posjax alibi", {"f": (1.25, 1.5)}, long),
        Goal("jax.nn with ALiBi / posjax alibi", library, "posjax alibi", {"f": (3, 3.5), "fb": (2.2, 3)}, at_4096),
        Goal(
            "temporaries of jax.nn with ALiBi / posjax alibi",
            library,
            "posjax alibi",
            {"f": (50, None), "fb": (50, None)},
            at_4096,
            quantity="temporaries",
        ),
    )


SUITES = {"attention": attention}
