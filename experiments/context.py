"""How long may the input be? Memory and time of a decoder by length and kind of attention, predicted and measured.

    python -m experiments.context --config=configs/decoder.py
    python -m experiments.context --config=configs/decoder.py --config.model.encoding=alibi --memory=24GiB
    python -m experiments.context --config=configs/decoder.py --lengths=4096,65536,1048576 --seconds=60 --window=1024

Forward pass, training step and cached decoding, each with dense, blockwise and windowed attention where it applies. Every
program is compiled for every length, which tells its memory without using it, unless it is predicted to need more than
twice --memory; it is run where it fits and a call is predicted to take at most --seconds. Lengths up to 4096 calibrate
the model of costs (experiments.cost.model) on this machine, and the table has how far its predictions for longer ones are
off. The answer, the length at which each runs out of memory and of time, rests on all that was measured, and says how far
beyond that it lies.

Under the workdir (runs/context by default): table.md, results.jsonl and context.png.
"""

import argparse
import os
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from experiments import cli, tune_allocator

LENGTHS = (1024, 2048, 4096, 16384, 65536)
CALIBRATING = 4096  # tokens: lengths up to here are run anyhow
ROWS = (
    ("dense", "forward"),
    ("blockwise", "forward"),
    ("window", "forward"),
    ("dense", "training"),
    ("blockwise", "training"),
    ("window", "training"),
    ("dense", "decoding"),
    ("window", "decoding"),
)
_HOPELESS = 2.0  # of the memory: what is predicted to need more is not compiled
_UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_MOST = 2**31 - 1  # tokens: positions are int32


def main(
    config: ConfigDict,
    workdir: pathlib.Path,
    *,
    lengths: Sequence[int] = LENGTHS,
    memory: float | None = None,
    seconds: float = 10.0,
    window: int = 512,
    batch: int = 1,
) -> None:
    """Measures, and writes table, records and plot.

    Args:
      memory: bytes that a program may hold; what is free if None.
      seconds: that a call may take.
      window: keys that a query of windowed attention sees.
      batch: sequences in a call.

    Raises:
      ValueError: for a config that is not a language model's, or lengths of which none can calibrate; for a memory that no
        program fits.
    """
    from experiments.studies.running import bar, caption

    if config.get("task") != "language_model":
        raise ValueError("the input of a language model has a length: give the config of one, as configs/decoder.py")
    lengths = sorted(set(lengths))
    if lengths[0] > CALIBRATING:
        raise ValueError(f"lengths {lengths} must have one of at most {CALIBRATING} tokens among them, to calibrate on")
    given = dict(memory=memory or _free(), seconds=seconds, window=window, batch=batch)
    rows = []
    with bar(len(ROWS) * len(lengths), "program") as progress:
        for attention, work in ROWS:
            caption(progress, f"{work}, {attention}")
            rows.append(_row(config, attention, work, lengths, given, progress.update))
    _refuse_if_nothing_ran(rows, given["memory"])
    _write(config, rows, given, workdir)


def _row(config: ConfigDict, attention: str, work: str, lengths, given: dict[str, Any], done) -> dict[str, Any]:
    """Predictions and measurements of one kind of program by length, and how long its input may be."""
    from experiments.cost import model as cost
    from experiments.cost.programs import decoder, program

    sizes = cost.sizes_of(decoder(config, attention, lengths[0], given["window"]))
    options = dict(attention=attention, work=work, batch=given["batch"], window=given["window"])
    costs = {n: cost.cost(sizes, n, **options) for n in lengths}
    short = [n for n in lengths if n <= CALIBRATING]
    held, taken, model = dict.fromkeys(lengths), dict.fromkeys(lengths), None
    for n in lengths:
        if n not in short:
            model = model or _fitted(costs, held, taken, short)
        if n in short or model.bytes(costs[n]) <= _HOPELESS * given["memory"]:
            built = program(config, attention, work, n, batch=given["batch"], window=given["window"])
            held[n] = built.held_bytes
            quick = n in short or (model.times is not None and model.seconds(costs[n]) <= given["seconds"])
            if quick and (held[n] or costs[n].bytes) <= given["memory"]:
                taken[n] = built.seconds()
        done()
    model = model or _fitted(costs, held, taken, short)
    best = _fitted(costs, held, taken, lengths)

    def within(limit: float, need: Callable[[Any], float]) -> int:
        return cost.longest(lambda n: need(cost.cost(sizes, n, **options)), limit, _MOST)

    return {
        "attention": attention,
        "work": work,
        "tile": None if attention == "dense" or work == "decoding" else cost.tile_of(sizes, lengths[-1]),
        "calibration": {"short": model.record(), "all": best.record()},
        "points": [_point(n, model, costs[n], held[n], taken[n]) for n in lengths],
        "longest_of_memory": within(given["memory"], best.bytes),
        "longest_of_time": None if best.times is None else within(given["seconds"], best.seconds),
    }


