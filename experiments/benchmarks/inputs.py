"""The suite of input lengths: how long may the input of a decoder be, by memory and by time?

Measured lengths give a polynomial without negative coefficients, separately for bytes and for seconds: c0 + c1 n, and c2 n^2
where all pairs of tokens are computed or held. The answer is the length at which it reaches the limit.
"""

import bisect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.benchmarks.cases import Contender, Suite
from experiments.benchmarks.findings import Record, seconds
from experiments.benchmarks.units import duration, gib
from posjax.describe.markdown import grid
from posjax.jsonl import strict

if TYPE_CHECKING:
    from ml_collections import ConfigDict

LENGTHS = (1024, 2048, 4096, 16384, 65536)
MOST = 2**31 - 1  # tokens: positions are int32
_ROWS = dict.fromkeys(("forward", "training"), ("dense", "blockwise", "window")) | {"decoding": ("dense", "window")}
_ABOUT = (
    "The longest input in tokens; a factor in brackets says how many times the longest measured length that is. A call is a "
    "pass over the whole input; of decoding, one step behind it. Memory is what XLA says that a program holds: arguments, "
    "results and temporaries. Predictions rest on the shorter lengths of the row; an empty cell was not measured, as it was "
    "predicted to need twice the memory, or not to fit the limits."
)


def case_of(config: "ConfigDict", memory: float, window: int, batch: int, imports: Sequence[str]) -> tuple[dict, dict]:
    """Returns the sizes for the records, and the case of `jax_configs.read_input` without attention, mode, length and run.

    Raises:
      ValueError: the config is not a language model's.
    """
    if config.get("task") != "language_model":
        raise ValueError("the input of a language model has a length: give the config of one, as configs/decoder.py")
    sizes = {"model": strict(config.model.to_dict()), "memory": memory, "window": window, "batch": batch}
    optimizer = strict(config.optimizer.to_dict())
    return sizes, {**sizes, "optimizer": optimizer, "steps": config.steps, "imports": imports}


def inputs_suite(case: Mapping[str, Any], quick: bool, lengths: Sequence[int] | None, threads: int) -> Suite:
    """Memory and time of a decoder by length, two or more, and kind of attention."""
    if len(lengths or LENGTHS) < 2:
        raise ValueError(f"--lengths={lengths[0]}: an answer needs two lengths or more, as --lengths=1024,4096")
    contenders = []
    for name in _ROWS["forward"]:
        modes = [mode for mode, kinds in _ROWS.items() if name in kinds]
        contenders.append(Contender(name, "jax", {"kind": "input", "attention": name, **case}, {"mode": modes}))
    cells = [{"mode": mode, "length": n} for mode in _ROWS for n in lengths or LENGTHS]
    return Suite(contenders, cells, compiles=True)


def inputs_text(records: Sequence[Record]) -> str:
    """The answers, then every length."""
    given = records[0]["given"]
    limits = {"held_bytes": given["memory"], "seconds": given["seconds"]}
    header = ("attention", "work", "longest input", "what runs out", f"within {gib(given['memory'])}")
    rows, points = [], []
    for (attention, work), own in _series(records).items():
        longest = {name: _longest(own, name, limit) for name, limit in limits.items()}
        measured = {name: n for name, n in longest.items() if n is not None}
        least = min(measured, key=measured.get, default="")
        runs_out = {"held_bytes": "memory", "seconds": "time"}.get(least, "")
        if measured.get(least) == MOST:
            runs_out = "nothing"
        shown = f"**{_tokens(measured[least])}**" if measured else "not measured"
        reach = [_with_reach(own, name, n) for name, n in longest.items()]
        rows.append((attention, work, shown, runs_out, *reach))
        points += [(attention, work, f"{r['cell']['length']:,}", *_compared(own, r)) for r in own]
    model = ", ".join(f"{name}={value}" for name, value in given["model"].items() if value is not None)
    figures = ("memory: predicted", "measured", "ratio", "time: predicted", "measured", "ratio")
    return "\n\n".join(
        (
            grid((*header, f"within {given['seconds']:g} s a call"), rows, left=2),
            _ABOUT,
            grid(("attention", "work", "length", *figures), points, left=2),
            f"Model: {model}; {given['batch']} x length tokens, window {given['window']}.",
        )
    )


def fit(points: Sequence[tuple[int, float]], degree: int) -> Callable[[int], float]:
    """The polynomial without negative coefficients that explains values by length.

    Least squares of the relative error, then scaled to meet the longest: programs slow down where arrays leave the caches.
    """
    from scipy.optimize import nnls

    lengths, values = np.array(points, float).T
    scale = lengths[-1]
    powers = (lengths[:, None] / scale) ** np.arange(degree + 1)
    coefficients, _ = nnls(powers / values[:, None], np.ones(len(values)))
    coefficients *= values[-1] / coefficients.sum()
    return lambda n: float(coefficients @ (n / scale) ** np.arange(degree + 1))


def _degree(record: Record, quantity: str) -> int:
    """2 where all pairs of tokens are held, or computed; a step of decoding and a window are linear."""
    quadratic = ("dense",) if quantity == "held_bytes" else ("dense", "blockwise")
    return 2 if record["contender"] in quadratic and record["cell"]["mode"] != "decoding" else 1


def _series(records: Sequence[Record]) -> dict[tuple[str, str], list[Record]]:
    """Records by attention and work, in the order of their lengths."""
    series: dict[tuple[str, str], list[Record]] = {}
    for record in sorted(records, key=lambda record: record["cell"]["length"]):
        series.setdefault((record["contender"], record["cell"]["mode"]), []).append(record)
    order = [(attention, work) for work, own in _ROWS.items() for attention in own]
    return {key: series[key] for key in order if key in series}


def _points(records: Sequence[Record], quantity: str) -> list[tuple[int, float]]:
    values = [(r["cell"]["length"], seconds(r) if quantity == "seconds" else r.get("held_bytes")) for r in records]
    return [(length, value) for length, value in values if value]


def _longest(records: Sequence[Record], quantity: str, limit: float) -> int | None:
    """The longest input within a limit, 0 if none is; None without two measured lengths."""
    points = _points(records, quantity)
    if len(points) < 2:
        return None
    return bisect.bisect_right(range(1, MOST + 1), limit, key=fit(points, _degree(records[0], quantity)))


def _with_reach(records: Sequence[Record], quantity: str, length: int | None) -> str:
    if length is None:
        return "not run"
    beyond = length / _points(records, quantity)[-1][0]
    if beyond <= 1 or length >= MOST:
        return _tokens(length)
    return f"{_tokens(length)} ({beyond:,.{0 if beyond >= 10 else 1}f}x)"


def _compared(records: Sequence[Record], record: Record) -> list[str]:
    """Prediction, measurement and their ratio, of memory and of time."""
    shown = []
    for quantity, text in (("held_bytes", gib), ("seconds", duration)):
        length = record["cell"]["length"]
        before = [point for point in _points(records, quantity) if point[0] < length]
        predicted = fit(before, _degree(record, quantity))(length) if len(before) > 1 else None
        measured = dict(_points(records, quantity)).get(length)
        shown += [text(value) if value else "" for value in (predicted, measured)]
        shown.append(f"{predicted / measured:.2f}" if predicted and measured else "")
    return shown


def _tokens(length: int) -> str:
    """A length to three digits: it is no more certain than that."""
    if length >= MOST:
        return "no limit"
    digits = max(0, len(str(length)) - 3)
    return f"{length // 10**digits * 10**digits:,}" if length else "none"
