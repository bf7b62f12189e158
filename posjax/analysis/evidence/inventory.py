"""The folders under results: their tables, and under what regime each was run, as their records and config say."""

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from posjax.analysis.evidence.contrast import Cell, Tables
from posjax.analysis.evidence.numbers import ink
from posjax.analysis.report.lengths import views
from posjax.analysis.statistics import CHOOSING, Record, Rows, all_runs, group

# Images, or bytes of text, that one pass over a set's training split takes.
ONE_PASS = {
    "digits": 1_433,
    "fashion_mnist": 60_000,
    "cifar10": 50_000,
    "folder": 4_879,  # Caltech-101, short side 128
    "pydoc_topics": 419_727,
    "tiny_shakespeare": 1_003_854,
    "books_pd": 22_102_385,
}


class Study(NamedTuple):
    """A study whose records lie in a folder of results, or will: what it asks, and the command that runs it."""

    folder: str
    asks: str
    config: str
    module: str = "ablate"
    arguments: str = ""

    @property
    def command(self) -> str:
        words = f"python -m experiments.{self.module} --config={self.config} {self.arguments}".strip()
        return f"{words} --workdir=results/{self.folder}"


@dataclasses.dataclass(frozen=True)
class Folder:
    """A folder of results that is there.

    Attributes:
      records: all lines of results.jsonl, but those by which a learning rate was chosen.
      tables: the same by table and row; of a study of lengths a table for each thing that it measures.
      config: what config.json says; empty where there is none.
    """

    records: Sequence[Record]
    tables: Tables
    config: Mapping[str, Any]


def folder_of(records: Sequence[Record], config: Mapping[str, Any]) -> Folder:
    """A folder of results from its records (flat, as written) and its config."""
    final = [record for record in records if not any(name.startswith(CHOOSING) for name in record["metrics"])]
    of_lengths = [record for record in final if record["task"] == "extrapolate"]
    others = [record for record in final if record["task"] != "extrapolate"]
    shown = [*(views(of_lengths) if of_lengths else ()), *others]
    return Folder(final, group(shown) if shown else {}, config)


class Regime(NamedTuple):
    """How rows were trained. Each holds the distinct values of the runs, ascending."""

    parameters: tuple[int, ...]
    steps: tuple[int, ...]
    passes: tuple[float, ...]  # over the training split; empty where examples are made up, or the set's size is unknown
    rates: tuple[float, ...]  # learning rates
    seeds: tuple[int, ...]  # of a row
    device: tuple[str, ...]

    def text(self) -> str:
        """``116,480 parameters, 800 steps, 0.58 passes, 2 seeds, cpu``, with the numbers marked."""
        parts = [
            (self.parameters, "{:,}", "parameters"),
            (self.steps, "{:,}", "steps"),
            (self.passes, "{:.2g}", "passes"),
            (self.seeds, "{}", "seeds"),
        ]
        told = [f"{_span(values, form)} {what}" for values, form, what in parts if values]
        told += [f"rate {_span(self.rates, '{:g}')}"] if self.rates else []
        return ", ".join([*told, *self.device])


def _span(values: Sequence[float], form: str) -> str:
    ends = dict.fromkeys(form.format(value) for value in (min(values), max(values)))
    return ink(" to ".join(ends))


def regime_of(cells: Iterable[Cell], folders: Mapping[str, Folder]) -> Regime:
    """The regime of all rows that some cells read."""
    rows: Rows = {}
    configs = []
    for cell in cells:
        folder = folders.get(cell.folder)
        runs = folder.tables.get(cell.table, {}).get(cell.row, []) if folder else []
        if runs:
            rows["\n".join(cell[:3])] = list(runs)
            configs += [_trained_by(run, cell, folder.config) for run in runs]
    runs = all_runs(rows)
    return Regime(
        _distinct(run["parameters"] for run in runs),
        _distinct(run["steps"] for run in runs),
        _distinct(each for run, config in zip(runs, configs, strict=False) if (each := passes(run, config))),
        _distinct(each for config in configs if (each := config.get("optimizer", {}).get("learning_rate"))),
        _distinct(len(each) for each in rows.values()),
        tuple(dict.fromkeys(run["device"] for run in runs)),
    )


def _distinct(values: Iterable) -> tuple:
    return tuple(sorted(set(values)))


def _trained_by(run: Record, cell: Cell, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields that trained a run: those of its table, which are the whole config in a study of lengths."""
    tables = config.get("studies") or config.get("sets") or {}
    found = dict(tables.get(cell.table, config))
    point = run.get("point") or {}
    if "optimizer" in found and (rate := point.get("learning_rate") or point.get("optimizer.learning_rate")):
        found["optimizer"] = {**found["optimizer"], "learning_rate": float(rate)}
    return found


def passes(run: Record, config: Mapping[str, Any]) -> float | None:
    """How often a run has seen its training split; None where nobody knows, or examples are made up."""
    size, data = ONE_PASS.get(run["data"]), config.get("data", {})
    if not size or "batch_size" not in config:
        return None
    share = data.get("fraction") or 1.0
    # The length may be that of a fine-tune, whose batches hold as many tokens: the config's is what both have.
    taken = run["steps"] * config["batch_size"] * (data.get("length") or 1)
    return taken / (size * share)


def hours(records: Sequence[Record]) -> float:
    """Wall time of training and evaluating all rows; seeds that are trained together share one."""
    trained = {
        (r["study"], r.get("training_hash") or r["config_hash"], r["steps"], r["wall_time"]): r["wall_time"]
        for r in records
    }
    measured = sum(record.get("evaluation_time") or 0.0 for record in records)
    return (sum(trained.values()) + measured) / 3600


def commits(records: Sequence[Record]) -> tuple[str, ...]:
    """Short hashes of the commits that ran them; `-dirty` where files had been changed."""
    found = dict.fromkeys(str(record["versions"].get("commit", "unknown")) for record in records)
    return tuple(commit[:7] + ("-dirty" if commit.endswith("-dirty") else "") for commit in found)


def seconds_of_step(runs: Sequence[Record]) -> float | None:
    """Median over seeds; None where none was timed."""
    times = [run["step_time"] for run in runs if run.get("step_time") is not None]
    return statistics.median(times) if times else None