class _Fitted(NamedTuple):
    """The model of costs with what some programs have told; `times` is None where none of them could be run."""

    kept: float
    times: Any

    def bytes(self, cost: Any) -> float:
        return cost.bytes_if(self.kept)

    def seconds(self, cost: Any) -> float:
        return self.times.seconds(cost)

    def record(self) -> dict[str, Any]:
        return {"kept": self.kept, **(self.times._asdict() if self.times else {})}


def _fitted(costs, held, taken, lengths) -> _Fitted:
    from experiments.cost.model import fit_memory, fit_times

    chosen, seconds = [costs[n] for n in lengths], [taken[n] for n in lengths]
    times = fit_times(chosen, seconds) if any(second is not None for second in seconds) else None
    return _Fitted(fit_memory(chosen, [held[n] for n in lengths]), times)


def _point(length: int, model: _Fitted, cost: Any, held: float | None, taken: float | None) -> dict[str, Any]:
    return {
        "length": length,
        "calibrating": length <= CALIBRATING,
        "bytes": held,
        "predicted_bytes": model.bytes(cost),
        "seconds": taken,
        "predicted_seconds": None if model.times is None else model.seconds(cost),
        **cost._asdict(),
    }


def _refuse_if_nothing_ran(rows: list[dict[str, Any]], memory: float) -> None:
    from experiments.cost.table import gib

    if any(point["seconds"] for row in rows for point in row["points"]):
        return
    needs = [(p["bytes"] or p["predicted_bytes"], p["length"], row) for row in rows for p in row["points"]]
    least, length, row = min(needs, key=lambda need: need[0])
    raise ValueError(
        f"no program fits {gib(memory)}: the smallest of them, {row['work']} with {row['attention']} attention at "
        f"{length:,} tokens, needs {gib(least)}; raise --memory, or give shorter --lengths or a smaller model"
    )


def _write(config: ConfigDict, rows: list[dict[str, Any]], given: dict[str, Any], workdir: pathlib.Path) -> None:
    from experiments.cost import table
    from experiments.cost.plots import against_length
    from experiments.studies import environment
    from posjax.describe.figures import save
    from posjax.files import replace_file
    from posjax.jsonl import strict

    described = environment.describe(tune_allocator())
    about = {"model": strict(config.model.to_dict()), **given, **described}
    about["command"] = cli.command_line("context")
    text = table.to_markdown(rows, about)
    replace_file(workdir / "table.md", text.encode())
    lines = [table.json_line({**row, "about": about}) for row in rows]
    replace_file(workdir / "results.jsonl", "".join(lines).encode())
    save(against_length(table.panels(rows, about)), workdir / "context.png", dpi=120)
    print(text)
    print(*(workdir / name for name in ("table.md", "results.jsonl", "context.png")), sep="\n")


def _free() -> float:
    """Bytes that programs may use: of the accelerator, or what Linux says is available."""
    import jax

    stats = jax.devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return float(stats["bytes_limit"])
    path = pathlib.Path("/proc/meminfo")
    if path.exists():
        return 1024.0 * int(re.search(r"MemAvailable:\s+(\d+)", path.read_text())[1])
    return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def size_of(text: str) -> float:
    """Bytes: "24GiB" or "1.5GiB", "512MiB", or a number of them.

    Raises:
      ValueError: for anything else.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]iB)?", text.strip())
    if not match or float(match[1]) == 0:
        raise ValueError(f"--memory={text} is no size: write it as 24GiB or 512MiB")
    return float(match[1]) * _UNITS[match[2] or ""]


def _numbers(texts: Sequence[str]) -> list[int]:
    if not all(text.strip().isdigit() and int(text) > 1 for text in texts):
        raise ValueError(f"--lengths={','.join(texts)}: expected whole numbers of at least 2 with commas between")
    return [int(text) for text in texts]


def options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this command alone."""
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)), help="tokens, with commas between")
    parser.add_argument("--memory", help="largest size of a program, as 24GiB; the free memory if not given")
    parser.add_argument("--seconds", type=float, default=10.0, help="longest time of a call")
    parser.add_argument("--window", type=cli.positive, default=512, help="keys that a query of windowed attention sees")
    parser.add_argument("--batch", type=cli.positive, default=1, help="sequences in a call")


def from_line(config: ConfigDict, workdir: pathlib.Path, *, lengths: str, memory: str | None, **given: Any) -> None:
    """Calls `main` with the lengths and the memory of a command line."""
    sizes = dict(lengths=_numbers(lengths.split(",")), memory=size_of(memory) if memory else None)
    main(config, workdir, **sizes, **given)


if __name__ == "__main__":
    cli.run(from_line, __doc__, default_workdir=lambda config, given: cli.RUNS / "context", options=options)
