"""Weights that rows are measured on: trained here, in a study before, or by somebody else."""

import hashlib
import math
import pathlib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from experiments.studies.plan import Row, training_of
from posjax.hub import local
from posjax.jsonl import config_hash
from posjax.training.identity import digest, identity
from posjax.training.initial import AS_INIT, Start, as_started
from posjax.training.long_task import LongDocuments, decoding_task
from posjax.training.runs import Run, is_run, load_run
from posjax.training.tasks import LanguageModel

_NO_RETRIEVAL = dict(share=0.0, weight=0.0, tasks=())


class Weights(NamedTuple):
    """An ensemble, with the hash and metrics of its training.

    Attributes:
      run: its parameters are shapes while rows are checked.
      hash: names the training.
      metrics: of the end of training, metric -> [R]; empty where it was trained elsewhere.
      directory: of the run.
    """

    run: Run
    hash: str
    metrics: Mapping[str, Any]
    directory: pathlib.Path


def row_fields(config: ConfigDict) -> dict[str, Any]:
    """Returns what names a training: its config without where and how often something is written, and its start."""
    start = ("init_digest", "init_encoding", "init_head", "init_resize") if "init_digest" in config else ()
    return identity(config) | {name: config[name] for name in start if name in config}


def row_hash(config: ConfigDict) -> str:
    """Returns the hash that names a training."""
    return config_hash(row_fields(config))


def load_decoder(checkpoint: pathlib.Path, table: ConfigDict) -> Weights:
    """The decoder of a run of posjax, of all its seeds, or of a file or folder of pretrained weights.

    Raises:
      ValueError: there is no decoder, or its trained length is not known.
    """
    if not is_run(checkpoint):
        path = local(checkpoint)
        if not path.is_dir() or (path / "config.json").exists():
            return _pretrained(path, table)
    run = load_run(checkpoint, task_of=decoding_task)  # refuses a folder without checkpoints
    if not isinstance(run.task, LanguageModel):
        raise ValueError(f"{checkpoint} holds no decoder but the task {run.config.task!r}")
    config = ConfigDict(run.config.to_dict())
    if "retrieval" not in config.data:  # a fine-tune then is on text alone
        config.data.update(files=config.data.get("files"), retrieval=ConfigDict(_NO_RETRIEVAL))
    config.steps = run.step
    return Weights(run._replace(config=config), row_hash(config), {}, checkpoint)


def _pretrained(path: pathlib.Path, table: ConfigDict) -> Weights:
    """Pretrained weights as a run of no steps; fine-tunes of them see the text of the study, and no retrieval."""
    start = Start(path, table.get("init_ignore"))
    config = config_of_start(start, table)
    task = LongDocuments(config)
    held = jax.eval_shape(lambda: task.init(jax.random.key(0)))
    params = jax.tree.map(lambda leaf, like: np.asarray(leaf, like.dtype)[None], start.of_seeds((0,))[0], held)
    run = Run(task, task.model, params, (0,), config, 0, {"elapsed": 0.0, "step_time": math.nan})
    return Weights(run, config_hash({**identity(config), "initial": digest(params)}), {}, path)


def config_of_start(start: Start, table: ConfigDict) -> ConfigDict:
    """Returns the config of a run of no steps that has a start's decoder.

    If the table tunes it, its parameters are of the table's type: in bfloat16, as many files have it, small steps are lost.

    Raises:
      ValueError: the trained length is not known.
    """
    config = ConfigDict(training_of(table, {}, "--checkpoint").to_dict())
    own = {name: table.model[name] for name in ("implementation", "scan", "remat")}
    config.model = ConfigDict({"kind": AS_INIT} | own)
    if table.get("finetune"):
        config.model.param_dtype = table.model.param_dtype
    config = ConfigDict(as_started(config, start).to_dict())
    trained = table.get("trained_length") or getattr(start.model, "length", None)
    if trained is None:
        raise ValueError(f"{start.path} does not say how long sequences in training were: set config.trained_length")
    config.data.length, config.data.retrieval = trained, ConfigDict(_NO_RETRIEVAL)
    config.steps, config.eval_tokens = 0, None
    config.eval_lengths = (min(table.measures.lengths.lengths),)
    return config.lock()


def kept_weights(row: Row, workdir: pathlib.Path, seeds: tuple[int, ...]) -> Weights:
    """The weights of the row with the same label in another study.

    Raises:
      ValueError: the workdir has no such row, or several, or the row lacks a seed.
    """
    named = re.compile(f"{re.escape(plain(row.base))}-[0-9a-f]{{12}}")
    found = [path for path in sorted(workdir.glob("*/*")) if named.fullmatch(path.name)]
    if len(found) != 1:
        raise ValueError(f"{workdir} has {len(found)} models of a row {row.base!r}: there must be one")
    run = load_run(found[0], task_of=decoding_task)
    if missing := sorted({*seeds} - {*run.seeds}):
        raise ValueError(f"{found[0]} has no seed {missing[0]}, but {run.seeds}")
    return Weights(run, row_hash(run.config), {}, found[0])


def plain(label: str) -> str:
    """Returns a label as the name of a folder; of a long one the beginning and a digest."""
    name = "".join(character if character.isalnum() or character in "-_." else "-" for character in label)
    if len(name.encode()) <= 200:  # a file system holds 255 bytes, and a hash follows
        return name
    return f"{name[:30]}-{hashlib.sha256(label.encode()).hexdigest()[:12]}"


def rate_of(config: ConfigDict) -> float | None:
    """The learning rate of a training; None if it is not one positive number."""
    rate = config.optimizer.learning_rate
    return float(rate) if isinstance(rate, int | float) and rate > 0 else None
