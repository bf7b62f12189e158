"""The folders under results: their tables, and under what regime each was run, as their records and config say."""

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from experiments.evidence.contrast import Cell, Tables
from experiments.evidence.numbers import ink
from experiments.report.lengths import views
from experiments.report.statistics import CHOOSING, Record, Rows, all_runs, group

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
      records: all lines of results.jsonl, but the points of a sweep.
      tables: the same by table and row; of a study of lengths a table for each thing that it measures.
      config: what config.json says; empty where there is none.
      points: the runs by which learning rates were chosen, for what they cost.
    """

    records: Sequence[Record]
    tables: Tables
    config: Mapping[str, Any]
    points: Sequence[Record] = ()


def folder_of(records: Sequence[Record], config: Mapping[str, Any], points: Sequence[Record] = ()) -> Folder:
    """A folder of results from its records (flat, as written) and its config."""
    final = [record for record in records if not any(name.startswith(CHOOSING) for name in record["metrics"])]
    of_lengths = [record for record in final if record["task"] == "extrapolate"]
    others = [record for record in final if record["task"] != "extrapolate"]
    shown = [*(views(of_lengths) if of_lengths else ()), *others]
    return Folder(final, group(shown) if shown else {}, config, points)


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
            (self.parameters, "{:,}", "parameter"),
            (self.steps, "{:,}", "step"),
            (self.passes, "{:.3g}", "pass"),
            (self.seeds, "{}", "seed"),
        ]
        told = [f"{_span(values, form)} {_many(what, values)}" for values, form, what in parts if values]
        told += [f"rate {_span(self.rates, '{:g}')}"] if self.rates else []
        return ", ".join([*told, *self.device])


def _many(what: str, values: Sequence[float]) -> str:
    return what if set(values) == {1} else f"{what}es" if what.endswith("s") else f"{what}s"


def _span(values: Sequence[float], form: str) -> str:
    ends = dict.fromkeys(form.format(value) for value in (min(values), max(values)))
    return ink(" to ".join(ends))


def regime_of(cells: Iterable[Cell], folders: Mapping[str, Folder]) -> Regime:
    """The regime of all rows that some cells read."""
    rows: Rows = {}
    trained: list[tuple[Record, Mapping[str, Any]]] = []
    for name, table, row in dict.fromkeys(cell[:3] for cell in cells):
        folder = folders.get(name)
        if folder and (runs := folder.tables.get(table, {}).get(row)):
            rows[f"{name}, {table}, {row}"] = list(runs)
            trained += [(run, _trained_by(run, table, folder.config)) for run in runs]
    runs = all_runs(rows)
    return Regime(
        _distinct(run["parameters"] for run in runs),
        _distinct(run["steps"] for run in runs),
        _distinct(each for run, config in trained if (each := passes(run, config))),
        _distinct(each for run, config in trained if (each := _rate(run, config))),
        _distinct(len(each) for each in rows.values()),
        tuple(dict.fromkeys(run["device"] for run in runs)),
    )


def _distinct(values: Iterable) -> tuple:
    return tuple(sorted(set(values)))


def _trained_by(run: Record, table: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields that trained a run: those of its table, or of its fine-tune on top; in a study of lengths all of them."""
    tables = config.get("studies") or config.get("sets") or {}
    found = tables.get(table, config)
    tuning = found.get("finetune", {}).get(run.get("base"), {}).get(run["label"], {})
    own = {"optimizer": {"learning_rate": tuning["learning_rate"]}} if tuning.get("learning_rate") else {}
    if tuning and "retrieval" in found.get("data", {}):
        share = tuning.get("retrieval_share", found["data"]["retrieval"].get("share", 0.0))
        own["data"] = {"retrieval": {"first_steps": 0, "share": share}}  # retrieval alone is for the first training
    return _changed(_changed(found, found.get("rows", {}).get(run["label"], {})), own)


