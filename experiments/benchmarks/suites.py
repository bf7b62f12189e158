"""Suites beside other libraries: contenders, cells and goals."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from experiments.benchmarks.findings import Bound, Goal, growth, seconds
from experiments.benchmarks.pool import Contender

Cell = Mapping[str, Any]  # "mode", "length" and what else its contenders share; "title" if it has a name of its own
Turn = tuple[Cell, list[Contender]]  # contenders that are measured together


class Suite(NamedTuple):
    """Cells to measure, in order, each with the contenders that take part in it, and the goals."""

    contenders: Sequence[Contender]
    cells: Sequence[Cell]
    goals: Sequence[Goal | Bound]
    controls: Mapping[str, str]  # contender -> the second process with the same code
    note: str = ""
    compiles: bool = False  # whether a call that would take too long is compiled for its memory
    one_by_one: bool = False  # whether one process at a time measures all contenders, as a device has room for one
    base: str = ""  # the contender whose time is 1 in the table; where it was not measured, the first of a cell

    def turns(self) -> list[Turn]:
        """Returns all turns, in order."""
        turns: list[Turn] = []
        for cell in self.cells:
            part = [c for c in self.contenders if all(cell.get(name) in values for name, values in c.only.items())]
            turns += [(cell, [c]) for c in part] if self.one_by_one else [(cell, part)]
        return turns


_QUICK = (512, 2048)
_FULL = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
_ALL_CORES = (2048, 4096, 8192)  # where all cores are measured, unless lengths are given
_HEAD = {"heads": 4, "head_dim": 64}


def attention(quick: bool, lengths: Sequence[int] | None, threads: int) -> Suite:
    """Causal attention with an encoding, against torch's and jax's; float32, head dim 64."""
    given = lengths or (_QUICK if quick else _FULL if threads == 1 else _ALL_CORES)
    bias, plain = "torch sdpa, ALiBi as a mask", "torch sdpa, causal"
    few, some = [n for n in _FULL if n <= 8192], [n for n in _FULL if n <= 16384]
    compiling = {"mode": ["f"], "heads": [4], "length": (2048, 4096, 8192)}  # half a minute each
    contenders = (
        Contender("posjax alibi", "jax", _attend("alibi")),
        Contender(bias, "torch", {"kind": "masked"}),
        Contender(plain, "torch", {"kind": "causal"}),
        Contender("posjax none", "jax", _attend("none"), {"length": [*few, *(lengths or ())]}),
        Contender("posjax t5", "jax", _attend("t5"), {"length": [*few, *(lengths or ())]}),
        Contender("torch flex, ALiBi", "torch", {"kind": "flex"}, compiling),
        Contender("jax.nn, ALiBi as bias", "jax", {"kind": "library"}),
        Contender("torch sdpa, T5 learned", "torch", {"kind": "table"}, {"heads": [4]}),
        Contender("posjax alibi again", "jax", _attend("alibi"), {"length": [*some, *(lengths or ())]}),
    )
    cells = [
        {"heads": heads, "head_dim": 64, "mode": mode, "length": n}
        for heads in ((4,) if quick or threads > 1 else (4, 8))
        for mode in ("f", "fb")
        for n in given
        if heads == 4 or n <= 8192 or lengths
    ]
    return Suite(contenders, cells, _attention_goals(bias, plain), {"posjax alibi": "posjax alibi again"}, _MASKS)


def _attend(spec: str) -> Mapping[str, Any]:
    return {"kind": "attend", "spec": spec}


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


def window(quick: bool, lengths: Sequence[int] | None, threads: int) -> Suite:
    """A causal window of 512 against all keys, both blockwise."""
    given = lengths or ((2048, 8192) if quick else (4096, 16384, 65536))
    full, own = "posjax none", "posjax window(512)"
    contenders = (
        Contender(own, "jax", _attend("window(size=512)")),
        Contender(full, "jax", _attend("none")),
        Contender(f"{own} again", "jax", _attend("window(size=512)")),
    )
    at_16384 = {"f": (10, 12), "fb": (10, 12)}
    goals = (
        Goal("all keys / window of 512", full, own, at_16384, lambda cell: cell["length"] == 16384),
        Bound("growth of the window's time over that of n", own, growth(seconds), 1.1),
    )
    cells = [{**_HEAD, "mode": mode, "length": n} for mode in ("f", "fb") for n in given]
    return Suite(contenders, cells, goals, {own: f"{own} again"})


def rotary(quick: bool, lengths: Sequence[int] | None, threads: int) -> Suite:
    """Rotation of q and k of shape (8, 1024, 8, 64), as in training: the sites are data."""
    single, half = {"dtype": "float32"}, {"dtype": "bfloat16"}
    own = {"kind": "rotate", "spec": "rope"}
    contenders = (
        Contender("posjax rope", "jax", own | single),
        Contender("transformers", "torch", {"kind": "transformers"} | single),
        Contender("torch complex", "torch", {"kind": "complex"} | single),
        Contender("copy", "jax", {"kind": "copy"} | single),
        Contender("posjax rope backward", "jax", own | single | {"mode": "b"}),
        Contender("posjax rope bf16", "jax", own | half),
        Contender("posjax rope bf16 backward", "jax", own | half | {"mode": "b"}),
        Contender("transformers bf16", "torch", {"kind": "transformers"} | half),
        Contender("copy bf16", "jax", {"kind": "copy"} | half),
        Contender("posjax rope again", "jax", own | single),
    )
    bf16 = "posjax rope bf16"
    goals = (
        Goal("transformers / posjax rope", "transformers", "posjax rope", {"f": (6, None)}),
        Goal("torch complex / posjax rope", "torch complex", "posjax rope", {"f": (1, None)}),
        Goal("copy / posjax rope", "copy", "posjax rope", {"f": (0.5, 0.8)}),
        Goal("bf16 backward / bf16 forward", f"{bf16} backward", bf16, {"f": (1.5, None)}, at_most=True),
    )
    cells = [{"batch": 8, "heads": 8, "head_dim": 64, "mode": "f", "length": n} for n in lengths or (1024,)]
    return Suite(contenders, cells, goals, {"posjax rope": "posjax rope again"}, _ROTARY)


_ROTARY = (
    "The peers are given cosines and sines that were made beforehand; posjax makes them from the sites in every call."
)
