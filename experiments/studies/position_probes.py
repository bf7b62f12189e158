"""Whether tokens of a trained model tell where they stand: an ablation of text whose rows are also probed, layer by layer."""

import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int32

from experiments.analysis.readout import position_error
from experiments.studies.ablation import Ablation
from experiments.studies.records import row_hash
from experiments.studies.study import Row, Weights, plain
from posjax.encoding import sites
from posjax.jsonl import config_hash
from posjax.training.long_task import decoding_task
from posjax.training.runs import Run, load_run
from posjax.training.tasks import Evaluated


class PositionProbes(Ablation):
    """Rows of `config.studies`, probed on `config.probe.windows` windows of the evaluation split, half of them to fit.

    What is measured beside training's scores is `position_error` after each block, of text and of tokens drawn at random from
    it, whose order says nothing. `config.probe.checkpoints`, {study: workdir}, has the models of a study of lengths read from
    there in place of training some: those of rows with the same label.

    Raises:
      ValueError: there is no such row in a workdir, or it lacks a seed.
    """

    def restored(self, row: Row) -> Weights | None:
        workdir = self.config.probe.checkpoints.get(row.study)
        return None if workdir is None else self._kept(row, pathlib.Path(workdir) / "models")

    def hash_of_row(self, row: Row, training: str, digest: Callable[[], str]) -> str:
        probe = self.config.probe
        return config_hash({"training": training, "windows": probe.windows, "seed": probe.seed})

    def measure(self, row: Row, base: Weights, weights: Weights, seeds: Sequence[int]) -> list[dict[str, Any]]:
        measured, run, probe = super().measure(row, base, weights, seeds), weights.run, self.config.probe
        text = windows_of(run.task, probe.windows)
        rng = np.random.default_rng(probe.seed)
        given = {"": text, ", random tokens": rng.choice(text.ravel(), text.shape)}
        look, found = tokens_by_layer(run, text.shape[1]), []
        for seed in seeds:
            params, metrics = run.of(run.seeds.index(seed)), {}
            for name, tokens in given.items():
                half = len(tokens) // 2
                for block, features in enumerate(look(params, tokens)):
                    error = position_error(features[:half], features[half:], probe.seed)
                    metrics[f"position error after {block} blocks{name}"] = error
            found.append(metrics)
        # A model of another study was trained at the rate that was chosen there.
        elsewhere = probe.checkpoints.get(row.study) is not None
        about = {"learning_rate": run.config.optimizer.learning_rate} if elsewhere else {}
        return [
            fields | about | {"metrics": fields["metrics"] | more} for fields, more in zip(measured, found, strict=True)
        ]

    def _kept(self, row: Row, folder: pathlib.Path) -> Weights:
        named = re.compile(f"{re.escape(plain(row.label))}-[0-9a-f]{{12}}")
        found = [each for each in sorted(folder.glob("*")) if named.fullmatch(each.name)]
        if len(found) != 1:
            raise ValueError(f"{folder} has {len(found)} models of a row {row.label!r}: one is to be probed")
        run = load_run(found[0], task_of=decoding_task)
        if missing := sorted({*self.seeds} - {*run.seeds}):
            raise ValueError(f"{found[0]} has no seed {missing[0]}, but {run.seeds}")
        return Weights(run, row_hash(run.config), {}, found[0])


def windows_of(task: Evaluated, count: int) -> Int32[np.ndarray, "N T"]:
    """The first windows of a task's evaluation split, of the shortest length that it is scored at.

    Raises:
      ValueError: there are not as many, or fewer than two are asked for.
    """
    tokens, windows = next(iter(task.evaluation().values())), []
    for batch in tokens:
        whole = (np.asarray(batch["segment"]) > 0).all(axis=1)
        windows += list(np.asarray(batch["tokens"])[whole])
        if len(windows) >= count:
            break
    if not 2 <= count <= len(windows):
        raise ValueError(
            f"probe.windows={count} must lie in 2..{len(windows)}, the whole windows of the evaluation split"
        )
    return np.stack(windows[:count]).astype(np.int32)


def tokens_by_layer(run: Run, length: int) -> Callable[[Any, np.ndarray], list[Float[np.ndarray, "N T M"]]]:
    """A compiled (parameters of a seed, tokens [N, T]) -> the input of the first block, and the output of each."""
    model, site = run.model, sites(length)
    names = ["tokens_in", *(f"tokens_{layer}" for layer in range(model.depth))]

    @jax.jit
    def look(params, tokens):
        _, variables = model.apply({"params": params}, tokens, site, mutable=["intermediates"])
        return [variables["intermediates"]["trunk"][name][0] for name in names]

    return lambda params, tokens: list(map(np.asarray, look(params, tokens)))