def _changed(fields: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with others in their place, in groups too."""
    made = dict(fields)
    for name, value in change.items():
        within = isinstance(value, Mapping) and isinstance(made.get(name), Mapping)
        made[name] = _changed(made[name], value) if within else value
    return made


def _rate(run: Record, config: Mapping[str, Any]) -> float | None:
    """The learning rate: that which was chosen for the row, here or where its model is from, else that of the config."""
    chosen = (run.get("tuned") or run).get("learning_rate")
    return chosen or config.get("optimizer", {}).get("learning_rate")


def passes(run: Record, config: Mapping[str, Any]) -> float | None:
    """How often a run has seen its training split; None where nobody knows, or examples are made up."""
    size, data = ONE_PASS.get(run["data"]), config.get("data", {})
    if not size or "batch_size" not in config:
        return None
    share = data.get("fraction") or 1.0
    # The length may be that of a fine-tune, whose batches hold as many tokens: the config's is what both have.
    of_steps = config["batch_size"] * (data.get("length") or 1)
    made_up = data.get("retrieval") or {}  # rows that are not text, and steps without any
    steps = max(0, run["steps"] - (made_up.get("first_steps") or 0)) * (1 - made_up.get("share", 0.0))
    return steps * of_steps / (size * share) or None


def core_hours(folder: Folder) -> float:
    """Wall time of training, of choosing rates and of evaluating, times cores; runs that are trained together share one.

    An upper bound: a core may have waited, or served others.
    """
    # Seeds and rates that are trained together have one wall time, to the last digit.
    trained = {r["wall_time"]: r["wall_time"] * _cores(r) for r in (*folder.records, *folder.points)}
    measured = sum((record.get("evaluation_time") or 0.0) * _cores(record) for record in folder.records)
    return (sum(trained.values()) + measured) / 3600


def _cores(record: Record) -> int:
    return record["versions"].get("cpus", 1)


def commits(records: Sequence[Record]) -> tuple[str, ...]:
    """Short hashes of the commits that ran them; `-dirty` where files had been changed."""
    found = dict.fromkeys(str(record["versions"].get("commit", "unknown")) for record in records)
    return tuple(commit[:7] + ("-dirty" if commit.endswith("-dirty") else "") for commit in found)


def seconds_of_step(runs: Sequence[Record]) -> float | None:
    """Median over seeds; None where none was timed."""
    times = [run["step_time"] for run in runs if run.get("step_time") is not None]
    return statistics.median(times) if times else None


STUDIES = (
    Study(
        "train_short_test_long",
        "Who reads text beyond the training length?",
        "configs/papers/train_short_test_long.py",
        "extrapolate",
    ),
    Study(
        "train_short_test_long_books",
        "The same on novels.",
        "configs/papers/train_short_test_long.py:books",
        "extrapolate",
        "--config.data.files=books_pd",
    ),
    Study(
        "randomized_positions",
        "Do random positions carry over to longer sequences?",
        "configs/papers/randomized_positions.py",
    ),
    Study("retrieval", "Who finds a pass key?", "configs/papers/retrieval.py", "extrapolate"),
    Study(
        "no_positions", "Where does a model without an encoding know positions from?", "configs/papers/no_positions.py"
    ),
    Study(
        "context_extension",
        "How is a trained RoPE read further?",
        "configs/papers/context_extension.py",
        "extrapolate",
        "--config.data.files=books_pd",
    ),
    Study(
        "vit_table8", "Which position embedding does a ViT take, and where is it added?", "configs/papers/vit_table8.py"
    ),
    Study("contextual_counting", "Who counts what matters?", "configs/papers/contextual_counting.py"),
    Study("state_tracking", "Who follows a state?", "configs/papers/state_tracking.py"),
    Study("length_generalization", "Who solves longer problems?", "configs/papers/length_generalization.py"),
    Study("resolutions", "Who reads larger images?", "configs/resolutions.py", "resolutions"),
    Study("heads", "What does the number of heads do to ALiBi?", "configs/papers/heads.py"),
    Study("data_size", "Does inductive bias help more with few images?", "configs/data_size.py"),
    Study("fashion_vit", "Encodings in a ViT, in an hour.", "configs/fashion_vit.py"),
    Study("quickstart", "Encodings in both, in minutes, at one learning rate for all.", "configs/quickstart.py"),
    Study("p_rope", "RoPE without its lowest frequencies, on an accelerator.", "configs/papers/p_rope.py"),
    Study("rope_vit", "Rotary ViTs on larger images, on an accelerator.", "configs/papers/rope_vit.py", "resolutions"),
)
